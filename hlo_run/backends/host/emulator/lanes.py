"""Threads that run together: a chunk of whole blocks, and groups of its lanes at the same block of the program.

A lane is one thread of the chunk. Lanes are numbered block by block, inside a block by linear thread number. While all lanes are
together, arrays have the shape (blocks, threads of a block), with size 1 where a value is equal for all blocks or threads. After
a divergence, the arrays of a group of n lanes have the shape (1, n), in ascending order of lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import NoReturn, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from hlo_run.arrays import Array
from hlo_run.artifact import Kernel
from hlo_run.backends.host.emulator.memory import Region
from hlo_run.backends.host.emulator.origins import origin
from hlo_run.backends.host.ptx.control_flow import Block
from hlo_run.errors import DeviceError, OutOfTime, Where
from hlo_run.target import WARP_THREADS

Ids = NDArray[np.int64]

_AXES = "xyz"


class Launch(Struct):
    """One launch of a kernel: its size, the PTX lines for messages, the parameter values, the accessible memory.

    An engine may keep derived data in `ready`.
    """

    kernel: Kernel
    source_lines: list[str]
    regions: dict[int, Region]
    parameters: list[Array]
    observer: Observer | None = None
    ready: object = None

    @property
    def block_threads(self) -> int:
        """The number of threads of a block."""
        x, y, z = self.kernel.block
        return x * y * z

    @property
    def grid_blocks(self) -> int:
        """The number of blocks."""
        x, y, z = self.kernel.grid
        return x * y * z

    def fail(self, message: str, line: int, where: str = "", *notes: str) -> NoReturn:
        """Raise the DeviceError of a fault at PTX `line`. `where` describes the thread."""
        hint = "" if origin(self.source_lines, line) else "--host_check says which HLO instruction it is"
        raise self._placed(DeviceError(message, hint=hint, notes=notes), line, where)

    def run_out_of_time(self, line: int = 0, where: str = "") -> NoReturn:
        """Raise OutOfTime. The kernel was at PTX `line`, 0 if that is not known, in the thread that `where` describes."""
        raise self._placed(OutOfTime("the kernel ran out of time", hint="raise --timeout"), line, where)

    def _placed(self, error: DeviceError, line: int, where: str) -> DeviceError:
        """Return the error with the kernel, the PTX line and its HLO instruction."""
        text = self.source_lines[line - 1] if 0 < line <= len(self.source_lines) else ""
        column = len(text) - len(text.lstrip()) + 1
        place = f"kernel '{self.kernel.name}', PTX line {line}" + (f", {where}" if where else "")
        source = origin(self.source_lines, line)
        notes = (*error.notes, f"the PTX line comes from {source}") if source else error.notes
        message = f"{error.message} ({place})"
        return type(error)(message, Where(f"{self.kernel.name}.ptx", line, column, text), error.hint, notes)

    def describe(self, thread: int) -> str:
        """Return the coordinates of a thread and its block. Threads of a launch are numbered block by block."""
        block, number = divmod(thread, self.block_threads)
        kernel = self.kernel
        return f"thread {_coordinates(number, kernel.block)} of block {_coordinates(block, kernel.grid)}"


class Chunk:
    """The blocks `first_block` .. `first_block + block_count - 1` of a launch, with their shared and local memory."""

    def __init__(self, launch: Launch, first_block: int, block_count: int, shared: Region, local: Region) -> None:
        self.launch = launch
        self.first_block = first_block
        self.block_count = block_count
        self.threads = launch.block_threads
        self.first_thread = first_block * self.threads
        self.shared = shared
        self.local = local
        self.alive = np.ones(block_count * self.threads, np.bool_)
        self.alive_count = self.alive.size

    def retire(self, lanes: Lanes) -> None:
        """Mark lanes as ended."""
        self.alive[lanes.flat_ids] = False
        self.alive_count -= lanes.count


class Lanes:
    """A group of lanes of a chunk at the same place. `ids` is None if it has all lanes of the chunk."""

    def __init__(self, chunk: Chunk, ids: Ids | None = None) -> None:
        self.chunk = chunk
        self.ids = ids
        self.launch = chunk.launch
        self.observer = chunk.launch.observer
        self.shape = (chunk.block_count, chunk.threads) if ids is None else (1, ids.size)
        self.count = self.shape[0] * self.shape[1]
        self._special: dict[str, Array] = {}

    # ---- identity -----------------------------------------------------------------------------------------------

    @cached_property
    def flat_ids(self) -> Ids:
        """Lane numbers in the chunk, ascending."""
        return np.arange(self.count) if self.ids is None else self.ids

    @cached_property
    def rows(self) -> Ids:
        """Each lane's block number in the chunk."""
        if self.ids is None:
            return np.arange(self.chunk.block_count)[:, None]
        return (self.ids // self.chunk.threads)[None]

    @cached_property
    def threads(self) -> Ids:
        """Each lane's linear thread number in its block."""
        if self.ids is None:
            return np.arange(self.chunk.threads)[None]
        return (self.ids % self.chunk.threads)[None]

    @cached_property
    def warps(self) -> Ids:
        """Each lane's warp number in the chunk, as a flat array."""
        per_block = -(-self.chunk.threads // WARP_THREADS)
        return np.broadcast_to(self.rows * per_block + self.threads // WARP_THREADS, self.shape).reshape(-1)

    def flat(self, values: Array) -> Array:
        """Return one value per lane as a flat array."""
        # Most values have these two shapes, and broadcast_to costs more than all the rest.
        if values.shape == self.shape:
            return values.reshape(-1)
        if values.size == 1:
            return values.repeat(self.count)
        return np.broadcast_to(values, self.shape).reshape(-1)

    def describe(self, index: int) -> str:
        """Return the thread and block of the lane at a flat index of this group."""
        return self.launch.describe(self.chunk.first_thread + int(self.flat_ids[index]))

    def special(self, name: str) -> Array:
        """Return the value of a special register. `name` has no `%`."""
        value = self._special.get(name)
        if value is None:
            value = self._special[name] = self._compute_special(name)
        return value

    def _compute_special(self, name: str) -> Array:
        kernel = self.launch.kernel
        base, _, axis = name.partition(".")
        if base in ("tid", "ctaid"):
            size = kernel.block if base == "tid" else kernel.grid
            number = self.threads if base == "tid" else self.rows + self.chunk.first_block
            return _coordinate(number, size, axis).astype(np.uint32)
        if compute := _SPECIAL.get(base):
            return compute(self, axis)
        if base.startswith("lanemask_"):
            return _lane_mask(self.special("laneid"), base.removeprefix("lanemask_"))
        # One cluster per block, one processor, and clocks that do not advance.
        width = np.uint64 if base in ("clock64", "globaltimer") else np.uint32
        return np.full((1, 1), 1 if base in ("nclusterid", "cluster_nctaid", "cluster_nctarank", "nsmid") else 0, width)

    # ---- split and merge ----------------------------------------------------------------------------------------

    def subset(self, chosen: NDArray[np.bool_]) -> Lanes:
        """Return the lanes where the flat array `chosen` holds."""
        return Lanes(self.chunk, self.flat_ids[chosen])

    def gather(self, values: Array, chosen: NDArray[np.bool_]) -> Array:
        """Return the values of the lanes of `subset(chosen)`. A value that is equal for all lanes stays a single value."""
        return values if values.shape == (1, 1) else self.flat(values)[chosen][None]


def distinct(values: Array) -> Array:
    """Return the distinct values of a flat array, ascending. np.unique hashes them, which takes many times as long as a sort."""
    ordered = np.sort(values)
    return ordered[changes(ordered)]


def changes(values: Array) -> NDArray[np.bool_]:
    """True where a value of a flat array differs from the one before it, and for the first value."""
    changed = np.ones(values.size, np.bool_)
    changed[1:] = values[1:] != values[:-1]
    return changed


def merge_lanes(groups: list[Lanes]) -> tuple[Lanes, Ids]:
    """Return the union of disjoint groups, and the permutation that sorts their concatenated values."""
    ids = np.concatenate([group.flat_ids for group in groups])
    order = np.argsort(ids, kind="stable")
    chunk = groups[0].chunk
    everybody = ids.size == chunk.block_count * chunk.threads
    return Lanes(chunk, None if everybody else ids[order]), order


def _coordinate(number: Ids, size: tuple[int, int, int], axis: str) -> Ids:
    x, y, z = size
    match axis:
        case "x":
            return number % x if y * z > 1 else number
        case "y":
            return number // x % y if z > 1 else number // x
        case _:
            return number // (x * y)


def _coordinates(number: int, size: tuple[int, int, int]) -> tuple[int, int, int]:
    x, y, _ = size
    return number % x, number // x % y, number // (x * y)


def _lane_mask(lane: Array, relation: str) -> Array:
    one = np.uint32(1)
    own = one << lane
    below = own - one
    match relation:
        case "eq":
            return own
        case "lt":
            return below
        case "le":
            return below | own
        case "gt":
            return ~(below | own)
        case _:
            return ~below


def _constant(value: int) -> Array:
    return np.full((1, 1), value, np.uint32)


_SPECIAL: dict[str, Callable[[Lanes, str], Array]] = {
    "ntid": lambda lanes, axis: _constant(lanes.launch.kernel.block[_AXES.index(axis)]),
    "nctaid": lambda lanes, axis: _constant(lanes.launch.kernel.grid[_AXES.index(axis)]),
    "clusterid": lambda lanes, axis: lanes.special(f"ctaid.{axis}"),
    "nclusterid": lambda lanes, axis: lanes.special(f"nctaid.{axis}"),
    "laneid": lambda lanes, _: (lanes.threads % WARP_THREADS).astype(np.uint32),
    "warpid": lambda lanes, _: (lanes.threads // WARP_THREADS).astype(np.uint32),
    "nwarpid": lambda lanes, _: _constant(-(-lanes.chunk.threads // WARP_THREADS)),
    "total_smem_size": lambda lanes, _: _constant(lanes.chunk.shared.high),
}


class Access(Struct, frozen=True):
    """One instruction's access to a region by a group of lanes, within bounds. Observers see it before it happens.

    `addresses` are flat, one per lane, as offsets into the region's data. `kind` is load, store or atomic. `reads` is True if the
    old value matters; it does not if an atomic sets single bits. `strong` accesses (atomics, and accesses with an order in PTX:
    relaxed, acquire, ..) may coincide with those of other threads. `values` are the values of a store, [lanes, items].
    """

    lanes: Lanes
    region: Region
    addresses: NDArray[np.int64]
    size_bytes: int
    kind: str
    line: int
    reads: bool
    strong: bool = False
    values: Array | None = None


class Observer(Protocol):
    """Observes the actions of a launch's threads."""

    def access(self, access: Access) -> None:
        """Observe a memory access before it happens."""
        ...

    def barrier(self, lanes: Lanes, scope: str, line: int) -> None:
        """Observe that all living threads of the blocks (or warps, by `scope`) of `lanes` have met."""
        ...

    def step(self, lanes: Lanes, block: Block, decision: Array | None) -> None:
        """Observe that a basic block has run. `decision` holds the condition of its branch, one value per lane or fewer."""
        ...
