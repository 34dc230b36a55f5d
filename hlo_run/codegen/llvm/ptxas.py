"""Runs ptxas, NVIDIA's assembler, to check PTX and to report the resources of kernels."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from hlo_run.codegen.llvm.toolkit import PTXAS, find_in_toolkit
from hlo_run.containment.children import run_command
from hlo_run.errors import DeviceError, InternalError

_ENTRY = re.compile(r"Compiling entry function '([^']+)' for '([^']+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_TARGET = re.compile(r"^\.target\s+(sm_\w+)", re.MULTILINE)
_TIMEOUT_SECONDS = 300


@dataclass(frozen=True, slots=True)
class PtxasReport:
    """The resources of one kernel: registers and bytes per thread; `shared_bytes` is static shared memory per block."""

    kernel: str
    sm_name: str
    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    shared_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.kernel}: {self.registers} registers, {self.spill_store_bytes} bytes spill stores, "
            f"{self.spill_load_bytes} bytes spill loads, {self.stack_bytes} bytes stack, {self.shared_bytes} bytes shared"
        )


def find_ptxas(cuda_data_dir: str = "") -> Path | None:
    """Return the path of ptxas; None if it is not found."""
    return find_in_toolkit(PTXAS, cuda_data_dir)


def assemble(ptx: str, *, cuda_data_dir: str = "") -> tuple[PtxasReport, ...]:
    """Assemble a PTX module for its `.target`, and return a report per kernel, in ptxas' order.

    Raises DeviceError if ptxas is not found or cannot run, InternalError with ptxas' messages if it rejects the text.
    """
    tool = find_ptxas(cuda_data_dir)
    if tool is None:
        raise DeviceError("ptxas is not found", hint="pip install 'nvidia-cuda-nvcc-cu12>=12.9,<13', or set CUDA_HOME")
    target = _TARGET.search(ptx)
    if target is None:
        raise InternalError("the PTX has no .target line")
    output = _run(tool, target[1], ptx)
    return tuple(_reports(output))


def _run(tool: Path, architecture: str, ptx: str) -> str:
    """Run `ptxas -v`, and return its output (stderr, then stdout). It reads and writes memory, no files."""
    output = os.memfd_create("kernel.cubin")
    try:
        command = [str(tool), f"-arch={architecture}", "-v", "-o", f"/proc/self/fd/{output}", "-"]
        done = run_command(command, ptx.encode(), timeout_seconds=_TIMEOUT_SECONDS, pass_fds=(output,))
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DeviceError(f"ptxas cannot run: {error}", notes=(f"found at {tool}",)) from error
    finally:
        os.close(output)
    text = done.stderr.decode(errors="replace") + done.stdout.decode(errors="replace")
    if done.returncode == 0:
        return text
    messages = tuple(line for line in text.splitlines() if line.strip())[:12]
    if done.returncode < 0:
        raise InternalError(f"ptxas died with {signal.Signals(-done.returncode).name}", notes=messages)
    raise InternalError(f"ptxas rejects the PTX for {architecture}", notes=messages)


def _reports(output: str) -> list[PtxasReport]:
    entries = list(_ENTRY.finditer(output))
    starts = [*(entry.start() for entry in entries), len(output)]
    return [_report(entry[1], entry[2], output[entry.end() : end]) for entry, end in zip(entries, starts[1:], strict=True)]


def _report(kernel: str, sm_name: str, text: str) -> PtxasReport:
    stack = _STACK.search(text)
    stack_bytes, stores, loads = map(int, stack.groups()) if stack else (0, 0, 0)
    return PtxasReport(kernel, sm_name, _number(_USED, text), stack_bytes, stores, loads, _number(_SHARED, text))


def _number(pattern: re.Pattern[str], text: str) -> int:
    match = pattern.search(text)
    return int(match[1]) if match else 0
