"""Recognises reductions that find the largest or smallest element and its index (argmax, argmin)."""

from __future__ import annotations

from hlo_run.analysis.simple_reducer import is_identity
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode

_BETTER: dict[str, Opcode] = {"GT": "maximum", "LT": "minimum"}


def arg_extremum(reduce: HloInstruction) -> Opcode | None:
    """Return "maximum" or "minimum" for an argmax or argmin as JAX writes it, else None.

    The first NaN wins, then the first of equal extrema. The indices are an iota; the init values are an infinity and 0.
    """
    if len(reduce.operands) != 4 or reduce.operands[1].opcode != "iota":
        return None
    body = reduce.to_apply
    values = [parameter for number in (0, 2) for parameter in body.parameters[number : number + 1]]
    places = [parameter for number in (1, 3) for parameter in body.parameters[number : number + 1]]
    root = body.root
    if len(values) + len(places) != 4 or root.opcode != "tuple" or len(root.operands) != 2:
        return None
    value, place = root.operands
    if value.opcode != "select" or place.opcode != "select" or list(value.operands[1:]) != values:
        return None
    found = _better(value.operands[0], values)
    if not found or list(place.operands[1:]) != places or not _better_or_first(place.operands[0], found, values, places):
        return None
    return found if is_identity(reduce.operands[2], found) and _is_zero(reduce.operands[3]) else None


def _better(test: HloInstruction, values: list[HloInstruction]) -> Opcode | None:
    """Return the extremum that a test `one > other or one is NaN` selects, else None."""
    if test.opcode != "or":
        return None
    for one, two in (test.operands, test.operands[::-1]):
        if not _compares(two, "NE", [values[0], values[0]]):
            continue
        for direction, extremum in _BETTER.items():
            if _compares(one, direction, values):
                return extremum
    return None


def _better_or_first(test: HloInstruction, found: str, values: list[HloInstruction], places: list[HloInstruction]) -> bool:
    """True for `better or (one == other and its index is lower)`."""
    if test.opcode != "or":
        return False
    for one, two in (test.operands, test.operands[::-1]):
        if two.opcode == "and" and _better(one, values) == found:
            return _compares(two.operands[0], "EQ", values) and _compares(two.operands[1], "LT", places)
    return False


def _compares(test: HloInstruction, direction: str, operands: list[HloInstruction]) -> bool:
    return test.opcode == "compare" and test.comparison_direction == direction and list(test.operands) == operands


def _is_zero(value: HloInstruction) -> bool:
    return value.opcode == "constant" and not value.shape.dims and int(value.constant_array) == 0
