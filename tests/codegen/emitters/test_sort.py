"""Sort kernels: the emitted IR, and results of all kinds of sorts on both engines of Host against the reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import hlo_run
from hlo_run.artifact import Executable, KernelThunk
from hlo_run.artifact.thunks import every_thunk
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import compile_module
from hlo_run.platforms import open_backend
from hlo_run.records import replace
from hlo_run.reference.arguments.fake_arguments import make_fake_arguments
from hlo_run.reference.compare.agreement import disagreements
from hlo_run.reference.evaluate.evaluate import evaluate
from hlo_run.target import preset

LESS = "ROOT r = pred[] compare(a0, b0), direction=LT"
# A comparator whose root is not a comparison of the two elements.
OTHER = """s = {0}[] add(a0, a0)
  t = {0}[] add(b0, b0)
  more = pred[] compare(s, t), direction=GT
  ROOT r = pred[] and(more, more)"""


def module_of(dims: str, dim: int, types: Sequence[str], comparator: str = LESS, attributes: str = ", is_stable=true") -> str:
    pairs = "\n".join(f"  a{n} = {t}[] parameter({2 * n})\n  b{n} = {t}[] parameter({2 * n + 1})" for n, t in enumerate(types))
    parameters = "\n".join(f"  x{n} = {t}[{dims}] parameter({n})" for n, t in enumerate(types))
    shape = ", ".join(f"{t}[{dims}]" for t in types)
    return f"""HloModule m
less {{
{pairs}
  {comparator.format(types[0])} }}
ENTRY e {{
{parameters}
  ROOT s = {f"({shape})" if len(types) > 1 else shape} sort({", ".join(f"x{n}" for n in range(len(types)))}), \
dimensions={{{dim}}}, to_apply=less{attributes} }}
"""


def compiled(text: str, options: Options) -> Executable:
    return compile_module(PassContext(preset("h100"), options), hlo_run.parse(text))


def check(text: str, engine: str, check_kernels: str = "") -> Executable:
    """Compile, run, and compare the results with the reference."""
    options = Options(host_engine=engine, host_check=check_kernels)
    module = hlo_run.parse(text)
    values = make_fake_arguments(module, 5)
    executable = compiled(text, options)
    found = open_backend("Host", options).run(executable, values)
    for index, comparison in disagreements(evaluate(module, values), found, module.entry.root.shape):
        raise AssertionError(f"result {list(index)}: {comparison.report()}")
    return executable


@pytest.mark.parametrize("types", [("pred",), ("s4", "s32"), ("u2",), ("u64", "bf16"), ("f8e4m3fn", "f8e5m2"), ("f4e2m1fn",)])
def test_element_types(types: tuple[str, ...]) -> None:
    check(module_of("3,37", 1, types), "emulator", check_kernels="all")


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 64, 65])
def test_lengths(length: int) -> None:
    check(module_of(f"2,{length},3", 1, ("f32", "s16")), "emulator", check_kernels="all")


@pytest.mark.parametrize("types", [("s32",), ("f16", "c64"), ("f64",)])
def test_any_comparator(types: tuple[str, ...]) -> None:
    check(module_of("45,3", 0, types, OTHER), "jit")


@pytest.mark.parametrize("engine", ["emulator", "jit"])
def test_rows_of_several_tiles(engine: str) -> None:
    executable = check(module_of("2,9000", 1, ("s32",), OTHER, attributes=""), engine)
    names = [thunk.kernel for thunk in every_thunk(executable.thunks) if isinstance(thunk, KernelThunk)]
    tile_kernel = names[0]
    assert names == [tile_kernel, *(f"{tile_kernel}__{number}" for number in (1, 2, 3, 4, 2))], (
        "the second merge of tiles is the first one's kernel"
    )
    assert [kernel.name for kernel in executable.kernels] == sorted(set(names))
    tile, pairs = executable.kernels[0], executable.kernels[1]
    assert (tile.grid, tile.block, tile.shared_bytes) == ((6, 1, 1), (1024, 1, 1), 16384)
    assert (pairs.grid, pairs.block, pairs.shared_bytes) == ((32, 1, 1), (128, 1, 1), 0)


def test_pairs_alone() -> None:
    """No tile fits into shared memory."""
    target = replace(preset("h100"), shared_memory_per_block_bytes=40)
    module = hlo_run.parse(module_of("3,11", 1, ("f32", "s64"), attributes=""))
    values = make_fake_arguments(module, 5)
    options = Options(host_engine="emulator", host_check="all")
    executable = compile_module(PassContext(target, options), module.clone())
    assert sum(isinstance(thunk, KernelThunk) for thunk in every_thunk(executable.thunks)) == 10
    found = open_backend("Host", options).run(executable, values)
    assert not disagreements(evaluate(module, values), found, module.entry.root.shape)


def test_a_sort_may_stand_where_its_operand_does() -> None:
    text = """HloModule m
less { a = s32[] parameter(0)
  b = s32[] parameter(1)
  ROOT r = pred[] compare(a, b), direction=LT }
ENTRY e { x = s32[50] parameter(0)
  n = s32[50] negate(x)
  s = s32[50] sort(n), dimensions={0}, to_apply=less
  ROOT o = s32[50] not(s) }
"""
    executable = check(text, "emulator", check_kernels="all")
    sort = next(
        thunk for thunk in every_thunk(executable.thunks) if isinstance(thunk, KernelThunk) and thunk.kernel.startswith("s")
    )
    assert len({argument.slice for argument in sort.arguments}) == 1
    assert all(argument.written for argument in sort.arguments)


def test_one_operand_twice() -> None:
    text = """HloModule m
less { a = s32[] parameter(0)
  b = s32[] parameter(1)
  c = s32[] parameter(2)
  d = s32[] parameter(3)
  ROOT r = pred[] compare(a, b), direction=LT }
ENTRY e { x = s32[50] parameter(0)
  n = s32[50] negate(x)
  ROOT s = (s32[50], s32[50]) sort(n, n), dimensions={0}, to_apply=less }
"""
    check(text, "jit")


def test_a_fusion_with_its_iota() -> None:
    """The kernels have the name of the sort, as in XLA; no kernel writes the iota."""
    text = """HloModule m
less { a = f32[] parameter(0)
  b = f32[] parameter(1)
  i = s32[] parameter(2)
  j = s32[] parameter(3)
  one = pred[] compare(a, b), direction=LT
  other = pred[] compare(b, a), direction=LT
  same = pred[] compare(one, other), direction=EQ
  first = pred[] compare(i, j), direction=LT
  ROOT r = pred[] select(same, first, one) }
sorted { p = f32[4,50] parameter(0)
  i = s32[4,50] iota(), iota_dimension=1
  ROOT the.sort = (f32[4,50], s32[4,50]) sort(p, i), dimensions={1}, to_apply=less }
ENTRY e { x = f32[4,50] parameter(0)
  ROOT f = (f32[4,50], s32[4,50]) fusion(x), kind=kCustom, calls=sorted }
"""
    executable = check(text, "emulator", check_kernels="all")
    assert [kernel.name for kernel in executable.kernels] == ["the_sort"]


def test_nans_and_zeros_in_total_order() -> None:
    """The comparator is XLA's for numpy's order: NaNs last, -0 like 0."""
    total = "ROOT r = pred[] compare(a0, b0), direction=LT, type=TOTALORDER"
    module = hlo_run.parse(module_of("8", 0, ("f32",), total))
    values = np.array([np.nan, 1, -0.0, 0.0, -np.inf, -np.nan, np.inf, -1], np.float32)
    options = Options(host_engine="emulator")
    found = open_backend("Host", options).run(compile_module(PassContext(preset("h100"), options), module), [values])
    expected = np.array([-np.nan, -np.inf, -1, -0.0, 0.0, 1, np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(np.asarray(found).view(np.uint32), expected.view(np.uint32))
