"""The state of a module at one moment, kept at little cost: the copy is only made if somebody asks for it.

To keep the state of a module costs a hundredth of its text. Passes may go on and edit the module.
"""

from __future__ import annotations

from typing import NamedTuple

from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.attribute_values import AttributeValue
from hlo_run.hlo.values.shape import Shape


class _Instruction(NamedTuple):
    instruction: HloInstruction
    name: str
    opcode: Opcode
    shape: Shape
    operands: tuple[HloInstruction, ...]
    attrs: dict[str, AttributeValue]
    called: dict[str, tuple[HloComputation, ...]]
    control_predecessors: tuple[HloInstruction, ...]


class _Computation(NamedTuple):
    computation: HloComputation
    name: str
    execution_thread: str
    backend_config: str
    root: HloInstruction | None
    instructions: list[_Instruction]


class ModuleState:
    """Keeps what the text of `module` says as it is now. The order of users and the schedule are left out."""

    def __init__(self, module: HloModule) -> None:
        self._name, self._attrs = module.name, dict(module.attrs)
        self._entry = module.entry_computation
        self._has_default_entry_layout = module.has_default_entry_layout
        self._computations = [_kept(computation) for computation in module.computations]

    def module(self) -> HloModule:
        """Return a module in this state, with the same names."""
        computations = {kept.computation: HloComputation(kept.name) for kept in self._computations}
        instructions: dict[HloInstruction, HloInstruction] = {}
        every = [i for kept in self._computations for i in kept.instructions]
        for kept in self._computations:
            computation = computations[kept.computation]
            computation.execution_thread, computation.backend_config = kept.execution_thread, kept.backend_config
            for old in kept.instructions:
                new = HloInstruction(old.name, old.opcode, old.shape, (), dict(old.attrs))
                instructions[old.instruction] = computation.add(new, is_root=old.instruction is kept.root)
        for old in every:
            new = instructions[old.instruction]
            new.operands = tuple([instructions[operand] for operand in old.operands])
            new.called = {name: tuple([computations[c] for c in group]) for name, group in old.called.items()}
            new.control_predecessors = [instructions[p] for p in old.control_predecessors]
        made = HloModule(self._name, attrs=dict(self._attrs))
        made.has_default_entry_layout = self._has_default_entry_layout
        for old_computation, computation in computations.items():
            made.add_named_computation(computation, is_entry=old_computation is self._entry)
        return made


def _kept(computation: HloComputation) -> _Computation:
    instructions = [
        _Instruction(i, i.name, i.opcode, i.shape, i.operands, dict(i.attrs.stored), i.called, tuple(i.control_predecessors))
        for i in computation.instructions
    ]
    root = computation.root if computation.has_root else None
    thread, config = computation.execution_thread, computation.backend_config
    return _Computation(computation, computation.name, thread, config, root, instructions)
