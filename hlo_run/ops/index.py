"""Index maps of opcodes: which elements of an operand an output element needs, and which output elements it feeds.

`operand_map` goes from output index to operand index, `user_map` back. Maps of pad, concatenate, slice and windows are
*partial*: their domain is smaller than the output's box, and whoever uses them emits the domain check. None is the
undefined map: nothing is known, and an emitter must handle the opcode by hand. Mirrors the tables of XLA's
`ComputeOutputToInputIndexing` and `ComputeInputToOutputIndexing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.traits import ELEMENTWISE
from hlo_run.indexing import IndexingMap, compose, constant, dim
from hlo_run.ops import index_linalg, index_shaping
from hlo_run.ops.index_rule import IndexRule, array_of, from_scalar, identity, operand_dims, output_dims, to_scalar
from hlo_run.ops.index_shaping import bitcast_map, is_simple_gather

__all__ = ["RuntimeValue", "bitcast_map", "fused_maps", "is_simple_gather", "operand_map", "runtime_values", "user_map"]


def _elementwise_operand(instruction: HloInstruction, number: int) -> IndexingMap:
    """Return the identity, or the map to a scalar that goes with every element (`select`, `clamp`)."""
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
    """Return the one map to an operand; undefined if the fused computation reads it in several ways or has several roots."""
    computation = instruction.fused_computation
    if computation.root.opcode == "tuple":
        return None
    maps = fused_maps(computation.root).get(computation.parameters[number], ())
    return maps[0] if len(maps) == 1 else None


# Elements stand where the operand's stand, in these that are not elementwise too.
_ELEMENTWISE = (
    *(ELEMENTWISE - {"bitcast-convert"}),
    *("all-reduce", "all-reduce-start", "all-reduce-done", "get-tuple-element", "opt-barrier", "domain", "copy-done"),
)

OPERAND: dict[str, IndexRule] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise_operand),
    "tuple": _element_of_tuple,
    "fusion": _fusion_operand,
    **index_shaping.OPERAND,
    **index_linalg.OPERAND,
}

USER: dict[str, IndexRule] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise_user),
    "tuple": _element_of_tuple,
    **index_shaping.USER,
    **index_linalg.USER,
}


def operand_map(instruction: HloInstruction, operand_number: int) -> IndexingMap | None:
    """Return the map from an output index to the indices of operand `operand_number` that it needs.

    Dimensions are those of the output (of a tuple result: of its first element), range variables loop over elements
    that are combined, runtime variables are offsets (`runtime_values` says whose). Shapes must be filled in.
    """
    rule = OPERAND.get(instruction.opcode)
    if rule is None or not array_of(instruction.shape).is_array or not _reads_array(instruction, operand_number):
        return None
    return rule(instruction, operand_number)


def user_map(instruction: HloInstruction, operand_number: int) -> IndexingMap | None:
    """Return the map from an index of operand `operand_number` to the output indices it feeds."""
    rule = USER.get(instruction.opcode)
    if rule is None or not array_of(instruction.shape).is_array or not _reads_array(instruction, operand_number):
        return None
    return rule(instruction, operand_number)


def _reads_array(instruction: HloInstruction, number: int) -> bool:
    return array_of(instruction.operands[number].shape).is_array


@dataclass(frozen=True, slots=True)
class RuntimeValue:
    """Where a runtime variable comes from: the element `index(output index)` of operand `operand_number`.

    The value read is clamped to the variable's bounds.
    """

    operand_number: int
    index: IndexingMap


def runtime_values(instruction: HloInstruction, operand_number: int) -> tuple[RuntimeValue, ...]:
    """Return, for each runtime variable of `operand_map` in order, where its value is read."""
    first = {"dynamic-slice": 1, "dynamic-update-slice": 2}.get(instruction.opcode)
    if first is not None and operand_number == first - 1:
        rank = len(output_dims(instruction))
        if operand_dims(instruction, first):
            vector = to_scalar(instruction)
            return tuple(RuntimeValue(first, vector.with_results((constant(d),))) for d in range(rank))
        return tuple(RuntimeValue(first + d, to_scalar(instruction)) for d in range(rank))
    if instruction.opcode == "gather" and operand_number == 0 and is_simple_gather(instruction):
        whole = identity(instruction)
        count = len(instruction.attrs["start_index_map"])
        return tuple(RuntimeValue(1, whole.with_results((dim(0), constant(j)))) for j in range(count))
    return ()


def fused_maps(root: HloInstruction) -> dict[HloInstruction, tuple[IndexingMap | None, ...]]:
    """Return, for `root` and all it reads in its computation, the maps from root's index to each instruction's.

    One simplified map per way in which an instruction is read, equal ones once, undefined ones as one None.
    """
    found: dict[HloInstruction, dict[IndexingMap | None, None]] = {root: {identity(root): None}}
    for instruction in _users_first(root):
        for number, operand in enumerate(instruction.operands):
            step = operand_map(instruction, number)
            maps = found.setdefault(operand, {})
            for before in found[instruction]:
                composed = compose(before, step)
                maps[composed if composed is None else composed.simplify().remove_unused_symbols()[0]] = None
    return {instruction: tuple(maps) for instruction, maps in found.items()}


def _users_first(root: HloInstruction) -> Sequence[HloInstruction]:
    """Return root and all it reads, every instruction after all of its users among them."""
    order: list[HloInstruction] = []
    seen: set[HloInstruction] = set()
    stack: list[tuple[HloInstruction, bool]] = [(root, False)]
    while stack:
        instruction, is_done = stack.pop()
        if is_done:
            order.append(instruction)
        elif instruction not in seen:
            seen.add(instruction)
            stack.append((instruction, True))
            stack.extend((operand, False) for operand in reversed(instruction.operands))
    return order[::-1]
