"""Runs ptxas, NVIDIA's assembler, to check PTX and to report the resources of kernels."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from hlo_run.codegen.llvm.cubin import sass_instructions
from hlo_run.codegen.llvm.toolkit import PTXAS, find_in_toolkit
from hlo_run.containment.children import run_command, temporary_folder
from hlo_run.errors import DeviceError, InternalError

_ENTRY = re.compile(r"Compiling entry function '([^']+)' for '([^']+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_TARGET = re.compile(r"^\.target\s+(sm_\w+)", re.MULTILINE)
_VERSION = re.compile(r"\bV(\d+(?:\.\d+)*)")
# A module of one kernel without functions and variables of its own, whose names another module may have too.
_ONLY_ENTRY = re.compile(
    r"(?P<header>(?:\s*\.(?:version|target|address_size)\b[^\n]*\n)+)"
    r"(?P<entry>(?:\s|//[^\n]*\n)*\.visible \.entry \w+\((?:(?!\n\}).)*\n\}\s*)",
    re.DOTALL,
)
_TIMEOUT_SECONDS = 300
# ptxas needs some hundredths of a second for less text.
_SHORT_TEXT = 50_000


class PtxasReport(Struct, frozen=True):
    """The resources of one kernel: registers and bytes per thread, static shared memory per block, SASS without NOPs."""

    kernel: str
    sm_name: str
    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    shared_bytes: int
    sass_instructions: int

    def __str__(self) -> str:
        return (
            f"{self.kernel}: {self.registers} registers, {self.spill_store_bytes} bytes spill stores, "
            f"{self.spill_load_bytes} bytes spill loads, {self.stack_bytes} bytes stack, {self.shared_bytes} bytes shared, "
            f"{self.sass_instructions} SASS instructions"
        )


def find_ptxas(cuda_data_dir: str = "") -> Path | None:
    """Return the path of ptxas; None if it is not found."""
    return find_in_toolkit(PTXAS, cuda_data_dir)


def ptxas_version(cuda_data_dir: str = "") -> str:
    """Return the version of ptxas, such as 12.9.86; empty if it is not found or does not run."""
    tool = find_ptxas(cuda_data_dir)
    try:
        output = run_command([str(tool), "--version"], b"", is_short=True).stdout.decode() if tool is not None else ""
    except OSError:
        return ""
    found = _VERSION.search(output)
    return found[1] if found is not None else ""


def assemble(ptx: str, *, cuda_data_dir: str = "", flags: tuple[str, ...] = ()) -> tuple[PtxasReport, ...]:
    """Assemble a PTX module for its `.target`, and return a report per kernel, in ptxas' order. `flags` are more flags of ptxas.

    Raises DeviceError if ptxas is not found, cannot run, or writes no cubin, and InternalError with ptxas' messages if it rejects
    the text.
    """
    tool = find_ptxas(cuda_data_dir)
    if tool is None:
        raise DeviceError("ptxas is not found", hint="pip install 'nvidia-cuda-nvcc-cu12>=12.9,<13', or set CUDA_HOME")
    target = _TARGET.search(ptx)
    if target is None:
        raise InternalError("the PTX has no .target line")
    output, cubin = _run(tool, target[1], ptx, flags)
    try:
        instructions = sass_instructions(cubin)
    except ValueError as error:
        message = f"ptxas succeeds, but the {len(cubin)} bytes that it writes are not a cubin"
        hint = "--xla_gpu_cuda_data_dir names another CUDA toolkit"
        raise DeviceError(message, hint=hint, notes=(f"found at {tool}",)) from error
    return tuple(_reports(output, instructions))


def join_entries(texts: Sequence[str]) -> tuple[str, tuple[int, ...]]:
    """Return one PTX module with the kernels of the modules that declare nothing else, and the numbers of the other modules.

    The text is empty if fewer than two modules can be joined. All have the version and target of the first.
    """
    matches = [_ONLY_ENTRY.fullmatch(text) for text in texts]
    header = next((found["header"] for found in matches if found), "")
    joined = [number for number, found in enumerate(matches) if found and found["header"] == header]
    if len(joined) < 2:
        return "", tuple(range(len(texts)))
    bodies = [found["entry"] for found in matches if found and found["header"] == header]
    return header + "".join(bodies), tuple(number for number in range(len(texts)) if number not in set(joined))


@contextmanager
def _files(ptx: str) -> Generator[tuple[str, str, tuple[int, ...]]]:
    """Yield the paths of a file with the text and of an empty one for the result, and the descriptors that ptxas must inherit.

    They are in memory where the system can, so that nothing stays behind when this process is killed.
    """
    if not hasattr(os, "memfd_create"):
        with temporary_folder("hlo-run-ptxas-") as folder:
            (folder / "kernel.ptx").write_text(ptx, encoding="utf-8")
            yield str(folder / "kernel.ptx"), str(folder / "kernel.cubin"), ()
        return
    files = os.memfd_create("kernel.ptx"), os.memfd_create("kernel.cubin")
    try:
        with os.fdopen(files[0], "wb", closefd=False) as file:
            file.write(ptx.encode())
        yield f"/proc/self/fd/{files[0]}", f"/proc/self/fd/{files[1]}", files
    finally:
        for number in files:
            os.close(number)


def _run(tool: Path, architecture: str, ptx: str, flags: tuple[str, ...]) -> tuple[str, bytes]:
    """Run `ptxas -v`, and return its output (stderr, then stdout) and the cubin."""
    with _files(ptx) as (source, output, descriptors):
        command = [str(tool), f"-arch={architecture}", "-v", *flags, "-o", output, source]
        is_short = len(ptx) < _SHORT_TEXT
        try:
            done = run_command(command, b"", timeout_seconds=_TIMEOUT_SECONDS, pass_fds=descriptors, is_short=is_short)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DeviceError(f"ptxas cannot run: {error}", notes=(f"found at {tool}",)) from error
        cubin = Path(output).read_bytes() if done.returncode == 0 else b""
    text = done.stderr.decode(errors="replace") + done.stdout.decode(errors="replace")
    if done.returncode == 0:
        return text, cubin
    messages = tuple(line.replace(f"{source}, ", "") for line in text.splitlines() if line.strip())[:12]
    if done.returncode < 0:
        raise InternalError(f"ptxas died with {signal.Signals(-done.returncode).name}", notes=messages)
    raise InternalError(f"ptxas rejects the PTX for {architecture}", notes=messages)


def _reports(output: str, instructions: dict[str, int]) -> list[PtxasReport]:
    entries = list(_ENTRY.finditer(output))
    starts = [*(entry.start() for entry in entries), len(output)]
    return [
        _report(entry[1], entry[2], output[entry.end() : end], instructions.get(entry[1], 0))
        for entry, end in zip(entries, starts[1:], strict=True)
    ]


def _report(kernel: str, sm_name: str, text: str, instructions: int) -> PtxasReport:
    stack = _STACK.search(text)
    stack_bytes, stores, loads = map(int, stack.groups()) if stack else (0, 0, 0)
    shared = _number(_SHARED, text)
    return PtxasReport(kernel, sm_name, _number(_USED, text), stack_bytes, stores, loads, shared, instructions)


def _number(pattern: re.Pattern[str], text: str) -> int:
    match = pattern.search(text)
    return int(match[1]) if match else 0
