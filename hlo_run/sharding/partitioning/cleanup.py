"""Clean up after partitioning: merge equal instructions, forward elements of tuples, and drop unused instructions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from hlo_run.analysis.value_keys import ValueKeys
from hlo_run.hlo.edit import has_side_effect, remove_uncalled
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.hlo.opcodes.traits import CONTROL_FLOW, SIDE_EFFECT
from hlo_run.pass_support.equal_values import EqualValues
from hlo_run.pass_support.observer import PIPELINE_START
from hlo_run.walks import walk

_UNIQUE = CONTROL_FLOW | SIDE_EFFECT | opcode_set("parameter after-all add-dependency opt-barrier")


def clean_up(module: HloModule, tell: Callable[[str, bool], None]) -> None:
    """Edit all computations in place. Collectives without a user go too, channels or not.

    `tell` gets the name of each step, and whether it changed something. As in XLA, reducers of instructions that are merged stay
    in the module.
    """
    computations = [computation for computation in module.computations if not computation.is_fusion]

    def run(name: str, step: Callable[[], None]) -> None:
        version = module.version
        step()
        tell(name, module.version != version)

    def remove_unused() -> None:
        for computation in computations:
            _remove_unreached(computation)
        remove_uncalled(module)

    def merge() -> None:
        for computation in computations:
            _merge_equal(module, computation)
            _remove_unreached(computation)

    tell(PIPELINE_START, True)
    run("dce", remove_unused)
    run("tuple-simplifier", lambda: _forward_elements(module, computations))
    run("dce", remove_unused)
    run("cse", merge)


def _forward_elements(module: HloModule, computations: Sequence[HloComputation]) -> None:
    for computation in computations:
        for element in computation.post_order():
            if element.opcode == "get-tuple-element" and element.operands[0].opcode == "tuple":
                module.replace_uses(element, element.operands[0].operands[element.tuple_index])


def _merge_equal(module: HloModule, computation: HloComputation) -> None:
    """Merge equal instructions: of constants the first in the order of creation stays, of others the first in post-order."""
    keys = ValueKeys(False)
    constants: dict[Hashable, HloInstruction] = {}
    for constant in [i for i in computation.instructions if i.opcode == "constant" and not i.control_predecessors]:
        first = constants.setdefault(keys.of(constant, ()), constant)
        if first is not constant:
            module.replace_uses(constant, first)
    values = EqualValues(keys)
    for instruction in computation.post_order():
        values.number(instruction)
        if instruction.opcode in ("constant", "iota"):
            continue
        values.read_first_iotas(instruction)
        is_call = instruction.opcode == "custom-call" and instruction.has_side_effect
        if instruction.opcode in _UNIQUE or is_call or instruction.control_predecessors:
            continue
        same = values.first_like(instruction)
        if same is not None:
            module.replace_uses(instruction, same)


def _remove_unreached(computation: HloComputation) -> None:
    """Remove what neither the root nor an instruction with an effect needs."""
    waiting = [computation.root, *computation.parameters]
    waiting += [i for i in computation.instructions if i.opcode in SIDE_EFFECT]
    may_have = {"custom-call", *CONTROL_FLOW}
    waiting += [i for i in computation.instructions if i.opcode in may_have and has_side_effect(i)]
    reached = set(walk(waiting, lambda i: (*i.operands, *i.control_predecessors)))
    computation.remove_all({i for i in computation.instructions if i not in reached})
