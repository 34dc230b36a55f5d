"""Remove all-reduces of one device, or of a value that all replicas have.

    r = f32[8] all-reduce(x), replica_groups={{0},{1}}      =>   r = x
    r = f32[8] all-reduce(c), to_apply=add                  =>   r = f32[8] multiply(c, broadcast(2))     c is equal on 2 replicas

Also removes all-gathers and reduce-scatters whose result has the shape of the operand. XLA's `AllReduceSimplifier`.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec import Struct

from hlo_run.analysis.replication import Replication
from hlo_run.hlo.edit import Editor, bypass
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo_passes.collectives.communication.reductions import is_one_operation
from hlo_run.ops.groups import device_counts, group_mode
from hlo_run.pass_support.hlo_pass import PassContext

_IDEMPOTENT: tuple[Opcode, ...] = ("minimum", "maximum", "or", "and")


class AllReduceSimplifier(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "all-reduce-simplifier"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        for collective in module.in_post_order("all-gather", "reduce-scatter"):
            value = collective.operands[0]
            if len(collective.operands) == 1 and collective.shape.is_array and collective.shape.same_dims(value.shape):
                bypass(module, collective)
        reduces = [r for r in module.in_post_order("all-reduce") if r.shape.is_array and len(r.operands) == 1]
        if not reduces:
            return
        replication = Replication(module, across_partitions=False)
        for reduce in reduces:
            size = _group_size(reduce)
            if size == 1:
                bypass(module, reduce)
            elif size and reduce.channel_id is None and replication.is_same(reduce.operands[0]):
                _reduce_one_value(module, reduce, size)


def _group_size(reduce: HloInstruction) -> int:
    """Return the number of devices in each group; 0 if it is not the same in all."""
    replicas, partitions = device_counts(reduce)
    mode = group_mode(reduce)
    groups = reduce.replica_groups.groups()
    sizes = {len(group) for group in groups} or {replicas}
    if len(sizes) != 1:
        return 0
    return sizes.pop() * (partitions if mode == "cross_replica_and_partition" else 1)


def _reduce_one_value(module: HloModule, reduce: HloInstruction, size: int) -> None:
    (value,) = reduce.operands
    opcode = reduce.to_apply.root.opcode if is_one_operation(reduce.to_apply) else ""
    if opcode in _IDEMPOTENT:
        module.replace_uses(reduce, value)
    elif opcode == "add":
        editor = Editor(reduce, derives=False)
        factor = editor.convert(editor.constant(np.int32(size), "s32"), reduce.shape.element_type)
        if reduce.shape.rank:
            factor = editor.add("broadcast", reduce.shape, [factor], dimensions=())
        module.replace_uses(reduce, editor.add("multiply", reduce.shape, [value, factor]))
