"""Time kernels of each kind on the Host's JIT against the same work in numpy in float32, in turns.

    python3 scripts/venv.py python benchmarks/host_kernels.py [--repeat N] [NAME..]

The figures are minima of processor time in milliseconds, summed over all cores. GB/s count every byte of arguments and result
once, per processor time, so they are those of one core. `tiny` is a chain of launches of 16 elements: microseconds per launch,
with all work of the Host around it. The last columns are the milliseconds until a kernel first runs: compiled, or from the cache.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from host_engines import TimedBackend, kernel_seconds
from numpy.typing import NDArray

import hlo_run
from hlo_run.artifact import Executable
from hlo_run.backends.host.backend import HostBackend
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import compile_module
from hlo_run.reference.arguments.fake_arguments import make_fake_arguments
from hlo_run.target import preset

Array = NDArray[Any]
Work = Callable[[Sequence[Array]], Array]
COMPUTATIONS = """
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }
max { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] maximum(a, b) }
"""
TINY = 50


def gather(given: Sequence[Array]) -> Array:
    x, rows = given
    return x[np.clip(rows, 0, 8191)]


def update(given: Sequence[Array]) -> Array:
    x, new, row = given
    y = -x
    start = min(max(int(row), 0), 512)
    y[start : start + 512] = new
    return y


def scatter(given: Sequence[Array]) -> Array:
    x, rows, new = given
    y = x.copy()
    np.add.at(y, rows[:, 0], new)
    return y


# Name to (parameters and instructions, the same work in numpy).
KERNELS: dict[str, tuple[str, Work]] = {
    "elementwise": ("x = f32[4194304] parameter(0) ROOT r = f32[4194304] multiply(x, x)", lambda a: a[0] * a[0]),
    "exponential": ("x = f32[4194304] parameter(0) ROOT r = f32[4194304] exponential(x)", lambda a: np.exp(a[0])),
    "broadcast": (
        "y = f32[1024] parameter(0) ROOT b = f32[2048,1024] broadcast(y), dimensions={1}",
        lambda a: np.tile(a[0], (2048, 1)),
    ),
    "row reduction": (
        "x = f32[4096,1024] parameter(0) z = f32[] constant(0) ROOT r = f32[4096] reduce(x, z), dimensions={1}, to_apply=add",
        lambda a: a[0].sum(1),
    ),
    "short rows": (
        "x = f32[131072,32] parameter(0) z = f32[] constant(0) ROOT r = f32[131072] reduce(x, z), dimensions={1}, to_apply=add",
        lambda a: a[0].sum(1),
    ),
    "column reduction": (
        "x = f32[1024,4096] parameter(0) z = f32[] constant(0) ROOT r = f32[4096] reduce(x, z), dimensions={0}, to_apply=add",
        lambda a: a[0].sum(0),
    ),
    "transpose": (
        "x = f32[2048,2048] parameter(0) ROOT r = f32[2048,2048] transpose(x), dimensions={1,0}",
        lambda a: np.ascontiguousarray(a[0].T),
    ),
    "transpose of heads": (
        "x = f32[8,512,12,64] parameter(0) ROOT r = f32[8,12,512,64] transpose(x), dimensions={0,2,1,3}",
        lambda a: np.ascontiguousarray(a[0].transpose(0, 2, 1, 3)),
    ),
    "gather": (
        "x = f32[8192,256] parameter(0) i = s32[4096] parameter(1) ROOT r = f32[4096,256] gather(x, i), offset_dims={1}, "
        "collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,256}",
        gather,
    ),
    "dynamic-update-slice": (
        "x = f32[1024,1024] parameter(0) u = f32[512,1024] parameter(1) i = s32[] parameter(2) z = s32[] constant(0) "
        "n = f32[1024,1024] negate(x) ROOT r = f32[1024,1024] dynamic-update-slice(n, u, i, z)",
        update,
    ),
    "scatter": (
        "x = f32[8192,256] parameter(0) i = s32[1024,1] parameter(1) u = f32[1024,256] parameter(2) ROOT r = f32[8192,256] "
        "scatter(x, i, u), update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, "
        "index_vector_dim=1, to_apply=add",
        scatter,
    ),
    "concatenate": (
        "x = f32[1024,1024] parameter(0) y = f32[1024,512] parameter(1) "
        "ROOT r = f32[1024,1536] concatenate(x, y), dimensions={1}",
        lambda a: np.concatenate(a, 1),
    ),
    "slice": (
        "x = f32[1024,2048] parameter(0) ROOT r = f32[1024,1000] slice(x), slice={[0:1024],[5:1005]}",
        lambda a: a[0][:, 5:1005].copy(),
    ),
    "pad": (
        "x = f32[1024,1000] parameter(0) z = f32[] constant(0) ROOT r = f32[1026,1002] pad(x, z), padding=1_1x1_1",
        lambda a: np.pad(a[0], 1),
    ),
    "reduce-window": (
        "x = f32[8,128,128,32] parameter(0) z = f32[] constant(-inf) ROOT r = f32[8,64,64,32] reduce-window(x, z), "
        "window={size=1x2x2x1 stride=1x2x2x1}, to_apply=max",
        lambda a: a[0].reshape(8, 64, 2, 64, 2, 32).max((2, 4)),
    ),
    "tiny": (
        "x0 = f32[16] parameter(0) "
        + " ".join(f"x{n + 1} = f32[16] reverse(x{n}), dimensions={{0}}" for n in range(TINY - 1))
        + f" ROOT r = f32[16] reverse(x{TINY - 1}), dimensions={{0}}",
        lambda a: a[0][::-1].copy() if TINY % 2 else a[0].copy(),
    ),
}


def first_run(executable: Executable, arguments: list[Any]) -> float:
    """Return the milliseconds of processor time of a kernel's first run beyond its second run."""
    backend = TimedBackend(engine="jit")
    begin = time.process_time()
    backend.run(executable, arguments)
    middle = time.process_time()
    backend.run(executable, arguments)
    return 1e3 * (2 * middle - begin - time.process_time()) / len(executable.kernels)


def processor_seconds(backend: HostBackend, executable: Executable, arguments: list[Any]) -> float:
    """Return the processor time of one run."""
    begin = time.process_time()
    backend.run(executable, arguments)
    return time.process_time() - begin


def row(name: str, repeat: int) -> str:
    body, by_numpy = KERNELS[name]
    module = hlo_run.parse(f"HloModule m\n{COMPUTATIONS}\nENTRY e {{ {body} }}")
    executable = compile_module(PassContext(preset("h100"), Options()), module.clone())
    arguments = make_fake_arguments(module, 1)
    arrays = [np.asarray(argument) for argument in arguments]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        compiled, cached = first_run(executable, arguments), first_run(executable, arguments)
    if name == "tiny":
        plain = HostBackend(engine="jit")
        whole = min(processor_seconds(plain, executable, arguments) for _ in range(repeat + 1))
        return f"| {name} | {1e6 * whole / TINY:.1f} us | | | | {compiled:.0f} | {cached:.1f} |"
    backend = TimedBackend(engine="jit")
    size = sum(array.nbytes for array in (*arrays, np.asarray(backend.run(executable, arguments))))
    runs: list[tuple[float, ...]] = []
    for _ in range(repeat):
        begin = time.process_time()
        by_numpy(arrays)
        middle = time.process_time()
        _, processor = kernel_seconds(backend, executable, arguments)
        runs.append((middle - begin, processor))
    numpy, processor = (min(column) for column in zip(*runs, strict=True))
    rate, ratio = size / processor / 1e9, processor / numpy
    return f"| {name} | {1e3 * processor:.2f} | {rate:.1f} | {1e3 * numpy:.2f} | {ratio:.1f} | {compiled:.0f} | {cached:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("names", nargs="*", metavar="NAME", help="one of " + ", ".join(KERNELS))
    options = parser.parse_args()
    print("| kernel | JIT | GB/s | numpy | times | compiling a kernel | from the cache |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in options.names or KERNELS:
        print(row(name, options.repeat), flush=True)


if __name__ == "__main__":
    main()
