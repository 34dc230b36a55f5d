"""Move shardings through a module until none improves: forwards, backwards, through groups and called computations."""

from __future__ import annotations

from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.sharding import SingleSharding
from hlo_run.sharding.propagation.annotations import refine_from_group, refine_from_operand, refine_from_users
from hlo_run.sharding.propagation.from_operands import infer_from_operands
from hlo_run.sharding.propagation.from_user import sharding_from_user
from hlo_run.sharding.propagation.state import Propagation, improve, is_call_to, moves_at, set_sharding
from hlo_run.sharding.values.make import REPLICATED, elements_of, is_manual, is_whole, same


def run_to_fixpoint(run: Propagation, module: HloModule, level: int) -> None:
    """Improve shardings at one level of eagerness until nothing changes."""
    _Fixpoint(run, module, level).run_all()


def related(run: Propagation, instruction: HloInstruction) -> list[HloInstruction]:
    """Return the instructions whose values have one sharding: a loop with its body's parameter and root, and so on."""
    opcode = instruction.opcode
    if opcode == "while":
        body, condition = instruction.while_body, instruction.while_condition
        return [instruction, body.root, body.parameters[0], condition.parameters[0]]
    if opcode in ("conditional", "call"):
        return [instruction, *(c.root for c in instruction.called_computations)]
    if opcode == "parameter" and instruction.parent is not None:
        caller = run.caller.get(instruction.parent)
        if caller is not None and caller.opcode == "conditional":
            return [instruction, caller.operands[1 + caller.called_computations.index(instruction.parent)]]
        if caller is not None and caller.opcode == "call":
            return [instruction, caller.operands[instruction.parameter_number]]
    return []


class _Fixpoint:
    def __init__(self, run: Propagation, module: HloModule, level: int) -> None:
        self._run, self._module, self._level = run, module, level
        self._from_group: set[HloInstruction] = set()
        self._from_operands: set[HloInstruction] = set()
        self._from_users: set[HloInstruction] = set()

    def run_all(self) -> None:
        changed = True
        while changed:
            changed = False
            for computation in list(self._module.computations):
                if computation.is_fusion:
                    continue
                order = computation.post_order()
                for step, steps in ((self._group_step, order), (self._forward_step, order), (self._backward_step, order[::-1])):
                    for instruction in steps:
                        changed |= step(instruction)

    def _group_step(self, instruction: HloInstruction) -> bool:
        number = self._run.group_of.get(instruction)
        if number is None or instruction in self._from_group:
            return False
        group = self._run.groups[number]
        if instruction in self._run.provided:
            dims = self._run.unspecified.get(instruction)
            if self._level == 0 or dims is None or not refine_from_group(instruction, dims, group):
                return False
            self._forget(instruction)
            self._from_group.add(instruction)
            return True
        self._from_group.add(instruction)
        return self._infer_from_group(instruction, group) and self._changed(instruction)

    def _infer_from_group(self, instruction: HloInstruction, group: list[HloInstruction]) -> bool:
        old = instruction.sharding
        if not moves_at(instruction, self._level) or (old is not None and is_manual(old)):
            return False
        if is_call_to(instruction, "ShardBarrierTo"):
            return False
        others = [m for m in group if m is not instruction and m.sharding is not None]
        if old is None or is_whole(old):
            for member in others:
                if member.sharding is not None and is_manual(member.sharding):
                    instruction.attrs["sharding"] = member.sharding
                    return True
        changed = False
        for member in others:
            if not is_call_to(member, "ShardBarrierFrom") and member.sharding is not None:
                changed |= improve(instruction, member.sharding, self._level > 0)
        return changed

    def _forward_step(self, instruction: HloInstruction) -> bool:
        if instruction in self._from_operands:
            return False
        if instruction in self._run.provided:
            dims = self._run.unspecified.get(instruction)
            if self._level == 0 or dims is None:
                return False
            changed, conversion = refine_from_operand(instruction, dims)
            if changed:
                self._forget(instruction, conversion)
                self._from_operands.add(instruction)
            return changed
        self._from_operands.add(instruction)
        return infer_from_operands(self._run, instruction, self._level) and self._changed(instruction)

    def _backward_step(self, instruction: HloInstruction) -> bool:
        if is_call_to(instruction, "SPMDFullToShardShape", "SPMDShardToFullShape") and instruction not in self._from_users:
            # The annotation before a conversion is refined together with it.
            self._from_users.discard(instruction.operands[0])
        if instruction in self._from_users:
            return False
        if instruction in self._run.provided:
            dims = self._run.unspecified.get(instruction)
            if self._level == 0 or dims is None:
                return False
            changed, conversion = refine_from_users(instruction, dims, self._level)
            if changed:
                self._forget(instruction, conversion)
                self._from_users.add(instruction)
                if conversion is not None:
                    self._from_users.add(conversion)
            return changed
        self._from_users.add(instruction)
        return self._infer_from_users(instruction) and self._changed(instruction)

    def _infer_from_users(self, instruction: HloInstruction) -> bool:
        run, level = self._run, self._level
        old = instruction.sharding
        if (level < 2 and instruction.opcode == "broadcast") or (old is not None and is_manual(old)):
            return False
        if (old is None or is_whole(old)) and self._manual_from_user(instruction):
            return True
        if not run.supports(instruction, to_output=False, to_parameters=run.spreads_to_parameters):
            return False
        changed = False
        for user in instruction.users:
            if user.opcode == "rng-bit-generator":
                set_sharding(instruction, REPLICATED)
                return True
            found = sharding_from_user(instruction, user, level)
            if found is not None and is_call_to(instruction, "ShardBarrierTo"):
                found = REPLICATED
            if found is not None:
                changed |= improve(instruction, found, level > 0)
        return changed

    def _manual_from_user(self, instruction: HloInstruction) -> bool:
        for user in instruction.users:
            if user.sharding is None or is_call_to(user, "SPMDFullToShardShape"):
                continue
            if instruction.shape.is_array and is_manual(user.sharding):
                instruction.attrs["sharding"] = SingleSharding("manual")
                return True
            found = sharding_from_user(instruction, user, self._level)
            if found is not None and is_manual(found):
                set_sharding(instruction, elements_of(found)[0] if not instruction.shape.is_tuple else found)
                return True
        return False

    def _changed(self, instruction: HloInstruction) -> bool:
        touched: list[HloInstruction] = []
        self._spread_to_related(instruction, touched)
        for each in (instruction, *touched):
            self._forget(each)
        return True

    def _spread_to_related(self, instruction: HloInstruction, touched: list[HloInstruction]) -> None:
        """Give the sharding of control flow to its computations' roots and parameters, and theirs to it."""
        if instruction.opcode in ("conditional", "while", "call"):
            self._spread(instruction, instruction, touched)
        computation = instruction.parent
        assert computation is not None
        if instruction.opcode != "parameter" and computation.root is not instruction:
            return
        caller = self._run.caller.get(computation)
        if caller is None:
            return
        self._spread(caller, instruction, touched)
        if instruction.opcode == "parameter" and caller.opcode in ("conditional", "call"):
            self._spread(instruction, instruction, touched)

    def _spread(self, around: HloInstruction, source: HloInstruction, touched: list[HloInstruction]) -> None:
        group = related(self._run, around)
        if source not in group or source.sharding is None:
            return
        for member in group:
            if member not in self._run.provided and not same(member.sharding, source.sharding):
                member.attrs["sharding"] = source.sharding
                touched.append(member)
                self._spread_to_related(member, touched)

    def _forget(self, instruction: HloInstruction, for_users: HloInstruction | None = None) -> None:
        """Let the neighbours of a changed instruction be looked at again."""
        self._from_users.difference_update(instruction.operands)
        for user in (for_users or instruction).users:
            self._from_operands.discard(user)
            for computation in user.called_computations:
                self._from_operands.difference_update(computation.parameters)
        number = self._run.group_of.get(instruction)
        if number is not None:
            self._from_group.difference_update(m for m in self._run.groups[number] if m is not instruction)
