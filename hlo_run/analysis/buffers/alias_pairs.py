"""Finds the results of an instruction that share an operand's buffer because the instruction changes it in place."""

from __future__ import annotations

from typing import NamedTuple

from hlo_run.analysis.buffers.in_place import in_place_operands
from hlo_run.analysis.fusion_owner import is_slice_copy
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.attribute_values import OperandAliasing
from hlo_run.hlo.values.shape import ShapeIndex

_NONE = OperandAliasing()


class InPlacePair(NamedTuple):
    """The result at `output_index`, and the operand with the shape index that it changes in place."""

    operand_number: int
    operand_index: ShapeIndex
    output_index: ShapeIndex


def in_place_pairs(instruction: HloInstruction) -> list[InPlacePair]:
    """Return the pairs that must share a buffer, as XLA's `GetInPlaceInputOutputPairs` does.

    Ignores a fusion's declared aliases (`output_to_operand_aliasing`); its body shows what it changes in place.
    """
    match instruction.opcode:
        case "fusion" if is_slice_copy(instruction):
            return _pairs_in_body(instruction)
        case "fusion":
            leaves = [index for index, _ in instruction.shape.leaves()]
            return [InPlacePair(number, (), leaves[leaf]) for leaf, number in in_place_operands(instruction).items()]
        case "custom-call" | "async-start":
            return _declared_pairs(instruction)
        case "dynamic-update-slice":
            return [InPlacePair(0, (), ())]
        case "scatter" | "all-reduce" | "all-reduce-start":
            count = len(instruction.operands) // 2 if instruction.opcode == "scatter" else len(instruction.operands)
            return [InPlacePair(n, (), (n,) if instruction.shape.is_tuple else ()) for n in range(count)]
        case "ragged-all-to-all":
            return [InPlacePair(1, (), ())]
        case "collective-permute" if len(instruction.operands) == 4:
            return [InPlacePair(1, index, index) for index, leaf in instruction.operands[1].shape.leaves() if leaf.is_array]
        case _:
            return []


def _pairs_in_body(fusion: HloInstruction) -> list[InPlacePair]:
    """Return the operands of a fusion that the instructions which make its results change in place."""
    root = fusion.fused_computation.root
    found: list[InPlacePair] = []
    for index, _ in fusion.shape.leaves():
        maker, inner = root, index
        while maker.opcode in ("tuple", "get-tuple-element"):
            if maker.opcode == "tuple":
                maker, inner = maker.operands[inner[0]], inner[1:]
            else:
                maker, inner = maker.operands[0], (maker.tuple_index, *inner)
        for pair in in_place_pairs(maker):
            source = maker.operands[pair.operand_number]
            if pair.output_index == inner and source.opcode == "parameter":
                found.append(InPlacePair(source.parameter_number, pair.operand_index, index))
    return found


def _declared_pairs(instruction: HloInstruction) -> list[InPlacePair]:
    declared = instruction.output_to_operand_aliasing
    return [InPlacePair(number, place, output) for output, number, place in declared.pairs]
