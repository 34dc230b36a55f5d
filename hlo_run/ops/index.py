"""Index maps of opcodes: the operand elements that an output element needs, and the output elements that it feeds.

`operand_map` maps output indices to operand indices, `user_map` operand indices to output indices. Maps of pad, concatenate,
slice and windows are *partial*: their domain is smaller than the output, and the emitter has to check it. None is the undefined
map: emitters must handle such opcodes themselves. Mirrors the tables of XLA's `ComputeOutputToInputIndexing` and
`ComputeInputToOutputIndexing`.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.opcodes.traits import ELEMENTWISE
from hlo_run.indexing import IndexingMap, compose, constant, dim
from hlo_run.ops import index_linalg, index_shaping
from hlo_run.ops.index_rule import IndexRule, array_of, from_scalar, identity, operand_dims, output_dims, to_scalar
from hlo_run.ops.index_shaping import bitcast_map, is_simple_gather
from hlo_run.walks import post_order

__all__ = ["RuntimeValue", "bitcast_map", "fused_maps", "is_simple_gather", "operand_map", "runtime_values", "user_map"]


def _elementwise_operand(instruction: HloInstruction, number: int) -> IndexingMap:
    """Return the identity, or the map to a scalar that all elements share (`select`, `clamp`)."""
    if output_dims(instruction) and not operand_dims(instruction, number):
        return to_scalar(instruction)
    return identity(instruction)


def _elementwise_user(instruction: HloInstruction, number: int) -> IndexingMap:
    if output_dims(instruction) and not operand_dims(instruction, number):
        return from_scalar(instruction)
    return identity(instruction)


def _element_of_tuple(instruction: HloInstruction, number: int) -> IndexingMap:
    return IndexingMap.identity(operand_dims(instruction, number))


def _fusion_operand(instruction: HloInstruction, number: int) -> IndexingMap | None:
    """Return the only map to an operand; None if the fused computation reads it in several ways or has several roots."""
    computation = instruction.fused_computation
    if computation.root.opcode == "tuple":
        return None
    maps = fused_maps(computation.root).get(computation.parameters[number], ())
    return maps[0] if len(maps) == 1 else None


# These have the index maps of elementwise opcodes.
_ELEMENTWISE: tuple[Opcode, ...] = (
    *(ELEMENTWISE - {"bitcast-convert"}),
    *("all-reduce", "all-reduce-start", "all-reduce-done", "get-tuple-element", "opt-barrier", "domain", "copy-done"),
)

OPERAND: dict[Opcode, IndexRule] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise_operand),
    "tuple": _element_of_tuple,
    "fusion": _fusion_operand,
    **index_shaping.OPERAND,
    **index_linalg.OPERAND,
}

USER: dict[Opcode, IndexRule] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise_user),
    "tuple": _element_of_tuple,
    **index_shaping.USER,
    **index_linalg.USER,
}


def operand_map(instruction: HloInstruction, operand_number: int) -> IndexingMap | None:
    """Return the map from an output index to the indices of operand `operand_number` that it needs; None is undefined.

    Dimensions are those of the output (of a tuple result: of its first element). Range variables loop over elements that are
    combined; runtime variables are offsets (see `runtime_values`). Shapes must be filled in.
    """
    rule = OPERAND.get(instruction.opcode)
    if rule is None or not array_of(instruction.shape).is_array or not _reads_array(instruction, operand_number):
        return None
    return rule(instruction, operand_number)


def user_map(instruction: HloInstruction, operand_number: int) -> IndexingMap | None:
    """Return the map from an index of operand `operand_number` to the output indices that it feeds; None is undefined."""
    rule = USER.get(instruction.opcode)
    if rule is None or not array_of(instruction.shape).is_array or not _reads_array(instruction, operand_number):
        return None
    return rule(instruction, operand_number)


def _reads_array(instruction: HloInstruction, number: int) -> bool:
    return array_of(instruction.operands[number].shape).is_array


class RuntimeValue(Struct, frozen=True):
    """The source of a runtime variable: element `index(output index)` of operand `operand_number`.

    The value is clamped to the variable's bounds.
    """

    operand_number: int
    index: IndexingMap


def runtime_values(instruction: HloInstruction, operand_number: int) -> tuple[RuntimeValue, ...]:
    """Return the source of each runtime variable of `operand_map`, in order."""
    first = {"dynamic-slice": 1, "dynamic-update-slice": 2}.get(instruction.opcode)
    if first is not None and operand_number == first - 1:
        rank = len(output_dims(instruction))
        if rank and operand_dims(instruction, first):
            vector = to_scalar(instruction)
            return tuple(RuntimeValue(first, vector.with_results((constant(d),))) for d in range(rank))
        return tuple(RuntimeValue(first + d, to_scalar(instruction)) for d in range(rank))
    if instruction.opcode == "gather" and operand_number == 0 and is_simple_gather(instruction):
        whole = identity(instruction)
        count = len(instruction.start_index_map)
        return tuple(RuntimeValue(1, whole.with_results((dim(0), constant(j)))) for j in range(count))
    return ()


def fused_maps(root: HloInstruction) -> dict[HloInstruction, tuple[IndexingMap | None, ...]]:
    """Return, for `root` and everything it depends on in its computation, the maps from root's index to each instruction's.

    The maps are simplified and distinct, one for each way in which an instruction is read. All undefined maps are one None.
    """
    found: dict[HloInstruction, dict[IndexingMap | None, None]] = {root: {identity(root): None}}
    for instruction in _users_first(root):
        for number, operand in enumerate(instruction.operands):
            step = operand_map(instruction, number)
            maps = found.setdefault(operand, {})
            for before in found[instruction]:
                composed: IndexingMap | None = compose(before, step)
                maps[composed if composed is None else composed.simplify().remove_unused_symbols()[0]] = None
    return {instruction: tuple(maps) for instruction, maps in found.items()}


def _users_first(root: HloInstruction) -> Sequence[HloInstruction]:
    """Return root and everything it depends on, each instruction after all of its users."""
    return post_order(root, lambda instruction: instruction.operands)[::-1]
