"""A run that several processes share: which process this is, and what it does for the others."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from hlo_run.backends.shared import JoiningBackend, SharedBackend, executable_digest, farewell_of, most_bytes, serve
from hlo_run.containment.board import at_place
from hlo_run.errors import Unsupported, UsageError
from hlo_run.execution.console import Console, Place
from hlo_run.hlo.graph import HloModule
from hlo_run.options import Options
from hlo_run.platforms import INTERPRETER
from hlo_run.processes.launcher import Launch, device_names
from hlo_run.processes.partners import Partners
from hlo_run.processes.rendezvous import Meeting, meet
from hlo_run.processes.secret import job_secret
from hlo_run.reference.evaluate.devices import DeviceGrid

if TYPE_CHECKING:
    from hlo_run.artifact import Executable
    from hlo_run.backends import Backend

# What only process 0 writes, since it has all results.
_WRITTEN = (
    "report_json report_jsonl report_junit report_html save_inputs save_outputs output_literals_file dump_output_literal_to "
    "append_profile_to_csv_file profile"
).split()


def options_of_process(options: Options, launch: Launch) -> Options:
    """Return the options of one of several processes: those after process 0 write no files. Raises UsageError."""
    if options.jobs != 1:
        raise UsageError(f"--jobs={options.jobs}: {launch.count} processes share each file, one after the other")
    if options.check_each_pass:
        raise UsageError("--check_each_pass runs in one process", hint="--num_nodes=1")
    if not launch.number:
        return options
    # The kernels of a run for a page have locations, and all processes compile the same.
    locates = options.print_locations or bool(options.report_html)
    return replace(options, xla_enable_dumping=False, print_locations=locates, **dict.fromkeys(_WRITTEN, ""))


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


@contextmanager
def sharing(
    options: Options,
    console: Console,
    place: Place,
    launch: Launch,
    backend: JoiningBackend,
    executable: Executable,
    grid: DeviceGrid,
) -> Generator[Backend | None]:
    """Meet the other processes, and yield the backend that runs the devices of all; None in those that have served process 0.

    The others learn of an error of the block. Raises DeviceError if a process does not come or dies, and its
    error; UsageError for a secret that cannot be used.
    """
    # The file's number tells the processes of one file from those of the next, which may be the same module.
    digest = f"{place.number} {executable_digest(executable)}"
    at_place("the meeting of the processes")
    each = grid.size // launch.count
    devices = device_names(launch.number, each)
    console.err(f"process {launch.number} of {launch.count}: {devices}; process 0 is at {launch.address}")
    secret = job_secret(options.secret_file)
    meeting = Meeting(launch, digest, options.gpu_client_initialization_timeout_sec, secret, each)
    connections = meet(meeting, console.err)
    silence = max(0.0, options.xla_gpu_executable_terminate_timeout_seconds)
    partners = Partners(launch, connections, most_bytes(executable, grid.size), silence)
    problem: BaseException | None = None
    try:
        if launch.number:
            at_place(f"the run on {backend.name}")
            serve(backend, executable, partners, grid.size)
            yield None
        else:
            yield SharedBackend(backend, partners, grid.size)
    except BaseException as error:  # an interrupt too is told to the partners
        problem = error
        raise
    finally:
        partners.close(farewell_of(problem, partners))
        backend.leave(failed=problem is not None)  # NCCL waits for the others here, and these for the farewell
