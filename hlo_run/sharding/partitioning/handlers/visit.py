"""The input of an opcode's handler: the instruction, the parts of its operands, and the sharding that its result must have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.sharding import Sharding, SingleSharding
from hlo_run.sharding.partitioning.state import Builder, Part, State
from hlo_run.sharding.values.make import REPLICATED, elements_of, maximal, part_of, same_for_all, shard_shape


class Visit(Struct, frozen=True):
    """One instruction: the part of each operand, and the `sharding` of the result over `partitions` devices.

    For an instruction with a manual subgroup, shardings and state are those inside of its groups. `earlier` has the parts of all
    instructions before this one, if its handler may read what the operands are made of.
    """

    hlo: HloInstruction
    parts: tuple[Part, ...]
    sharding: Sharding
    state: State
    partitions: int
    earlier: Mapping[HloInstruction, Part] | None = None

    @property
    def b(self) -> Builder:
        """The builder of the partitioned computation."""
        return self.state.builder

    @property
    def leaf(self) -> SingleSharding:
        """The sharding of an array, or of the first element of a tuple."""
        return elements_of(self.sharding)[0]

    @property
    def is_whole(self) -> bool:
        """True if the result is not divided: it is replicated or on one device."""
        return all(leaf.is_whole for leaf in elements_of(self.sharding))

    def made(self, hlo: HloInstruction, sharding: Sharding | None = None) -> Part:
        """Return the part that `hlo` computes under `sharding` (default: the wanted one), brought under the wanted one."""
        part = Part(hlo, self.hlo.shape, self.sharding if sharding is None else sharding, self.state)
        return part if sharding is None else part.reshard(self.sharding)

    def clone(self, operands: Sequence[HloInstruction], sharding: Sharding | None = None, name: str = "") -> HloInstruction:
        """Add a copy of the instruction with the shape of a part under `sharding` (default: the wanted one), and a name."""
        shape = shard_shape(self.hlo.shape, self.sharding if sharding is None else sharding)
        return self.b.clone(self.hlo, shape, operands, name)

    def whole_operands(self) -> list[HloInstruction]:
        """Return the whole operands, replicated."""
        return [part.reshard(same_for_all(part.base, REPLICATED)).hlo for part in self.parts]

    def by_default(self) -> Part:
        """Compute the whole result from whole operands, on all devices or on the one that the sharding names."""
        leaves = elements_of(self.sharding)
        base = maximal(leaves[0].device) if all(leaf.kind == "maximal" for leaf in leaves) else REPLICATED
        operands = [part.reshard(same_for_all(part.base, base)).hlo for part in self.parts]
        return self.made(self.b.clone(self.hlo, self.hlo.shape, operands), same_for_all(self.hlo.shape, base))

    def element_sharding(self, index: int) -> SingleSharding:
        """Return the sharding of element `index` of a tuple of arrays, or of the array."""
        if not self.hlo.shape.is_tuple:
            return self.leaf
        return elements_of(part_of(self.sharding, self.hlo.shape, index))[0]


Handler = Callable[[Visit], Part]
