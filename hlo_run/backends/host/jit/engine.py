"""Run kernels as native code: compile at the first launch, and choose the number of workers that share the blocks."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TypeAlias

from msgspec import Struct, field

from hlo_run.backends.host.emulator.lanes import Launch
from hlo_run.backends.host.emulator.memory import NUMBER_SHIFT, Region
from hlo_run.backends.host.jit import llvm
from hlo_run.backends.host.jit.driver import write_module
from hlo_run.backends.host.jit.plan import FIRST_REGION, LaunchShape, Plan, RegionSpec
from hlo_run.backends.host.jit.player import player_code
from hlo_run.backends.host.jit.workers import Execution, WorkerGroup
from hlo_run.backends.host.ptx.control_flow import KernelGraph
from hlo_run.backends.host.ptx.instruction_set import Operation
from hlo_run.errors import Unsupported
from hlo_run.parallel import available_cores

_Key: TypeAlias = "tuple[object, ...]"

_SLICE_UNIT = 256
"""Offsets of slices in their allocations count modulo this. Slices with equal alignment share code."""
GUESSED_TURNS = 32
"""The assumed trip count of loops when the work of a launch is estimated."""
# Fewer instructions take about a millisecond: less than a second worker needs to start on a busy machine.
_WORTH_SPREADING = 20_000_000
LONG_CODE = 5000
"""LLVM needs half a second for 1000 instructions, and more for each in longer code. From this size on it shall be quick."""
_WORTH_OPTIMISING = 500_000
"""Threads, times turns of loops, that run an instruction in the time that optimising it takes."""
_FLOATS = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64")


class _Compiled(Struct):
    """The code for one shape of launches, and the idle teams of workers."""

    code: llvm.Loaded
    plan: Plan
    idle: dict[int, list[WorkerGroup]] = field(default_factory=dict[int, "list[WorkerGroup]"])

    def group(self, size: int) -> WorkerGroup:
        """Return an idle group of workers, or a new one."""
        free = self.idle.get(size)
        return free.pop() if free else WorkerGroup(self.plan, size)

    def done(self, group: WorkerGroup) -> None:
        """Take a group back. The next launch reuses its memory."""
        self.idle.setdefault(len(group.workers), []).append(group)


class ReadyLaunch(Struct, frozen=True):
    """A launch with known code and addresses. It can run again while its memory does not move."""

    compiled: _Compiled
    workers: int
    launch: Launch
    bases: tuple[int, ...]
    has_deadline: bool
    weight: int
    """Estimated instructions of all threads together."""

    def run(self, deadline: float | None) -> None:
        """Run all blocks. Raises as `JitEngine.run` does."""
        group = self.compiled.group(self.workers)
        group.aim(self.bases)
        Execution(self.compiled.code, group, self.launch).run(deadline)
        self.compiled.done(group)


class _Request(Struct, frozen=True):
    """Code to compile: its kernel's name, its key, LLVM IR and plan."""

    kernel: str
    key: _Key
    text: str
    plan: Plan


class _Traits(Struct, frozen=True):
    """Properties of a kernel's text that decide how to launch it."""

    operations: int
    loops: bool
    is_ordered: bool


class JitEngine:
    """Caches the code of all kernels that have run, by PTX text and launch shape.

    With `in_order`, the blocks of kernels whose result depends on the order of atomics run one after the other.
    """

    def __init__(self, in_order: bool = False) -> None:
        self._in_order = in_order
        self._traits: dict[tuple[str, str], _Traits] = {}
        self._compiled: dict[_Key, _Compiled] = {}
        self._code: dict[str, llvm.Loaded] = {}
        self.compile_seconds = 0.0

    def run(self, graph: KernelGraph, launch: Launch, deadline: float | None = None) -> None:
        """Run all blocks. Raises JitFault, Unsupported, and DeviceError after `deadline` (time.monotonic)."""
        self.ready(graph, launch, deadline).run(deadline)

    def ready(self, graph: KernelGraph, launch: Launch, deadline: float | None = None) -> ReadyLaunch:
        """Return a launch that is ready to run, and compile it if needed. Raises Unsupported."""
        ready = launch.ready
        if isinstance(ready, ReadyLaunch) and ready.has_deadline == (deadline is not None):
            return ready
        workers = self._workers(graph, launch)
        key = self._key(launch, workers, deadline)
        if key not in self._compiled:
            self._compile([self._request(graph, launch, workers, deadline)])
        launch.ready = ready = self._made_ready(key, graph, launch, deadline)
        return ready

    def _made_ready(self, key: _Key, graph: KernelGraph, launch: Launch, deadline: float | None) -> ReadyLaunch:
        places = _places(launch.regions)
        bases = tuple(places[number] + _shift(region) for number, region in sorted(launch.regions.items()))
        workers, weight = self._workers(graph, launch), self._weight(graph, launch)
        return ReadyLaunch(self._compiled[key], workers, launch, bases, deadline is not None, weight)

    def prepare(self, launches: Iterable[tuple[KernelGraph, Launch]], deadline: float | None = None) -> None:
        """Compile the code for all these launches together. Launches that are Unsupported are left to `run`, which raises."""
        requests: dict[_Key, _Request] = {}
        wanted: list[tuple[_Key, KernelGraph, Launch]] = []
        for graph, launch in launches:
            workers = self._workers(graph, launch)
            key = self._key(launch, workers, deadline)
            with suppress(Unsupported):
                if key not in self._compiled and key not in requests:
                    requests[key] = self._request(graph, launch, workers, deadline)
                wanted.append((key, graph, launch))
        self._compile(list(requests.values()))
        for key, graph, launch in wanted:
            launch.ready = self._made_ready(key, graph, launch, deadline)

    def objects(self) -> dict[str, bytes]:
        """Return the object code of all compiled kernels and of the player, by digest."""
        return {code.key: code.data for code in (*self._code.values(), player_code())}

    def _key(self, launch: Launch, workers: int, deadline: float | None) -> _Key:
        kernel = launch.kernel
        key = (kernel.ptx, kernel.name, kernel.grid, kernel.block, kernel.shared_bytes, workers > 1, deadline is None)
        return (*key, *_parameters(launch), *_signature(launch.regions))

    def _request(self, graph: KernelGraph, launch: Launch, workers: int, deadline: float | None) -> _Request:
        begin = time.perf_counter()
        shape = launch_shape(graph, launch, concurrent=workers > 1, interruptible=deadline is not None)
        is_quick = self._is_quick(graph, launch)
        text, plan = write_module(graph, shape, vectors=not is_quick)
        text = llvm.QUICK + text if is_quick else text
        self.compile_seconds += time.perf_counter() - begin
        return _Request(launch.kernel.name, self._key(launch, workers, deadline), text, plan)

    def _compile(self, requests: list[_Request]) -> None:
        """Compile all requests. Kernels that differ only in their names share code."""
        begin = time.perf_counter()
        digests = [llvm.digest_of(request.text) for request in requests]
        texts = {digest: request.text for digest, request in zip(digests, requests, strict=True) if digest not in self._code}
        names = {digest: request.kernel for digest, request in zip(digests, requests, strict=True)}
        self._code |= {digest: llvm.Loaded(digest, data) for digest, data in llvm.cached_objects(texts, names).items()}
        for digest, request in zip(digests, requests, strict=True):
            self._compiled[request.key] = _Compiled(self._code[digest], request.plan)
        self.compile_seconds += time.perf_counter() - begin

    def _workers(self, graph: KernelGraph, launch: Launch) -> int:
        if self._in_order and self._traits_of(graph, launch).is_ordered:
            return 1
        return min(available_cores(), launch.grid_blocks) if self._weight(graph, launch) >= _WORTH_SPREADING else 1

    def _weight(self, graph: KernelGraph, launch: Launch) -> int:
        traits = self._traits_of(graph, launch)
        return traits.operations * (GUESSED_TURNS if traits.loops else 1) * launch.block_threads * launch.grid_blocks

    def _is_quick(self, graph: KernelGraph, launch: Launch) -> bool:
        """True if optimising the code would take longer than it saves."""
        traits = self._traits_of(graph, launch)
        runs = launch.block_threads * launch.grid_blocks * (GUESSED_TURNS if traits.loops else 1)
        return traits.operations >= LONG_CODE and runs < _WORTH_OPTIMISING

    def _traits_of(self, graph: KernelGraph, launch: Launch) -> _Traits:
        key = (launch.kernel.ptx, launch.kernel.name)
        traits = self._traits.get(key)
        if traits is None:
            is_ordered = any(_depends_on_order(op) for block in graph.blocks for op in block.operations)
            count = sum(len(block.operations) for block in graph.blocks)
            traits = self._traits[key] = _Traits(count, has_loops(graph), is_ordered)
        return traits


def has_loops(graph: KernelGraph) -> bool:
    """True if the control flow has a back edge, so the text does not tell how many instructions run."""
    return any(target <= block.index for block in graph.blocks for target in block.successors())


def _depends_on_order(op: Operation) -> bool:
    """True for atomics whose outcome may depend on the order of the blocks."""
    return op.opcode == "atom" or (op.opcode == "red" and op.type in _FLOATS)


# ---- memory ---------------------------------------------------------------------------------------------------------


def launch_shape(graph: KernelGraph, launch: Launch, *, concurrent: bool, interruptible: bool) -> LaunchShape:
    """Return everything that the code of a launch depends on."""
    aliases = _aliases(launch.regions)
    regions = tuple(
        _region_spec(number, FIRST_REGION + index, region, aliases[number])
        for index, (number, region) in enumerate(sorted(launch.regions.items()))
    )
    parameters = _parameters(launch)
    shared = max(graph.shared.size_bytes, launch.kernel.shared_bytes)
    return LaunchShape(launch.kernel.grid, launch.kernel.block, regions, parameters, shared, concurrent, interruptible)


def slice_shift(offset_bytes: int) -> int:
    """Return the offset of the code's base address for a slice at `offset_bytes`, both relative to the allocation."""
    return offset_bytes - offset_bytes % _SLICE_UNIT


def _shift(region: Region) -> int:
    return slice_shift(region.low)


def _region_spec(number: int, index: int, region: Region, alias: int) -> RegionSpec:
    shift = _shift(region)
    low, high = region.low - shift, region.high - shift
    return RegionSpec(number, index, low, high, region.word_low - shift, region.word_high - shift, region.writable, alias=alias)


def _parameters(launch: Launch) -> tuple[int, ...]:
    """Return the parameters as the code sees them. Slices with equal alignment have equal addresses."""
    addresses = [int(value.item()) for value in launch.parameters]
    return tuple(address - _shift(launch.regions[address >> NUMBER_SHIFT]) for address in addresses)


def _places(regions: dict[int, Region]) -> dict[int, int]:
    """Return the address of each region's data in this process."""
    return {number: region.data.__array_interface__["data"][0] for number, region in regions.items()}


def _signature(regions: dict[int, Region]) -> list[object]:
    """Return a fast key of what `launch_shape` derives from the regions."""
    found: list[object] = list(_aliases(regions).items())
    for region in regions.values():
        low = region.low % _SLICE_UNIT
        found += (low, region.high - region.low, region.word_high - region.low, region.writable)
    return found


def _aliases(regions: dict[int, Region]) -> dict[int, int]:
    """Number the regions so that those that overlap in memory have the same number."""
    places = _places(regions)
    spans = sorted((places[number] + region.low, places[number] + region.high, number) for number, region in regions.items())
    aliases: dict[int, int] = {}
    end, alias = -1, 0
    for low, high, number in spans:
        alias += low >= end
        end = max(end, high)
        aliases[number] = alias
    names: dict[int, int] = {}
    return {number: names.setdefault(aliases[number], len(names)) for number in sorted(aliases)}
