"""Is a change of shape a mere reinterpretation of the bytes: as a reshape, or as a transpose?

Element types are ignored; dimensions of size 1 count in no layout.
"""

from __future__ import annotations

from itertools import pairwise

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.shape import Shape


def physical_dims(shape: Shape) -> tuple[int, ...]:
    """Return the logical dimension numbers from slowest to fastest varying, without those of size 1."""
    return tuple(dim for dim in reversed(shape.minor_to_major) if shape.dims[dim] != 1)


def is_row_major(shape: Shape) -> bool:
    """True if the elements lie in the order of the logical index."""
    order = physical_dims(shape)
    return all(a < b for a, b in pairwise(order))


def reshape_is_bitcast(source: Shape, target: Shape) -> bool:
    """True if a reshape between these layouts moves no byte.

    Exact for row-major arrays; of other layouts it knows only those that both shapes share, so a no may be too careful.
    """
    if source.element_count != target.element_count:
        return False
    if is_row_major(source) and is_row_major(target):
        return True
    return source.dims == target.dims and physical_dims(source) == physical_dims(target)


def transpose_is_bitcast(source: Shape, target: Shape, permutation: tuple[int, ...]) -> bool:
    """True if the transpose (`target` dimension i is `source` dimension `permutation[i]`) moves no byte."""
    return tuple(permutation[dim] for dim in physical_dims(target)) == physical_dims(source)


def is_reshape_or_transpose_bitcast(source: Shape, target: Shape) -> bool:
    """True if one reshape or one transpose explains reading `source`'s bytes as `target`."""
    if reshape_is_bitcast(source, target):
        return True
    source_sizes = [source.dims[dim] for dim in physical_dims(source)]
    return source.rank == target.rank and source_sizes == [target.dims[dim] for dim in physical_dims(target)]


def is_bitcast(instruction: HloInstruction) -> bool:
    """True for a `bitcast`, and for a reshape or transpose that is one."""
    match instruction.opcode:
        case "bitcast":
            return True
        case "reshape":
            return reshape_is_bitcast(instruction.operands[0].shape, instruction.shape)
        case "transpose":
            return transpose_is_bitcast(instruction.operands[0].shape, instruction.shape, instruction.attrs["dimensions"])
        case _:
            return False
