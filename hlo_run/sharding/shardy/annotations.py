"""Shardy's annotations of a module: shardings in frontend attributes, and the custom calls that stand for Shardy's ops."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from hlo_run.errors import Unsupported
from hlo_run.hlo.frontend_attributes import frontend_attribute
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.mesh import AxisRef, Mesh
from hlo_run.hlo.values.sharding import DimSharding, NamedSharding
from hlo_run.sharding.shardy.axes import Axes, in_mesh_order
from hlo_run.sharding.values import shardy

CONSTRAINT, RESULT = "Sharding", "xla.sdy.FuncResultSharding"
TO_LOCAL, TO_GLOBAL = "xla.sdy.GlobalToLocalShape", "xla.sdy.LocalToGlobalShape"
BARRIER, GROUP = "xla.sdy.PropagationBarrier", "xla.sdy.ShardingGroup"
BARRIER_DIRECTION, GROUP_NUMBER = "xla.sdy.allowed_direction", "xla.sdy.sharding_group_id"


def is_call(instruction: HloInstruction, *targets: str) -> bool:
    """True for a custom call to one of these targets."""
    return instruction.opcode == "custom-call" and instruction.custom_call_target in targets


class Annotations(Struct, frozen=True):
    """Reads the annotations of one module, whose meshes are `meshes` by name."""

    meshes: dict[str, Mesh]

    @staticmethod
    def of(module: HloModule) -> Annotations:
        """Return the reader for a module. Raises Unsupported if its meshes cannot be read."""
        try:
            return Annotations(shardy.read_meshes(frontend_attribute(module, shardy.MESHES) or "{}"))
        except ValueError as error:
            raise Unsupported(str(error)) from error

    def shardings(self, instruction: HloInstruction, count: int, name: str = shardy.SHARDING) -> tuple[NamedSharding, ...] | None:
        """Return the shardings of `count` arrays in an attribute of an instruction, or None if it has none.

        Raises Unsupported if they cannot be read or do not fit.
        """
        text = frontend_attribute(instruction, name)
        if text is None:
            return None
        try:
            found = shardy.read_shardings(text, self.meshes)
        except ValueError as error:
            raise Unsupported(str(error), instruction.where) from error
        if len(found) == 1 < count and instruction.shape.is_tuple:
            found *= count
        elif name == shardy.SHARDING and len(found) == count:
            for leaf, (_, shape) in zip(found, instruction.shape.leaves(), strict=False):
                on_one_device = leaf.mesh.maximal_device is not None and not leaf.dims
                if shape.is_array and len(leaf.dims) != shape.rank and not on_one_device:
                    array = shape.to_string(layout=False)
                    raise Unsupported(f"the sharding of {array} has {len(leaf.dims)} dimensions: {text}", instruction.where)
        if len(found) != count:
            raise Unsupported(f"{name} has {len(found)} shardings for {count} arrays", instruction.where)
        return tuple(_plain(leaf) for leaf in found)

    def manual_axes(self, instruction: HloInstruction) -> tuple[str, ...]:
        """Return the manual axes of a custom call at the border of a manual computation. Raises Unsupported without them."""
        text = frontend_attribute(instruction, shardy.MANUAL_AXES)
        if text is None:
            raise Unsupported(f"{instruction.custom_call_target} without {shardy.MANUAL_AXES}", instruction.where)
        try:
            return shardy.read_manual_axes(text)
        except ValueError as error:
            raise Unsupported(str(error), instruction.where) from error


def _plain(sharding: NamedSharding) -> NamedSharding:
    """Return the sharding without axes of one device."""
    mesh = sharding.mesh
    if all(size > 1 for _, size in mesh.axes):
        return sharding

    def kept(axes: Axes) -> Axes:
        return tuple(ref for ref in axes if ref.size(mesh) > 1)

    dims = [DimSharding(kept(dim.axes), dim.is_closed, dim.priority) for dim in sharding.dims]
    return NamedSharding(mesh, tuple(dims), kept(sharding.replicated), kept(sharding.unreduced))


def with_dims(sharding: NamedSharding, dims: Sequence[DimSharding]) -> NamedSharding:
    """Return the sharding with other dimensions."""
    return NamedSharding(sharding.mesh, tuple(dims), sharding.replicated, sharding.unreduced)


def all_dims(mesh: Mesh, rank: int, is_closed: bool) -> NamedSharding:
    """Return a sharding without axes, whose dimensions are all open or all closed."""
    return NamedSharding(mesh, (DimSharding((), is_closed),) * rank)


def closed(sharding: NamedSharding) -> NamedSharding:
    """Return the sharding with all dimensions closed."""
    return with_dims(sharding, [DimSharding(dim.axes) for dim in sharding.dims])


def is_open(sharding: NamedSharding) -> bool:
    """True if the sharding leaves everything open: all dimensions, and no axis has a use."""
    return not (sharding.replicated or sharding.unreduced) and all(not dim.axes and not dim.is_closed for dim in sharding.dims)


def has_axes(sharding: NamedSharding) -> bool:
    """True if an axis divides the array, or is replicated or unreduced."""
    return bool(sharding.replicated or sharding.unreduced) or any(dim.axes for dim in sharding.dims)


def _split(axes: Axes, manual: frozenset[int]) -> tuple[Axes, Axes]:
    """Return the leading manual axes, and the others."""
    place = next((number for number, ref in enumerate(axes) if ref.axis not in manual), len(axes))
    return axes[:place], axes[place:]


def local_sharding(sharding: NamedSharding, manual: frozenset[int]) -> NamedSharding:
    """Return the sharding of a device's part where the axes with the numbers `manual` are manual."""
    dims = [DimSharding(_split(dim.axes, manual)[1], dim.is_closed, dim.priority) for dim in sharding.dims]
    replicated, unreduced = (
        tuple(ref for ref in axes if ref.axis not in manual) for axes in (sharding.replicated, sharding.unreduced)
    )
    return NamedSharding(sharding.mesh, tuple(dims), replicated, unreduced)


def global_sharding(local: NamedSharding, whole: NamedSharding, manual: frozenset[int]) -> NamedSharding:
    """Return the sharding of the whole array that has the manual axes of `whole` and the other axes of `local`."""
    dims = [
        DimSharding((*_split(old.axes, manual)[0], *dim.axes), dim.is_closed, dim.priority)
        for dim, old in zip(local.dims, whole.dims, strict=True)
    ]

    def joined(free: Axes, old: Axes) -> Axes:
        return in_mesh_order((*free, *(ref for ref in old if ref.axis in manual)), whole.mesh)

    replicated, unreduced = joined(local.replicated, whole.replicated), joined(local.unreduced, whole.unreduced)
    return NamedSharding(whole.mesh, tuple(dims), replicated, unreduced)


def with_all_manual_axes(sharding: NamedSharding, manual: frozenset[int]) -> NamedSharding:
    """Return the sharding with the manual axes that it does not name as replicated ones."""
    named = {ref.axis for axes in (*(dim.axes for dim in sharding.dims), sharding.replicated, sharding.unreduced) for ref in axes}
    missing = [AxisRef(axis) for axis in manual if axis not in named]
    if not missing:
        return sharding
    replicated = in_mesh_order((*sharding.replicated, *missing), sharding.mesh)
    return NamedSharding(sharding.mesh, sharding.dims, replicated, sharding.unreduced)
