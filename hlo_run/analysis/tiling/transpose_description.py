"""Describes a transpose for the transpose emitter, without trivial dimensions, if it gains from a shared-memory tile.

    f32[20,1,160,170] -> f32[170,160,1,20], dimensions={3,2,1,0}   is   [20,160,170] -> [170,160,20], (2,1,0)

Elements narrower than a bank word of shared memory are exchanged in whole words where possible. Mirrors XLA's
`GetDescriptionForTiledTransposeEmitter`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from msgspec import Struct

from hlo_run.analysis.bitcast_kind import is_reshape_or_transpose_bitcast
from hlo_run.analysis.decision import Decision, no
from hlo_run.analysis.tiling.packed_transpose import PackedTranspose, judge_packed_transpose
from hlo_run.hlo.graph import HloInstruction

TILE_SIZE = 32
# A tile pays only if both exchanged minor dimensions and their product reach these sizes.
_MIN_MINOR_SIZE = 16
_SMALL_MINOR_SIZE = 8
_MIN_AREA_FOR_SMALL_MINOR = 64 * 128
# A minor dimension that stays in place must be small, and the two outer ones together long enough.
_MAX_KEPT_MINOR_BITS = 64
_MIN_KEPT_ROW_BITS = 8 * 16


class TransposeDescription(Struct, frozen=True):
    """A transpose without dimensions of size 1, with adjacent dimensions that stay together merged.

    Normalised output dimension i (size `dims[i]`) is normalised input dimension `permutation[i]`. `shared_memory_bytes` is the
    size of one tile. `packed` is set if whole bank words are exchanged.
    """

    instruction: HloInstruction
    dims: tuple[int, ...]
    permutation: tuple[int, ...]
    shared_memory_bytes: int
    packed: PackedTranspose | None = None

    @property
    def input_dims(self) -> tuple[int, ...]:
        """The sizes of the normalised input dimensions, major to minor."""
        sizes = [0] * len(self.dims)
        for output_dim, input_dim in enumerate(self.permutation):
            sizes[input_dim] = self.dims[output_dim]
        return tuple(sizes)

    @property
    def element_bits(self) -> int:
        """The width of an element in bits."""
        return self.instruction.shape.dtype.bits

    @property
    def keeps_minor(self) -> bool:
        """True if the fastest varying dimension stays the fastest varying."""
        return self.permutation[-1] == len(self.permutation) - 1

    def equivalent(self, other: TransposeDescription) -> bool:
        """True if one set of tiles can compute both."""
        return (self.dims, self.permutation, self.element_bits) == (other.dims, other.permutation, other.element_bits)

    def __str__(self) -> str:
        packed = f", {self.packed}" if self.packed else ""
        return f"{list(self.input_dims)} -> {list(self.dims)}, permutation {list(self.permutation)}{packed}"


def normalize_transpose(dims: Sequence[int], permutation: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (dims, permutation) without output dims of size 1, and with adjacent output dims merged if adjacent in the input."""
    kept = [(size, source) for size, source in zip(dims, permutation, strict=True) if size != 1]
    groups: list[tuple[int, int, int]] = []  # size, first and last input dim
    present = sorted(source for _, source in kept)
    rank_of = {source: rank for rank, source in enumerate(present)}
    for size, source in kept:
        rank = rank_of[source]
        if groups and groups[-1][2] + 1 == rank:
            before, first, _ = groups[-1]
            groups[-1] = (before * size, first, rank)
        else:
            groups.append((size, rank, rank))
    order = sorted(first for _, first, _ in groups)
    return tuple(size for size, _, _ in groups), tuple(order.index(first) for _, first, _ in groups)


def describe_transpose(instruction: HloInstruction) -> TransposeDescription | None:
    """Return the description of a `transpose` that is worth a tile; else None."""
    answer = judge_transpose(instruction)
    return answer if isinstance(answer, TransposeDescription) else None


def judge_transpose(instruction: HloInstruction) -> TransposeDescription | Decision:
    """Return the description of a `transpose`, or the reason why the loop emitter is as good."""
    source = instruction.operands[0].shape
    if not (source.has_default_layout and instruction.shape.has_default_layout):
        return no("its layouts are not row-major")
    dims, permutation = normalize_transpose(instruction.shape.dims, instruction.dimensions)
    if len(dims) < 2:
        return no("it moves no element")
    bits = instruction.shape.dtype.bits
    plain = TransposeDescription(instruction, dims, permutation, 0)
    input_dims = plain.input_dims
    packed = judge_packed_transpose(input_dims, permutation, bits)
    if isinstance(packed, PackedTranspose):
        return TransposeDescription(instruction, dims, permutation, prod(packed.shared_dims) * bits // 8, packed)
    if plain.keeps_minor:
        minor_bits = bits * dims[-1]
        if minor_bits > _MAX_KEPT_MINOR_BITS or minor_bits * min(dims[-2], input_dims[-2]) < _MIN_KEPT_ROW_BITS:
            return no(f"its minor dimension stays and rows of {minor_bits} bits need no tile")
        tile_bits = TILE_SIZE * (TILE_SIZE + 1) * minor_bits
    else:
        small, large = sorted((input_dims[-1], dims[-1]))
        big_enough = small >= _MIN_MINOR_SIZE or (small >= _SMALL_MINOR_SIZE and small * large >= _MIN_AREA_FOR_SMALL_MINOR)
        if not big_enough:
            return no(f"minor dimensions of {input_dims[-1]} and {dims[-1]} are too small for a tile")
        if bits == 4:
            return no("4-bit elements cannot be exchanged in a tile")
        tile_bits = TILE_SIZE * (TILE_SIZE + 1) * bits
    return TransposeDescription(instruction, dims, permutation, -(-tile_bits // 8))


def find_consistent_transpose(
    roots: Sequence[HloInstruction], heroes: Sequence[HloInstruction]
) -> TransposeDescription | Decision:
    """Return the transpose that the heroes of all roots share, or the reason why they share none.

    A root without a transpose is a side output. Its layout must match that of the transpose's operand.
    """
    described = {hero: judge_transpose(hero) for hero in heroes if hero.opcode == "transpose"}
    found = [answer for answer in described.values() if isinstance(answer, TransposeDescription)]
    if not found:
        refusals = [f"{hero.name}: {answer.reason}" for hero, answer in described.items() if isinstance(answer, Decision)]
        return no("; ".join(refusals) or "no hero is a transpose")
    first = found[0]
    for other in found[1:]:
        if not first.equivalent(other):
            return no(f"{first.instruction.name} and {other.instruction.name} transpose differently")
    source = first.instruction.operands[0].shape
    for root, hero in zip(roots, heroes, strict=True):
        if isinstance(described.get(hero), TransposeDescription):
            continue
        if not is_reshape_or_transpose_bitcast(source, root.shape):
            return no(f"side output {root.name} does not lie like the operand of {first.instruction.name}")
    return first
