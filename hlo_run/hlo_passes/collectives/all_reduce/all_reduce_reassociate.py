"""Reduce the sum of two values between devices, not the two values: all-reduce(x) + all-reduce(y) => all-reduce(x + y).

    a = f32[8] all-reduce(x), to_apply=add
    b = f32[8] all-reduce(y), to_apply=add
    s = f32[8] add(a, b)                        =>   s = f32[8] all-reduce(add(x, y)), to_apply=add

Looks through reshapes, slices and pads of each all-reduce with one user, and through conversions to a wider type, with which the
reduction takes place in the wide type. Also for shards that are sliced alike. The new all-reduce gets a
new channel. XLA's `AllReduceReassociate`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.simple_reducer import is_identity
from hlo_run.hlo.edit import copy_instruction
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.dtype import keeps_values
from hlo_run.hlo_passes.collectives.communication.channels import free_channels, move_to_channel, pins_layouts
from hlo_run.hlo_passes.collectives.communication.reductions import (
    kind_of_operation,
    kind_of_reducer,
    reducer_of_type,
    reduction_key,
)
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.records import replace

_FORMATTING: tuple[Opcode, ...] = ("reshape", "pad", "slice", "convert")


class AllReduceReassociate(Struct, frozen=True):
    """The pass; see the module's docstring. With `promotes` it looks through conversions to a wider type."""

    name: ClassVar[str] = "all-reduce-reassociate"
    promotes: bool = True

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        if not module.instructions_of("all-reduce") or pins_layouts(module, "all-reduce"):
            return
        channels = free_channels(module)
        for computation in [c for c in module.computations if not c.is_fusion]:
            for instruction in computation.post_order():
                kind = kind_of_operation(instruction) if instruction.parent is computation else ""
                if kind and len(instruction.operands) == 2:
                    self._join(module, instruction, kind, channels)

    def _join(self, module: HloModule, instruction: HloInstruction, kind: str, channels: Iterator[int]) -> None:
        one, two = (_reduced(operand, instruction.opcode) for operand in instruction.operands)
        if one is None or two is None or one.opcode != two.opcode:
            return
        if one.opcode == "dynamic-slice":
            _join_shards(module, instruction, kind, one, two, channels)
            return
        sizes = math.prod(one.shape.dims) + (math.prod(two.shape.dims) if two is not one else 0)
        if sizes < math.prod(instruction.shape.dims):
            return
        converts = [
            o for o in instruction.operands if o.opcode == "convert" and len(o.users) == 1 and o.operands[0] in (one, two)
        ]
        if converts:
            types = {convert.operands[0].shape.element_type for convert in converts}
            keeps = all(keeps_values(c.operands[0].shape.dtype, c.shape.dtype) for c in converts)
            others = [o for o in instruction.operands if o not in converts]
            if self.promotes and keeps and len(types) == 1 and all(o in (one, two) for o in others):
                _join_converted(module, instruction, kind, one, two, channels)
        elif _is_same_reduction(one, two, kind) and one.shape.element_type == instruction.shape.element_type:
            _join_plain(module, instruction, one, two, channels)


def _reduced(value: HloInstruction, opcode: Opcode) -> HloInstruction | None:
    """Return the all-reduce from which only formatting leads to a value, or the slice of a shard of one; None without."""
    if value.opcode == "dynamic-slice":
        reduce = value.operands[0]
        return value if reduce.opcode == "all-reduce" and len(reduce.users) == len(value.users) == 1 else None
    while value.opcode != "all-reduce":
        if len(value.users) != 1 or value.opcode not in _FORMATTING:
            return None
        if value.opcode == "pad" and not is_identity(value.operands[1], opcode):
            return None
        value = value.operands[0]
    return value if len(value.users) == 1 and value.shape.is_array else None


def _is_same_reduction(one: HloInstruction, two: HloInstruction, kind: str, ignores_type: bool = False) -> bool:
    keys = [reduction_key(reduce) for reduce in (one, two)]
    if None in keys or kind_of_reducer(one.to_apply) != kind:
        return False
    alike = [replace(key, element_type="") if ignores_type else key for key in keys if key is not None]
    return alike[0] == alike[1]


def _join_plain(
    module: HloModule, instruction: HloInstruction, one: HloInstruction, two: HloInstruction, channels: Iterator[int]
) -> None:
    assert instruction.parent is not None, "it is in a computation"
    users, was_root = list(instruction.users), instruction.is_root
    for reduce in dict.fromkeys((one, two)):
        module.replace_uses(reduce, reduce.operands[0])
    made = instruction.parent.add(copy_instruction(one, [instruction], instruction.shape))
    move_to_channel(made, channels)
    for user in users:
        user.replace_operand(instruction, made)
    if was_root:
        instruction.parent.root = made
    _remove(one, two)


def _join_converted(
    module: HloModule, instruction: HloInstruction, kind: str, one: HloInstruction, two: HloInstruction, channels: Iterator[int]
) -> None:
    if not _is_same_reduction(one, two, kind, ignores_type=True):
        return
    assert instruction.parent is not None, "it is in a computation"
    operands: list[HloInstruction] = []
    for operand, reduce in zip(instruction.operands, (one, two), strict=True):
        (source,) = reduce.operands
        if operand.opcode == "convert":
            operand.operands = (source,)
        operands.append(operand if operand.opcode == "convert" else source)
    combined = instruction.parent.add(copy_instruction(instruction, operands))
    made = copy_instruction(one, [combined], instruction.shape)
    move_to_channel(made, channels)
    element_type = instruction.shape.element_type
    made.called = {"to_apply": (reducer_of_type(one.to_apply, element_type, "_reassoc_promoted"),)}
    module.replace_uses(instruction, instruction.parent.add(made))
    _remove(instruction, one, two)


def _join_shards(
    module: HloModule, instruction: HloInstruction, kind: str, one: HloInstruction, two: HloInstruction, channels: Iterator[int]
) -> None:
    """Join two shards that are sliced alike."""
    first, second = one.operands[0], two.operands[0]
    if one.operands[1:] != two.operands[1:] or one.shape.dims != two.shape.dims or first.shape != second.shape:
        return
    if not first.shape.is_array or not _is_same_reduction(first, second, kind):
        return
    assert instruction.parent is not None, "it is in a computation"
    add = instruction.parent.add
    combined = add(copy_instruction(instruction, [first.operands[0], second.operands[0]], first.shape))
    made = add(copy_instruction(first, [combined], first.shape))
    move_to_channel(made, channels)
    shard = add(copy_instruction(one, [made, *one.operands[1:]], instruction.shape))
    module.replace_uses(instruction, shard)
    _remove(instruction, one, two, first, second)


def _remove(*instructions: HloInstruction) -> None:
    for instruction in dict.fromkeys(instructions):
        assert instruction.parent is not None, "it is in a computation"
        instruction.parent.remove(instruction)
