"""Emits thunks of sorts: `sort` launches the kernels of its steps in order; CUB's radix sort is a library call."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hlo_run.analysis.sort_keys import sort_keys
from hlo_run.analysis.tiling.sort_steps import sort_sizes, sort_steps
from hlo_run.artifact import (
    ArraySpec,
    BufferSlice,
    CopyThunk,
    CountingOperand,
    KernelArgument,
    KernelThunk,
    SortOrder,
    SortThunk,
    Thunk,
)
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.isolate import isolate_instruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.wrap import fusion_of_entry
from hlo_run.records import replace
from hlo_run.runtime.kernel_requests import fusion_arguments, kernel_arguments
from hlo_run.runtime.thunk_context import EmitThunk, ThunkContext


def sort_fusion(context: ThunkContext, fusion: HloInstruction) -> list[Thunk]:
    """Return the thunks of a fusion whose root is a sort: copies of operands into the results, then the kernels.

    As in XLA, an operand that shares the memory of its result needs no copy, and the kernels sort in place.
    """
    sort = fusion.fused_computation.root
    results = _results(context, fusion)
    operands = [_operand(context, fusion, operand) for operand in sort.operands]
    if not _sorts_in_place(sort):
        return _launches(context, fusion.name, fusion, sort, fusion_arguments(fusion, context.buffers), operands, results)
    copies: list[Thunk] = []
    moved: dict[int, BufferSlice] = {}
    for operand, given, result in zip(sort.operands, operands, results, strict=True):
        if isinstance(given, ArraySpec):
            moved[operand.parameter_number] = result.slice
            if given.slice != result.slice:
                copies.append(CopyThunk(fusion.name, given.slice, result.slice))
    read = [moved.get(number, context.buffers.slice(operand)) for number, operand in enumerate(fusion.operands)]
    arguments = kernel_arguments(read, [result.slice for result in results])
    sorted_in_place = [result if isinstance(given, ArraySpec) else given for given, result in zip(operands, results, strict=True)]
    return [*copies, *_launches(context, fusion.name, fusion, sort, arguments, sorted_in_place, results)]


def _sorts_in_place(sort: HloInstruction) -> bool:
    """Return True if every operand is an operand of the fusion, each once, in the layout of the results, or a count."""
    read = [operand for operand in sort.operands if operand.opcode == "parameter"]
    if len(set(read)) != len(read) or any(operand.opcode not in ("parameter", "iota") for operand in sort.operands):
        return False
    return _keeps_shapes(sort)


def _sort(context: ThunkContext, sort: HloInstruction) -> list[Thunk]:
    """Return the copies of operands into the results, as in XLA, then the kernels, which sort in place.

    Kernels of a sort that has an operand twice or another layout than its operands read the operands.
    """
    operands, results = [context.array(operand) for operand in sort.operands], _results(context, sort)
    fusion = fusion_of_entry(isolate_instruction(sort), sort.name, "kCustom")
    written = [result.slice for result in results]
    if len(set(sort.operands)) < len(operands) or not _keeps_shapes(sort):
        read = [context.buffers.slice(operand) for operand in dict.fromkeys(sort.operands)]
        return _launches(context, sort.name, fusion, sort, kernel_arguments(read, written), operands, results)
    pairs = zip(operands, results, strict=True)
    copies = [CopyThunk(sort.name, given.slice, result.slice) for given, result in pairs if given.slice != result.slice]
    return [*copies, *_launches(context, sort.name, fusion, sort, kernel_arguments(written, written), results, results)]


def _keeps_shapes(sort: HloInstruction) -> bool:
    return [operand.shape for operand in sort.operands] == [leaf for _, leaf in sort.shape.leaves()]


def _operand(context: ThunkContext, fusion: HloInstruction, operand: HloInstruction) -> ArraySpec | CountingOperand | None:
    """Return an operand of a fused sort; None for a computed one."""
    match operand.opcode:
        case "parameter":
            return context.array(fusion.operands[operand.parameter_number])
        case "iota":
            return CountingOperand(operand.shape.element_type, operand.shape.dims, operand.iota_dimension)
        case _:
            return None


def _results(context: ThunkContext, sort: HloInstruction) -> tuple[ArraySpec, ...]:
    return tuple(context.array(sort, index) for index, _ in sort.shape.leaves())


def _launches(
    context: ThunkContext,
    name: str,
    fusion: HloInstruction,
    sort: HloInstruction,
    arguments: tuple[KernelArgument, ...],
    operands: Sequence[ArraySpec | CountingOperand | None],
    results: tuple[ArraySpec, ...],
) -> list[Thunk]:
    steps = sort_steps(sort_sizes(sort, context.target))
    kernels = context.kernels.of_parts(fusion, sort.name, arguments, steps)
    launches = [KernelThunk(name, kernel, arguments) for kernel in kernels]
    known = tuple(operand for operand in operands if operand is not None)
    keys = sort_keys(sort.to_apply)
    if keys and launches and len(known) == len(operands) and not any(any(result.dynamic) for result in results):
        order = SortOrder(known, results, sort.dimensions[0], keys, len(launches))
        launches[0] = replace(launches[0], sort=order)
    return list[Thunk](launches)


def _radix_sort(context: ThunkContext, call: HloInstruction) -> list[Thunk]:
    """Sort along the last dimension by the first operand, in its total order; a second operand is permuted with it."""
    # The config is JSON, or an attribute dictionary of a typed FFI call.
    descending = _DESCENDING.search(call.backend_config) is not None
    operands = tuple(context.array(operand) for operand in call.operands)
    results = tuple(context.array(call, (number,)) for number in range(len(operands)))
    return [SortThunk(call.name, operands, results, descending)]


_DESCENDING = re.compile(r'\bdescending"?\s*[:=]\s*true\b')
OPCODES: dict[Opcode, EmitThunk] = {"sort": _sort}
_CUB = ("sort_keys", "sort_pairs", *(f"sort{of}_unassigned_scratch_size" for of in ("", "_keys", "_pairs")))
CUSTOM_CALLS: dict[str, EmitThunk] = {
    **{f"xla.gpu.ext.cub_{name}": _radix_sort for name in _CUB},
    "__cub$DeviceRadixSort": _radix_sort,
}
