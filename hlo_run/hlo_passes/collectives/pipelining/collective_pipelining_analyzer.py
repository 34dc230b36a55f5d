"""Mark the collectives of loops that another iteration can run with little cost.

    r = all-reduce(x); b = dynamic-update-slice(b, r, i)   =>   r = all-reduce(x), frontend_attributes={trivially_pipelineable=""}

Marked are all-reduces and reduce-scatters that are only written, by a slice at an index that follows from the counter, into an
element of the state, and all-gathers of such a slice of an element. Only reshapes and conversions may be between. Results have
less than 1 GiB. An all-reduce of which each device takes its own shard counts as a reduce-scatter. XLA's
`CollectivePipeliningAnalyzer`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.loop_counter import find_counter
from hlo_run.hlo.frontend_attributes import set_frontend_attribute
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.views.slices import DynamicSlice
from hlo_run.hlo_passes.collectives.communication.shards import own_shard
from hlo_run.pass_support.hlo_pass import PassContext

_MARK = "trivially_pipelineable"
_MOST_BYTES = 1 << 30
_VIEWS: tuple[Opcode, ...] = ("bitcast", "tuple", "get-tuple-element")
_FORMATTING = (*_VIEWS, "reshape", "convert", "transpose")
_OFFSETS = ("s32", "s64", "u32", "u64")


class CollectivePipeliningAnalyzer(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "collective-pipelining-analyzer"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        for collective in module.instructions_of("all-reduce", "reduce-scatter", "all-gather"):
            if collective.shape.is_array and collective.shape.size_bytes >= _MOST_BYTES:
                continue
            is_gather = collective.opcode == "all-gather"
            if _is_gathered_slice(collective) if is_gather else _is_written_slice(collective):
                set_frontend_attribute(collective, _MARK, "")


def _is_written_slice(collective: HloInstruction) -> bool:
    if len(collective.operands) != 1 or not collective.shape.is_array:
        return False
    shard = own_shard(collective) if collective.opcode == "all-reduce" else None
    start = value = collective if shard is None else shard.slice
    while value.opcode != "dynamic-update-slice":
        if len(value.users) != 1 or (value is not start and value.opcode not in _FORMATTING):
            return False
        (value,) = value.users
    if len(value.users) != 1 or not _follows_counter(DynamicSlice.of(value).starts, value.parent):
        return False
    (end,) = value.users
    while len(end.users) == 1:
        if end.opcode not in _VIEWS:
            return False
        (end,) = end.users
    return end.is_root


def _is_gathered_slice(gather: HloInstruction) -> bool:
    for operand in gather.operands:
        part = operand
        while part.opcode in _FORMATTING and len(part.operands) == 1:
            part = part.operands[0]
        if part.opcode == "slice":
            return False
        if part.opcode == "dynamic-slice" and _follows_counter(DynamicSlice.of(part).starts, part.parent):
            source = part.operands[0]
            while len(source.operands) == 1 and source.opcode in _VIEWS:
                source = source.operands[0]
            return source.opcode == "parameter"
    return False


def _follows_counter(offsets: tuple[HloInstruction, ...], body: HloComputation | None) -> bool:
    """True if each offset is a constant or depends on the counter of the loop alone, which begins at a constant."""
    is_constant = [offset.opcode == "constant" and offset.shape.element_type in _OFFSETS for offset in offsets]
    if all(is_constant):
        return True
    loop = body.callers[0] if body is not None and len(body.callers) == 1 else None
    if loop is None or loop.opcode != "while":
        return False
    counter = find_counter(loop)
    if counter is None:
        return False
    reads = [user for user in loop.while_body.parameters[0].users if user.tuple_index == counter.index]
    if len(reads) != 1 or not _depends_on(loop.operands[0].operands[counter.index], None):
        return False
    values = (
        loop.while_body.root.operands[counter.index],
        *(o for o, known in zip(offsets, is_constant, strict=True) if not known),
    )
    return all(_depends_on(value, reads[0]) for value in values)


def _depends_on(value: HloInstruction, source: HloInstruction | None) -> bool:
    """True if a value depends on constants and on `source` alone."""
    waiting = [value]
    for one in waiting:  # grows while we walk
        if one is source or one.opcode == "constant":
            continue
        if not one.operands:
            return False
        waiting += [operand for operand in one.operands if operand not in waiting]
    return True
