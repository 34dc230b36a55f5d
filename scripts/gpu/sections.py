"""The sections of the proof. Each runs in its own process and writes a row for each piece of work as soon as it ends.

A fault on the device ends the CUDA context. The section's process then ends too, and a new one continues behind the module at
fault.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import hlo_run
from gpu import environment
from gpu.bundle import FUSION, LIBRARY, MODEL, Bundle, Entry
from gpu.values import expected_values
from hlo_run.artifact import Executable, Kernel, KernelThunk
from hlo_run.artifact.file import load
from hlo_run.backends.cuda.backend import CudaBackend
from hlo_run.backends.cuda.timing import kernel_thunks
from hlo_run.errors import DeviceError, HloRunError
from hlo_run.records import replace
from hlo_run.reference.compare.agreement import disagreements

ROOT = Path(__file__).resolve().parents[2]
AGREES, DIFFERS, FAILED, SKIPPED = "agrees", "differs", "failed", "skipped"
_REPEATS = 10
_TURNS = 2
_RUN_REPEATS = 20
_PARAMETERS = re.compile(r"\.param\s")


@dataclass(frozen=True)
class Work:
    """The input of a section: the bundle, the rows that an earlier process did, and the function that writes a row."""

    bundle: Bundle
    done: frozenset[str]
    emit: Callable[[dict[str, Any]], None]
    jobs: int
    stop_at: float
    """The time (time.monotonic) after which no new piece begins."""

    def texts(self, kind: str) -> list[tuple[str, str]]:
        """Return (name, HLO text) of the entries of a kind that have an executable and are not done yet."""
        entries = [self.bundle.entry(name) for name in self.bundle.names(kind) if name not in self.done]
        for entry in entries:
            if entry.refused:
                self.emit({"name": entry.name, "status": SKIPPED, "detail": f"not compiled: {entry.refused}"})
        return [(entry.name, entry.hlo) for entry in entries if not entry.refused]

    def pieces(self, kind: str) -> Iterator[tuple[Entry, list[Any], Any]]:
        """Yield each entry with its arguments and its expected result. Entries that the reference cannot evaluate become rows."""
        for name, future in expected_values(self.texts(kind), self.jobs):
            if time.monotonic() > self.stop_at:
                self.emit({"name": name, "status": SKIPPED, "detail": "the time is over"})
                continue
            try:
                arguments, expected = future.result()
            except HloRunError as error:
                self.emit({"name": name, "status": SKIPPED, "detail": f"reference: {error.message}"})
                continue
            self.emit({"begin": name})
            yield self.bundle.entry(name), arguments, expected


def run_environment(work: Work) -> None:
    """Record the machine, the bandwidth of a copy on the device, and the time of an empty launch."""
    work.emit({"name": "machine", "status": AGREES, **environment.machine()})
    backend = CudaBackend()
    driver, stream = backend.driver, backend.stream
    work.emit({"name": "device", "status": AGREES, "description": backend.description, "target": repr(backend.target)})
    work.emit({"name": "copy", "status": AGREES, "bytes_per_second": environment.copy_bandwidth(driver, stream)})
    ptx, name = environment.empty_kernel()
    kernel = Kernel(name, ptx, (1, 1, 1), (32, 1, 1))
    program = Executable("empty", "", (kernel,), (KernelThunk(name, name, ()),), (), (), ())
    backend.run(program, [])
    times = backend.kernel_times(program, 50)[0].milliseconds
    work.emit({"name": "empty launch", "status": AGREES, "microseconds": 1e3 * statistics.median(times)})
    backend.close()


def run_tests(work: Work) -> None:
    """Run the tests marked `cuda`. They compile, so they need the project's versions of llvmlite and xDSL."""
    if lacking := _lacking_for_compilation():
        work.emit({"name": "pytest -m cuda", "status": SKIPPED, "detail": lacking})
        return
    # Neither the helpers of the other tests nor warnings of other packages matter here.
    command = [sys.executable, "-m", "pytest", "-m", "cuda", "-p", "no:cacheprovider", "-rs", "--noconftest"]
    command += ["-o", "filterwarnings=default", "tests/backends/test_cuda_device.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = (done.stdout + done.stderr).strip().splitlines()
    last = lines[-1] if lines else ""
    status = FAILED if done.returncode else AGREES if "passed" in last else SKIPPED
    work.emit({"name": "pytest -m cuda", "status": status, "detail": last, "log": lines[-60:]})


def _lacking_for_compilation() -> str:
    wanted = re.findall(r'"((?:llvmlite|xdsl))==([0-9.]+)\.\*"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for name, version in wanted:
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return f"{name} is not installed"
        if not found.startswith(version + "."):
            return f"{name} {found} is installed, the project asks for {version}.*"
    return ""


def run_fusions(work: Work) -> None:
    """Compare every fusion with the reference, and its kernel's time with that of XLA's kernel for the same fusion."""
    backend = CudaBackend()
    for entry, arguments, expected in work.pieces(FUSION):
        row = _checked(backend, entry, arguments, expected)
        if row["status"] == AGREES:
            row |= _timed(backend, entry, arguments, expected)
        row["clocks"] = environment.clocks() if not len(work.done) % 50 else {}
        work.emit(row)
    backend.close()


def _checked(backend: CudaBackend, entry: Entry, arguments: list[Any], expected: Any, runs: int = 1) -> dict[str, Any]:
    """Run an entry's executable and compare its results. A fault of the device raises DeviceError, which ends the process."""
    module = hlo_run.parse(entry.hlo)
    executable = load(entry.hlox, entry.name)
    for _ in range(runs):
        actual = backend.run(executable, arguments)
        for index, comparison in disagreements(expected, actual, module.entry.root.shape):
            return {"name": entry.name, "status": DIFFERS, "detail": f"result {list(index)}: {comparison.summary()}"}
    return {"name": entry.name, "status": AGREES, "kernels": len(executable.kernels)}


def _timed(backend: CudaBackend, entry: Entry, arguments: list[Any], expected: Any) -> dict[str, Any]:
    """Time our kernels and, in turns, XLA's kernel in our kernel's place."""
    ours = load(entry.hlox, entry.name)
    theirs, reason = _with_xla_kernel(ours, entry)
    times: dict[str, list[float]] = {"ours": [], "xla": []}
    row: dict[str, Any] = {"xla_refused": reason} if reason else {}
    for _ in range(_TURNS):
        for side, program in (("ours", ours), ("xla", theirs)):
            if program is None:
                continue
            actual = backend.run(program, arguments)
            found = backend.kernel_times(program, _REPEATS)
            times[side].append(statistics.median(sum(each) for each in zip(*(k.milliseconds for k in found), strict=True)))
            if side == "ours":
                row["bytes"] = sum(kernel.bytes for kernel in found)
            elif disagreements(expected, actual, hlo_run.parse(entry.hlo).entry.root.shape):
                row["xla_differs"] = True
    row["ours_us"] = 1e3 * min(times["ours"]) if times["ours"] else None
    row["xla_us"] = 1e3 * min(times["xla"]) if times["xla"] else None
    return row


def _with_xla_kernel(program: Executable, entry: Entry) -> tuple[Executable | None, str]:
    """Return the executable with XLA's kernel in place of ours, or the reason against it. Both take operands, then results."""
    if entry.xla is None:
        return None, entry.xla_refused or "no kernel of XLA's"
    thunks = list(kernel_thunks(program.thunks))
    if len(thunks) != 1 or program.thunks != (thunks[0],):
        return None, "ours is not one kernel"
    made = entry.xla
    head = made["ptx"].split(f".entry {made['name']}(", 1)[-1].split(")", 1)[0]
    count = len(_PARAMETERS.findall(head))
    if count != len(thunks[0].arguments):
        return None, f"XLA's kernel takes {count} arguments, ours {len(thunks[0].arguments)}"
    kernel = Kernel(made["name"], made["ptx"], tuple(made["grid"]), tuple(made["block"]))
    thunk = replace(thunks[0], kernel=kernel.name)
    return replace(program, kernels=(kernel,), thunks=(thunk,)), ""


def run_libraries(work: Work) -> None:
    """Test cuBLASLt, cuDNN, cuFFT, cuSOLVER and CUDA graphs: agreement in three runs, and the thunks left to numpy."""
    backend = CudaBackend()
    for entry, arguments, expected in work.pieces(LIBRARY):
        row = _checked(backend, entry, arguments, expected, runs=3)  # the third replays the graph that the second captured
        work.emit(row | {"graphs": backend.graph_count, "refused": backend.report().splitlines()})
    backend.close()


def run_models(work: Work) -> None:
    """Test whole programs: agreement, the time of all thunks, and the number of CUDA graphs."""
    backend = CudaBackend()
    for entry, arguments, expected in work.pieces(MODEL):
        row = _checked(backend, entry, arguments, expected, runs=2)
        if row["status"] == AGREES:
            program = load(entry.hlox, entry.name)
            for _ in range(3):
                backend.run(program, arguments)
            times = backend.run_times(program, _RUN_REPEATS)
            row |= {"ours_us": 1e3 * statistics.median(times), "graphs": backend.graph_count}
            row["refused"] = backend.report().splitlines()
        work.emit(row)
    backend.close()


def run_xla(work: Work) -> None:
    """Run real XLA:GPU through JAX on the same arguments: compare its values with the reference, and time whole programs."""
    try:
        from gpu.jax_runner import JaxRunner

        runner = JaxRunner()
    except (
        ImportError,
        AttributeError,
        RuntimeError,
    ) as error:  # JAX's own class for a card that it cannot use is a RuntimeError
        work.emit({"name": "jax", "status": SKIPPED, "detail": f"{type(error).__name__}: {error}"})
        return
    work.emit({"name": "jax", "status": AGREES, "detail": runner.description})
    for kind in (MODEL, FUSION):
        for entry, arguments, expected in work.pieces(kind):
            if not entry.stablehlo:
                work.emit({"name": entry.name, "status": SKIPPED, "detail": "no StableHLO of it"})
                continue
            work.emit(_by_jax(runner, entry, arguments, expected, kind == MODEL))


def _by_jax(runner: Any, entry: Entry, arguments: list[Any], expected: Any, timed: bool) -> dict[str, Any]:
    try:
        actual, microseconds = runner.run(entry.stablehlo, arguments, _RUN_REPEATS if timed else 0)
    except (RuntimeError, TypeError, ValueError) as error:  # JAX's own class is a RuntimeError, as above
        return {"name": entry.name, "status": SKIPPED, "detail": f"XLA: {' '.join(str(error).split())[:300]}"}
    leaves = list(_leaves(expected))
    if len(leaves) != len(actual):
        return {"name": entry.name, "status": SKIPPED, "detail": f"XLA returns {len(actual)} arrays, not {len(leaves)}"}
    result = tuple(np.asarray(a).reshape(e.shape).astype(e.dtype) for a, e in zip(actual, leaves, strict=True))
    shape = hlo_run.parse(entry.hlo).entry.root.shape
    found = disagreements(expected, result if shape.is_tuple else result[0], shape) if _is_flat(expected) else []
    row: dict[str, Any] = {"name": entry.name, "status": DIFFERS if found else AGREES}
    if found:
        row["detail"] = f"result {list(found[0][0])}: {found[0][1].summary()}"
    return row | ({"xla_us": microseconds} if timed else {})


def _is_flat(value: Any) -> bool:
    return not isinstance(value, tuple) or not any(isinstance(part, tuple) for part in value)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple):
        for part in value:
            yield from _leaves(part)
    else:
        yield value


SECTIONS: dict[str, Callable[[Work], None]] = {
    "environment": run_environment,
    "libraries": run_libraries,
    "fusions": run_fusions,
    "models": run_models,
    "xla": run_xla,
    "tests": run_tests,
}


def run_section(name: str, bundle: Path, rows: Path, stop_at: float) -> int:
    """Run a section in this process and append its rows to `rows`. The exit code is 3 after a fault of the device."""
    known = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()] if rows.exists() else []
    # A piece that was begun and has no row ended the previous process.
    done = frozenset(row.get("name", row.get("begin")) for row in known)
    current = ""
    with rows.open("a", encoding="utf-8") as file:

        def emit(row: dict[str, Any]) -> None:
            nonlocal current
            current = row.get("begin", "")
            file.write(json.dumps(row) + "\n")
            file.flush()

        jobs = max(1, (os.cpu_count() or 2) - 2)
        work = Work(Bundle(bundle), done, emit, jobs, stop_at)
        try:
            SECTIONS[name](work)
        except DeviceError as error:
            emit({"name": current or "device", "status": FAILED, "detail": error.message})
            return 3
    return 0
