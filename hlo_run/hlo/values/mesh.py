"""Device meshes with named axes, and references to axes and sub-axes, for replica groups and named shardings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from msgspec import Struct

from hlo_run.hlo.values.tile_assignment import Iota


class Mesh(Struct, frozen=True):
    """Devices along named axes: `axes` has (name, size) from major to minor.

    `order` has the devices in row-major order; None means 0, 1, 2, ... A mesh without axes is one device,
    `maximal_device`, or if that is None, a mesh that divides nothing.
    """

    axes: tuple[tuple[str, int], ...]
    order: Iota | tuple[int, ...] | None = None
    maximal_device: int | None = None

    @property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(size for _, size in self.axes)

    def devices(self) -> tuple[int, ...]:
        """Return the devices in row-major order."""
        if self.maximal_device is not None:
            return (self.maximal_device,)
        if self.order is None:
            return tuple(range(self.size))
        return self.order.numbers() if isinstance(self.order, Iota) else self.order

    def problem(self) -> str:
        """Return the reason why the mesh is invalid, or ""."""
        names = [name for name, _ in self.axes]
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            return f"Mesh has duplicate axis names. Duplicate axis name: {repeated}"
        if isinstance(self.order, Iota):
            return "" if self.order.count == self.size else f"the mesh has {self.size} devices, but device_ids {self.order.count}"
        if self.order is None:
            return ""
        if len(self.order) != self.size:
            return f"Expected {self.size} device_ids based on mesh axes, but got {len(self.order)}"
        if sorted(self.order) != list(range(self.size)):
            return "Device ids must be a permutation of [0,1,2,3...]."
        in_order = self.order == tuple(range(self.size))
        return "Non-iota device assignment has iota device id list [0,1,2,3...]." if in_order else ""

    def __str__(self) -> str:
        if self.maximal_device is not None:
            return f"maximal_mesh[device_id={self.maximal_device}]"
        axes = ",".join(f"'{name}'={size}" for name, size in self.axes)
        if self.order is None or (isinstance(self.order, Iota) and len(self.order.reshape_dims) == 1):
            return f"mesh[{axes}]"
        order = self.order if isinstance(self.order, Iota) else ",".join(map(str, self.order))
        return f"mesh[{axes}], device_ids=({order})"


class AxisRef(Struct, frozen=True):
    """Axis number `axis` of a mesh; with `sub_size`, a sub-axis of it: `pre_size` is the product of the major sub-axes' sizes.

    An axis of size 8 split into 2 x 4 has the sub-axes `'x':(1)2` and `'x':(2)4`.
    """

    axis: int
    pre_size: int = 1
    sub_size: int | None = None

    def size(self, mesh: Mesh) -> int:
        """Return the number of devices along the axis, or along the sub-axis."""
        return mesh.axes[self.axis][1] if self.sub_size is None else self.sub_size

    @property
    def next_pre_size(self) -> int | None:
        """The `pre_size` of the next minor sub-axis; None for a whole axis."""
        return None if self.sub_size is None else self.pre_size * self.sub_size

    def problem(self, mesh: Mesh) -> str:
        """Return the reason why the reference into `mesh` is invalid, or ""."""
        if self.sub_size is None:
            return ""
        full = mesh.axes[self.axis][1]
        if self.pre_size < 1 or self.sub_size < 2:
            return "sub-axis pre-size must be >= 1 and its size > 1"
        if full % (self.pre_size * self.sub_size):
            return f"Sub-axis next_pre_size {self.pre_size * self.sub_size} must divide the full axis size {full}"
        return "Sub-axis size must be strictly less than the full axis size." if self.sub_size >= full else ""

    def overlaps(self, other: AxisRef) -> bool:
        """True if the two sub-axes overlap or cannot both be factors of one axis."""
        if self.axis != other.axis:
            return False
        if self.next_pre_size is None or other.next_pre_size is None:
            return True
        if self.next_pre_size > other.pre_size and other.next_pre_size > self.pre_size:
            return True
        return max(self.pre_size, other.pre_size) % min(self.next_pre_size, other.next_pre_size) != 0

    def text(self, mesh: Mesh) -> str:
        """Return `'x'` or `'x':(pre_size)size`."""
        part = "" if self.sub_size is None else f":({self.pre_size}){self.sub_size}"
        return f"'{mesh.axes[self.axis][0]}'{part}"


def axes_problem(axes: Sequence[AxisRef], mesh: Mesh) -> str:
    """Return the reason why a list of axes of one mesh is invalid, or ""."""
    for axis in axes:
        if problem := axis.problem(mesh):
            return problem
    for number, axis in enumerate(axes):
        if any(axis.overlaps(other) for other in axes[number + 1 :]):
            return "Axes cannot coexist or axes overlap."
    for axis, following in itertools.pairwise(axes):
        if axis.axis == following.axis and axis.next_pre_size == following.pre_size:
            return f"Adjacent axes in dimension sharding can be merged: {axis.text(mesh)}, {following.text(mesh)}"
    return ""
