"""The Host platform: run an executable's kernels on the CPU, from the same PTX text that a GPU gets."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from hlo_run.artifact import ArraySpec, ArrayTree, Executable, Kernel, MachineCode, ObjectCode
from hlo_run.backends.exchange.patience import DEFAULT_SECONDS, Patience
from hlo_run.backends.exchange.team import Team
from hlo_run.backends.exchange.world import World
from hlo_run.backends.host.emulator.checks import ALWAYS_ON, CHECKS
from hlo_run.backends.host.emulator.emulator import run_kernel
from hlo_run.backends.host.emulator.lanes import Launch
from hlo_run.backends.host.emulator.program import Program, compile_graph
from hlo_run.backends.host.emulator.statistics import KernelStatistics
from hlo_run.backends.host.jit import llvm
from hlo_run.backends.host.jit.engine import GUESSED_TURNS, LONG_CODE, JitEngine, ReadyLaunch, has_loops
from hlo_run.backends.host.jit.workers import JitFault
from hlo_run.backends.host.prepared import Prepared, kernel_launches
from hlo_run.backends.host.ptx.control_flow import KernelGraph, build_graph
from hlo_run.backends.host.ptx.parser import parse_module
from hlo_run.backends.library.blas import calm_blas
from hlo_run.backends.literals import Literal
from hlo_run.backends.profile import Profile, ThunkObserver, together
from hlo_run.backends.run_watch import RunWatch
from hlo_run.errors import Unsupported, UsageError
from hlo_run.hlo.feeds import NO_FEEDS, Feeds
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.records import replace
from hlo_run.target import TargetSpec

if TYPE_CHECKING:
    from hlo_run.processes.partners import Partners

ENGINES = ("auto", "emulator", "jit")
"""The values of `--host_engine`."""
_WORTH_COMPILING = 40_000_000
"""Thread-instructions from which compiling any kernel to native code pays. The emulator runs about 800 million a second."""
_COMPILING, _COMPILING_EACH = 8_000_000, 240_000
"""Thread-instructions in the time that compiling takes, and each instruction of the kernel adds."""
_LEAST_THREADS = 3000
"""The emulator takes as long for an instruction of fewer threads: about 4 us."""


class HostBackend:
    """Runs executables on the CPU. Programs are cached by PTX text, so a second run of a kernel starts at once.

    `checks` names the checks besides bounds and alignment, which are always on: names of `CHECKS`, or `all`.
    A run stops after `timeout_seconds` (0: never). With the check `statistics`, the attribute of that name describes the launches
    of the last run in order. `engine` is one of `ENGINES`. With `auto`, the JIT runs executables that carry machine code, long
    launches, long code (which it compiles sooner than the emulator), and kernels that all devices together have launched so often
    that compiling pays, from the next run on; the emulator runs kernels that the JIT does not support, and all kernels if a check
    needs it. With `in_order`,
    float atomics take effect block by block. With `profile`, the attribute of that name holds the time of every thunk. `watch`
    is told of every thunk that ran. Devices wait `wait_seconds` for each other, as `Patience` counts them.
    Raises UsageError for an unknown check or engine.
    """

    def __init__(
        self,
        checks: Iterable[str] = (),
        timeout_seconds: float = 0.0,
        engine: str = "auto",
        in_order: bool = False,
        profile: bool = False,
        watch: ThunkObserver | None = None,
        wait_seconds: float = DEFAULT_SECONDS,
    ) -> None:
        named = frozenset(checks)
        if unknown := sorted(named - CHECKS - {"all"}):
            raise UsageError(f"unknown host check '{unknown[0]}'", hint=f"choose from {', '.join(sorted(CHECKS))}, all")
        self._checks = CHECKS if "all" in named else named
        if engine not in ENGINES:
            raise UsageError(f"unknown host engine '{engine}'", hint=f"choose from {', '.join(ENGINES)}")
        if engine == "jit" and self._checks - ALWAYS_ON:
            raise UsageError("--host_check needs the emulator, not --host_engine=jit", hint="leave --host_engine=jit out")
        self._engine = engine
        self._timeout_seconds = timeout_seconds
        self.profile = Profile() if profile else None
        self._observer = together(self.profile, watch)
        self._graphs: dict[tuple[str, str], KernelGraph] = {}
        self._programs: dict[tuple[str, str], Program] = {}
        self._jit = JitEngine(in_order)
        self._refused: set[tuple[str, str]] = set()
        self._counted: tuple[Executable, list[tuple[Kernel, int]]] | None = None  # the launches of one device's run
        self._launches: Counter[tuple[str, str]] = Counter()  # of all runs
        self._native: set[tuple[str, str]] = set()  # kernels with enough work
        self._has_code = False  # the executable carries machine code for this processor
        self._prepared: Prepared | None = None
        self._team: list[Prepared] | None = None
        self._patience = Patience(wait_seconds)
        self._runs = 0
        self._watch: RunWatch | None = None
        self.statistics: tuple[KernelStatistics, ...] = ()
        self.outfeed: list[list[Literal]] = []

    @property
    def name(self) -> str:
        """The platform's name."""
        return "Host"

    @property
    def description(self) -> str:
        """The name of the engine that runs the kernels, for messages."""
        return "PTX on the CPU" + {"emulator": ", numpy emulator", "jit": ", native code"}.get(self._engine, "")

    @property
    def target(self) -> TargetSpec | None:
        """None: the PTX reader accepts PTX for every target."""
        return None

    def run(self, executable: Executable, arguments: Sequence[Literal], seed: int = 42, feeds: Feeds = NO_FEEDS) -> Literal:
        """Run with one literal per entry parameter and return the result. `seed` seeds the module's random numbers.

        The prepared steps are kept for the next run of the same executable. Raises DeviceError for faults of a kernel and for a
        timeout, Unsupported for unknown PTX.
        """
        deadline = time.monotonic() + self._timeout_seconds if self._timeout_seconds else None
        prepared = self._prepared
        if prepared is None or prepared.machine.executable is not executable:
            self._take_code(executable)
            prepared = self._prepared = Prepared(self, executable, self._checks, self._observer)
        prepared.machine.watch, self._watch = self._watch, None
        prepared.machine.world.messages = {}
        self._count_work(executable, 1)
        with calm_blas(), np.errstate(all="ignore"):
            result = prepared.run(arguments, deadline, seed, feeds(0))
        self.statistics = tuple(prepared.machine.statistics)
        self.outfeed = [prepared.machine.outfeed]
        return result

    def run_devices(
        self,
        executable: Executable,
        arguments: Sequence[Sequence[Literal]],
        replicas: int,
        partitions: int,
        seed: int = 42,
        feeds: Feeds = NO_FEEDS,
    ) -> list[Literal]:
        """Run on `replicas` x `partitions` devices, replica-major, with one list of arguments per device. Return their results.

        After `join`, arguments and results are those of the devices of this process. The devices are simulated one at a time; a
        device runs until it waits for another. Raises as `run` does, and DeviceError for a deadlock and for a device that does
        not arrive.
        """
        link, partners = self._patience.link, self._patience.partners
        devices = range(len(arguments)) if link is None else link.devices
        deadline = time.monotonic() + self._timeout_seconds if self._timeout_seconds else None
        if self._team is None or self._team[0].machine.executable is not executable or len(self._team) != len(arguments):
            self._take_code(executable)
            world = World(replicas, partitions, link=link)
            self._team = [Prepared(self, executable, self._checks, self._observer, world, device) for device in devices]
        prepared = self._team
        for number, each in enumerate(prepared):
            each.machine.watch = self._watch.on_device(number, len(prepared)) if self._watch is not None else None
        self._watch = None
        world = prepared[0].machine.world
        team = Team[Literal](devices, self._patience if self._patience.is_needed else None, has_others=link is not None)
        world.begin(team)
        if link is not None and partners is not None:
            self._runs += 1
            link.begin(self._runs, world)
            partners.is_computing = lambda: team.is_computing

        self._count_work(executable, len(prepared))
        runs = zip(prepared, arguments, devices, strict=True)
        with calm_blas():
            results = team.run([each.work(given, deadline, seed, feeds(device)) for each, given, device in runs])
        self.outfeed = [each.machine.outfeed for each in prepared]
        self.statistics = tuple(launch for each in prepared for launch in each.machine.statistics)
        return results

    def watch_next_run(self, watch: RunWatch) -> None:
        """Call `watch` around the thunks of the next run, which then runs them one by one; on several devices its `on_device`."""
        self._watch = watch

    def run_aside(self, executable: Executable, arguments: Sequence[Literal], seed: int = 42) -> Literal:
        """Run another executable on its own memory, perhaps in the middle of a run. Raises as `run` does."""
        with calm_blas(), np.errstate(all="ignore"):
            return Prepared(self, executable, self._checks).run(arguments, None, seed, NO_FEEDS(0))

    def join(self, partners: Partners, devices: int) -> None:
        """Share `devices` with other processes, each the same number in order: later runs use this process's devices."""
        from hlo_run.backends.exchange.link import ProcessLink  # imports sockets; most runs have one process

        self._patience = replace(self._patience, partners=partners, link=ProcessLink(partners, devices))

    def leave(self, *, failed: bool) -> None:
        """End what `join` began."""
        del failed  # nothing is held
        self._patience, self._team = Patience(self._patience.limit_seconds), None

    def machine_code(self, executable: Executable) -> MachineCode:
        """Return object code for this processor of all kernels that the JIT supports. Runs nothing."""
        backend = HostBackend(engine="jit")
        Prepared(backend, executable, frozenset()).bind([_zeros(tree) for tree in executable.parameters])
        objects = sorted(backend._jit.objects().items())
        return MachineCode(*llvm.host_processor(), tuple(ObjectCode(key, data) for key, data in objects))

    def _take_code(self, executable: Executable) -> None:
        """Use the executable's machine code if it is for this processor; otherwise compile its PTX."""
        code = executable.machine_code
        wanted = code is not None and self._engine != "emulator" and not self._checks - ALWAYS_ON
        self._has_code = code is not None and wanted and (code.processor, code.features) == llvm.host_processor()
        if code is not None and self._has_code:
            llvm.offer({item.key: item.data for item in code.objects})

    def report(self) -> str:
        """Return the statistics of the last run, some lines per launch; empty without the check `statistics`."""
        return "\n".join(map(str, self.statistics))

    def launch_records(self) -> list[dict[str, object]]:
        """Return the statistics as records for `--report_json`."""
        return [launch.record() for launch in self.statistics]

    # ---- kernels ------------------------------------------------------------------------------------------------

    def graph(self, kernel: Kernel) -> KernelGraph:
        """Return the kernel's graph. It is parsed on first use and cached."""
        key = (kernel.ptx, kernel.name)
        if key not in self._graphs:
            self._graphs[key] = build_graph(parse_module(kernel.ptx, f"{kernel.name}.ptx"), kernel.name)
        return self._graphs[key]

    def prepare(self, launches: Iterable[tuple[KernelGraph, Launch]], deadline: float | None) -> None:
        """Compile all launches that the JIT will run, together."""
        if self._engine != "emulator":
            self._jit.prepare((item for item in launches if self._takes_jit(*item)), deadline)

    def launch(self, graph: KernelGraph, launch: Launch, deadline: float | None) -> None:
        """Run one launch on the JIT or the emulator. A fault in native code is explained by the emulator."""
        kernel = launch.kernel
        key = (kernel.ptx, kernel.name)
        if self._takes_jit(graph, launch) and key not in self._refused:
            try:
                self._jit.run(graph, launch, deadline)
                return
            except Unsupported:
                if self._engine == "jit":
                    raise
                self._refused.add(key)
            except JitFault as fault:
                self.explain(graph, launch, fault)
        run_kernel(self._program(graph, kernel), launch, deadline)

    @property
    def may_replace(self) -> bool:
        """True if kernels may be replaced by equivalent code; the emulator engine must run the PTX itself."""
        return self._engine != "emulator"

    def ready(self, graph: KernelGraph, launch: Launch, deadline: float | None) -> ReadyLaunch | None:
        """Return the launch as native code; None if the emulator runs it."""
        if not self._takes_jit(graph, launch):
            return None
        try:
            return self._jit.ready(graph, launch, deadline)
        except Unsupported:
            return None  # `launch` raises the error

    def _takes_jit(self, graph: KernelGraph, launch: Launch) -> bool:
        if self._engine != "auto" or self._checks - ALWAYS_ON:
            return self._engine == "jit"
        if self._has_code:
            return True
        kernel = launch.kernel
        return (kernel.ptx, kernel.name) in self._native or _work_of(graph, kernel) >= _work_to_compile_at_once(graph)

    @property
    def native_kernels(self) -> int:
        """The number of kernels that run in native code because their launches together take long."""
        return len(self._native)

    def _count_work(self, executable: Executable, devices: int) -> None:
        """Count the work of a run that begins, and choose the kernels for native code. Each device does the same work."""
        if self._engine != "auto" or self._has_code or self._checks - ALWAYS_ON:
            return
        if self._counted is None or self._counted[0] is not executable:
            launches = kernel_launches(executable)
            self._counted = executable, [(k, launches[k.name]) for k in executable.kernels if k.name in launches]
        for kernel, launches in self._counted[1]:
            key = (kernel.ptx, kernel.name)
            self._launches[key] += devices * launches
            if key not in self._native and self._is_worth_compiling(kernel, self._launches[key]):
                self._native.add(key)

    def _is_worth_compiling(self, kernel: Kernel, launches: int) -> bool:
        """Return True if native code pays for all launches. A small kernel need not be read: most branches never run."""
        lines = kernel.ptx.count("\n")
        most_work = launches * lines * GUESSED_TURNS * _threads(kernel)
        if lines < LONG_CODE and most_work < min(_WORTH_COMPILING, _COMPILING) and "call" not in kernel.ptx:
            return False
        graph = self.graph(kernel)
        return launches * _work_of(graph, kernel) >= _work_to_compile(graph)

    def explain(self, graph: KernelGraph, launch: Launch, fault: JitFault) -> NoReturn:
        """Run the faulting block on the emulator, which raises a precise error. Raises a general DeviceError if it does not."""
        run_kernel(self._program(graph, launch.kernel), launch, chosen=range(fault.block, fault.block + 1))
        launch.fail("an invalid memory access, or a barrier that not all threads reach", fault.line, f"block {fault.block}")

    def _program(self, graph: KernelGraph, kernel: Kernel) -> Program:
        key = (kernel.ptx, kernel.name)
        if key not in self._programs:
            self._programs[key] = compile_graph(graph)
        return self._programs[key]


def _work_of(graph: KernelGraph, kernel: Kernel) -> int:
    """Return how long the emulator takes for a launch, in thread-instructions. The trip counts of loops are guessed."""
    turns = GUESSED_TURNS if has_loops(graph) else 1
    return _instructions(graph) * turns * _threads(kernel)


def _threads(kernel: Kernel) -> int:
    """Return the number of threads that take as long in the emulator as the kernel's: a few take as long as one."""
    return max(_LEAST_THREADS, prod(kernel.grid) * prod(kernel.block))


def _work_to_compile(graph: KernelGraph) -> int:
    """Return the work of all launches from which native code pays."""
    return min(_work_to_compile_at_once(graph), _COMPILING + _COMPILING_EACH * _instructions(graph))


def _work_to_compile_at_once(graph: KernelGraph) -> int:
    """Return the work of one launch from which native code pays.

    LLVM takes long for much code. It compiles very long code quickly, in less time than the emulator takes to get ready.
    """
    instructions = _instructions(graph)
    return 0 if instructions >= LONG_CODE else max(_WORTH_COMPILING, _COMPILING_EACH * instructions)


def _instructions(graph: KernelGraph) -> int:
    return sum(len(block.operations) for block in graph.blocks)


def _zeros(tree: ArrayTree) -> Literal:
    """Return zeros of a parameter's shape."""
    if isinstance(tree, ArraySpec):
        return np.zeros(tree.dims, DTYPES[tree.dtype].numpy)
    return tuple(_zeros(part) for part in tree)
