"""The parts of values on each device, the computation that they are added to, and the groups of devices that share one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct, field

from hlo_run.analysis.elementwise import is_elementwise
from hlo_run.hlo.edit import InstructionMaker, copy_instruction
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.attribute_values import AttributeValue
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import Sharding, SingleSharding
from hlo_run.hlo.values.tile_assignment import TileAssignment
from hlo_run.records import replace
from hlo_run.sharding.partitioning.rings import Rings
from hlo_run.sharding.values.make import elements_of

# What `Part.reshard` keeps, so that equal steps are made once: by instruction, and by its sharding and the wanted one.
Cache = dict[HloInstruction, dict[object, "Part"]]


class Builder(InstructionMaker):
    """Adds the instructions of one partitioned computation. New ones get metadata and place of the instruction `origin`.

    `unreduced` has the instructions whose results on the devices stay addends of the value.
    """

    def __init__(
        self,
        computation: HloComputation,
        unreduced: frozenset[HloInstruction] = frozenset(),
        origin: HloInstruction | None = None,
    ) -> None:
        super().__init__(computation)
        self.origin = origin
        self._unreduced = unreduced
        self._broadcast: dict[HloInstruction, frozenset[int]] = {}

    def _inherit(self, opcode: Opcode, shape: Shape, attributes: dict[str, AttributeValue]) -> None:
        metadata = self.origin.metadata if self.origin is not None else None
        if metadata is not None:
            attributes.setdefault("metadata", metadata)

    def _put(self, made: HloInstruction) -> HloInstruction:
        made.where = self.origin.where if self.origin is not None else None
        self._note_broadcast(self.computation.add(made))
        return made

    def clone(self, old: HloInstruction, shape: Shape, operands: Sequence[HloInstruction], name: str = "") -> HloInstruction:
        """Add a copy of an instruction with another shape, other operands and perhaps another name, without its sharding."""
        made = copy_instruction(old, operands, shape, name)
        made.attrs.pop("sharding", None)
        self._note_broadcast(self.computation.add(made))
        return made

    def keeps_addends(self, value: HloInstruction) -> bool:
        """True if the value is the part that `origin` computes on a device, and stays an addend."""
        origin = self.origin
        return origin is not None and origin in self._unreduced and value.opcode == origin.opcode

    def broadcast_dims(self, value: HloInstruction) -> frozenset[int]:
        """Return the dimensions along which all elements of a value are known to be equal."""
        return self._broadcast.get(value, frozenset())

    def _note_broadcast(self, made: HloInstruction) -> None:
        dims = self._dims_of_equal_elements(made)
        if dims:
            self._broadcast[made] = dims

    def _dims_of_equal_elements(self, made: HloInstruction) -> frozenset[int]:
        every = frozenset(range(made.shape.rank))
        if made.opcode == "broadcast":
            return every.difference(made.dimensions)
        if not made.operands or made.shape.is_tuple:
            return frozenset()
        if is_elementwise(made):
            return every.intersection(*(self.broadcast_dims(operand) for operand in made.operands))
        source = self.broadcast_dims(made.operands[0])
        if not source:
            return frozenset()
        if made.opcode == "transpose":
            return frozenset(made.dimensions.index(dim) for dim in source)
        if made.opcode in ("slice", "dynamic-slice"):
            return source
        if made.opcode == "pad":
            return frozenset(dim for dim in source if made.padding[dim] == (0, 0, 0))
        return _after_reshape(made, source) if made.opcode == "reshape" and 0 not in made.shape.dims else frozenset()


def _after_reshape(made: HloInstruction, source: frozenset[int]) -> frozenset[int]:
    """Return the dimensions of a reshape that only have parts of the dimensions `source`."""
    kept = set(range(made.shape.rank))
    before, after = list(reversed(made.operands[0].shape.dims)), list(reversed(made.shape.dims))
    while before and after:
        before_dim, after_dim = made.operands[0].shape.rank - len(before), made.shape.rank - len(after)
        old, new = before.pop(), after.pop()
        if before_dim not in source:
            kept.discard(after_dim)
        if old == new:
            continue
        if old % new == 0:
            before.append(old // new)
        elif new % old == 0:
            after.append(new // old)
        else:
            return frozenset()
    return frozenset() if before or after else frozenset(kept)


class Channels(Struct):
    """The next free channel of a module."""

    following: int

    def take(self) -> int:
        """Return a channel that nothing else uses."""
        self.following += 1
        return self.following - 1


class State(Struct, frozen=True):
    """The state that a part needs to change hands.

    `partition_id` is the device's number among those that divide the value. Inside of a group of devices, `devices` has one
    row per group, and `parent` is the state outside. `replicas` and `partitions` are numbers of the whole run.
    `divides_updates`: updates at constant places are divided.
    """

    builder: Builder
    module: HloModule
    partition_id: HloInstruction
    channels: Channels
    replicas: int
    partitions: int
    resharder: Callable[[Part, Sharding], Part]
    cache: Cache = field(default_factory=dict[HloInstruction, dict[object, "Part"]])
    group_caches: dict[object, Cache] = field(default_factory=dict[object, Cache])
    windows: dict[object, object] = field(default_factory=dict[object, object])
    rings: Rings = field(default_factory=Rings)
    divides_updates: bool = False
    devices: TileAssignment | None = None
    parent: State | None = None


class Part(Struct, frozen=True):
    """The part of a value that one device holds: `hlo` computes it, `base` is the shape of the whole value."""

    hlo: HloInstruction
    base: Shape
    sharding: Sharding
    state: State

    @property
    def leaf(self) -> SingleSharding:
        """The sharding of an array."""
        return elements_of(self.sharding)[0]

    @property
    def builder(self) -> Builder:
        """The builder of the part's state."""
        return self.state.builder

    def reshard(self, target: Sharding) -> Part:
        """Return the part under another sharding."""
        return self.state.resharder(self, target)

    def replicate(self) -> Part:
        """Return the whole value."""
        return self.reshard(SingleSharding("replicated"))

    def with_value(self, hlo: HloInstruction, sharding: Sharding) -> Part:
        """Return another part of a value of the same base shape."""
        return replace(self, hlo=hlo, sharding=sharding)


def key_of(sharding: Sharding) -> object:
    """Return a key of a sharding that does not depend on its notation."""
    return tuple(
        (leaf.kind, leaf.device, leaf.dims, leaf.subgroups, leaf.tiles.devices() if leaf.tiles is not None else ())
        for leaf in elements_of(sharding)
    )
