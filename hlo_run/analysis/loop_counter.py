"""How often does a loop run? A counter in its state that begins and ends with constants tells."""

from __future__ import annotations

from dataclasses import dataclass

from hlo_run.hlo.graph import HloInstruction

_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE"}


@dataclass(frozen=True)
class LoopCounter:
    """Element `index` of the state: `init`, `init + step`, .. as long as `value direction limit`."""

    index: int
    init: int
    step: int
    direction: str
    limit: int
    bits: int
    is_signed: bool

    @property
    def trip_count(self) -> int | None:
        """How often the body runs; None if the counter wraps around first."""
        match self.direction:
            case "LT" | "LE" if self.step > 0:
                last = self.limit if self.direction == "LT" else self.limit + 1
                count = max(-(-(last - self.init) // self.step), 0)
            case "GT" | "GE" if self.step < 0:
                last = self.limit if self.direction == "GT" else self.limit - 1
                count = max(-(-(self.init - last) // -self.step), 0)
            case "NE" if self.step and (self.limit - self.init) % self.step == 0 and (self.limit - self.init) // self.step >= 0:
                count = (self.limit - self.init) // self.step
            case _:
                return None
        lowest = -(1 << (self.bits - 1)) if self.is_signed else 0
        return count if lowest <= self.init + count * self.step < lowest + (1 << self.bits) else None


def find_counter(loop: HloInstruction) -> LoopCounter | None:
    """Return the counter of a loop; None if nothing in the state is seen to be one."""
    body, condition = loop.called["body"][0], loop.called["condition"][0]
    test, state = condition.root, loop.operands[0]
    if test.opcode != "compare" or body.root.opcode != "tuple" or state.opcode != "tuple":
        return None
    for number, direction in ((0, test.attrs["direction"]), (1, _MIRRORED.get(test.attrs["direction"], ""))):
        index = element_of_state(test.operands[number])
        limit = _constant(test.operands[1 - number])
        if index is None or limit is None:
            continue
        init, step = _constant(state.operands[index]), _step(body.root.operands[index], index)
        if init is not None and step is not None:
            dtype = test.operands[number].shape.dtype
            return LoopCounter(index, init, step, direction, limit, dtype.bits, dtype.is_signed)
    return None


def element_of_state(value: HloInstruction) -> int | None:
    """Return which element of its computation's parameter a value is."""
    if value.opcode == "get-tuple-element" and value.operands[0].opcode == "parameter":
        index: int = value.attrs["index"]
        return index
    return None


def _constant(value: HloInstruction) -> int | None:
    if value.opcode == "copy":
        value = value.operands[0]
    if value.opcode != "constant" or value.shape.rank or value.shape.dtype.kind not in ("signed", "unsigned"):
        return None
    return int(value.attrs["literal"])


def _step(value: HloInstruction, index: int) -> int | None:
    """Return what a step of the loop adds to element `index`."""
    if value.opcode == "add":
        for one, other in (value.operands, value.operands[::-1]):
            if element_of_state(one) == index:
                return _constant(other)
    if value.opcode == "subtract" and element_of_state(value.operands[0]) == index:
        step = _constant(value.operands[1])
        return None if step is None else -step
    return None
