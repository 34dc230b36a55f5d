"""An allocation while the buffer assigner fills it."""

from __future__ import annotations

from msgspec import Struct, field

from hlo_run.analysis.buffers.dataflow_values import HloValue
from hlo_run.hlo.values.shape import ShapeIndex


class PlannedAllocation(Struct, eq=False):
    """An allocation in the making: its values with their offsets in bytes, and its kind."""

    size_bytes: int
    offsets: dict[HloValue, int] = field(default_factory=dict[HloValue, int])
    parameter: tuple[int, ShapeIndex] | None = None
    is_aliased: bool = False
    is_constant: bool = False
    is_thread_local: bool = False
    is_tuple: bool = False
    is_live_out: bool = False
    color: int = 0

    @property
    def is_temp(self) -> bool:
        """True for scratch memory: no argument, result or constant of the module, and no memory of a reducer."""
        return self.parameter is None and not (self.is_live_out or self.is_thread_local or self.is_constant)

    @property
    def is_reusable(self) -> bool:
        """True if values of other buffers may be put there too."""
        return not (self.is_thread_local or self.is_tuple or self.is_constant) and (self.parameter is None or self.is_aliased)
