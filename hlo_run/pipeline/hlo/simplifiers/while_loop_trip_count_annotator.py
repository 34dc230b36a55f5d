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

from hlo_run.analysis.loop_counter import find_counter
from hlo_run.hlo.graph import HloModule
from hlo_run.pipeline.passes import PassContext


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
            counter = find_counter(loop)
            count = counter.trip_count if counter is not None else None
            if counter is not None and count is not None:
                config = {
                    "known_trip_count": {"n": str(count)},
                    "known_init_step": {"init": str(counter.init), "step": str(counter.step)},
                    "known_induction_variable": {"tuple_index": str(counter.index)},
                    "dynamic_variables": list[str](),
                }
                loop.attrs["backend_config"] = json.dumps(config, separators=(",", ":"))
