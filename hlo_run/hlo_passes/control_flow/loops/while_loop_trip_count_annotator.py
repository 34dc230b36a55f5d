"""Annotate loops with their trip count if they have a counter with constant start and bound.

    w = while(init), ..   =>   w = while(init), .., backend_config={"known_trip_count":{"n":"4"},
        "known_init_step":{"init":"3","step":"2"},"known_induction_variable":{"tuple_index":"0"},"dynamic_variables":[]}

Where the counter is read after the loop, its last value replaces it. The counter is an integer of the state that grows by a
constant and is compared with one. An element that alone decides when the loop ends is named without a count. An existing config
may be wrong: the pass replaces it, or removes it if it finds no such element. XLA's `WhileLoopTripCountAnnotator` also evaluates
other loops by brute force, and keeps the config of a loop without a counter.
"""

from __future__ import annotations

import json
from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.loop_counter import LoopCounter, find_counter, find_steering_element
from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.pass_support.hlo_pass import PassContext


class WhileLoopTripCountAnnotator(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "while-loop-trip-count-annotator"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place; an existing config is replaced, or removed if the trip count is not known."""
        del ctx
        for loop in module.instructions_of("while"):
            counter = find_counter(loop)
            index = find_steering_element(loop) if counter is None else counter.index
            config = None if index is None else _config(index, counter)
            if config is None:
                loop.attrs.pop("backend_config", None)
            elif loop.backend_config != config:
                loop.attrs["backend_config"] = config
            if counter is not None:
                _use_last_value(module, loop, counter)


def _use_last_value(module: HloModule, loop: HloInstruction, counter: LoopCounter) -> None:
    """Replace what the counter is after a loop by that number, for a counter that grows and is never negative."""
    if counter.trip_count is None or counter.init < 0 or counter.step <= 0:
        return
    last = counter.init + counter.trip_count * counter.step
    for element in [user for user in loop.users if user.opcode == "get-tuple-element" and user.tuple_index == counter.index]:
        if element.users or element.is_root:
            module.replace_uses(element, Editor(element, derives=False).constant(last, element.shape.element_type))


def _config(index: int, counter: LoopCounter | None) -> str:
    config: dict[str, object] = {}
    if counter is not None and counter.trip_count is not None:
        config["known_trip_count"] = {"n": str(counter.trip_count)}
        config["known_init_step"] = {"init": str(counter.init), "step": str(counter.step)}
    config |= {
        "known_induction_variable": {"tuple_index": str(index)},
        "dynamic_variables": list[str](),
    }
    return json.dumps(config, separators=(",", ":"))
