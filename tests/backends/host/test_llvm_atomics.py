"""Atomics as LLVM spells them for every card, native or as compare-and-swap loops: both engines, against one after the other."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from host_kernels import launch_apart
from numpy.typing import NDArray

from hlo_run.backends.host.emulator.program import compile_program
from hlo_run.backends.host.ptx.parser import parse_module
from hlo_run.codegen.llvm.emit_ptx import compile_llvm
from hlo_run.target import preset

Array = NDArray[Any]
THREADS, PLACES = 96, 8
HEAD = """target datalayout = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
target triple = "nvptx64-nvidia-cuda"
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare void @llvm.nvvm.barrier0()
"""
NUMPY: dict[str, Any] = {
    **{f"i{bits}": np.dtype(f"u{bits // 8}") for bits in (8, 16, 32, 64)},
    "half": np.float16,
    "bfloat": ml_dtypes.bfloat16,
    "float": np.float32,
    "double": np.float64,
}
# operation -> (old, operand) -> new, on values of the type; integers unsigned unless the name says otherwise.
INTEGERS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda old, x: old + x,
    "sub": lambda old, x: old - x,
    "and": lambda old, x: old & x,
    "nand": lambda old, x: ~(old & x),
    "or": lambda old, x: old | x,
    "xor": lambda old, x: old ^ x,
    "xchg": lambda old, x: x,
    "umax": np.maximum,
    "umin": np.minimum,
    "max": lambda old, x: x if _signed(x) > _signed(old) else old,
    "min": lambda old, x: x if _signed(x) < _signed(old) else old,
    "uinc_wrap": lambda old, x: old.dtype.type(0) if old >= x else old + old.dtype.type(1),
    "udec_wrap": lambda old, x: x if old == 0 or old > x else old - old.dtype.type(1),
}
FLOATS: dict[str, Callable[[Any, Any], Any]] = {
    "fadd": lambda old, x: old + x,
    "fsub": lambda old, x: old - x,
    "fmax": np.fmax,
    "fmin": np.fmin,
    "xchg": lambda old, x: x,
}


def _signed(value: Any) -> int:
    return int(value.view(f"i{value.dtype.itemsize}"))


def _name(operation: str, kind: str, space: int, wants_old: bool) -> str:
    return f"{operation}_{kind}_{'shared' if space else 'global'}_{'old' if wants_old else 'alone'}"


def _kernel(operation: str, kind: str, space: int, wants_old: bool) -> str:
    """Thread i applies the operation with its own value to place i mod PLACES; shared places are copied there and back."""
    name = _name(operation, kind, space, wants_old)
    store = f"  %to = getelementptr {kind}, ptr %out, i32 %i\n  store {kind} %r, ptr %to" if wants_old else ""
    if operation == "cmpxchg":
        # The first thread of a place whose expectation holds, wins.
        atomic = f"%pair = cmpxchg ptr{_space(space)} %at, {kind} %b, {kind} %a monotonic monotonic"
        atomic += f"\n  %r = extractvalue {{{kind}, i1}} %pair, 0"
    else:
        atomic = f"%r = atomicrmw {operation} ptr{_space(space)} %at, {kind} %a monotonic"
    where = "%place" if not space else "@tile_" + name
    copied = [f"  {line}" for line in _copies(kind, name)] if space else ["", ""]
    tile = f"@tile_{name} = private addrspace(3) global [{PLACES} x {kind}] undef, align 16\n" if space else ""
    return f"""{tile}define ptx_kernel void @{name}(ptr %value, ptr %expected, ptr %place, ptr %out) {{
  %i = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %k = urem i32 %i, {PLACES}
  %va = getelementptr {kind}, ptr %value, i32 %i
  %a = load {kind}, ptr %va
  %vb = getelementptr {kind}, ptr %expected, i32 %i
  %b = load {kind}, ptr %vb
  %first = icmp ult i32 %i, {PLACES}
{copied[0]}
  %at = getelementptr {kind}, ptr{_space(space)} {where}, i32 %k
  {atomic}
{store}
{copied[1]}
  ret void
}}
"""


def _space(space: int) -> str:
    return f" addrspace({space})" if space else ""


def _copies(kind: str, name: str) -> tuple[str, str]:
    tile = f"getelementptr {kind}, ptr addrspace(3) @tile_{name}, i32 %i"
    place = f"getelementptr {kind}, ptr %place, i32 %i"
    fill = f"""br i1 %first, label %in, label %filled
in:
  %from = {place}
  %old = load {kind}, ptr %from
  %into = {tile}
  store {kind} %old, ptr addrspace(3) %into
  br label %filled
filled:
  call void @llvm.nvvm.barrier0()"""
    drain = f"""call void @llvm.nvvm.barrier0()
  br i1 %first, label %out1, label %drained
out1:
  %from2 = {tile}
  %new = load {kind}, ptr addrspace(3) %from2
  %back = {place}
  store {kind} %new, ptr %back
  br label %drained
drained:"""
    return fill, drain


_SPACES = ((0, True), (3, False), (0, False), (3, True))  # (address space, is the old value wanted)
_PAIRS = [
    *((op, f"i{bits}") for op in (*INTEGERS, "cmpxchg") for bits in (8, 16, 32, 64)),
    *((op, kind) for op in FLOATS for kind in ("half", "bfloat", "float", "double")),
]
CASES = [(*pair, *_SPACES[(n + n // 4) % 4]) for n, pair in enumerate(_PAIRS)]


def _cases(target: str) -> Sequence[tuple[str, str, int, bool]]:
    """Some of them for other GPUs, which need more or fewer loops."""
    return CASES if target == "h100" else CASES[{"v100": 0, "a100": 1, "b200": 2}[target] :: 5]


@functools.cache
def ptx_of(target: str) -> str:
    text = HEAD + "".join(_kernel(*case) for case in _cases(target))
    return compile_llvm(text, preset(target)).ptx


def _values(kind: str, count: int, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    dtype = np.dtype(NUMPY[kind])
    if kind[0] == "i":
        return rng.integers(0, np.iinfo(dtype).max, count, dtype=dtype, endpoint=True)
    return rng.integers(-2, 3, count).astype(dtype)  # all sums are exact


def _new(operation: str, old: Any, value: Any, expected: Any) -> Any:
    if operation == "cmpxchg":
        return value if old == expected else old
    with np.errstate(all="ignore"):
        return (INTEGERS if value.dtype.kind == "u" else FLOATS)[operation](old, value).astype(value.dtype)


def _check(operation: str, inputs: list[Array], outputs: list[Array], wants_old: bool) -> None:
    """Compare an engine's results with some order of the threads."""
    values, expected, before, _ = inputs
    after, old = outputs[2:]
    for place in range(PLACES):
        threads = range(place, THREADS, PLACES)
        if wants_old:
            # Each thread read the first value or that of another thread. The last value was read by no thread.
            new = [_new(operation, old[i], values[i], expected[i]) for i in threads]
            assert _bits([before[place], *new]) == _bits([*(old[i] for i in threads), after[place]])
        elif operation not in ("xchg", "nand", "uinc_wrap", "udec_wrap", "cmpxchg"):
            in_order = functools.reduce(lambda x, i: _new(operation, x, values[i], None), threads, before[place])
            assert _bits([in_order]) == _bits([after[place]])
        else:
            assert operation != "xchg" or after[place] in values[list(threads)]
    assert outputs[0].tobytes() == values.tobytes()


def _bits(values: Sequence[Any]) -> Counter[bytes]:
    line: Array = np.array(values)
    return Counter(value.tobytes() for value in line + line.dtype.type(0))  # ±0 are one


@pytest.mark.parametrize("target", ["v100", "a100", "h100", "b200"])
def test_atomics(target: str) -> None:
    ptx = ptx_of(target)
    module = parse_module(ptx)
    for operation, kind, space, wants_old in _cases(target):
        name = _name(operation, kind, space, wants_old)
        values, places = _values(kind, THREADS, 1), _values(kind, PLACES, 2)
        expected = values.copy()
        if operation == "cmpxchg":  # some threads expect what was there at first, some what a thread before them leaves
            expected[:PLACES], expected[PLACES:] = places, values[:-PLACES]
            expected[::3] = places[0]
        buffers = [values, expected, places, np.zeros(THREADS, NUMPY[kind])]
        for engine, outputs in zip(
            ("emulator", "jit"), launch_apart(compile_program(module, name), ptx, buffers, 1, THREADS), strict=True
        ):
            try:
                _check(operation, buffers, outputs, wants_old)
            except AssertionError as error:
                raise AssertionError(f"{name} on {engine}") from error
