"""Chooses and opens the platform of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hlo_run.backends import Backend, load_backend
from hlo_run.errors import UsageError
from hlo_run.options import Options, RunOptions
from hlo_run.processes.launcher import launch_of_flags

if TYPE_CHECKING:
    from hlo_run.backends.profile import ThunkObserver

INTERPRETER = "Interpreter"
HOST = "Host"
CUDA = "CUDA"
CPU = "CPU"  # XLA:CPU, only as a reference
# XLA's other names for the same platforms.
_NAMES = {"cuda": CUDA, "gpu": CUDA, "host": HOST, "interpreter": INTERPRETER}
_XLA_CPU = "cpu"


def platform_name(text: str) -> str:
    """Return the platform that `text` names, in upper or lower case; raises UsageError for an unknown name."""
    if text.lower() == _XLA_CPU:
        raise UsageError(
            f"platform '{text}' is XLA:CPU, a compiler that hlo-run does not have",
            hint=f"--platform={HOST} runs the GPU's kernels on the CPU; --platform={INTERPRETER} evaluates the module with numpy",
        )
    name = _NAMES.get(text.lower())
    if name is None:
        raise UsageError(f"unknown platform '{text}'", hint=f"--platform={CUDA}, --platform={HOST} or --platform={INTERPRETER}")
    return name


def choose_platform(text: str) -> str:
    """Return the platform named by `text`; empty: CUDA if a device can be opened, else Host. Raises UsageError."""
    if text:
        return platform_name(text)
    # Imports pycuda, so only without a choice of the user.
    from hlo_run.backends.cuda.device import device_problem

    return CUDA if not device_problem() else HOST


def reference_platform(options: RunOptions) -> str:
    """Return the platform or file to compare with; empty: no comparison. Raises UsageError for an unknown platform."""
    if options.expected_output:
        return options.expected_output
    text = options.reference_platform
    if text == "default":
        return INTERPRETER
    if not text:
        return ""
    if text.lower() == CPU.lower():
        return CPU
    name = _NAMES.get(text.lower())
    if name is None:
        hint = f'--reference_platform={INTERPRETER}, {CPU}, {CUDA}, {HOST}, or "" for no comparison'
        raise UsageError(f"unknown reference platform '{text}'", hint=hint)
    return name


def open_backend(name: str, options: Options, watch: ThunkObserver | None = None) -> Backend:
    """Open CUDA or Host. (The Interpreter runs modules, not executables, and has no backend.) `watch` sees every thunk.

    Raises DeviceError if no device can be opened.
    """
    make = load_backend(name)
    if name == HOST:
        return make(
            checks=[name.strip() for name in options.host_check.split(",") if name.strip()],
            timeout_seconds=options.timeout,
            engine=options.host_engine,
            in_order=options.xla_gpu_deterministic_ops,
            profile=bool(options.profile or options.profile_execution),
            watch=watch,
            wait_seconds=options.xla_gpu_executable_terminate_timeout_seconds,
        )
    return make(
        timeout_seconds=options.timeout,
        profile=bool(options.profile or options.profile_execution),
        watch=watch,
        device=launch_of_flags(options).local_number,
        wait_seconds=options.xla_gpu_executable_terminate_timeout_seconds,
    )
