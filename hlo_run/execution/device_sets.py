"""Sets of arguments for several devices: one for all of them, one per replica, or one per device, in whole arrays or in tiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hlo_run.artifact.division import Division
from hlo_run.backends.whole_arrays import Divisions, join_equal, join_own_tiles
from hlo_run.errors import UsageError
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.literal import Literal
from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.evaluate.devices import DeviceGrid, is_unpartitioned
from hlo_run.reference.literal_files import read_values, stored_dims
from hlo_run.sharding.analysis.parameters import parameter_divisions


def read_sets(path: str, module: HloModule, grid: DeviceGrid) -> list[Literal]:
    """Return the arguments of all devices from a file of arguments, device by device.

    A single set serves all devices. A module whose arrays are still whole also takes a set per replica, and in a set per
    device the tiles of arrays that a sharding divides. Raises UsageError for other numbers of arrays, for arrays that do not
    fit, and for devices with different data where they hold the same piece.
    """
    parameters = module.entry.parameters
    shapes = [parameter.shape for parameter in parameters]
    names = [f"parameter {number} (%{parameter.name})" for number, parameter in enumerate(parameters)]
    if grid.size == 1:
        return read_values(path, "arg", shapes, names)
    dims = stored_dims(path, "arg")
    each = sum(leaf.is_array for shape in shapes for _, leaf in shape.leaves())
    is_whole = is_unpartitioned(module)
    if len(dims) in (0, each):  # a file without numbered arrays is an error that names its keys
        return read_values(path, "arg", shapes, names) * grid.size
    if is_whole and len(dims) == each * grid.replicas:
        values = read_values(path, "arg", shapes * grid.replicas, names * grid.replicas)
        sets = [values[first : first + len(shapes)] for first in range(0, len(values), len(shapes))]
        return [value for values_of_one in sets for value in values_of_one * grid.partitions]
    if len(dims) != each * grid.size:
        counts = f"{each} (one set for all devices) or {each * grid.size} (one set for each device of {grid})"
        message = f"'{path}' has {len(dims)} arrays, but '{module.name}' takes {counts}"
        raise UsageError(message, hint="give a tuple as its leaves")
    of_devices = [f"device {device}'s {name}" for device in range(grid.size) for name in names]
    if not is_whole:
        return read_values(path, "arg", shapes * grid.size, of_devices)
    divisions = parameter_divisions(module, grid.partitions)
    tiled = _tiled_shapes(shapes, divisions, [dims[first : first + each] for first in range(0, len(dims), each)])
    values = read_values(path, "arg", tiled * grid.size, of_devices)
    return join_equal(grid.split(values), divisions, names, grid.partitions)


def with_tiles_of_devices(module: HloModule, grid: DeviceGrid, sets: Sequence[Sequence[Literal]]) -> list[Literal]:
    """Return the arguments of all devices from whole arrays for each; a device gives the tile that it holds.

    Where several devices hold the same piece, it is the first one's. The arguments of a module that is one partition's program
    stay as they are.
    """
    if grid.partitions == 1 or not is_unpartitioned(module):
        return [value for values in sets for value in values]
    return join_own_tiles(sets, parameter_divisions(module, grid.partitions), grid.partitions)


def _tiled_shapes(shapes: Sequence[Shape], divisions: Divisions, dims: list[list[tuple[int, ...]]]) -> list[Shape]:
    """Return the shapes of a device's arguments: the shapes of tiles where every device's array has a tile's dimensions."""
    stored = iter(zip(*dims, strict=True))

    def changed(shape: Shape, of_leaves: Iterator[Division | None]) -> Shape:
        def leaf_shape(leaf: Shape) -> Shape:
            division = next(of_leaves)
            found = set(next(stored)) if leaf.is_array else set[tuple[int, ...]]()
            if division is None or leaf.dynamic_dims or found != {division.tile_dims}:
                return leaf
            return Shape.array(leaf.element_type, division.tile_dims)

        return shape.map_leaves(leaf_shape)

    return [changed(shape, iter(of_leaves)) for shape, of_leaves in zip(shapes, divisions, strict=True)]
