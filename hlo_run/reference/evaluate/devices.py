"""How many devices a module runs on, and one list of arguments and one result for all of them together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.values import Value


@dataclass(frozen=True, slots=True)
class DeviceGrid:
    """Replicas times partitions; device numbers are replica-major.

    Where there are several devices, arguments stand in one list, device by device, and the results are one tuple, so that
    element 1 of a report's index is device 1. One device's are as without a grid.
    """

    replicas: int = 1
    partitions: int = 1

    @staticmethod
    def of(module: HloModule, replicas: int = 0, partitions: int = 0) -> DeviceGrid:
        """Return the grid that the numbers say, or, where they are 0, the module's header."""
        return DeviceGrid(
            replicas or int(module.attrs.get("replica_count", 1)), partitions or int(module.attrs.get("num_partitions", 1))
        )

    @property
    def size(self) -> int:
        return self.replicas * self.partitions

    def __str__(self) -> str:
        return f"{self.replicas} replicas x {self.partitions} partitions"

    def argument_shapes(self, module: HloModule) -> list[Shape]:
        """Return the shapes of all devices' arguments."""
        return [parameter.shape for parameter in module.entry.parameters] * self.size

    def argument_titles(self, module: HloModule) -> list[str]:
        """Return what to call each of all devices' arguments."""
        count = len(module.entry.parameters)
        if self.size == 1:
            return [f"Argument {number}" for number in range(count)]
        return [f"Argument {number} of device {device}" for device in range(self.size) for number in range(count)]

    def result_shape(self, module: HloModule) -> Shape:
        """Return the shape of all devices' results together."""
        shape = module.entry.root.shape
        return shape if self.size == 1 else Shape.make_tuple((shape,) * self.size)

    def make_arguments(self, module: HloModule, make: Callable[[], list[Value]]) -> list[Value]:
        """Return what `make` makes for each device; partitions of a module that is yet to be partitioned share theirs."""
        if not is_unpartitioned(module):
            return [value for _ in range(self.size) for value in make()]
        return [value for _ in range(self.replicas) for value in make() * self.partitions]

    def split(self, arguments: Sequence[Value]) -> list[Sequence[Value]]:
        """Return the list of all devices' arguments as one list each."""
        each = len(arguments) // self.size
        return [arguments[device * each : (device + 1) * each] for device in range(self.size)]

    def join(self, results: Sequence[Value]) -> Value:
        """Return the devices' results together."""
        return tuple(results) if self.size > 1 else results[0]


def is_unpartitioned(module: HloModule) -> bool:
    """True if the module is written for whole arrays that shardings divide: every partition gets the whole arguments."""
    return any(
        instruction.attrs.get("sharding") is not None
        or str(instruction.attrs.get("custom_call_target", "")).strip('"').startswith("SPMD")
        for instruction in module.instructions
    )
