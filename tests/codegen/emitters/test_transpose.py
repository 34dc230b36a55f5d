"""Transpose kernels: the forms, partial tiles, side outputs, several heroes, epilogues."""

from __future__ import annotations

import re

import pytest
from emitting import emit, ptx_of, run, run_on_host

from hlo_run.records import replace
from hlo_run.target import preset

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
    run_on_host(f"f {{ p = {dtype}[40,50] parameter(0) ROOT t = {dtype}[50,40] transpose(p), dimensions={{1,0}} }}")


@pytest.mark.parametrize(("dtype", "rows", "vector"), [("bf16", 16, 2), ("s8", 32, 4)])
def test_narrow_types_take_vectors_where_there_is_work(dtype: str, rows: int, vector: int) -> None:
    emitted = emit(
        f"f {{ p = {dtype}[{rows},2097152] parameter(0) ROOT t = {dtype}[2097152,{rows}] transpose(p), dimensions={{1,0}} }}"
    )
    side = 32 * vector
    assert f"allocate_shared : tensor<{side}x{side + 1}x" in emitted.text
    assert f"j in [0, {vector - 1}]" in emitted.text


def test_vectors_compute_the_same() -> None:
    # On a GPU of one multiprocessor this work is enough for vectors. Tiles at the edges are partial.
    small = replace(preset("h100"), core_count=1)
    text = "f { p = bf16[2,18,2080] parameter(0) ROOT t = bf16[2,2080,18] transpose(p), dimensions={0,2,1} }"
    assert "tensor<1x64x65xbf16>" in run(text, target=small).text


# source, target, dimensions, tile, blocks
PACKED = {
    "10": ("bf16[40,50]", "bf16[50,40]", "1,0", "64x64xbf16", 1),
    "10, many tiles": ("f16[100,130]", "f16[130,100]", "1,0", "64x64xf16", 6),
    "10, cut vectors": ("s16[44,67]", "s16[67,44]", "1,0", "64x64xi16", 2),
    "021": ("s8[3,64,68]", "s8[3,68,64]", "0,2,1", "128x128xi8", 3),
    "210, whose middle fills columns": ("bf16[30,16,30]", "bf16[30,16,30]", "2,1,0", "64x64xbf16", 8),
    "a column of several middles, cut": ("u16[24,7,10]", "u16[10,7,24]", "2,1,0", "64x64xi16", 2),
    "others move": ("s16[2,4,64,10,6]", "s16[4,2,6,10,64]", "1,0,4,3,2", "64x64xi16", 8),
    "120": ("u8[5,44,48]", "u8[44,48,5]", "1,2,0", "", 0),
    "201": ("pred[44,6,8]", "pred[8,44,6]", "2,0,1", "", 0),
    "4 bits": ("s4[2,160,5,96]", "s4[2,96,5,160]", "0,3,2,1", "256x256xi4", 6),
    "2031": ("bf16[3,40,5,24]", "bf16[5,3,24,40]", "2,0,3,1", "64x64xbf16", 15),
}


@pytest.mark.parametrize("form", PACKED)
def test_whole_words_are_exchanged(form: str) -> None:
    source, target, permutation, tile, blocks = PACKED[form]
    emitted = run_on_host(
        f"f {{ p = {source} parameter(0) c = {source} copy(p) ROOT t = {target} transpose(c), dimensions={{{permutation}}} }}"
    )
    if tile:
        assert f"allocate_shared : tensor<{tile}>" in emitted.text
        assert emitted.kernel.launch.grid == (blocks, 1, 1)
    # Words across the edge of a tile are read element by element, since their other elements are never written.
    assert ("vector.transfer_read" in emitted.text) == (bool(tile) and form != "10, cut vectors")


@pytest.mark.parametrize("dtype", ["bf16", "s8", "u4"])
def test_packed_kernels_access_whole_words(dtype: str) -> None:
    ptx = ptx_of(f"f {{ p = {dtype}[256,256] parameter(0) ROOT t = {dtype}[256,256] transpose(p), dimensions={{1,0}} }}")
    words = {"bf16": r"(v2\.b16|b32)", "s8": r"(v4\.b8|b32)", "u4": "b32"}[dtype]
    for access in ("ld.global.nc", "st.global", "ld.shared", "st.shared"):
        found = re.findall(rf"{re.escape(access)}\S*", ptx)
        assert found
        assert all(re.search(words, each) for each in found), found


def test_packed_side_outputs_heroes_and_epilogues() -> None:
    emitted = run_on_host(
        """f {
          p = f16[6,40,44] parameter(0)
          q = s16[6,40,44] parameter(1)
          n = f16[6,40,44] negate(p)
          t = f16[6,44,40] transpose(n), dimensions={0,2,1}
          u = s16[6,44,40] transpose(q), dimensions={0,2,1}
          b = f16[264,40] bitcast(t)
          a = f16[264,40] abs(b)
          s = s16[240,44] bitcast(q)
          c = f16[6,40,44] convert(q)
          m = f16[6,44,40] convert(u)
          ROOT x = (f16[264,40], f16[6,44,40], s16[240,44], f16[6,40,44], s16[6,44,40]) tuple(a, m, s, c, u)
        }"""
    )
    assert emitted.text.count("xla_gpu.allocate_shared") == 2
    assert emitted.text.count("xla_gpu.sync_threads") == 1


def test_tiles_that_do_not_fit_leave_the_transposes_to_the_loop_emitter() -> None:
    operands = "".join(
        f"p{n} = f32[40,50] parameter({n}) t{n} = f32[50,40] transpose(p{n}), dimensions={{1,0}} " for n in range(12)
    )
    results = ", ".join(f"t{n}" for n in range(12))
    types = ", ".join(["f32[50,40]"] * 12)
    text = f"f {{ {operands} ROOT x = ({types}) tuple({results}) }}"
    assert emit(text).kernel.kind == "loop"
    assert emit(text.replace("f32", "f16")).kernel.kind == "loop"


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
    # `e` is read at two indices: one function with two calls, not two copies of the code.
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
    assert "@f__epilogue__a_c_u(" in emitted.text


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
