"""Clean up after partitioning: merge equal instructions, forward elements of tuples, and drop what is not used."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from hlo_run.analysis.value_keys import ValueKeys
from hlo_run.hlo.edit import has_side_effect, remove_uncalled
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import CONTROL_FLOW, SIDE_EFFECT
from hlo_run.hlo.values.sharding import Sharding
from hlo_run.hlo_passes.observer import PIPELINE_START

_UNIQUE = CONTROL_FLOW | SIDE_EFFECT | {"parameter", "after-all", "add-dependency", "opt-barrier", "optimization-barrier"}


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
    """Merge equal instructions, unless they stand for instructions with different shardings.

    As in XLA, equal iotas stay, but instructions that read equal iotas are equal.
    """
    keys = ValueKeys(False)
    first: dict[Hashable, list[tuple[HloInstruction, Sharding | None]]] = {}
    iotas: dict[Hashable, int] = {}
    numbers: dict[HloInstruction, int] = {}
    for instruction in computation.post_order():
        numbers[instruction] = len(numbers)
        if instruction.opcode == "iota":
            numbers[instruction] = iotas.setdefault(_key(keys, instruction, ()), numbers[instruction])
            continue
        _read_first_iotas(instruction, numbers)
        is_call = instruction.opcode == "custom-call" and instruction.attrs.get("custom_call_has_side_effect")
        if instruction.opcode in _UNIQUE or is_call or instruction.control_predecessors:
            continue
        sharding = instruction.sharding if instruction.opcode != "constant" else None
        known = first.setdefault(_key(keys, instruction, tuple(numbers[o] for o in instruction.operands)), [])
        same = next((old for old, other in known if sharding is None or other is None or other == sharding), None)
        if same is None:
            known.append((instruction, sharding))
        else:
            module.replace_uses(instruction, same)


def _key(keys: ValueKeys, instruction: HloInstruction, operands: tuple[int, ...]) -> Hashable:
    """Return the key of an instruction's value without its sharding."""
    sharding = instruction.attrs.pop("sharding", None)
    key = keys.of(instruction, operands)
    if sharding is not None:
        instruction.attrs["sharding"] = sharding
    return key


def _read_first_iotas(instruction: HloInstruction, numbers: dict[HloInstruction, int]) -> None:
    """Let operands of one instruction that are equal iotas be one of them."""
    first: dict[int, HloInstruction] = {}
    for operand in dict.fromkeys(instruction.operands):
        if operand.opcode == "iota" and first.setdefault(numbers[operand], operand) is not operand:
            instruction.replace_operand(operand, first[numbers[operand]])


def _remove_unreached(computation: HloComputation) -> None:
    """Remove what neither the root nor an instruction with an effect needs."""
    reached: dict[HloInstruction, None] = {}
    waiting = [computation.root, *computation.parameters]
    waiting += [i for i in computation.instructions if i.opcode in SIDE_EFFECT]
    may_have = {"custom-call", *CONTROL_FLOW}
    waiting += [i for i in computation.instructions if i.opcode in may_have and has_side_effect(i)]
    while waiting:
        instruction = waiting.pop()
        if instruction not in reached:
            reached[instruction] = None
            waiting += [*instruction.operands, *instruction.control_predecessors]
    computation.remove_all({i for i in computation.instructions if i not in reached})
