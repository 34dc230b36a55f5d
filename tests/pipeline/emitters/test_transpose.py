"""Transpose kernels: the forms, partial tiles, side outputs, several heroes, epilogues."""

from __future__ import annotations

import pytest
from emitting import emit, run

FORMS = {
    "10": ("f32[40,50]", "f32[50,40]", "1,0"),
    "10 partial": ("f32[33,70]", "f32[70,33]", "1,0"),
    "021": ("f32[3,40,50]", "f32[3,50,40]", "0,2,1"),
    "210": ("f32[20,7,35]", "f32[35,7,20]", "2,1,0"),
    "102": ("f32[40,36,2]", "f32[36,40,2]", "1,0,2"),
    "201 is 10": ("f32[8,5,20]", "f32[20,8,5]", "2,0,1"),
    "0213": ("s8[2,30,40,3]", "s8[2,40,30,3]", "0,2,1,3"),
    "with unit dims": ("f32[1,40,1,50]", "f32[50,1,1,40]", "3,0,2,1"),
    "rank 4": ("f32[18,3,5,20]", "f32[20,5,3,18]", "3,2,1,0"),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    source, target, permutation = FORMS[form]
    emitted = run(
        f"f {{ p = {source} parameter(0) n = {source} negate(p) t = {target} transpose(n), dimensions={{{permutation}}} "
        f"ROOT r = {target} add(t, t) }}"
    )
    assert emitted.kernel.kind == "transpose"
    assert emitted.text.count("xla_gpu.sync_threads") == 1


@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16", "s8", "u16", "pred", "s64"])
def test_types(dtype: str) -> None:
    run(f"f {{ p = {dtype}[40,50] parameter(0) ROOT t = {dtype}[50,40] transpose(p), dimensions={{1,0}} }}")


@pytest.mark.parametrize(("dtype", "vector"), [("bf16", 2), ("s8", 4)])
def test_narrow_types_take_vectors_where_there_is_work(dtype: str, vector: int) -> None:
    emitted = emit(f"f {{ p = {dtype}[8192,8192] parameter(0) ROOT t = {dtype}[8192,8192] transpose(p), dimensions={{1,0}} }}")
    side = 32 * vector
    assert f"allocate_shared : tensor<{side}x{side + 1}x" in emitted.text
    assert f"j in [0, {vector - 1}]" in emitted.text


def test_vectors_compute_the_same() -> None:
    # A small card has the work that vectors need already here; tiles are cut at the edges.
    run("f { p = s8[2,1096,1160] parameter(0) ROOT t = s8[2,1160,1096] transpose(p), dimensions={0,2,1} }", target="v100")


def test_epilogue_with_operands_of_its_own() -> None:
    emitted = run(
        """f {
          p = f32[20,8,35] parameter(0)
          q = f32[35] parameter(1)
          e = f32[35] exponential(q)
          b = f32[35,8,20] broadcast(e), dimensions={0}
          v = f32[35,8,20] reverse(b), dimensions={0}
          t = f32[35,8,20] transpose(p), dimensions={2,1,0}
          l = f32[35,8,20] exponential(t)
          s = f32[35,8,20] add(l, b)
          ROOT r = f32[35,8,20] multiply(s, v)
        }"""
    )
    assert emitted.kernel.kind == "transpose"
    # `e` is read at two indices: a function, called twice, not code twice.
    assert emitted.text.count("math.exp") == 2


def test_two_heroes_of_different_shape_and_a_shared_epilogue() -> None:
    emitted = run(
        """f {
          p = f32[4,30,36] parameter(0)
          q = f32[4,30,6,6] bitcast(p)
          t = f32[4,36,30] transpose(p), dimensions={0,2,1}
          u = f32[4,6,6,30] transpose(q), dimensions={0,2,3,1}
          a = f32[4,36,30] abs(t)
          b = f32[4,1080] bitcast(u)
          c = f32[4,1080] negate(b)
          ROOT x = (f32[4,36,30], f32[4,1080], f32[4,6,6,30]) tuple(a, c, u)
        }"""
    )
    assert emitted.kernel.kind == "transpose"
    assert emitted.text.count("xla_gpu.allocate_shared") == 2
    assert "@f__epilogue__a_c(" in emitted.text


def test_one_hero_for_two_roots_that_read_it_differently() -> None:
    run(
        """f {
          p = f32[40,36] parameter(0)
          t = f32[36,40] transpose(p), dimensions={1,0}
          l = f32[36,40] exponential(t)
          b = f32[1440] bitcast(l)
          n = f32[1440] negate(b)
          ROOT x = (f32[36,40], f32[1440]) tuple(l, n)
        }"""
    )


def test_side_outputs_of_other_shapes() -> None:
    emitted = run(
        """f {
          p = f32[40,36] parameter(0)
          e = f32[40,36] exponential(p)
          t = f32[36,40] transpose(e), dimensions={1,0}
          b = f32[1440] bitcast(e)
          n = f32[1440] negate(b)
          s = s32[40,36] convert(e)
          ROOT x = (f32[1440], f32[36,40], s32[40,36], f32[40,36]) tuple(n, t, s, p)
        }"""
    )
    assert emitted.kernel.kind == "transpose"


def test_transpose_that_is_used_otherwise_is_a_loop() -> None:
    emitted = run(
        """f {
          p = f32[40,36] parameter(0)
          t = f32[36,40] transpose(p), dimensions={1,0}
          s = f32[36,20] slice(t), slice={[0:36], [0:20]}
          ROOT n = f32[36,20] negate(s)
        }"""
    )
    assert emitted.kernel.kind == "loop"
