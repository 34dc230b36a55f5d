"""Run modules on real XLA:CPU in a separate process, because a failed check inside XLA ends the process.

`XlaCpu("PYTHON RUN_CPU.py")` starts the named Python with this file, which imports that tool and caches compiled modules.
After a process died, the next module starts a new one. Modules of several devices need a Python that also has jax.
"""

from __future__ import annotations

import importlib.util
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = list[NDArray[Any]]

_MOST_DEVICES = 16


class XlaError(Exception):
    """XLA:CPU cannot run a module. The text is its reason."""


@dataclass(frozen=True)
class XlaRun:
    """The flattened results of a run, and the seconds of each of its repetitions."""

    results: Arrays
    seconds: tuple[float, ...]


class XlaCpu:
    """A process that runs HLO text; `command` is "PYTHON RUN_CPU.py"."""

    def __init__(self, command: str, *, processor_time: bool = False) -> None:
        """Take the command of XLA:CPU; with `processor_time`, seconds are the processor time of all threads."""
        python, self._tool = shlex.split(command)
        self._clock = ["--processor_time"] if processor_time else []
        self._python = python
        self._process: subprocess.Popen[str] | None = None
        self._folder = tempfile.TemporaryDirectory()

    def run(
        self,
        text: str,
        arguments: Sequence[NDArray[Any]],
        repeat: int = 0,
        round_each_op: bool = True,
        grid: tuple[int, int] = (1, 1),
    ) -> XlaRun:
        """Return the results for flattened arguments; raises XlaError.

        `grid` is (replicas, partitions). Arguments and results are ordered device by device. XLA may divide arrays with a
        sharding: each partition gets the whole array and returns the whole array.

        With `repeat` the module runs `repeat` more times and is timed, on arguments in XLA's memory, after an untimed run.
        """
        inputs, outputs = (Path(self._folder.name) / name for name in ("in.npz", "out.npz"))
        _save(inputs, "arg", arguments)
        process = self._start() if self._process is None else self._process
        assert process.stdin is not None
        assert process.stdout is not None
        request = [text, str(inputs), str(outputs), repeat, round_each_op, grid]
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            process.wait()
            self._process = None
            raise XlaError(f"the process ended with {process.returncode}")
        seconds, error = json.loads(answer)
        if error:
            raise XlaError(error)
        return XlaRun(_load(outputs), tuple(seconds))

    def _start(self) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        command = [self._python, __file__, self._tool, *self._clock]
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        return self._process

    def stop(self) -> None:
        """Kill the process. The next run starts a new one."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def __enter__(self) -> XlaCpu:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
        self._folder.cleanup()


def _save(path: Path, prefix: str, arrays: Sequence[NDArray[Any]]) -> None:
    """Write PREFIX0, PREFIX1, ... Types that numpy lacks are raw integers, with their name under KEY.dtype."""
    entries: dict[str, Any] = {}
    for number, array in enumerate(arrays):
        key = f"{prefix}{number}"
        entries[key] = array
        if array.dtype.isbuiltin != 1:
            entries[f"{key}.dtype"] = np.array(array.dtype.name)
            whole = np.ascontiguousarray(array).reshape(array.shape)
            entries[key] = whole.view(np.uint8 if array.dtype.itemsize == 1 else np.uint16)
    np.savez(path, **entries)


def _load(path: Path) -> Arrays:
    with np.load(path) as data:
        return [data[f"out{number}"] for number in range(sum(name.startswith("out") and "." not in name for name in data.files))]


def _answer(tool: Any, request: list[Any]) -> list[float]:
    """Run one module, write its results and return the seconds of each repetition."""
    text, inputs, outputs, repeat, round_each_op, (replicas, partitions) = request
    if replicas * partitions > 1:
        results = _run_on_devices(tool, text, tool.load_npz(inputs, "arg"), replicas, partitions)
        tool.save_npz(outputs, "out", results)
        return []
    compiled = tool.compile_hlo(text, not round_each_op)
    arguments = tool.load_npz(inputs, "arg")
    seconds: list[float] = []
    if repeat:
        seconds = _time(tool, compiled, arguments, repeat)
    results = compiled(arguments)
    tool.save_npz(outputs, "out", results)
    return seconds


def _clock() -> float:
    return time.process_time() if "--processor_time" in sys.argv else time.perf_counter()


def _time(tool: Any, compiled: Any, arguments: Arrays, repeat: int) -> list[float]:
    """Return the seconds of each execution alone. Arguments are in XLA's memory, results stay there."""
    jax: Any = tool._jax
    device = compiled._device
    sharding = tool._Sharding(device)
    semantics = jax.HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL

    def put(x: NDArray[Any]) -> Any:
        whole = np.ascontiguousarray(x).reshape(x.shape)
        return jax.batched_device_put(tool._Aval(x), sharding, [whole], [device], True, False, semantics, True)

    buffers = [put(x) for x in arguments]
    seconds: list[float] = []
    for _ in range(repeat + 1):
        begin = _clock()
        for shard in compiled._executable.execute_sharded(buffers).disassemble_into_single_device_arrays():
            shard[0].block_until_ready()
        seconds.append(_clock() - begin)
    return seconds[1:]


def _run_on_devices(tool: Any, text: str, arguments: Arrays, replicas: int, partitions: int) -> Arrays:
    """Return the results of all devices, device by device."""
    jax: Any = importlib.import_module("jax")
    count = replicas * partitions
    if jax.config.jax_num_cpu_devices < count:
        jax.config.update("jax_num_cpu_devices", _MOST_DEVICES)
    devices = jax.devices("cpu")[:count]
    executable = _compile_for_devices(tool, text, devices, replicas, partitions)
    each = len(arguments) // count
    mesh = jax.sharding.Mesh(np.array(devices), ("device",))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    inputs: list[Any] = []
    for number in range(each):
        wholes = arguments[number::each]
        tiles = _tiles(tool._hlo, executable.get_parameter_shardings(), number, wholes[0].shape, count)
        shards = [_cut(whole, tile) for whole, tile in zip(wholes, tiles, strict=True)]
        placed = [jax.device_put(shard, device) for shard, device in zip(shards, devices, strict=True)]
        inputs.append(jax.make_array_from_single_device_arrays(shards[0].shape, everywhere, placed))
    outs = executable.execute_sharded(inputs).disassemble_into_single_device_arrays()
    shapes = tool.HloModule(tool.parse_to_proto(text)).result_shape.leaves
    results: list[Arrays] = [[] for _ in devices]
    for number, (out, shape) in enumerate(zip(outs, shapes, strict=True)):
        shards = [np.asarray(part) for part in out]
        tiles = _tiles(tool._hlo, executable.get_output_shardings(), number, tuple(shape.dims), count)
        whole = np.zeros(shape.dims, shards[0].dtype)
        for mine, shard, tile in zip(results, shards, tiles, strict=True):
            if shard.shape == whole.shape:
                mine.append(shard)
                continue
            place = whole[tile]
            place[...] = shard[tuple(slice(0, size) for size in place.shape)]
            mine.append(whole)
    return [array for mine in results for array in mine]


def _tiles(_hlo: Any, shardings: Sequence[Any] | None, number: int, dims: tuple[int, ...], count: int) -> list[tuple[slice, ...]]:
    """Return the range of a whole array that each device has, everything without a sharding; it may reach beyond the array."""
    sharding = _hlo.HloSharding.from_proto(shardings[number]) if shardings else None
    if sharding is None or sharding.is_replicated() or not sharding.tile_assignment_dimensions():
        return [tuple(slice(0, size) for size in dims)] * count
    counts = sharding.tile_assignment_dimensions()
    tiles: list[tuple[slice, ...]] = [()] * count
    for place, device in zip(np.ndindex(*counts), sharding.tile_assignment_devices(), strict=True):
        sizes = [-(-size // tiles_of_dim) for size, tiles_of_dim in zip(dims, counts, strict=False)]
        tiles[device] = tuple(slice(at * size, (at + 1) * size) for at, size in zip(place, sizes, strict=False))
    return tiles


def _cut(whole: NDArray[Any], tile: tuple[slice, ...]) -> NDArray[Any]:
    """Return a tile of an array, which ends in zeros beyond the array."""
    part = whole[tile]
    cut = np.zeros([one.stop - one.start for one in tile], whole.dtype)
    cut[tuple(slice(0, size) for size in part.shape)] = part
    return cut


def _compile_for_devices(tool: Any, text: str, devices: Sequence[Any], replicas: int, partitions: int) -> Any:
    options = tool.xc.CompileOptions()
    build = options.executable_build_options
    options.num_replicas = build.num_replicas = replicas
    options.num_partitions = build.num_partitions = partitions
    build.use_spmd_partitioning = partitions > 1
    build.use_shardy_partitioner = "xla.sdy." in text
    options.device_assignment = tool.xc.DeviceAssignment.create(np.arange(replicas * partitions).reshape(replicas, partitions))
    options.env_option_overrides = [("xla_allow_excess_precision", False)]
    computation = tool._hlo.XlaComputation(tool.expand_fusions(tool.parse_to_proto(text)))
    mlir = tool._jax.mlir.xla_computation_to_mlir_module(computation)
    return devices[0].client.compile_and_load(mlir, tool.xc.DeviceList(tuple(devices)), options)


def main() -> None:
    """Serve requests, one JSON list per line. Answers are [seconds, error]."""
    path = Path(sys.argv[1]).resolve()
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location("run_cpu", path)
    assert spec is not None
    assert spec.loader is not None
    tool: Any = importlib.util.module_from_spec(spec)
    sys.modules["run_cpu"] = tool
    spec.loader.exec_module(tool)
    for line in sys.stdin:
        try:
            answer: list[Any] = [_answer(tool, json.loads(line)), ""]
        except Exception as error:
            answer = [[], str(error) or type(error).__name__]
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
