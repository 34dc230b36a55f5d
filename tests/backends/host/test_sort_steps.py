"""Sorts that numpy does in the place of their kernels: only where the result is the same, and never for a wrong kernel."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest

import hlo_run
from hlo_run.analysis.sort_keys import sort_keys
from hlo_run.artifact import Executable, KernelThunk
from hlo_run.backends.host.backend import HostBackend
from hlo_run.backends.host.control_steps import every_step
from hlo_run.backends.host.sort_steps import SortStep
from hlo_run.backends.host.steps import Step
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import compile_module
from hlo_run.records import replace
from hlo_run.target import preset

NUMPY_ORDER = """n{0} = pred[] compare({0}, {0}), direction=NE
  nan{0} = f32[] constant(nan)
  zero{0} = f32[] constant(0)
  e{0} = pred[] compare({0}, zero{0}), direction=EQ
  s{0} = f32[] select(e{0}, zero{0}, {0})
  k{0} = f32[] select(n{0}, nan{0}, s{0})"""
LESS = {
    "plain": "ROOT r = pred[] compare(a, b), direction=LT",
    "turned": "ROOT r = pred[] compare(b, a), direction=GT",
    "falling": "ROOT r = pred[] compare(a, b), direction=GT",
    "numpy": NUMPY_ORDER.format("a")
    + "\n  "
    + NUMPY_ORDER.format("b")
    + "\n  ROOT r = pred[] compare(ka, kb), direction=LT, type=TOTALORDER",
    "total": "ROOT r = pred[] compare(a, b), direction=GT, type=TOTALORDER",
    "two": """l = pred[] compare(a, b), direction=LT
  e = pred[] compare(a, b), direction=EQ
  m = pred[] compare(c, d), direction=GT
  n = pred[] and(e, m)
  ROOT r = pred[] or(l, n)""",
}


def text_of(less: str, dtype: str, dims: str = "3,700", dim: int = 1, attributes: str = "") -> str:
    return f"""HloModule m
less {{ a = {dtype}[] parameter(0)
  b = {dtype}[] parameter(1)
  c = s32[] parameter(2)
  d = s32[] parameter(3)
  {LESS[less]} }}
ENTRY e {{ x = {dtype}[{dims}] parameter(0)
  y = s32[{dims}] parameter(1)
  ROOT s = ({dtype}[{dims}], s32[{dims}]) sort(x, y), dimensions={{{dim}}}, to_apply=less{attributes} }}
"""


@cache
def compiled(text: str) -> Executable:
    return compile_module(PassContext(preset("h100"), Options(compile_processes=1)), hlo_run.parse(text))


def run(backend: HostBackend, executable: Executable, values: list[Any]) -> list[bytes]:
    result = backend.run(executable, values)
    assert isinstance(result, tuple)
    return [np.asarray(part).tobytes() for part in result]


def step_of(backend: HostBackend) -> SortStep:
    prepared: Any = vars(backend)["_prepared"]
    found = every_step(cast("list[Step]", vars(prepared)["_steps"]))
    (step,) = (step for step in found if isinstance(step, SortStep))
    return step


def arguments(dtype: str, dims: tuple[int, ...], seed: int, most: int = 1 << 20) -> list[Any]:
    rng = np.random.default_rng(seed)
    if dtype in ("f32", "bf16"):
        keys = rng.standard_normal(dims).astype(np.float32)
        special = rng.choice([np.nan, -np.nan, 0.0, -0.0, np.inf, -np.inf, 1e-42], dims)
        keys = np.where(rng.random(dims) < 0.1, special, keys).astype(np.float32)
        keys = np.nan_to_num(keys).astype(ml_dtypes.bfloat16) if dtype == "bf16" else keys
    else:
        keys = rng.integers(-most, most, dims).astype(np.int32)
    return [keys, rng.permutation(int(np.prod(dims))).astype(np.int32).reshape(dims)]


@pytest.mark.parametrize(
    ("less", "dtype", "dims", "dim", "attributes"),
    [
        ("plain", "s32", (3, 700), 1, ", is_stable=true"),
        ("turned", "s32", (700, 3), 0, ", is_stable=true"),
        ("falling", "s32", (2, 2100), 1, ", is_stable=true"),
        ("numpy", "f32", (3, 700), 1, ", is_stable=true"),
        ("total", "f32", (2, 3, 400), 2, ", is_stable=true"),
        ("total", "bf16", (2, 700), 1, ", is_stable=true"),
        ("two", "s32", (1500,), 0, ""),
    ],
)
def test_numpy_sorts_from_the_second_run_on(less: str, dtype: str, dims: tuple[int, ...], dim: int, attributes: str) -> None:
    executable = compiled(text_of(less, dtype, ",".join(map(str, dims)), dim, attributes))
    native, emulator = HostBackend(engine="jit"), HostBackend(engine="emulator")
    for seed in range(2):
        values = arguments(dtype, dims, seed, most=50)  # many keys are equal
        assert run(native, executable, values) == run(emulator, executable, values)
        assert step_of(native).is_replaced == (seed > 0)


def test_kernels_sort_what_has_no_order() -> None:
    """NaNs in the partial order are neither before nor behind anything."""
    executable = compiled(text_of("plain", "f32"))
    native, emulator = HostBackend(engine="jit"), HostBackend(engine="emulator")
    rng = np.random.default_rng(0)
    numbers = rng.permutation(2100).astype(np.float32).reshape(3, 700)
    places = np.arange(2100, dtype=np.int32).reshape(3, 700)
    with_nan = numbers.copy()
    with_nan[1, 5] = np.nan
    for keys, is_replaced in ((numbers, False), (-numbers, True), (with_nan, False), (numbers, True)):
        assert run(native, executable, [keys, places]) == run(emulator, executable, [keys, places])
        assert step_of(native).is_replaced == is_replaced


def test_kernels_sort_where_equal_keys_have_different_values() -> None:
    executable = compiled(text_of("plain", "s32"))
    native, emulator = HostBackend(engine="jit"), HostBackend(engine="emulator")
    keys = np.random.default_rng(1).permutation(2100).astype(np.int32).reshape(3, 700)
    alike = keys // 2
    for keys_now, values, is_replaced in ((keys, keys, False), (alike, keys, False), (alike, alike, True)):
        assert run(native, executable, [keys_now, values]) == run(emulator, executable, [keys_now, values])
        assert step_of(native).is_replaced == is_replaced


def test_a_wrong_kernel_stays_wrong() -> None:
    """Host returns the kernel's own result, in all runs."""
    right, wrong = compiled(text_of("plain", "s32")), compiled(text_of("falling", "s32"))
    launches = [thunk for thunk in right.thunks if isinstance(thunk, KernelThunk)]
    assert launches[0].sort is not None
    place = next(n for n, thunk in enumerate(wrong.thunks) if isinstance(thunk, KernelThunk))
    first = replace(wrong.thunks[place], sort=launches[0].sort)
    mixed = replace(wrong, thunks=(*wrong.thunks[:place], first, *wrong.thunks[place + 1 :]))
    native, emulator = HostBackend(engine="jit"), HostBackend(engine="emulator")
    for seed in range(2):
        values = arguments("s32", (3, 700), seed)
        assert run(native, mixed, values) == run(emulator, wrong, values) != run(emulator, right, values)
        assert not step_of(native).is_replaced


@pytest.mark.parametrize(
    "comparator",
    [
        "ROOT r = pred[] compare(a, b), direction=LE",
        "ROOT r = pred[] compare(a, c), direction=LT",
        "n = s32[] add(a, c)\n  ROOT r = pred[] compare(n, b), direction=LT",
        "n = s32[] negate(b)\n  ROOT r = pred[] compare(a, n), direction=LT",
        "l = pred[] compare(a, b), direction=LT\n  e = pred[] compare(c, d), direction=EQ\n  "
        "m = pred[] compare(c, d), direction=LT\n  n = pred[] and(e, m)\n  ROOT r = pred[] or(l, n)",
    ],
)
def test_comparators_that_need_not_be_an_order_have_no_keys(comparator: str) -> None:
    parameters = "\n".join(f"  {name} = s32[] parameter({number})" for number, name in enumerate("abcd"))
    module = hlo_run.parse(f"HloModule m\nENTRY less {{\n{parameters}\n  {comparator} }}\n")
    assert sort_keys(module.entry) is None
