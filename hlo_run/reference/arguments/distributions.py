"""Find arguments whose rows are probabilities: they are multiplied with logarithms, and the products are summed.

loss = -sum(p · log_softmax(x))         a cross entropy
loss = sum(p · (log p - log q))         a divergence
"""

from __future__ import annotations

from collections.abc import Iterator

from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.reference.arguments.recipes import Leaf
from hlo_run.reference.arguments.value_flow import Position, came_from

_SAME_SHAPE: frozenset[Opcode] = frozenset(("convert", "copy", "reduce-precision", "opt-barrier"))
_MOVERS = opcode_set("reshape bitcast transpose") | _SAME_SHAPE
# Steps from a product to its logarithm, to its argument, or to its sum.
_MOST_STEPS = 12


def distributions(module: HloModule) -> dict[Leaf, int]:
    """Return the dimension along which the numbers of a leaf of an entry parameter are probabilities that sum to one."""
    found: dict[Leaf, int] = {}
    for product in module.instructions_of("multiply"):
        if product.shape.rank < 2 or not product.shape.dtype.is_float or (dim := _summed_dim(product)) is None:
            continue
        for number in (0, 1):
            if _is_logarithm((product.operands[1 - number], ()), _MOST_STEPS):
                for leaf in _arguments(product.operands[number]):
                    found.setdefault(leaf, dim)
    return found


def _is_logarithm(position: Position, steps: int, is_spread: bool = False) -> bool:
    """True if a value is a logarithm per element, or a sum or difference with one, or with the logarithm of a row's sum.

    `is_spread`: the value is the same in a whole row. The logarithm of a sum that is not spread is a loss per row, which other
    numbers, such as a mask, are multiplied with.
    """
    value, path = position
    if steps == 0:
        return False
    origins = list(came_from(value, path))
    if origins or path:
        return any(_is_logarithm(origin, steps - 1, is_spread) for origin in origins)
    match value.opcode:
        case "log":
            return is_spread or not _is_sum(value.operands[0])
        case "subtract" | "add":
            return any(_is_logarithm((operand, ()), steps - 1, is_spread) for operand in value.operands)
        case "broadcast":
            operand = value.operands[0]
            return _is_logarithm((operand, ()), steps - 1, is_spread or operand.shape.element_count < value.shape.element_count)
        case opcode if opcode in _MOVERS:
            return _is_logarithm((value.operands[0], ()), steps - 1, is_spread)
        case _:
            return False


def _is_sum(value: HloInstruction) -> bool:
    """True if a value has the sums of rows."""
    for _ in range(_MOST_STEPS):
        if value.opcode not in _MOVERS:
            break
        value = value.operands[0]
    return value.opcode == "reduce"


def _summed_dim(product: HloInstruction) -> int | None:
    """Return the dimension of a product that is summed, the last one of several; None if all are, or none."""
    waiting = [product]
    for _ in range(_MOST_STEPS):
        if not waiting:
            return None
        for user in waiting.pop(0).users:
            if user.opcode == "reduce" and user.to_apply.root.opcode == "add":
                return max(user.dimensions) if 0 < len(user.dimensions) < product.shape.rank else None
            if user.opcode in _SAME_SHAPE or user.opcode == "negate":
                waiting.append(user)
    return None


def _arguments(value: HloInstruction) -> Iterator[Leaf]:
    """Yield the leaves of entry parameters that a value is, but for conversions."""
    waiting: list[Position] = [(value, ())]
    for _ in range(_MOST_STEPS):
        if not waiting:
            return
        instruction, path = waiting.pop()
        if instruction.opcode == "parameter" and instruction.parent is not None and instruction.parent.is_entry:
            yield instruction.parameter_number, path
        elif instruction.opcode in _SAME_SHAPE:
            waiting.append((instruction.operands[0], path))
        else:
            waiting += came_from(instruction, path)
