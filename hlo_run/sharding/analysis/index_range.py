"""The range of a scalar integer that a module counts, clamps or chooses: whether an index stays in its array."""

from __future__ import annotations

from hlo_run.analysis.loop_counter import find_counter
from hlo_run.hlo.graph import HloInstruction

Range = tuple[int, int]
# Values of unusual depth have no known range.
_DEPTH = 24


def index_range(value: HloInstruction, depth: int = 0) -> Range | None:
    """Return the least and the greatest value of a scalar integer, or None if it may be any."""
    if depth > _DEPTH or not value.shape.is_array or value.shape.dtype.kind not in ("signed", "unsigned"):
        return None
    match value.opcode:
        case "constant":
            return None if value.shape.dims else (int(value.constant_array), int(value.constant_array))
        case "get-tuple-element":
            return _range_of_counter(value)
        case "copy" | "convert" | "reshape" | "opt-barrier":
            return _held(index_range(value.operands[0], depth + 1), value)
        case "select":
            return _chosen(value, depth)
        case "clamp" | "maximum" | "minimum" | "add" | "subtract":
            return _held(_computed(value, [index_range(operand, depth + 1) for operand in value.operands]), value)
        case _:
            return None


def _held(found: Range | None, value: HloInstruction) -> Range | None:
    """Return the range if the type of the value holds it, so that nothing wraps around."""
    dtype = value.shape.dtype
    lowest = -(1 << (dtype.bits - 1)) if dtype.is_signed else 0
    return found if found is not None and lowest <= found[0] and found[1] < lowest + (1 << dtype.bits) else None


def _computed(value: HloInstruction, ranges: list[Range | None]) -> Range | None:
    if value.opcode == "clamp":
        least, _, most = ranges
        return (min(least[0], most[0]), most[1]) if least is not None and most is not None else None
    one, two = ranges
    if one is None or two is None:
        return None
    if value.opcode == "add":
        return one[0] + two[0], one[1] + two[1]
    if value.opcode == "subtract":
        return one[0] - two[1], one[1] - two[0]
    better = max if value.opcode == "maximum" else min
    return better(one[0], two[0]), better(one[1], two[1])


def _chosen(value: HloInstruction, depth: int) -> Range | None:
    """Return the range of a select; `index < 0 ? index + size : index` of an index that is never negative is the index."""
    test, one, two = value.operands
    kept = index_range(two, depth + 1)
    if test.opcode == "compare" and test.comparison_direction == "LT" and test.operands[0] is two and kept is not None:
        limit = index_range(test.operands[1], depth + 1)
        if limit is not None and kept[0] >= limit[1]:
            return kept
    other = index_range(one, depth + 1)
    return None if kept is None or other is None else (min(kept[0], other[0]), max(kept[1], other[1]))


def _range_of_counter(element: HloInstruction) -> Range | None:
    """Return the range of an element of a loop's state in its body, if it is the loop's counter."""
    body = element.parent
    if element.operands[0].opcode != "parameter" or body is None or len(body.callers) != 1:
        return None
    (loop,) = body.callers
    if loop.opcode != "while" or loop.while_body is not body:
        return None
    counter = find_counter(loop)
    count = counter.trip_count if counter is not None else None
    if counter is None or not count or counter.index != element.tuple_index:
        return None
    last = counter.init + (count - 1) * counter.step
    return min(counter.init, last), max(counter.init, last)
