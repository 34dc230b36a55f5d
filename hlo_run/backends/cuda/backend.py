"""The CUDA platform: run an Executable on a device through pycuda. The driver's JIT loads the PTX."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from hlo_run.artifact import Executable, Kernel
from hlo_run.backends.cuda.device import Device
from hlo_run.backends.cuda.graphs import Graphs
from hlo_run.backends.cuda.libraries import Libraries
from hlo_run.backends.cuda.memory import DeviceMemory
from hlo_run.backends.cuda.run import CudaRun, DeviceState
from hlo_run.backends.cuda.shared_device import SharedDevice
from hlo_run.backends.cuda.streams import Streams
from hlo_run.backends.cuda.timing import DeviceTimer, KernelTime, kernel_thunks, touched_bytes
from hlo_run.backends.exchange.patience import DEFAULT_SECONDS
from hlo_run.backends.literals import Literal
from hlo_run.backends.profile import Profile, ThunkObserver, together
from hlo_run.backends.run_watch import RunWatch
from hlo_run.backends.transfer import constant_bytes, parameter_bytes, result_literal
from hlo_run.errors import DeviceError, OutOfTime, Unsupported
from hlo_run.hlo.feeds import NO_FEEDS, Feed, Feeds
from hlo_run.processes.partners import Partners
from hlo_run.records import replace
from hlo_run.target import TargetSpec

_POLL_SECONDS = 1e-4
# The compute capability from which on NCCL computes with floats of 8 bits.
_REDUCES_NARROW = (9, 0)


class CudaBackend:
    """Opens a device and runs executables on it. Loaded kernels are kept between runs.

    `device` counts the devices of this machine. After `join`, the device waits `wait_seconds` for those of other processes.
    """

    def __init__(
        self,
        timeout_seconds: float = 0.0,
        profile: bool = False,
        watch: ThunkObserver | None = None,
        device: int = 0,
        wait_seconds: float = DEFAULT_SECONDS,
    ) -> None:
        self._device = Device(device)
        self._wait_seconds = wait_seconds
        self._shared: SharedDevice | None = None
        self._driver = self._device.driver
        self._timeout_seconds = timeout_seconds
        self.profile = Profile() if profile else None
        self._observer = together(self.profile, watch)
        self._functions: dict[str, Any] = {}
        self.outfeed: list[list[Literal]] = []
        stream = self._driver.Stream()
        memory = DeviceMemory(self._driver, stream, self._device.name)
        libraries = Libraries(memory, int(stream.handle))
        graphs = Graphs(int(stream.handle))
        self._state = DeviceState(self._driver, stream, memory, libraries, graphs, self._function)
        self._executable: Executable | None = None
        self._watch: RunWatch | None = None

    def close(self) -> None:
        """Free the device's memory and close the libraries; the object must not be used afterwards."""
        self._forget()
        self._state.libraries.close()
        self._device.close()

    @property
    def name(self) -> str:
        """The platform's name."""
        return "CUDA"

    @property
    def description(self) -> str:
        """The device's name and compute capability."""
        major, minor = self._device.compute_capability
        return f"{self._device.name}, compute capability {major}.{minor}"

    @property
    def target(self) -> TargetSpec:
        """The device's properties as a compilation target."""
        return self._device.target

    def run(self, executable: Executable, arguments: Sequence[Literal], seed: int = 42, feeds: Feeds = NO_FEEDS) -> Literal:
        """Run with one literal per entry parameter and return the result; raises DeviceError."""
        return self._run(executable, arguments, seed, feeds(0))

    def _run(
        self, executable: Executable, arguments: Sequence[Literal], seed: int, feed: Feed, shared: SharedDevice | None = None
    ) -> Literal:
        state = self._state
        try:
            if self._executable is not executable:
                self._forget()
                self._executable = executable
            state.memory.hold(executable)
            for place, data in (*constant_bytes(executable), *parameter_bytes(executable, arguments)):
                state.memory.write(place, data)
            watch, self._watch = self._watch, None
            run = CudaRun(state, executable, seed, self._observer, feed, shared, watch)
            run.run()
            self.outfeed = [run.outfeed]
            self._wait(executable.name)
            if self._observer is not None:
                self._observer.end_run()
            return result_literal(executable, state.memory.read)
        except self._driver.Error as error:
            self._forget()
            raise DeviceError(f"{executable.name} failed on {self._device.name}: {error}") from error
        except BaseException:
            self._forget()
            raise

    def watch_next_run(self, watch: RunWatch) -> None:
        """Call `watch` around the thunks in the next run, which then runs them one by one."""
        self._watch = watch

    def run_aside(self, executable: Executable, arguments: Sequence[Literal], seed: int = 42) -> Literal:
        """Run another executable on its own memory, perhaps in the middle of a run. Raises as `run` does."""
        memory = DeviceMemory(self._driver, self._state.stream, self._device.name)
        libraries = Libraries(memory, int(self._state.stream.handle))
        state = replace(self._state, memory=memory, libraries=libraries)
        try:
            memory.hold(executable)
            for place, data in parameter_bytes(executable, arguments):
                memory.write(place, data)
            CudaRun(state, executable, seed).run()
            return result_literal(executable, memory.read)
        except self._driver.Error as error:
            raise DeviceError(f"{executable.name} failed on {self._device.name}: {error}") from error
        finally:
            libraries.close()
            memory.release()

    @property
    def driver(self) -> Any:
        """The module `pycuda.driver`, for measurements outside of runs."""
        return self._driver

    @property
    def stream(self) -> Any:
        """The stream of all work."""
        return self._state.stream

    @property
    def graph_count(self) -> int:
        """The number of CUDA graphs recorded from command buffers of the last executable."""
        return self._state.graphs.count

    def kernel_times(self, executable: Executable, repeats: int) -> list[KernelTime]:
        """Time every kernel of the executable that ran last, on the memory of that run. Raises DeviceError.

        A kernel that writes in place reads its own result from the second launch on, so the values are useless afterwards.
        """
        times: list[KernelTime] = []
        for thunk in kernel_thunks(executable.thunks):
            launch = self._run_of(executable).launcher(thunk)
            measured = self._measured(executable, launch, repeats)
            times.append(KernelTime(thunk.name, thunk.kernel, measured, touched_bytes(thunk)))
        return times

    def run_times(self, executable: Executable, repeats: int) -> tuple[float, ...]:
        """Time all thunks of the executable that ran last, in milliseconds, without transfers of arguments and results.

        Command buffers run as graphs where they can be recorded. The L2 cache is not flushed. Raises DeviceError.
        """
        return self._measured(executable, lambda: self._run_of(executable).run(), repeats, flush=False)

    def _run_of(self, executable: Executable) -> CudaRun:
        assert self._executable is executable, "the executable is the one that ran last"
        return CudaRun(self._state, executable, seed=42)

    def _measured(self, executable: Executable, work: Callable[[], None], repeats: int, flush: bool = True) -> tuple[float, ...]:
        state = self._state
        timer = DeviceTimer(self._driver, state.stream, self._device.target.l2_cache_size_bytes)
        try:
            return timer.measure(work, repeats, flush)
        except self._driver.Error as error:
            self._forget()
            raise DeviceError(f"{executable.name} failed on {self._device.name}: {error}") from error

    def _forget(self) -> None:
        """Free the memory, graphs and remarks of the last executable."""
        self._executable = None
        self._state.libraries.refused.clear()
        self._state.graphs.clear()
        self._state.memory.release()

    def run_devices(
        self,
        executable: Executable,
        arguments: Sequence[Sequence[Literal]],
        replicas: int,
        partitions: int,
        seed: int = 42,
        feeds: Feeds = NO_FEEDS,
    ) -> list[Literal]:
        """Run on this process's device, after `join`. Otherwise raise Unsupported: a process has one device.

        Raises DeviceError, also if another process dies.
        """
        shared = self._shared
        if shared is None:
            hint = "--num_nodes=N shares the run with other processes, each with a GPU; --platform=Host simulates devices"
            raise Unsupported(f"CUDA runs on one device, but the module wants {replicas} x {partitions}", hint=hint)
        try:
            shared.begin(executable, replicas, partitions)
            return [self._run(executable, arguments[0], seed, feeds(shared.number), shared)]
        except DeviceError:
            shared.leave(failed=True)  # NCCL's work waits for the others on the stream
            raise

    def join(self, partners: Partners, devices: int) -> None:
        """Share `devices` with other processes, each of which has one: later runs use this process's device."""
        streams = Streams(self._driver, self._state.stream)
        reduces_narrow = self._device.compute_capability >= _REDUCES_NARROW
        self._shared = SharedDevice(partners, devices, self._wait_seconds, streams, reduces_narrow=reduces_narrow)
        self._state.memory.settle = self._shared.settle

    def leave(self, *, failed: bool) -> None:
        """End what `join` began; `failed`: without waiting for the others."""
        if self._shared is not None:
            self._shared.leave(failed=failed)
            self._shared = None
            self._state.memory.settle = self._state.stream.synchronize

    def report(self) -> str:
        """Return the thunks that numpy ran on copies of the arrays, each with the reason that no library took it."""
        state = self._state
        lines = [f"%{what} ran by numpy on copies of its arrays: {why}" for what, why in state.libraries.refused.items()]
        return "\n".join([*lines, state.graphs.problem] if state.graphs.problem else lines)

    def launch_records(self) -> list[dict[str, object]]:
        """Return no records: only Host collects statistics."""
        return []

    def _function(self, kernel: Kernel) -> Any:
        """Return the loaded kernel; equal PTX is loaded once."""
        key = f"{kernel.name}\n{kernel.ptx}"
        if key not in self._functions:
            module = self._driver.module_from_buffer(kernel.ptx.encode() + b"\0")
            # The function does not keep its module alive.
            self._functions[key] = (module, module.get_function(kernel.name))
        return self._functions[key][1]

    def _wait(self, name: str) -> None:
        """Wait for the device. A kernel cannot be stopped: after a timeout it runs until the process ends."""
        deadline = time.monotonic() + self._timeout_seconds if self._timeout_seconds else None

        def check() -> None:
            if deadline is not None and time.monotonic() > deadline:
                raise OutOfTime(f"{name} ran longer than {self._timeout_seconds:g} s", hint="raise --timeout")

        if self._shared is not None:
            self._shared.settle(check)
        done = self._driver.Event()
        done.record(self._state.stream)
        while deadline is not None and not done.query():
            check()
            time.sleep(_POLL_SECONDS)
        done.synchronize()
