"""`--xla_dump_hlo_snapshots` and `--xla_dump_hlo_unoptimized_snapshots`: the module of every execution with its arguments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hlo_run.errors import UsageError
from hlo_run.execution.result_texts import of_devices
from hlo_run.formats.protos import message_types
from hlo_run.formats.write import snapshot, unoptimized_snapshot
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.literal import Literal
from hlo_run.hlo.values.shape import Shape
from hlo_run.options import Options
from hlo_run.pipeline.observers.dump import compile_pattern
from hlo_run.pipeline.observers.dump_files import STDOUT, DumpFiles
from hlo_run.reference.evaluate.devices import DeviceGrid

# As in XLA, executions of modules of one name are counted together.
_EXECUTIONS: Counter[str] = Counter()


class Snapshots:
    """Writes the files of one module. `number` is the place of its file from 0, `platform` where it runs.

    `HloSnapshot` has the module that ran (`optimized`: set it once the module is compiled) and the result, one file per device.
    `HloUnoptimizedSnapshot` has the module as read and the arguments of each device. Both can be read as input files.
    """

    def __init__(self, options: Options, module: HloModule, grid: DeviceGrid, number: int, platform: str) -> None:
        self._options, self._grid, self._platform, self._module = options, grid, platform, module
        self._files = DumpFiles(options, module.name, number, lambda text: None)
        self._executions = 0
        self.optimized = module

    @staticmethod
    def of(options: Options, module: HloModule, grid: DeviceGrid, number: int, platform: str) -> Snapshots | None:
        """Return the writer; None for a module that `--xla_dump_hlo_module_re` leaves out.

        Raises UsageError for files to stdout, or if a package is missing.
        """
        unoptimized = options.xla_dump_hlo_unoptimized_snapshots
        flag = "xla_dump_hlo_unoptimized_snapshots" if unoptimized else "xla_dump_hlo_snapshots"
        if options.dumps_to == STDOUT:
            raise UsageError(f"--{flag} writes protos, which are not printed", hint="name a directory with --xla_dump_to=DIR")
        message_types(f"--{flag}")  # checks the packages
        pattern = compile_pattern("xla_dump_hlo_module_re", options.xla_dump_hlo_module_re)
        if pattern is not None and pattern.search(module.name) is None:
            return None
        return Snapshots(options, module, grid, number, platform)

    def add(self, arguments: Sequence[Literal], shapes: Sequence[Shape], result: Literal, result_shape: Shape) -> None:
        """Write the files of an execution, with the values and shapes of all devices."""
        each = len(shapes) // self._grid.size
        split = [shapes[device * each : (device + 1) * each] for device in range(self._grid.size)]
        devices = [list(zip(values, own, strict=True)) for values, own in zip(self._grid.split(arguments), split, strict=True)]
        if self._options.xla_dump_hlo_unoptimized_snapshots:
            self._write_unoptimized(devices)
        if self._options.xla_dump_hlo_snapshots:
            results = [(result, result_shape)] if self._grid.size == 1 else of_devices(result, result_shape)
            for device, value in zip(devices, results, strict=True):
                self._write(device, value)
        self._executions += 1

    def _write_unoptimized(self, devices: Sequence[Sequence[tuple[Literal, Shape]]]) -> None:
        name = f"execution_{self._executions:04d}.hlo_unoptimized_snapshot"
        if self._options.xla_dump_hlo_as_text:
            self._files.file(f"{name}.txt", unoptimized_snapshot(self._module, devices, "text"))
        else:
            kind = "stream" if self._options.xla_dump_hlo_as_proto else "message"
            self._files.file(f"{name}.pb", unoptimized_snapshot(self._module, devices, kind))

    def _write(self, arguments: Sequence[tuple[Literal, Shape]], result: tuple[Literal, Shape]) -> None:
        name, number = self._module.name, _EXECUTIONS[self._module.name]
        _EXECUTIONS[name] += 1
        data = snapshot(self.optimized, arguments, result, self._platform)
        self._files.named_file(f"module_{name}.execution_{number:04d}.hlo_snapshot.pb", data)
