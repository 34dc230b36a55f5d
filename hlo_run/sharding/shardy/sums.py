"""The steps to and from unreduced values, of which devices hold addends, as manual computations over all axes of the mesh.

A sum is an all-reduce. An array becomes a sum where the first device along the axes keeps its copy and the others take zeros, or
where every device writes its tile into zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import accumulate

from hlo_run.errors import Unsupported
from hlo_run.hlo.edit import InstructionMaker, descending, next_channel_id
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.attribute_values import AttributeValue
from hlo_run.hlo.values.mesh import Mesh
from hlo_run.hlo.values.replica_groups import MeshGroups, ReplicaGroups
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import NamedSharding
from hlo_run.sharding.partitioning.collectives import sum_of
from hlo_run.sharding.shardy.annotations import closed
from hlo_run.sharding.shardy.axes import Axes, total_size
from hlo_run.sharding.shardy.export import hlo_sharding, metadata_of
from hlo_run.sharding.values.make import MANUAL

_BODY = "xla.sdy.inlinable_manual_computation_body"


class Sums:
    """Adds the steps to one module. Each method returns a new instruction, which has the sharding `result`."""

    def __init__(self, module: HloModule) -> None:
        self._module = module
        self._channel = next_channel_id(module)

    def complete(self, value: HloInstruction, source: NamedSharding, axes: Axes, result: NamedSharding) -> HloInstruction:
        """Add up the addends of the devices along `axes`."""
        groups = ReplicaGroups(MeshGroups(source.mesh, axes).groups())
        channel, self._channel = self._channel, self._channel + 1

        def all_reduce(body: InstructionMaker, part: HloInstruction) -> HloInstruction:
            reducer = {"to_apply": [sum_of(self._module, part.shape.element_type)]}
            attributes: dict[str, AttributeValue] = {
                "channel_id": channel,
                "replica_groups": groups,
                "use_global_device_ids": True,
            }
            return body.add_with("all-reduce", part.shape, [part], attributes, reducer)

        return self._manual(value, source, result, all_reduce)

    def from_copies(self, value: HloInstruction, source: NamedSharding, axes: Axes, result: NamedSharding) -> HloInstruction:
        """Let the devices that are first along all of `axes` keep their copies, and all others have zeros."""
        _check_whole_axes(value, axes)

        def chosen(body: InstructionMaker, part: HloInstruction) -> HloInstruction:
            places = _places(body, source.mesh, value)
            zero = body.constant(0, "s32")
            is_first = reduce(
                lambda one, other: body.binary("and", one, other),
                [body.compare(places[ref.axis], zero, "EQ") for ref in axes],
            )
            everywhere = body.add("broadcast", part.shape.with_element_type("pred"), [is_first], dimensions=())
            return body.select(everywhere, part, body.zeros(part.shape))

        return self._manual(value, source, result, chosen)

    def from_tiles(
        self, value: HloInstruction, source: NamedSharding, axes: Sequence[Axes], result: NamedSharding
    ) -> HloInstruction:
        """Put each device's tile along the axes, which are given per dimension, into zeros."""
        for of_dim in axes:
            _check_whole_axes(value, of_dim)

        def placed(body: InstructionMaker, part: HloInstruction) -> HloInstruction:
            places = _places(body, source.mesh, value)
            starts: list[HloInstruction] = []
            for of_dim, size in zip(axes, part.shape.dims, strict=True):
                start = body.constant(0, "s32")
                for number, ref in enumerate(of_dim):
                    count = body.constant(ref.size(source.mesh), "s32")
                    major = body.binary("multiply", start, count) if number else None
                    start = body.binary("add", major, places[ref.axis]) if major is not None else places[ref.axis]
                starts.append(body.binary("multiply", start, body.constant(size, "s32")) if of_dim else start)
            whole = body.zeros(_local_shape(value, result))
            return body.add("dynamic-update-slice", whole.shape, [whole, part, *starts])

        return self._manual(value, source, result, placed)

    def copied(self, value: HloInstruction, result: NamedSharding) -> HloInstruction:
        """Divide a value in another way, with the same number of addends."""
        return self._add(value, "copy", value.shape, [value], hlo_sharding(closed(result), value.shape, (), None))

    def _manual(
        self,
        value: HloInstruction,
        source: NamedSharding,
        result: NamedSharding,
        compute: Callable[[InstructionMaker, HloInstruction], HloInstruction],
    ) -> HloInstruction:
        local = _local_shape(value, source)
        # Instructions of the body of a manual computation are manual.
        inherited = {"sharding": MANUAL, **metadata_of(value)}
        body = InstructionMaker(HloComputation(self._module.unique_computation_name(_BODY)), attributes=inherited)
        root = compute(body, body.parameter(0, local))
        body.computation.root = root
        self._module.add_computation(body.computation)
        inside = self._call(value, "SPMDFullToShardShape", local, self.copied(value, source), MANUAL)
        called = self._add(value, "call", root.shape, [inside], MANUAL, {"to_apply": [body.computation]})
        copy = self._add(value, "copy", root.shape, [called], MANUAL)
        outside = hlo_sharding(closed(result), value.shape, (), None)
        return self._call(value, "SPMDShardToFullShape", descending(value.shape), copy, outside)

    def _call(
        self, like: HloInstruction, target: str, shape: Shape, operand: HloInstruction, sharding: AttributeValue
    ) -> HloInstruction:
        made = self._add(like, "custom-call", shape, [operand], sharding)
        made.attrs["custom_call_target"] = target
        return made

    def _add(
        self,
        like: HloInstruction,
        opcode: Opcode,
        shape: Shape,
        operands: Sequence[HloInstruction],
        sharding: AttributeValue,
        called: Mapping[str, Sequence[HloComputation]] | None = None,
    ) -> HloInstruction:
        return InstructionMaker(like.parent, like.where, metadata_of(like)).add(
            opcode, shape, operands, called, sharding=sharding
        )


def _places(maker: InstructionMaker, mesh: Mesh, value: HloInstruction) -> list[HloInstruction]:
    """Make the device's places along all axes of the mesh. Raises Unsupported for devices in another order than 0, 1, 2, .."""
    if mesh.devices() != tuple(range(mesh.size)):
        raise Unsupported("an array becomes a sum on a mesh whose devices are in another order", value.where)
    number = maker.add("convert", Shape.array("s32", ()), [maker.add("partition-id", Shape.array("u32", ()))])
    sizes = [maker.constant(size, "s32") for _, size in mesh.axes]
    minors = list(accumulate(reversed(sizes[1:]), lambda left, size: maker.binary("divide", left, size), initial=number))
    return [maker.binary("remainder", left, size) for left, size in zip(reversed(minors), sizes, strict=True)]


def _local_shape(value: HloInstruction, sharding: NamedSharding) -> Shape:
    """Return the shape of a device's part. Raises Unsupported if the axes do not divide the array evenly."""
    counts = [total_size(dim.axes, sharding.mesh) for dim in sharding.dims]
    pairs = list(zip(value.shape.dims, counts, strict=True))
    if any(size % count for size, count in pairs):
        raise Unsupported("a sharding with unreduced axes that does not divide the array evenly", value.where)
    return Shape.array(value.shape.element_type, tuple(size // count for size, count in pairs))


def _check_whole_axes(value: HloInstruction, axes: Axes) -> None:
    if any(ref.sub_size is not None for ref in axes):
        raise Unsupported("an array becomes a sum along a part of an axis", value.where)
