"""Match operands of a product that are dequantised 8-bit floats.

    convert(f8 x)                                   x, without a scale
    multiply(convert(f8 x), broadcast(s))           x and the scale s
    divide(convert(f8 x), broadcast(s))             x and the scale 1 / s
    transpose(multiply(convert(f8 x), ..))          transpose(f8 x), and the scale s

Instructions that only move elements, or insert zeros, may follow the dequantisation; they are then applied to the 8-bit
values. The method is that of XLA's `GemmRewriter`. A padding other than 0 does not match, as it would have to be scaled.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from hlo_run.hlo.edit import Editor, copy_instruction
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.shape import Layout
from hlo_run.hlo_passes.dots.gemm.values import broadcast_number, either_way, scalar_constant
from hlo_run.hlo_passes.subgraphs.gemm_record import F8_TYPES
from hlo_run.records import replace

# One step from an 8-bit value to the product: the instruction, and the number of the operand on the path.
Step = tuple[HloInstruction, int]

# The search follows: the first operand, one of several operands, and (for moves) instructions that keep elements unchanged.
_FIRST_OPERAND: frozenset[Opcode] = frozenset(("divide", "dynamic-slice", "pad"))
_OPERANDS = {"multiply": (0, 1), "select": (1, 2)}
_MOVES: frozenset[Opcode] = frozenset(
    ("bitcast", "broadcast", "copy", "dynamic-slice", "pad", "reshape", "select", "slice", "transpose")
)


class F8Operand(Struct, frozen=True):
    """An operand: its 8-bit values, the scale (`divides`: divided by it), and the moves of elements after the scaling."""

    value: HloInstruction
    scale: HloInstruction | None = None
    divides: bool = False
    moves: tuple[Step, ...] = ()

    @property
    def element_type(self) -> str:
        """The HLO name of the 8-bit float type (`f8e4m3fn`)."""
        return self.value.shape.element_type

    @property
    def rank(self) -> int:
        """The rank of the operand as the product reads it."""
        return (self.moves[-1][0] if self.moves else self.value).shape.rank


def match_f8_operand(operand: HloInstruction) -> F8Operand | None:
    """Return the parts of an operand; None if it is not an 8-bit value, dequantised or not."""
    path = _path_from_f8(operand)
    if not path:
        return None
    if len(path) == 1:
        return F8Operand(path[0][0])
    value, convert = path[0][0], path[1][0]
    if convert.opcode != "convert":
        return None
    found, rest = F8Operand(value), path[2:]
    scaled = _scaled(rest[0][0], convert) if rest else None
    if scaled is not None:
        found, rest = replace(found, scale=scaled, divides=rest[0][0].opcode == "divide"), rest[1:]
    if not all(_only_moves(step) for step in rest):
        return None
    return replace(found, moves=tuple(rest))


def _path_from_f8(operand: HloInstruction) -> list[Step]:
    """Return the steps from the nearest 8-bit value to an operand; the first is the value itself, with -1. Empty if not found.

    The search goes through instructions of one operand and those of `_OPERANDS`, the first operand first.
    """
    waiting: list[tuple[HloInstruction, _Link | None]] = [(operand, None)]
    seen: set[HloInstruction] = set()
    while waiting:
        instruction, after = waiting.pop()
        if instruction in seen:
            continue
        seen.add(instruction)
        if instruction.shape.element_type in F8_TYPES:
            return [(instruction, -1), *_steps(after)]
        numbers = _searched_operands(instruction)
        waiting += [(instruction.operands[n], _Link((instruction, n), after)) for n in reversed(numbers)]
    return []


def _searched_operands(instruction: HloInstruction) -> Sequence[int]:
    if len(instruction.operands) == 1 or instruction.opcode in _FIRST_OPERAND:
        return (0,)
    return _OPERANDS.get(instruction.opcode, ())


class _Link(Struct, frozen=True):
    """A linked list of steps: a step and those after it."""

    step: Step
    after: _Link | None


def _steps(link: _Link | None) -> list[Step]:
    found: list[Step] = []
    while link is not None:
        found.append(link.step)
        link = link.after
    return found


def _scaled(instruction: HloInstruction, convert: HloInstruction) -> HloInstruction | None:
    """Return the value whose broadcast scales a converted value; None if the instruction does not scale."""
    if instruction.opcode not in ("multiply", "divide"):
        return None
    for value, other in either_way(instruction):
        if value is convert and other.opcode == "broadcast":
            return other.operands[0]
        if instruction.opcode == "divide":
            break
    return None


def _only_moves(step: Step) -> bool:
    """Return True for a step that may be moved before the dequantisation."""
    instruction, number = step
    if instruction.opcode not in _MOVES:
        return False
    match instruction.opcode:
        case "bitcast":
            return instruction.shape.element_type == instruction.operands[0].shape.element_type
        case "select":
            return broadcast_number(instruction.operands[3 - number]) == 0
        case "pad":
            return scalar_constant(instruction.operands[1]) == 0
        case _:
            return True


def moved_value(operand: F8Operand, editor: Editor) -> HloInstruction:
    """Add the operand's moves, applied to its 8-bit values; return the result."""
    value, element_type = operand.value, operand.element_type
    for instruction, number in operand.moves:
        operands = [
            value if n == number else _of_type(editor, instruction, n, element_type) for n in range(len(instruction.operands))
        ]
        shape = replace(instruction.shape, element_type=element_type, layout=Layout(instruction.shape.minor_to_major))
        value = editor.computation.add(copy_instruction(instruction, operands, shape))
    return value


def _of_type(editor: Editor, instruction: HloInstruction, number: int, element_type: str) -> HloInstruction:
    """Return another operand of a step in the 8-bit type; indices and predicates stay."""
    operand = instruction.operands[number]
    is_value = instruction.opcode == "pad" or (instruction.opcode == "select" and number > 0)
    return editor.convert(operand, element_type) if is_value else operand
