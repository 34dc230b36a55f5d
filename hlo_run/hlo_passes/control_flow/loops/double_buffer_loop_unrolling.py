"""Let one iteration of a loop do the work of two, or of all, so that two iterations can use buffers in turns.

    body: .. root = tuple(f(s))   =>   body: .. t = tuple(f(s)); root = tuple(f.double_buffer_clone(t))

Loops whose `backend_config` has a trip count above 1 (`known_trip_count`). The first iteration of an odd number moves before the
loop. XLA's `DoubleBufferLoopUnrolling`. What the second copy reads waits for the first copy, except for collectives and for
operations with a constant. `dynamic_slice_config` of a slice is the offset in the iterations that its copy does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import InstructionMaker
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import COLLECTIVE, ELEMENTWISE
from hlo_run.hlo.values.backend_config import config_of
from hlo_run.hlo_passes.subgraphs.library_calls import to_json
from hlo_run.hlo_passes.subgraphs.loops.edits import copy_body
from hlo_run.pass_support.call_graph import flatten_call_graph
from hlo_run.pass_support.hlo_pass import PassContext


class DoubleBufferLoopUnrolling(Struct, frozen=True):
    """The pass; see the module's docstring.

    `unroll_strategy` is `double_buffer`; `full`: one iteration does all the work; `auto`: double buffering of loops with
    collectives; `manual`: as the loop's attribute `_xla_loop_unroll_strategy` says.
    """

    name: ClassVar[str] = "loop-double-buffer-transformer"

    unroll_strategy: str = "double_buffer"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        version = module.version
        for loop in module.instructions_of("while"):
            config = config_of(loop.backend_config)
            count = _trip_count(config)
            strategy = self._strategy(loop)
            if count <= 1 or not strategy or loop.while_body.root.opcode not in ("tuple", "while"):
                continue
            copies = count if strategy == "full" else 2
            if count % copies:
                _peel(loop)
            suffix = "full_unroll_clone" if strategy == "full" else "double_buffer_clone"
            _repeat(loop, copies, suffix, _Iterations(count % copies, 0 if strategy == "full" else copies))
            _count_again(loop, config, count, copies)
        if module.version != version:
            flatten_call_graph(module)

    def _strategy(self, loop: HloInstruction) -> str:
        """Return `double_buffer`, `full`, or an empty string for a loop to leave alone."""
        if self.unroll_strategy == "auto":
            return "double_buffer" if any(i.opcode in COLLECTIVE for i in loop.while_body.instructions) else ""
        if self.unroll_strategy == "manual":
            asked = str(loop.frontend_attributes or "")
            named = [name for name in ("double_buffer", "full") if name in asked.replace("-", "_")]
            return named[0] if "_xla_loop_unroll_strategy" in asked and named else ""
        return self.unroll_strategy


def _trip_count(config: dict[str, Any]) -> int:
    known: dict[str, str] = config.get("known_trip_count") or {}
    return int(known.get("n", 0))


def _peel(loop: HloInstruction) -> None:
    """Copy the first iteration before the loop."""
    assert loop.parent is not None, "the loop is in a computation"
    body = loop.while_body
    made = copy_body(body, loop.parent, loop.operands[0], "peeled_double_buffer")
    _place_slices((made[value] for value in body.instructions), _Iterations(0))
    loop.operands = (made[body.root],)


def _repeat(loop: HloInstruction, copies: int, suffix: str, iterations: _Iterations) -> None:
    body = loop.while_body
    single, own = _snapshot(body), list(body.instructions)
    for number in range(1, copies):
        before = body.root
        made = copy_body(single, body, before, suffix)
        for old in single.parameters[0].users:
            for user in old.users:
                if user in made and not _is_free(user):
                    _wait(made[user], before.operands)
        body.root = made[single.root]
        places = _Iterations(iterations.first + number, iterations.step)
        _place_slices((made[value] for value in single.instructions), places)
    _place_slices(own, iterations)
    for value in single.instructions:
        value.called = {}


class _Iterations(Struct, frozen=True):
    """The iterations of the old loop that a copy of its body does: `first`, and every `step`-th after it; 0: no other."""

    first: int
    step: int = 0


def _place_slices(values: Iterable[HloInstruction], iterations: _Iterations) -> None:
    """Change the configs of dynamic slices from statements about the old loop to statements about a copy of its body."""
    for value in values:
        if value.opcode == "fusion":
            _place_slices(value.fused_computation.instructions, iterations)
        if value.opcode not in ("dynamic-slice", "dynamic-update-slice") or not value.backend_config:
            continue
        config = config_of(value.backend_config)
        place = config.get("dynamic_slice_config", {})
        # A loop further out has its iterations as before.
        if place.get("loop_index") != "0":
            continue
        linear = place.get("linear", place)  # jaxlib 0.10.2 has the two numbers in the record itself
        step = int(linear["byte_stride"])
        linear["byte_offset"] = str(int(linear["byte_offset"]) + iterations.first * step)
        linear["byte_stride"] = str(step * iterations.step)
        if not iterations.step:
            del place["loop_index"]
        value.attrs["backend_config"] = to_json(config)
        value.touch()


def _snapshot(body: HloComputation) -> HloComputation:
    """Return a copy of the body outside of the module, to copy from while the body grows."""
    clone = HloComputation(body.name, body.where)
    (parameter,) = body.parameters
    start = InstructionMaker(clone).parameter(0, parameter.shape, parameter.name)
    clone.root = copy_body(body, clone, start)[body.root]
    return clone


def _is_free(value: HloInstruction) -> bool:
    """Return True for collectives, and for operations with a constant, which may fold: they do not wait for the copy before."""
    has_constant = any(operand.opcode == "constant" for operand in value.operands)
    return value.opcode in COLLECTIVE or (value.opcode in ELEMENTWISE and len(value.operands) == 2 and has_constant)


def _wait(value: HloInstruction, roots: tuple[HloInstruction, ...]) -> None:
    found = [root for root in roots if root is not value and root.opcode != "parameter"]
    value.control_predecessors = list(dict.fromkeys((*value.control_predecessors, *found)))


def _count_again(loop: HloInstruction, config: dict[str, Any], count: int, copies: int) -> None:
    """Set the trip count, and what the config says about counters, as they are now."""
    config["known_trip_count"]["n"] = str(count // copies)
    counters: list[dict[str, str]] = [config.get("known_init_step") or {}, *config.get("dynamic_variables", [])]
    for counter in counters if copies == 2 else []:
        if "init" in counter and "step" in counter:
            step = int(counter["step"])
            counter["step"] = str(step * 2)
            counter["init"] = str(int(counter["init"]) + (step if count % 2 else 0))
    loop.attrs["backend_config"] = json.dumps(config, separators=(",", ":"))
    loop.touch()
