"""The device grid of a run: how many devices, and how their arguments and results are joined into one list."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from hlo_run.analysis.facts import fact
from hlo_run.errors import Unsupported
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.whole_shape import whole_shape
from hlo_run.reference.values import Value
from hlo_run.sharding.analysis.partition_count import verify_partitions
from hlo_run.sharding.analysis.shardy_attributes import has_shardy_attributes

# All devices of a run are simulated in one process, which keeps the arguments and results of each.
MOST_DEVICES = 4096


class DeviceGrid(Struct, frozen=True):
    """Replicas times partitions; device numbers are replica-major.

    With several devices, the arguments are one list, device by device, and the results are one tuple: element 1 of a
    report's index is device 1. With one device, arguments and result are those of the module.
    """

    replicas: int = 1
    partitions: int = 1

    @staticmethod
    def of(module: HloModule, replicas: int = 0, partitions: int = 0) -> DeviceGrid:
        """Return the grid of these numbers; 0 or less means the number in the module's header.

        Raises Unsupported for more than MOST_DEVICES devices, for a header with a number below 1, and for one partition if the
        module takes parts of arrays.
        """
        grid = DeviceGrid(
            replicas if replicas > 0 else module.replica_count,
            partitions if partitions > 0 else module.num_partitions,
        )
        if grid.replicas < 1 or grid.partitions < 1 or grid.size > MOST_DEVICES:
            hint = "--num_replicas=N and --num_partitions=N set the numbers"
            raise Unsupported(f"a run has 1 to {MOST_DEVICES} devices, but the module has {grid}", hint=hint)
        verify_partitions(module, grid.partitions)
        return grid

    @property
    def size(self) -> int:
        """The number of devices: replicas times partitions."""
        return self.replicas * self.partitions

    def __str__(self) -> str:
        return f"{self.replicas} replicas x {self.partitions} partitions"

    def argument_shapes(self, module: HloModule) -> list[Shape]:
        """Return the shapes of all devices' arguments."""
        return [parameter.shape for parameter in module.entry.parameters] * self.size

    def argument_titles(self, module: HloModule) -> list[str]:
        """Return the titles of all devices' arguments, as reports show them."""
        count = len(module.entry.parameters)
        if self.size == 1:
            return [f"Argument {number}" for number in range(count)]
        return [f"Argument {number} of device {device}" for device in range(self.size) for number in range(count)]

    def result_shape(self, module: HloModule) -> Shape:
        """Return the shape of the joined results, whole arrays: a tuple if there are several devices."""
        shape = module.entry.root.shape
        if module.divided is not None:
            shape = whole_shape(shape, module.divided.result)
        return shape if self.size == 1 else Shape.make_tuple((shape,) * self.size)

    def make_arguments(self, module: HloModule, make: Callable[[], list[Value]]) -> list[Value]:
        """Return the arguments of all devices; `make` makes one device's arguments.

        The partitions of one replica share their arguments if the module is not partitioned yet.
        """
        if not is_unpartitioned(module):
            return [value for _ in range(self.size) for value in make()]
        return [value for _ in range(self.replicas) for value in make() * self.partitions]

    def split(self, arguments: Sequence[Value]) -> list[Sequence[Value]]:
        """Split the list of all devices' arguments into one list per device."""
        each = len(arguments) // self.size
        return [arguments[device * each : (device + 1) * each] for device in range(self.size)]

    def join(self, results: Sequence[Value]) -> Value:
        """Join the devices' results: a tuple of several, or the only one."""
        return tuple(results) if self.size > 1 else results[0]


def is_unpartitioned(module: HloModule) -> bool:
    """True if the module is not partitioned yet: it has shardings, and every partition gets the whole arguments."""
    return has_shardy_attributes(module) or fact(module, _has_shardings)


def _has_shardings(module: HloModule) -> bool:
    return any(
        instruction.sharding is not None or instruction.custom_call_target.strip('"').startswith("SPMD")
        for instruction in module.instructions
    )
