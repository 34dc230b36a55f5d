"""Split an all-reduce among several hosts into one within each host and one across the hosts.

    r = f32[8] all-reduce(x), replica_groups={{0,1,2,3}}, to_apply=add                            two devices per host
        =>   s = f32[4] reduce-scatter(f32[8] bitcast(x)), replica_groups={{0,1},{2,3}}, to_apply=add
             a = f32[4] all-reduce(s), replica_groups={{0,2},{1,3}}, to_apply=add
             r = f32[8] bitcast(f32[8] all-gather(a), replica_groups={{0,1},{2,3}})

The all-reduce across hosts is split again if its groups have four devices or more. XLA's `AllReduceBlueConnect`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.attribute_values import AttributeValue
from hlo_run.hlo.values.replica_groups import ReplicaGroups
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.collectives.communication.channels import free_channels, pins_layouts
from hlo_run.ops.groups import device_counts
from hlo_run.pass_support.hlo_pass import PassContext


class AllReduceBlueconnect(Struct, frozen=True):
    """The pass; see the module's docstring. With 0 devices per host nothing changes."""

    devices_per_host: int
    name: ClassVar[str] = "all-reduce-blueconnect"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        if pins_layouts(module, "all-reduce") or not self.devices_per_host:
            return
        for reduce in list(module.instructions_of("all-reduce")):
            across: HloInstruction | None = reduce
            while across is not None:
                across = _split(module, across, self.devices_per_host)


class _Steps(Struct, frozen=True):
    """The groups of the two steps: `within` the hosts and `across` them."""

    within: tuple[tuple[int, ...], ...]
    across: tuple[tuple[int, ...], ...]


def _split(module: HloModule, reduce: HloInstruction, devices_per_host: int) -> HloInstruction | None:
    """Split an all-reduce. Return the new one across hosts; None if it stays as it is."""
    steps = _steps(reduce, devices_per_host)
    if steps is None:
        return None
    size = len(steps.within[0])
    counts = [math.prod(operand.shape.dims) for operand in reduce.operands]
    if any(count % size for count in counts):
        return None
    editor, channels = Editor(reduce, derives=False), free_channels(module)
    flat_shapes = [Shape.array(o.shape.element_type, (count,)) for o, count in zip(reduce.operands, counts, strict=True)]
    shards = _joined([Shape.array(flat.element_type, (flat.dims[0] // size,)) for flat in flat_shapes])
    flat = [editor.add("bitcast", shape, [operand]) for shape, operand in zip(flat_shapes, reduce.operands, strict=True)]
    called = dict(reduce.called)
    given: dict[str, AttributeValue] = {name: reduce.attrs[name] for name in ("use_global_device_ids",) if name in reduce.attrs}
    across_hosts: dict[str, AttributeValue] = {"replica_groups": ReplicaGroups(steps.across), **given}
    if reduce.channel_id is not None:
        across_hosts = {"channel_id": reduce.channel_id, **across_hosts}

    def within_hosts() -> dict[str, AttributeValue]:
        channel = {"channel_id": next(channels)} if reduce.channel_id is not None else {}
        return {**channel, "replica_groups": ReplicaGroups(steps.within), **given, "dimensions": (0,)}

    scattered = editor.add_with("reduce-scatter", shards, flat, within_hosts(), called)
    across = editor.add_with("all-reduce", shards, _elements(editor, scattered), across_hosts, called)
    whole = _joined(flat_shapes)
    gathered = editor.add_with("all-gather", whole, _elements(editor, across), within_hosts())
    results = [
        editor.add("bitcast", operand.shape, [value])
        for operand, value in zip(reduce.operands, _elements(editor, gathered), strict=True)
    ]
    result = results[0] if len(results) == 1 else editor.tuple(results)
    scattered.control_predecessors = reduce.control_predecessors
    for other in editor.computation.instructions:
        if reduce in other.control_predecessors:
            other.control_predecessors = [result if p is reduce else p for p in other.control_predecessors]
    module.replace(reduce, result)
    editor.computation.remove(reduce)
    return across


def _steps(reduce: HloInstruction, devices_per_host: int) -> _Steps | None:
    """Return the groups of both steps; None if a group is not spread evenly over hosts, or too small."""
    replicas, partitions = device_counts(reduce)
    is_flattened = reduce.channel_id is not None and reduce.use_global_device_ids
    if not is_flattened and (reduce.channel_id is not None or partitions != 1):
        return None
    within: list[tuple[int, ...]] = []
    across: list[tuple[int, ...]] = []
    for group in reduce.replica_groups.groups() or (tuple(range(replicas)),):
        hosts: dict[int, list[int]] = defaultdict(list)
        for number in group:
            # Devices are numbered by partitions first: XLA's default assignment.
            device = number // partitions + number % partitions * replicas if is_flattened else number
            hosts[device // devices_per_host].append(number)
        local = len(hosts[min(hosts)])
        ordered = [number for _, numbers in sorted(hosts.items()) for number in numbers]
        size = max(local, 2)
        is_even = all(len(numbers) == local for numbers in hosts.values()) and len(ordered) % size == 0
        if not is_even or len(ordered) // size < 2 or (within and len(within[0]) != size):
            return None
        within += [tuple(ordered[start : start + size]) for start in range(0, len(ordered), size)]
        across += [tuple(ordered[start::size]) for start in range(size)]
    return _Steps(tuple(within), tuple(across))


def _joined(shapes: list[Shape]) -> Shape:
    return shapes[0] if len(shapes) == 1 else Shape.make_tuple(tuple(shapes))


def _elements(editor: Editor, value: HloInstruction) -> list[HloInstruction]:
    """Return the arrays of a value, in get-tuple-elements if it is a tuple."""
    if value.shape.is_array:
        return [value]
    return [editor.add("get-tuple-element", part, [value], index=n) for n, part in enumerate(value.shape.tuple_shapes)]
