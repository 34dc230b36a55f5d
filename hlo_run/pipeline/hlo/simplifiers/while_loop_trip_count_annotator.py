"""Write into a loop how often it runs, where that can be seen: a counter that begins and ends with constants.

    w = while(init), ..   =>   w = while(init), .., backend_config={"known_trip_count":{"n":"4"},
        "known_init_step":{"init":"3","step":"2"},"known_induction_variable":{"tuple_index":"0"},"dynamic_variables":[]}

The counter is an integer of the state that grows by a constant and is compared with one. XLA's
`WhileLoopTripCountAnnotator`, which also tries out other loops.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.pipeline.passes import PassContext

_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE"}


@dataclass(frozen=True)
class WhileLoopTripCountAnnotator:
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "while-loop-trip-count-annotator"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place; loops that have a configuration keep it."""
        del ctx
        for loop in module.instructions_of("while"):
            if loop.attrs.get("backend_config"):
                continue
            counter = _find_counter(loop)
            count = counter.trip_count if counter is not None else None
            if counter is not None and count is not None:
                config = {
                    "known_trip_count": {"n": str(count)},
                    "known_init_step": {"init": str(counter.init), "step": str(counter.step)},
                    "known_induction_variable": {"tuple_index": str(counter.index)},
                    "dynamic_variables": list[str](),
                }
                loop.attrs["backend_config"] = json.dumps(config, separators=(",", ":"))


@dataclass(frozen=True)
class _Counter:
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


def _find_counter(loop: HloInstruction) -> _Counter | None:
    body, condition = loop.called["body"][0], loop.called["condition"][0]
    test, state = condition.root, loop.operands[0]
    if test.opcode != "compare" or body.root.opcode != "tuple" or state.opcode != "tuple":
        return None
    for number, direction in ((0, test.attrs["direction"]), (1, _MIRRORED.get(test.attrs["direction"], ""))):
        index = _element_of_state(test.operands[number])
        limit = _constant(test.operands[1 - number])
        if index is None or limit is None:
            continue
        init, step = _constant(state.operands[index]), _step(body.root.operands[index], index)
        if init is not None and step is not None:
            dtype = test.operands[number].shape.dtype
            return _Counter(index, init, step, direction, limit, dtype.bits, dtype.is_signed)
    return None


def _element_of_state(value: HloInstruction) -> int | None:
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
            if _element_of_state(one) == index:
                return _constant(other)
    if value.opcode == "subtract" and _element_of_state(value.operands[0]) == index:
        step = _constant(value.operands[1])
        return None if step is None else -step
    return None
