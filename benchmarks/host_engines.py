"""Time kernels of the examples on the Host's engines against the same work in numpy in float32, in turns, milliseconds.

    python3 scripts/venv.py python benchmarks/host_engines.py [--repeat N] [--emulator]

Everything is warm: the kernels are compiled, the memory has been used before. numpy's gelu works in place where possible. The
figures are minima of elapsed time and of processor time, which sums all cores and depends less on other processes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import hlo_run
from hlo_run.artifact import Executable
from hlo_run.backends.host.backend import HostBackend
from hlo_run.backends.host.emulator.lanes import Launch
from hlo_run.backends.host.ptx.control_flow import KernelGraph
from hlo_run.hlo.wrap import wrap_bare_module
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import compile_module
from hlo_run.reference.arguments.fake_arguments import make_fake_arguments
from hlo_run.target import preset

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def gelu(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The formula of examples/gelu.hlo, in float32."""
    y = x * x
    y *= x
    y *= np.float32(0.044677734375)
    y += x
    y *= np.float32(0.796875)
    np.tanh(y, out=y)
    y += np.float32(1)
    y *= np.float32(0.5)
    y *= x
    return y


def transpose(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """examples/transpose.hlo: |exp(x)|, first and last dimension swapped."""
    y = np.exp(x)
    np.abs(y, out=y)
    return np.ascontiguousarray(np.transpose(y, (2, 1, 0)))


NUMPY: dict[str, Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]] = {"gelu": gelu, "transpose": transpose}


class TimedBackend(HostBackend):
    """Adds up the time of launches, without making buffers and without compiling."""

    elapsed = processor = 0.0

    def ready(self, graph: KernelGraph, launch: Launch, deadline: float | None) -> None:
        """Return None, so that `launch` makes every launch and no native player does."""

    def launch(self, graph: KernelGraph, launch: Launch, deadline: float | None) -> None:
        elapsed, processor = time.perf_counter(), time.process_time()
        super().launch(graph, launch, deadline)
        self.elapsed += time.perf_counter() - elapsed
        self.processor += time.process_time() - processor


def kernel_seconds(backend: TimedBackend, executable: Executable, arguments: list[Any]) -> tuple[float, float]:
    """Return (elapsed, processor) seconds of the executable's kernels."""
    backend.elapsed = backend.processor = 0.0
    backend.run(executable, arguments)
    return backend.elapsed, backend.processor


def numpy_seconds(work: Callable[[np.ndarray[Any, Any]], object], x: np.ndarray[Any, Any]) -> tuple[float, float]:
    elapsed, processor = time.perf_counter(), time.process_time()
    work(x)
    return time.perf_counter() - elapsed, time.process_time() - processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--emulator", action="store_true", help="the emulator too, which takes half a second for gelu")
    options = parser.parse_args()
    print("| kernel | engine | elapsed | processor | numpy elapsed | processor |\n| --- | --- | --- | --- | --- | --- |")
    for name, by_numpy in NUMPY.items():
        module = wrap_bare_module(hlo_run.parse((EXAMPLES / f"{name}.hlo").read_text(encoding="utf-8")))
        executable = compile_module(PassContext(preset("h100"), Options()), module.clone())
        arguments = make_fake_arguments(module, 1)
        single = np.asarray(arguments[0]).astype(np.float32)
        for engine in ("jit", "emulator") if options.emulator else ("jit",):
            backend = TimedBackend(engine=engine)
            kernel_seconds(backend, executable, arguments)
            by_numpy(single)
            runs = [
                (*kernel_seconds(backend, executable, arguments), *numpy_seconds(by_numpy, single)) for _ in range(options.repeat)
            ]
            best = [f"{1e3 * min(column):.1f}" for column in zip(*runs, strict=True)]
            print(f"| {name} | {engine} | {' | '.join(best)} |", flush=True)


if __name__ == "__main__":
    main()
