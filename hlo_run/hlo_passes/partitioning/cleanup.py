"""Clean up after partitioning: merge equal instructions, forward elements of tuples, and drop what is not used."""

from __future__ import annotations

from collections.abc import Hashable

from hlo_run.analysis.value_keys import ValueKeys
from hlo_run.hlo.edit import remove_uncalled
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import CONTROL_FLOW, SIDE_EFFECT
from hlo_run.hlo.values.sharding import Sharding

_UNIQUE = CONTROL_FLOW | SIDE_EFFECT | {"parameter", "after-all", "add-dependency", "opt-barrier", "optimization-barrier"}


def clean_up(module: HloModule) -> None:
    """Edit the entry and the computations of control flow in place. Collectives without a user go too, channels or not.

    As in XLA, reducers of instructions that are merged stay in the module.
    """
    computations = [c for c in module.computations if c.is_entry or any(i.opcode in CONTROL_FLOW for i in c.callers)]
    for computation in computations:
        for element in computation.post_order():
            if element.opcode == "get-tuple-element" and element.operands[0].opcode == "tuple":
                module.replace_uses(element, element.operands[0].operands[element.tuple_index])
        remove_unreached(computation)
    remove_uncalled(module)
    for computation in computations:
        _merge_equal(module, computation)
        remove_unreached(computation)


def _merge_equal(module: HloModule, computation: HloComputation) -> None:
    """Merge equal instructions, unless they stand for instructions with different shardings.

    As in XLA, equal iotas stay, but instructions that read equal iotas are equal.
    """
    keys = ValueKeys(False)
    first: dict[Hashable, list[tuple[HloInstruction, Sharding | None]]] = {}
    iotas: dict[Hashable, int] = {}
    numbers: dict[HloInstruction, int] = {}
    for instruction in computation.post_order():
        numbers[instruction] = len(numbers)
        sharding = instruction.sharding if instruction.opcode != "constant" else None
        if instruction.opcode == "iota":
            instruction.attrs.pop("sharding", None)
            numbers[instruction] = iotas.setdefault(keys.of(instruction, ()), numbers[instruction])
            continue
        _read_first_iotas(instruction, numbers)
        is_call = instruction.opcode == "custom-call" and instruction.attrs.get("custom_call_has_side_effect")
        if instruction.opcode in _UNIQUE or is_call or instruction.control_predecessors:
            continue
        instruction.attrs.pop("sharding", None)
        known = first.setdefault(keys.of(instruction, tuple(numbers[o] for o in instruction.operands)), [])
        same = next((old for old, other in known if sharding is None or other is None or other == sharding), None)
        if same is None:
            known.append((instruction, sharding))
        else:
            module.replace_uses(instruction, same)


def _read_first_iotas(instruction: HloInstruction, numbers: dict[HloInstruction, int]) -> None:
    """Let operands of one instruction that are equal iotas be one of them."""
    first: dict[int, HloInstruction] = {}
    for operand in dict.fromkeys(instruction.operands):
        if operand.opcode == "iota" and first.setdefault(numbers[operand], operand) is not operand:
            instruction.replace_operand(operand, first[numbers[operand]])


def remove_unreached(computation: HloComputation) -> None:
    """Remove what neither the root nor an instruction with an effect needs."""
    reached: dict[HloInstruction, None] = {}
    waiting = [computation.root, *computation.parameters]
    waiting += [i for i in computation.instructions if i.opcode in SIDE_EFFECT]
    waiting += [i for i in computation.instructions if i.attrs.get("custom_call_has_side_effect")]
    while waiting:
        instruction = waiting.pop()
        if instruction not in reached:
            reached[instruction] = None
            waiting += [*instruction.operands, *instruction.control_predecessors]
    computation.remove_all({i for i in computation.instructions if i not in reached})
