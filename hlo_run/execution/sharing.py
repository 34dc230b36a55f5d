"""A run that several processes share: the number of this process, and its work for the others."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from msgspec import structs

from hlo_run.backends.shared import JoiningBackend, SharedBackend, executable_digest, most_bytes, serve
from hlo_run.cache import digest
from hlo_run.containment.board import at_place
from hlo_run.errors import HloRunError, Unsupported, UsageError
from hlo_run.execution.console import Console, FilePosition
from hlo_run.execution.output_files import RESULT_FLAGS
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.print_options import FULL
from hlo_run.hlo.printer import module_to_string
from hlo_run.options import Options
from hlo_run.options.compile import CompileOptions
from hlo_run.platforms import INTERPRETER
from hlo_run.processes.agreement import Met
from hlo_run.processes.launcher import Launch, SharingFlags, device_names, launch_of_failed
from hlo_run.processes.messages import Ready
from hlo_run.processes.partners import Partners
from hlo_run.processes.rendezvous import Meeting, meet, tell_failure
from hlo_run.processes.secret import job_secret
from hlo_run.reference.evaluate.devices import DeviceGrid

if TYPE_CHECKING:
    from hlo_run.artifact import Executable
    from hlo_run.backends import Backend

# Large constants take long as text; the executable has them too.
_COMPARED = structs.replace(FULL, large_constants=False)
# What each process may have of its own.
_DIFFERS = ("print_locations", "compile_processes")


def options_of_process(options: Options, launch: Launch) -> Options:
    """Return the options of one of several processes: processes after process 0 write no files."""
    if not launch.number:
        return options
    # The kernels of a run for a page have locations, and all processes compile the same.
    locates = options.print_locations or bool(options.report_html)
    return replace(options, xla_enable_dumping=False, print_locations=locates, **dict.fromkeys(RESULT_FLAGS, ""))


def check_sharing(launch: Launch, module: HloModule, grid: DeviceGrid, platform: str) -> None:
    """Raise UsageError or Unsupported if the processes cannot share a run of the module."""
    hint = "--num_nodes=1 runs it in one process"
    if launch.count == 1:
        return
    if platform == INTERPRETER:
        raise UsageError(f"{platform} runs in one process, but there are {launch.count}", hint=hint)
    if grid.size % launch.count:
        raise UsageError(f"{grid} cannot be divided evenly between {launch.count} processes", hint=hint)
    if any(op.opcode in ("infeed", "outfeed") for computation in module.computations for op in computation.instructions):
        raise Unsupported("infeeds and outfeeds of a run that several processes share", hint=hint)


class Joined:
    """This process in a run whose processes have met: their agreement, and the backend that runs the devices of all."""

    def __init__(self, options: Options, launch: Launch, grid: DeviceGrid, met: Met) -> None:
        self._options, self._launch, self._grid, self._met = options, launch, grid, met
        self._partners: Partners | None = None
        self._backend: JoiningBackend | None = None

    def share(self, backend: Backend, module: HloModule, executable: Executable, file: str) -> Backend | None:
        """Return the backend that runs the devices of all; None in processes after process 0, which have served it.

        Raises UsageError if the processes have compiled different things, and the error of another process.
        """
        assert isinstance(backend, JoiningBackend), "check_sharing refuses the others"
        at_place("the agreement of the processes")
        launch, options, grid = self._launch, self._options, self._grid
        own = Ready(
            file=file,
            module=digest(module_to_string(module, _COMPARED)),
            executable=executable_digest(executable),
            replicas=grid.replicas,
            partitions=grid.partitions,
            flags=_given(options),
        )
        self._met.agree(own, options.gpu_client_initialization_timeout_sec)
        silence = max(0.0, options.xla_gpu_executable_terminate_timeout_seconds)
        partners = Partners(launch, self._met.connections, most_bytes(executable, grid.size), silence)
        self._partners, self._backend = partners, backend
        if not launch.number:
            return SharedBackend(backend, partners, grid.size)
        at_place(f"the run on {backend.name}")
        serve(backend, executable, partners, grid.size)
        return None

    def end(self, error: BaseException | None) -> None:
        """End the common work after `error`, which the other processes learn."""
        (self._partners or self._met).close(error)
        if self._backend is not None:
            self._backend.leave(failed=error is not None)  # NCCL waits for the others here, and these for the farewell


@contextmanager
def joined(options: Options, console: Console, place: FilePosition, launch: Launch, grid: DeviceGrid) -> Generator[Joined]:
    """Meet the other processes. They learn of an error of the block, and of its end.

    Raises DeviceError if a process does not come or dies, its error if it fails, and UsageError for a secret that cannot be used.
    """
    at_place("the meeting of the processes")
    each = grid.size // launch.count
    devices = device_names(launch.number, each)
    console.err(f"process {launch.number} of {launch.count}: {devices}; process 0 is at {launch.address}")
    secret = job_secret(options.secret_file)
    meeting = Meeting(launch, options.gpu_client_initialization_timeout_sec, secret, place.number, each)
    sharing = Joined(options, launch, grid, meet(meeting, console.err))
    problem: BaseException | None = None
    try:
        yield sharing
    except BaseException as error:  # an interrupt too is told to the others
        problem = error
        raise
    finally:
        sharing.end(problem)


def tell_others(flags: SharingFlags, error: HloRunError, say: Callable[[str], None], number: int = -1) -> None:
    """Tell the other processes, if any, that this one has failed before it met them. Waits some seconds for them.

    `number` is that of the input file (-1: all files fail). `say` prints whom it waits for, if they do not come at once.
    """
    launch = launch_of_failed(flags)
    if launch is None:
        return
    with suppress(UsageError):  # without a secret no process takes this one for its partner
        tell_failure(launch, job_secret(flags.secret_file), error, say, number)


def _given(options: Options) -> tuple[str, ...]:
    """Return the flags of the compilation that are not at their defaults."""
    values = ((info.name, getattr(options, info.name), info.default) for info in fields(CompileOptions))
    given = tuple(f"--{name}={value}" for name, value, default in values if value != default and name not in _DIFFERS)
    return given + tuple(f"--{name}={value}" for name, value in options.other_xla_flags)
