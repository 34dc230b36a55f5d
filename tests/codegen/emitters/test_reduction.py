"""Reduction kernels run on Host with all checks: forms, types, layouts, reducers, side outputs, epilogues, groups."""

from __future__ import annotations

import random

import pytest
from emitting import emit, run_on_host

ADD = "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }\n"


def reduction(source: str, target: str, dims: str, dtype: str = "f32", opcode: str = "add", init: str = "0") -> str:
    return f"""r {{ a = {dtype}[] parameter(0) b = {dtype}[] parameter(1) ROOT s = {dtype}[] {opcode}(a, b) }}
      f {{
        p = {dtype}{source} parameter(0)
        i = {dtype}[] constant({init})
        ROOT x = {dtype}{target} reduce(p, i), dimensions={{{dims}}}, to_apply=r
      }}"""


# source, target, dimensions, and the shared memory of the kernel
FORMS = {
    "row, one warp": ("[7,100]", "[7]", "1", ""),
    "row, warps": ("[9,1000]", "[9]", "1", "4x2x"),
    "row, long": ("[2,9001]", "[2]", "1", "1x18x"),
    "row of two parts": ("[3,5,700]", "[5]", "0,2", "4x2x"),
    "all": ("[13,77]", "[]", "0,1", "1x2x"),
    "row, column-major": ("[300,6]{0,1}", "[6]", "0", ""),
    "multi-row": ("[300,8]", "[300]", "1", ""),
    "multi-row of two parts": ("[3,50,16]", "[50]", "0,2", ""),
    "multi-row, a thread each": ("[40,2]", "[40]", "1", ""),
    "column": ("[67,70]", "[70]", "0", "32x65x"),
    "column, odd": ("[40,33]", "[33]", "0", "32x33x"),
    "columns of batches": ("[3,50,130]", "[3,130]", "1", "32x65x"),
    "small column": ("[5,72,8]", "[5,8]", "1", "32x9x"),
    "small column of 32": ("[3,72,32]", "[3,32]", "1", "8x33x"),
    "small column of 2": ("[2,257,2]", "[2,2]", "1", "32x3x"),
    "column, other layout": ("[70,3,50]{0,2,1}", "[70,3]", "2", "32x65x"),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    source, target, dims, tile = FORMS[form]
    emitted = run_on_host(reduction(source, target, dims))
    assert emitted.kernel.kind == "reduction"
    assert emitted.text.count("xla_gpu.allocate_shared") == bool(tile)
    if tile:
        assert f"xla_gpu.allocate_shared : tensor<{tile}f32>" in emitted.text


@pytest.mark.parametrize(
    ("dtype", "opcode", "init"),
    [
        ("f64", "add", "0"),
        ("f16", "maximum", "-inf"),
        ("bf16", "minimum", "inf"),
        ("s8", "add", "0"),
        ("u16", "maximum", "0"),
        ("s64", "multiply", "1"),
        ("u32", "xor", "0"),
        ("pred", "and", "true"),
        ("pred", "or", "false"),
    ],
)
@pytest.mark.parametrize(
    ("source", "target", "dims"), [("[6,130]", "[6]", "1"), ("[40,66]", "[66]", "0"), ("[2,128,4]", "[2,4]", "1")]
)
def test_types_and_reducers(dtype: str, opcode: str, init: str, source: str, target: str, dims: str) -> None:
    assert run_on_host(reduction(source, target, dims, dtype, opcode, init)).kernel.kind == "reduction"


def test_random_shapes() -> None:
    rng = random.Random(20)
    for _ in range(12):
        rank = rng.randint(1, 4)
        dims = [rng.choice((1, 2, 3, 8, 17, 32, 33, 64, 100, 130)) for _ in range(rank)]
        while len(dims) > 1 and _product(dims) > 40000:
            dims.pop()
        reduced = sorted(rng.sample(range(len(dims)), rng.randint(1, len(dims))))
        order = rng.sample(range(len(dims)), len(dims))
        kept = [size for number, size in enumerate(dims) if number not in reduced]
        source = f"[{','.join(map(str, dims))}]{{{','.join(map(str, order))}}}"
        run_on_host(reduction(source, f"[{','.join(map(str, kept))}]", ",".join(map(str, reduced))))


def _product(sizes: list[int]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product


def test_epilogue_and_side_output() -> None:
    emitted = run_on_host(
        ADD
        + """f {
          p = f32[66,200] parameter(0)
          i = f32[] constant(0)
          e = f32[66,200] exponential(p)
          x = f32[66] reduce(e, i), dimensions={1}, to_apply=add
          n = f32[66] negate(x)
          b = f32[6,11] bitcast(n)
          ROOT t = (f32[6,11], f32[66,200]) tuple(b, e)
        }"""
    )
    assert emitted.kernel.kind == "reduction"
    assert "__epilogue__b" in emitted.text


@pytest.mark.parametrize(
    ("first", "second"),
    [
        # source, target, dimensions
        (("[2,6,16]", "[2,6]", "2"), ("[12,16]", "[12]", "1")),
        (("[12,160]", "[12]", "1"), ("[3,4,160]", "[3,4]", "2")),
        (("[2,6,16]", "[2,6]", "2"), ("[3,16,4]{1,2,0}", "[3,4]", "1")),
        (("[3,50,130]", "[3,130]", "1"), ("[3,5,10,130]", "[3,130]", "1,2")),
        (("[3,50,130]", "[3,130]", "1"), ("[3,50,13,10]", "[3,13,10]", "1")),
    ],
)
def test_reductions_of_other_rank_or_layout(first: tuple[str, ...], second: tuple[str, ...]) -> None:
    (source, target, dims), (other, other_target, other_dims) = first, second
    emitted = run_on_host(f"""{ADD}f {{
        p = f32{source} parameter(0)
        zero = f32[] constant(0)
        a = f32{target} reduce(p, zero), dimensions={{{dims}}}, to_apply=add
        q = f32{other} bitcast(p)
        b = f32{other_target} reduce(q, zero), dimensions={{{other_dims}}}, to_apply=add
        n = f32{other_target} negate(b)
        ROOT t = (f32{target}, f32{other_target}, f32{other_target}) tuple(a, b, n)
      }}""")
    assert emitted.kernel.kind == "reduction"


def test_groups_have_blocks_of_their_own() -> None:
    emitted = run_on_host(
        ADD
        + """f {
          p = f32[40,300] parameter(0)
          q = f32[40,300] parameter(1)
          i = f32[] constant(0)
          e = f32[40,300] negate(p)
          x = f32[40] reduce(e, i), dimensions={1}, to_apply=add
          y = f32[40] reduce(q, i), dimensions={1}, to_apply=add
          z = f32[40] reduce(p, i), dimensions={1}, to_apply=add
          w = f32[40] sqrt(y)
          ROOT t = (f32[40], f32[40], f32[40,300], f32[40]) tuple(x, w, e, z)
        }"""
    )
    assert emitted.kernel.launch.grid[2] == 2
    assert "scf.index_switch" in emitted.text


@pytest.mark.parametrize(
    ("source", "target", "dims"), [("[5,3000]", "[5]", "1"), ("[70,96]", "[96]", "0"), ("[300,4]", "[300]", "1")]
)
def test_variadic(source: str, target: str, dims: str) -> None:
    emitted = run_on_host(
        f"""argmax {{
          v = f32[] parameter(0) i = s32[] parameter(1) w = f32[] parameter(2) j = s32[] parameter(3)
          above = pred[] compare(w, v), direction=GT
          x = f32[] select(above, w, v)
          y = s32[] select(above, j, i)
          ROOT t = (f32[], s32[]) tuple(x, y)
        }}
        f {{
          p = f32{source} parameter(0)
          n = s32{source} iota(), iota_dimension={dims}
          lowest = f32[] constant(-inf)
          zero = s32[] constant(0)
          ROOT r = (f32{target}, s32{target}) reduce(p, n, lowest, zero), dimensions={{{dims}}}, to_apply=argmax
        }}"""
    )
    assert emitted.kernel.kind == "reduction"


@pytest.mark.parametrize(
    ("opcode", "init", "kind"),
    [
        ("add", "1", "loop"),
        ("add", "-inf", "reduction"),
        ("multiply", "0.5", "loop"),
        ("multiply", "0", "reduction"),
        ("maximum", "0.25", "reduction"),
    ],
)
def test_an_init_value_that_counts_counts_once(opcode: str, init: str, kind: str) -> None:
    assert run_on_host(reduction("[6,130]", "[6]", "1", opcode=opcode, init=init)).kernel.kind == kind


@pytest.mark.parametrize(
    ("source", "target", "dims"),
    [
        ("[31,31]", "[31]", "0"),
        ("[4,20000]", "[4]", "1"),
        ("[9,48,2]", "[9,2]", "1"),
        ("[64,30,64]", "[30]", "0,2"),
        ("[4,20]", "[4]", "1"),
    ],
)
def test_what_the_loop_emitter_takes(source: str, target: str, dims: str) -> None:
    emitted = emit(reduction(source, target, dims))
    assert emitted.kernel.kind == "loop"


def test_additions_of_a_reducer_ignore_the_signs_of_zeros() -> None:
    text = emit(reduction("[6,130]", "[6]", "1")).text
    assert "fastmath<nsz>" in text[text.index("@r") :]
    # The reducer of a loop is not changed.
    assert "nsz" not in emit(reduction("[31,31]", "[31]", "0")).text
