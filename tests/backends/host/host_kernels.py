"""Runs PTX on both engines: whole kernels on byte buffers, or a few instructions applied to arrays, lane by lane.

Without checks every launch is done by the emulator and by the JIT, which must leave the same bytes, or fault alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hlo_run.artifact import Kernel
from hlo_run.backends.host.emulator.checks import make_observer
from hlo_run.backends.host.emulator.emulator import check_launch, run_kernel
from hlo_run.backends.host.emulator.lanes import Launch
from hlo_run.backends.host.emulator.memory import NUMBER_SHIFT, Region
from hlo_run.backends.host.emulator.program import Program, compile_program
from hlo_run.backends.host.emulator.statistics import KernelStatistics
from hlo_run.backends.host.jit.engine import JitEngine
from hlo_run.backends.host.jit.workers import JitFault
from hlo_run.backends.host.ptx.parser import parse_module
from hlo_run.backends.host.variables import variable_regions
from hlo_run.errors import DeviceError

Array = NDArray[Any]

HEAD = ".version 8.6\n.target sm_90\n.address_size 64\n"


JIT = JitEngine(in_order=True)


def launch(
    program: Program,
    ptx: str,
    buffers: Sequence[Array],
    grid: int = 1,
    block: int | tuple[int, int, int] = 32,
    checks: Iterable[str] = (),
    read_only: int = 0,
) -> KernelStatistics:
    """Run a kernel on buffers (arrays, changed in place) that are its parameters in order.

    It may not write the first `read_only` buffers.
    """
    threads = (block, 1, 1) if isinstance(block, int) else block
    kernel = Kernel(program.graph.entry.name, ptx, (grid, 1, 1), threads)
    statistics = KernelStatistics(kernel.name)
    copies = [buffer.copy() for buffer in buffers]
    run = _launch(program, kernel, buffers, read_only)
    run.observer = make_observer(frozenset(checks), program.graph, statistics)
    check_launch(program.graph, run)
    try:
        run_kernel(program, run)
    except DeviceError as error:
        if not checks:
            with pytest.raises(JitFault):
                JIT.run(program.graph, _launch(program, kernel, copies, read_only))
        raise error
    if not checks:
        JIT.run(program.graph, _launch(program, kernel, copies, read_only))
        for number, (emulated, compiled) in enumerate(zip(buffers, copies, strict=True)):
            _assert_same(emulated, compiled, number)
    return statistics


def launch_apart(program: Program, ptx: str, buffers: Sequence[Array], grid: int, block: int) -> tuple[list[Array], list[Array]]:
    """Return the buffers after the emulator and after the JIT. They differ if the order of threads matters."""
    kernel = Kernel(program.graph.entry.name, ptx, (grid, 1, 1), (block, 1, 1))
    emulated, compiled = ([buffer.copy() for buffer in buffers] for _ in range(2))
    run_kernel(program, _launch(program, kernel, emulated))
    JIT.run(program.graph, _launch(program, kernel, compiled))
    return emulated, compiled


def _launch(program: Program, kernel: Kernel, buffers: Sequence[Array], read_only: int = 0) -> Launch:
    regions = variable_regions(program.variables)
    for number, buffer in enumerate(buffers):
        data = buffer.reshape(-1).view(np.uint8)
        regions[number + 1] = Region(f"argument {number}", "global", data, 0, data.size, writable=number >= read_only)
    parameters = [np.full((1, 1), (number + 1) << NUMBER_SHIFT, np.uint64) for number in range(len(buffers))]
    return Launch(kernel, kernel.ptx.split("\n"), regions, parameters)


def _assert_same(emulated: Array, compiled: Array, number: int) -> None:
    """Check that both engines leave the same bytes. In f64 all NaNs are equal, as the processor keeps its operands' NaNs."""
    bits = f"u{emulated.dtype.itemsize}"
    different = emulated.reshape(-1).view(bits) != compiled.reshape(-1).view(bits)
    if emulated.dtype == np.float64:
        different &= ~(np.isnan(emulated.reshape(-1)) & np.isnan(compiled.reshape(-1)))
    places = np.flatnonzero(different)[:4]
    assert not different.any(), (number, places, emulated.reshape(-1)[places], compiled.reshape(-1)[places])


def run_text(
    ptx: str,
    buffers: Sequence[Array],
    grid: int = 1,
    block: int | tuple[int, int, int] = 32,
    checks: Iterable[str] = (),
    read_only: int = 0,
) -> KernelStatistics:
    """Compile the only kernel of a PTX text and run it."""
    module = parse_module(ptx)
    name = next(name for name, function in module.functions.items() if function.is_entry)
    return launch(compile_program(module, name), ptx, buffers, grid, block, checks, read_only)


def kernel(body: str, parameters: int, declarations: str = "", registers: str = "") -> str:
    """Return a PTX text with one kernel `k`: parameter n is in %p<n>, the linear thread number in %i (32) and %w (64 bits)."""
    formal = ",\n".join(f".param .u64 k_param_{n}" for n in range(parameters))
    loads = "\n".join(f"ld.param.u64 %p{n}, [k_param_{n}];\ncvta.to.global.u64 %p{n}, %p{n};" for n in range(parameters))
    return f"""{HEAD}{declarations}
.visible .entry k({formal})
{{
.reg .pred %q<10>;
.reg .b16 %h<20>;
.reg .b32 %r<30>;
.reg .b64 %d<30>;
.reg .b64 %p<40>;
.reg .b32 %i, %tid, %cta, %ntid;
.reg .b64 %w, %w2, %w4, %w8;
{registers}
{loads}
mov.u32 %tid, %tid.x;
mov.u32 %cta, %ctaid.x;
mov.u32 %ntid, %ntid.x;
mad.lo.u32 %i, %cta, %ntid, %tid;
cvt.u64.u32 %w, %i;
shl.b64 %w2, %w, 1;
shl.b64 %w4, %w, 2;
shl.b64 %w8, %w, 3;
{body}
ret;
}}
"""


_SIZES = {"pred": 1, "b8": 1, "b16": 2, "b32": 4, "b64": 8}
_REGISTER = re.compile(r"%([abcde])\b")


def apply(instructions: str, inputs: Sequence[Array], *outputs: type[Any]) -> Any:
    """Run instructions with %a, %b, .. (registers as wide as the inputs' items) and return %x (, %y).

    The registers of the results are as wide as the items of `outputs`; np.bool_ makes a predicate.
    """
    return apply_all([(instructions, *outputs)], inputs)[0]


def apply_each(instructions: Iterable[str], inputs: Sequence[Array], output: type[Any]) -> list[Array]:
    """Return %x of each of these instructions, which one kernel runs."""
    return apply_all([(each, output) for each in instructions], inputs)


def apply_all(cases: Sequence[tuple[str, *tuple[type[Any], ...]]], inputs: Sequence[Array]) -> list[Any]:
    """Do what `apply` does for several (instructions, outputs...), on the same inputs and in one kernel.

    Compiling a kernel takes longer than running it on a few values.
    """
    count = inputs[0].size
    assert count % 32 == 0, "whole warps"
    declared: list[str] = []
    lines: list[str] = []
    for number, (name, array) in enumerate(zip("abcde", inputs, strict=False)):
        size = array.itemsize
        declared.append(f".reg .b{max(16, 8 * size)} %{name};")
        scale = {1: "", 2: "2", 4: "4", 8: "8"}[size]
        lines.append(f"add.s64 %d{number}, %p{number}, %w{scale};\nld.global.b{8 * size} %{name}, [%d{number}];")
    results: list[list[Array]] = []
    parameter = len(inputs)
    for instructions, *outputs in cases:
        registers: list[str] = []
        stores: list[str] = []
        for name, output in zip("xy", outputs, strict=False):
            dtype = np.dtype(output)
            place = f"add.s64 %d10, %p{parameter}, %w{'' if dtype.itemsize == 1 else dtype.itemsize};"
            if dtype == np.bool_:
                registers.append(f".reg .pred %{name};")
                stores.append(f"selp.b16 %h0, 1, 0, %{name};\n{place}\nst.global.b8 [%d10], %h0;")
            else:
                registers.append(f".reg .b{8 * dtype.itemsize} %{name};")
                stores.append(f"{place}\nst.global.b{8 * dtype.itemsize} [%d10], %{name};")
            parameter += 1
        lines += ["{", *registers, instructions, *stores, "}"]
        results.append([np.zeros(count, output) for output in outputs])
    ptx = kernel("\n".join(lines), parameter, registers="\n".join(declared))
    buffers = [result for group in results for result in group]
    run_text(ptx, [*(np.ascontiguousarray(array).copy() for array in inputs), *buffers], grid=count // 32)
    return [group[0] if len(group) == 1 else tuple(group) for group in results]


def pairs(values: Array, others: Array | None = None) -> tuple[Array, Array]:
    """Return every pair of a value and another one, padded to whole warps."""
    a, b = (x.reshape(-1) for x in np.meshgrid(values, values if others is None else others, indexing="ij"))
    return padded(a), padded(b)


def padded(array: Array) -> Array:
    """Return the array with items repeated up to whole warps."""
    return np.resize(array, -(-array.size // 32) * 32)
