"""Merge instructions that compute the same value from the same operands.

    a = f32[8] tanh(p);  b = f32[8] tanh(p);  r = add(a, b)   =>   a = f32[8] tanh(p);  r = add(a, a)

Operands of commutative instructions may be in any order; called computations are compared by content. Constants are merged
first, iotas together with the instructions that use them. Instructions with effects or control dependencies stay, and those in
`_UNIQUE`. XLA's `HloCSE`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.value_keys import ValueKeys
from hlo_run.hlo.edit import Leftovers, has_side_effect
from hlo_run.hlo.frontend_attributes import frontend_attribute
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import ASYNC, DEVICE_ID
from hlo_run.hlo.unchanged import is_unchanged_since, mark_settled
from hlo_run.pass_support.equal_values import EqualValues
from hlo_run.pass_support.fuel import Fuel
from hlo_run.pass_support.hlo_pass import PassContext

# Never merged: their identity matters.
_UNIQUE = frozenset((*ASYNC, "parameter", "after-all", "add-dependency", "opt-barrier"))


class HloCse(Struct, frozen=True):
    """The pass; see the module's docstring.

    With `sees_layouts`, layouts are assigned, and instructions with different layouts are not merged. With `in_fusions`, only
    fusion bodies are edited, otherwise all computations. With `only_scalars`, only scalars are merged.
    """

    name: ClassVar[str] = "cse"

    sees_layouts: bool = False
    in_fusions: bool = False
    only_scalars: bool = False

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit the chosen computations in place, by one walk over each."""
        work = self.name, self.sees_layouts, self.only_scalars
        for computation in module.computations:
            if (self.in_fusions and not computation.is_fusion) or is_unchanged_since(module, work, computation):
                continue
            reads_bytes = any(instruction.opcode == "bitcast" for instruction in computation.instructions)
            if not _merge(module, computation, ValueKeys(self.sees_layouts or reads_bytes), ctx.fuel, self.only_scalars):
                mark_settled(module, work, computation)
            if computation.is_fusion:
                _read_first_results(computation)


def _merge(module: HloModule, computation: HloComputation, keys: ValueKeys, fuel: Fuel, only_scalars: bool) -> bool:
    """Merge equal instructions of a computation; return True if something was merged."""
    changed = _merge_constants(module, computation, keys, fuel, only_scalars)
    values = EqualValues(keys)
    ordered = {p for i in computation.instructions for p in i.control_predecessors}
    unused = Leftovers()
    for instruction in computation.post_order():
        if instruction in unused:
            continue
        values.number(instruction)
        if instruction.control_predecessors or instruction in ordered:
            continue
        if not _may_merge(instruction) or (only_scalars and not _is_scalar(instruction)):
            changed = _merge_iotas(values, instruction, unused) or changed
            continue
        same = values.first_like(instruction)
        if same is None:
            changed = _merge_iotas(values, instruction, unused) or changed
        elif fuel.take("cse"):
            module.replace_uses(instruction, same)
            unused.add(instruction)
            changed = True
    unused.remove()
    return changed


def _merge_constants(module: HloModule, computation: HloComputation, keys: ValueKeys, fuel: Fuel, only_scalars: bool) -> bool:
    """Replace constants by the first equal one in the order of creation; return True if there was one."""
    first: dict[Hashable, HloInstruction] = {}
    replaced: set[HloInstruction] = set()
    for instruction in computation.instructions:
        if instruction.opcode != "constant" or not instruction.shape.is_array or (only_scalars and not _is_scalar(instruction)):
            continue
        same = first.setdefault(keys.of(instruction, ()), instruction)
        if same is not instruction and not instruction.control_predecessors and fuel.take("cse"):
            module.replace_uses(instruction, same)
            replaced.add(instruction)
    if replaced:
        computation.remove_all(replaced)
    return bool(replaced)


def _read_first_results(body: HloComputation) -> None:
    """Let the readers of equal results of a fusion read the first of them."""
    root = body.root
    if root.opcode != "tuple" or len(set(root.operands)) == len(root.operands):
        return
    for fusion in body.callers:
        for user in fusion.users:
            if user.opcode == "get-tuple-element":
                first = root.operands.index(root.operands[user.tuple_index])
                if first != user.tuple_index:
                    user.attrs["index"] = first
                    user.touch()


def _merge_iotas(values: EqualValues, instruction: HloInstruction, unused: Leftovers) -> bool:
    """Let operands that are equal iotas be the first of them; return True if there were such."""
    others = values.read_first_iotas(instruction)
    for iota in others:
        unused.add(iota)
    return bool(others)


def _is_scalar(instruction: HloInstruction) -> bool:
    return instruction.shape.is_array and not instruction.shape.dims


def _may_merge(instruction: HloInstruction) -> bool:
    # Constants are merged before, and iotas with the instructions that use them.
    if instruction.opcode in _UNIQUE:
        return False
    if not instruction.operands and instruction.opcode not in DEVICE_ID and not _is_marked(instruction):
        return False
    # The layouts of the root are fixed by the caller.
    return not has_side_effect(instruction) and not (instruction.is_root and instruction.shape.is_tuple)


def _is_marked(instruction: HloInstruction) -> bool:
    """Return True for an instruction without operands that a framework allows to merge."""
    return frontend_attribute(instruction, "_xla_cse_safe_zero_operand") == "true"
