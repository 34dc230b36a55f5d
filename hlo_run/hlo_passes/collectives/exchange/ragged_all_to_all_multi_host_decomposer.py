"""Divide a ragged-all-to-all over two hosts into an exchange between the hosts and one inside each host.

    out' = ragged-all-to-all(x, out, starts, sizes, places, received), replica_groups={{0,1,2,3}}       two devices per host
        =>   g = all-gather(x), replica_groups={{0,2},{1,3}}
             out' = ragged-all-to-all(g, out, starts', ..), replica_groups={{0,1},{2,3}}

Devices with the same place on their hosts exchange their offsets and sizes too. An input with more rows than the output is
mostly padding. Its pieces go to a device of the own host first, then that device sends what it has to the other host:

        =>   t = ragged-all-to-all(x, zeros, ..), replica_groups={{0,1},{2,3}}       the rows of two outputs
             u = all-to-all(t), replica_groups={{0,2},{1,3}}
             out' = ragged-all-to-all(u, out, ..), replica_groups={{0},{1},{2},{3}}

XLA's `RaggedAllToAllMultiHostDecomposer`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from msgspec import Struct

from hlo_run.errors import Unsupported
from hlo_run.hlo.edit import Editor, copy_instruction
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.replica_groups import IntLists, ReplicaGroups
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.collectives.communication.channels import free_channels
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.records import replace

_HOSTS = 2
_STARTS = 2


class RaggedAllToAllMultiHostDecomposer(Struct, frozen=True):
    """The pass; see the module's docstring. A flag has the devices per host."""

    name: ClassVar[str] = "ragged-all-to-all-multi-host-decomposer"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place. Raises Unsupported for offsets that do not have 64 bits."""
        per_host = ctx.options.xla_gpu_unsupported_override_fast_interconnect_slice_size
        for exchange in module.in_post_order("ragged-all-to-all"):
            if exchange.operands[_STARTS].shape.element_type != "s64":
                raise Unsupported(f"{self.name} needs offsets of 64 bits in '{exchange.name}'", exchange.where)
            groups = _grouped(exchange.replica_groups.groups(), per_host)
            if groups is None:
                continue
            decomposition = _Decomposition(exchange, groups, Editor(exchange, derives=False), free_channels(module))
            module.replace(exchange, decomposition.result())
            assert exchange.parent is not None, "it is in a computation"
            exchange.parent.remove(exchange)


class _Groups(Struct, frozen=True):
    """`order` has the places of a group's members, host by host. `inside` and `between` are the groups of the two exchanges."""

    order: tuple[int, ...]
    inside: IntLists
    between: IntLists


def _grouped(groups: IntLists, per_host: int) -> _Groups | None:
    """Return None unless each group has as many devices on one host as on the other, in one order of hosts for all groups."""
    if not groups or per_host <= 0 or -(-sum(map(len, groups)) // per_host) != _HOSTS:
        return None
    inside: list[tuple[int, ...]] = []
    between: list[tuple[int, ...]] = []
    orders: set[tuple[int, ...]] = set()
    for group in groups:
        orders.add(tuple(sorted(range(len(group)), key=lambda place, group=group: group[place] // per_host)))
        halves = [tuple(device for device in group if device // per_host == host) for host in range(_HOSTS)]
        if len(halves[0]) != len(halves[1]) or sum(map(len, halves)) != len(group):
            return None
        inside += halves
        between += zip(*halves, strict=True)
    return _Groups(orders.pop(), tuple(inside), tuple(between)) if len(orders) == 1 else None


class _Decomposition(Struct):
    """The instructions that replace a ragged-all-to-all."""

    old: HloInstruction
    groups: _Groups
    editor: Editor
    channels: Iterator[int]

    def result(self) -> HloInstruction:
        """Return the output of the last exchange."""
        value, output = self.old.operands[:_STARTS]
        return self._combined() if value.shape.dims[0] > output.shape.dims[0] else self._dispatched()

    @property
    def _by_host(self) -> tuple[int, int, int]:
        """The dimensions of offsets by host, device of the host, and piece."""
        (pieces,) = self.old.operands[_STARTS].shape.dims
        devices = len(self.groups.order)
        return _HOSTS, devices // _HOSTS, pieces // devices

    def _dispatched(self) -> HloInstruction:
        """Gather the inputs of both hosts; then each device has all that its host receives."""
        value, output = self.old.operands[:_STARTS]
        gathered = self._collective("all-gather", _taller(value.shape), [value], self.groups.between, dimensions=(0,))
        if "channel_id" in gathered.attrs:
            gathered.attrs["use_global_device_ids"] = True
        return self._last([gathered, output, *self._exchanged_offsets()], self.groups.inside)

    def _exchanged_offsets(self) -> list[HloInstruction]:
        """Return starts, sizes, places and received sizes for the exchange inside a host, from both hosts."""
        hosts, devices, pieces = self._by_host
        ordered = [self._ordered(operand) for operand in self.old.operands[_STARTS:]]
        split = [self._reshape(offsets, self._by_host) for offsets in ordered]
        joined = self.editor.concatenate(split, 2)
        sent = self._collective("all-to-all", joined.shape, [joined], self.groups.between, dimensions=(0,))
        parts = [self.editor.slice(sent, [0, 0, n * pieces], [hosts, devices, (n + 1) * pieces]) for n in range(len(split))]
        parts[0] = self._shifted(parts[0], self.old.operands[0].shape.dims[0])
        return [self._by_device(part) for part in parts]

    def _combined(self) -> HloInstruction:
        """Collect what the devices of this host have for a device here and for its partner, then exchange that."""
        editor, output = self.editor, self.old.operands[1]
        starts, sizes, places, received = self.old.operands[_STARTS:]
        shape = _taller(self.old.shape)
        zeros = editor.broadcast(editor.constant(0, output.shape.element_type), shape.dims)
        inside = [self._by_device(self._reshape(self._ordered(offsets), self._by_host)) for offsets in (starts, sizes)]
        split = self._reshape(self._ordered(places), self._by_host)
        inside.append(self._by_device(self._shifted(split, output.shape.dims[0])))
        inside.append(self._by_device(self._reshape(self._ordered(received), self._by_host)))
        operands = [self.old.operands[0], zeros, *inside]
        collected = self._collective("ragged-all-to-all", shape, operands, self.groups.inside)
        exchanged = self._collective("all-to-all", shape, [collected], self.groups.between, dimensions=(0,))
        own = self._own_places(places)
        ordered = [self._ordered(offsets) for offsets in (own, received, own, received)]
        shifted = self._shifted(self._reshape(ordered[0], self._by_host), output.shape.dims[0])
        ordered[0] = self._reshape(shifted, places.shape.dims)
        alone = tuple((device,) for device in range(sum(map(len, self.groups.inside))))
        return self._last([exchanged, output, *ordered], alone)

    def _own_places(self, places: HloInstruction) -> HloInstruction:
        """Return where the pieces that this device receives go in its output. The senders know that."""
        split = self._reshape(places, (len(self.groups.order), self._by_host[2]))
        groups = self.old.replica_groups
        sent = self._collective("all-to-all", split.shape, [split], self.old.replica_groups.groups(), dimensions=(0,))
        sent.attrs["replica_groups"] = groups
        return self._reshape(sent, places.shape.dims)

    def _collective(
        self, opcode: Opcode, shape: Shape, operands: list[HloInstruction], groups: IntLists, dimensions: tuple[int, ...] = ()
    ) -> HloInstruction:
        """Add a collective, on a new channel if the old one has a channel."""
        made = self.editor.add(opcode, shape, operands, replica_groups=ReplicaGroups(groups))
        if dimensions:
            made.attrs["dimensions"] = dimensions
        if self.old.channel_id is not None:
            made.attrs["channel_id"] = next(self.channels)
        return made

    def _last(self, operands: list[HloInstruction], groups: IntLists) -> HloInstruction:
        """Add the old instruction with other operands and groups."""
        made = copy_instruction(self.old, operands, name="ragged-all-to-all")
        made.attrs["replica_groups"] = ReplicaGroups(groups)
        return self.editor.computation.add(made)

    def _ordered(self, offsets: HloInstruction) -> HloInstruction:
        """Put offsets in the order of hosts."""
        order = self.groups.order
        if list(order) == sorted(order):
            return offsets
        (count,) = offsets.shape.dims
        size = count // len(order)
        indices = self.editor.constant(np.asarray([[place * size] for place in order], np.int64), "s64")
        flat = self._reshape(offsets, (count,))
        gathered = self.editor.add(
            "gather",
            Shape.array("s64", (len(order), size)),
            [flat, indices],
            offset_dims=(1,),
            collapsed_slice_dims=(),
            start_index_map=(0,),
            index_vector_dim=1,
            slice_sizes=(size,),
        )
        return self._reshape(gathered, (count,))

    def _shifted(self, offsets: HloInstruction, rows: int) -> HloInstruction:
        """Add the rows of the first host to the offsets of the second one."""
        dims = offsets.shape.dims
        host = self.editor.iota("s64", dims)
        skipped = self.editor.broadcast(self.editor.constant(np.int64(rows), "s64"), dims)
        return self.editor.binary("add", offsets, self.editor.binary("multiply", host, skipped))

    def _by_device(self, offsets: HloInstruction) -> HloInstruction:
        """Order offsets by device, then by host."""
        return self._reshape(self.editor.transpose(offsets, (1, 0, 2)), self.old.operands[_STARTS].shape.dims)

    def _reshape(self, value: HloInstruction, dims: tuple[int, ...]) -> HloInstruction:
        return self.editor.add("reshape", Shape.array("s64", dims), [value])


def _taller(shape: Shape) -> Shape:
    return replace(shape, dims=(_HOSTS * shape.dims[0], *shape.dims[1:]))
