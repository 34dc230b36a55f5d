"""Which part of each array a block of a fused kernel computes or reads: its tile.

    reduce_max, subtract, .. of f32[128,1000]     dimensions of the space: root 0 (128), root 1 (1000), reduced (1000)
                                                  sizes [2, 1024, 1024]: 64 blocks, each with 2 rows

`tile` propagates a tile of the root to all instructions, for any tile sizes. `TiledComputation.at` chooses the sizes. An
instruction that is needed at two different tiles is there twice. Mirrors XLA's `codegen/tiling/experimental/tiling_space.cc` and
`tiled_hlo.cc`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod

from msgspec import Struct

from hlo_run.analysis.block_level.dim_tile import SpaceDim, Tile, TileNumbers, TileRule, power_of_two
from hlo_run.analysis.block_level.fused_ops import FusedOp, ops_of_computation
from hlo_run.analysis.block_level.tile_propagation import operand_tiles
from hlo_run.analysis.decision import Decision, no
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.backend_config import config_of

_CONTRACTING: frozenset[Opcode] = frozenset(("dot", "scaled-dot"))


class SpaceDimension(Struct, frozen=True, eq=False):
    """A dimension of the space: of the root (parallel), or one that `op` contracts or reduces (sequential).

    `position` is the dimension of the root; for others it counts on from the rank of the op's result.
    """

    op: FusedOp
    position: int
    size: int
    is_parallel: bool


class TilingSpace:
    """The dimensions whose tile sizes and tile ids all tiles depend on: first those of the root, then the sequential ones."""

    def __init__(self, root: FusedOp) -> None:
        self.root = root
        self.dimensions = [SpaceDimension(root, position, size, True) for position, size in enumerate(root.shape.dims)]
        self.runtime_offsets: list[tuple[FusedOp, int]] = []
        self._sequential: dict[tuple[FusedOp, int], SpaceDim] = {}
        self._offsets: dict[tuple[FusedOp, int], int] = {}
        for op in reversed(root.post_order()):
            if not op.is_input:
                self._add(op)

    def _add(self, op: FusedOp) -> None:
        if op.opcode in _CONTRACTING or (op.opcode == "reduce" and not op.shape.is_tuple):
            dims = op.instruction.dimensions if op.opcode == "reduce" else op.instruction.lhs_contracting_dims
            for number, dim in enumerate(dims, op.shape.rank):
                self._sequential[op, number] = SpaceDim(len(self.dimensions))
                self.dimensions.append(SpaceDimension(op, number, op.operands[0].shape.dims[dim], False))
        elif op.opcode == "dynamic-slice":
            for number in range(1, len(op.operands)):
                self._offsets[op, number] = len(self.runtime_offsets)
                self.runtime_offsets.append((op, number))

    @property
    def parallel_rank(self) -> int:
        """The number of dimensions of the root."""
        return self.root.shape.rank

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of all dimensions."""
        return tuple([dimension.size for dimension in self.dimensions])

    def sequential(self, op: FusedOp) -> Callable[[int], SpaceDim]:
        """Return the function from the position of a contracted or reduced dimension of `op` to its dimension of the space."""
        return lambda position: self._sequential[op, position]

    def runtime_offset(self, op: FusedOp) -> Callable[[int], int]:
        """Return the function from an operand of a dynamic-slice to the number of its run-time offset."""
        return lambda operand: self._offsets[op, operand]

    def tile_sizes(self, root: Sequence[int], contracting: int = 1) -> tuple[int, ...]:
        """Return the tile sizes of all dimensions: those of the root, `contracting` for dots, and whole reduced dimensions."""
        rest = [
            contracting if dimension.op.opcode in _CONTRACTING else power_of_two(dimension.size)
            for dimension in self.dimensions[self.parallel_rank :]
        ]
        return (*root, *rest)

    def configured_sizes(self, root: Sequence[int]) -> tuple[int, ...]:
        """Return the tile sizes with which a fusion is emitted, whose configuration has these sizes of the root's tile.

        Ops may have `sizes` of sequential dimensions in their backend config; the others are whole. All become powers of two.
        """
        sizes = list(root)
        for dimension in self.dimensions[self.parallel_rank :]:
            given = config_of(dimension.op.instruction.backend_config).get("sizes")
            sizes.append(int(given[dimension.position - dimension.op.shape.rank]) if given else dimension.size)
        return tuple([power_of_two(size) for size in sizes])

    def has_loop(self, op: FusedOp, sizes: Sequence[int]) -> bool:
        """True if a reduce reads its operand in several tiles."""
        dims = [self._sequential[op, op.shape.rank + n].number for n in range(len(op.instruction.ints("dimensions")))]
        return any(sizes[dim] < self.dimensions[dim].size for dim in dims)


class TiledOp:
    """An op at one tile. `regions` hold what is computed inside of it: the loop of a dot, each operand of a concatenate."""

    __slots__ = ("op", "operands", "regions", "tile")

    def __init__(self, op: FusedOp, tile: TileRule) -> None:
        self.op = op
        self.tile = tile
        self.operands: tuple[TiledOp, ...] = ()
        self.regions: tuple[Region, ...] = ()

    def __repr__(self) -> str:
        return f"TiledOp({self.op.name}, {self.tile})"


class Region:
    """Tiled ops that are computed together, and those among them whose values are used outside."""

    __slots__ = ("ops", "roots")

    def __init__(self, ops: Sequence[TiledOp], roots: Sequence[TiledOp]) -> None:
        self.ops = ops
        self.roots = roots

    def walk(self) -> Iterator[TiledOp]:
        """Yield all ops, those of inner regions after the op that has the region."""
        for op in self.ops:
            yield op
            for region in op.regions:
                yield from region.walk()


class PlacedOp:
    """A tiled op with the numbers of its tile. A reduce of several tiles has a region as well, for the loop over its operand."""

    __slots__ = ("op", "operands", "regions", "tile")

    def __init__(self, op: FusedOp, tile: Tile) -> None:
        self.op = op
        self.tile = tile
        self.operands: tuple[PlacedOp, ...] = ()
        self.regions: tuple[PlacedRegion, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """The elements of the tile per dimension."""
        return tuple([part.size for part in self.tile])

    def __repr__(self) -> str:
        return f"PlacedOp({self.op.name}, {list(self.sizes)})"


class PlacedRegion(Struct, frozen=True, eq=False):
    """The tiled ops of a region, operands before users, and those whose values are used outside."""

    ops: tuple[PlacedOp, ...]
    roots: tuple[PlacedOp, ...]

    def walk(self) -> Iterator[PlacedOp]:
        """Yield all ops, those of inner regions after the op that has the region."""
        for op in self.ops:
            yield op
            for region in op.regions:
                yield from region.walk()


class Tiling(Struct, frozen=True, eq=False):
    """A tiled computation with chosen tile sizes, one per dimension of the space."""

    space: TilingSpace
    tile_sizes: tuple[int, ...]
    region: PlacedRegion

    @property
    def root(self) -> PlacedOp:
        """The root."""
        return self.region.roots[0]

    @property
    def block_count(self) -> int:
        """The number of tiles of the root, each of which is one block's."""
        pairs = list(zip(self.space.root.shape.dims, self.tile_sizes, strict=False))
        return prod([-(-size // tile) for size, tile in pairs])

    def sizes_of(self, instruction: HloInstruction) -> tuple[int, ...] | None:
        """Return the tile of an instruction that is not inside of a dot or concatenate; of its first tile if it has several."""
        return next((op.sizes for op in self.region.ops if op.op.instruction is instruction), None)


class TiledComputation:
    """A computation whose instructions all have tiles, for any tile sizes. Some sizes may still be refused."""

    def __init__(self, space: TilingSpace, region: Region) -> None:
        self.space = space
        self.region = region
        self._numbers = TileNumbers(space.sizes)

    def at(self, tile_sizes: Sequence[int]) -> Tiling | Decision:
        """Return the tiling with a size per dimension of the space, or the reason why no kernel can have it."""
        sizes = tuple(tile_sizes)
        region = _place(self.region, self.space, self._numbers, sizes)
        return region if isinstance(region, Decision) else Tiling(self.space, sizes, region)


def tile_computation(computation: HloComputation) -> TiledComputation | Decision:
    """Return the tiled computation of a fusion's computation, whose parameters are the inputs; see `tile`."""
    return tile(ops_of_computation(computation))


def tile(root: FusedOp) -> TiledComputation | Decision:
    """Return the tiled computation of a kernel, or the reason why it cannot be tiled whatever the sizes."""
    if not root.shape.is_array:
        return no("a kernel with several roots has no tiles")
    if 0 in root.shape.dims:
        return no("an array without elements has no tiles")
    space = TilingSpace(root)
    region = _region([TiledOp(root, tuple([SpaceDim(number) for number in range(root.shape.rank)]))], space)
    return region if isinstance(region, Decision) else TiledComputation(space, region)


def _region(roots: Sequence[TiledOp], space: TilingSpace) -> Region | Decision:
    """Return the region that computes `roots`, of which equal ones become one."""
    made: dict[tuple[FusedOp, TileRule], TiledOp] = {}
    worklist: list[TiledOp] = []

    def shared(tiled: TiledOp) -> TiledOp:
        found = made.setdefault((tiled.op, tiled.tile), tiled)
        if found is tiled:
            worklist.append(tiled)
        return found

    kept = [shared(tiled) for tiled in roots]
    while worklist:
        tiled = worklist.pop()
        op = tiled.op
        if not op.operands:
            continue
        tiles = operand_tiles(op, tiled.tile, space.sequential(op), space.runtime_offset(op))
        if isinstance(tiles, Decision):
            return no(f"{op.name}: {tiles.reason}")
        operands = [TiledOp(operand, part) for operand, part in zip(op.operands, tiles, strict=True)]
        if op.opcode in _CONTRACTING:
            groups = [operands]
        elif op.opcode == "concatenate":
            groups = [[operand] for operand in operands]
        else:
            tiled.operands = tuple([shared(operand) for operand in operands])
            continue
        regions: list[Region] = []
        for group in groups:
            region = _region(group, space)
            if isinstance(region, Decision):
                return region
            regions.append(region)
        tiled.regions = tuple(regions)
        tiled.operands = tuple([root for region in regions for root in region.roots])
    return Region(list(made.values()), kept)


def _place(region: Region, space: TilingSpace, numbers: TileNumbers, sizes: Sequence[int]) -> PlacedRegion | Decision:
    """Return a region with the numbers of its tiles; ops whose tiles have equal numbers become one."""
    made: dict[tuple[FusedOp, Tile], PlacedOp] = {}
    placed: dict[TiledOp, PlacedOp] = {}
    inner: dict[TiledOp, tuple[Region, ...]] = {}

    def regions_of(tiled: TiledOp) -> tuple[Region, ...]:
        if tiled not in inner:
            inner[tiled] = tiled.regions
            if tiled.op.opcode == "reduce" and not tiled.op.is_input and space.has_loop(tiled.op, sizes):
                inner[tiled] = (Region((), tiled.operands[:1]),)
        return inner[tiled]

    for tiled in _operands_first(region, regions_of):
        found = numbers.tile(tiled.tile, sizes)
        if isinstance(found, Decision):
            return no(f"{tiled.op.name}: {found.reason}")
        key = tiled.op, found
        known = made.get(key)
        if known is None:
            known = made[key] = PlacedOp(tiled.op, found)
            inside: dict[TiledOp, PlacedOp] = {}
            for each in regions_of(tiled):
                loop = _place(each, space, numbers, sizes)
                if isinstance(loop, Decision):
                    return loop
                known.regions += (loop,)
                inside.update(zip(each.roots, loop.roots, strict=True))
            known.operands = tuple([inside.get(operand) or placed[operand] for operand in tiled.operands])
        placed[tiled] = known
    return PlacedRegion(tuple(made.values()), tuple([placed[root] for root in region.roots]))


def _operands_first(region: Region, regions_of: Callable[[TiledOp], Sequence[Region]]) -> list[TiledOp]:
    """Return the ops of a region, operands before users; the ops of inner regions are not in it."""
    order: dict[TiledOp, None] = {}
    stack = list(reversed(region.roots))
    while stack:
        top = stack[-1]
        hidden = {root for inner in regions_of(top) for root in inner.roots}
        waiting = [] if top in order else [o for o in top.operands if o not in order and o not in hidden]
        if waiting:
            stack += reversed(waiting)
        else:
            order[stack.pop()] = None
    return list(order)
