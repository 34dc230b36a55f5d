"""Makes an executable of one unit alone, so that it can run on other operands without touching the memory of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from msgspec import Struct

from hlo_run.artifact import ArrayTree, BufferAllocation, BufferSlice, Executable, tree_slices
from hlo_run.kernel_checks.units import Unit
from hlo_run.kernel_checks.written_arrays import overlap, spec_at
from hlo_run.records import replace

# A kernel may assume the alignment of an allocation, so a slice keeps its offset modulo this.
_ALIGNMENT_BYTES = 256


def alone(executable: Executable, unit: Unit) -> Executable | None:
    """Return an executable that takes the unit's operands, each once, and returns the arrays that the unit writes.

    None if two operands share memory, so that they cannot have values of their own.
    """
    operands = operand_trees(unit)
    pieces = [piece for tree in operands for piece in dict.fromkeys(tree_slices(tree))]
    if any(overlap(one, two) for number, one in enumerate(pieces) for two in pieces[:number]):
        return None
    results = tuple(spec_at(unit.result, path) for path, _ in unit.leaves)
    places = _packed({*_slices_in(unit.thunks), *_slices_in(operands), *_slices_in(results)})
    sizes: dict[int, int] = {}
    for place in places.values():
        sizes[place.allocation] = max(sizes.get(place.allocation, 0), place.offset_bytes + place.size_bytes)
    used = set(unit.kernels)
    return replace(
        executable,
        name=unit.name,
        kernels=tuple(kernel for kernel in executable.kernels if kernel.name in used),
        thunks=moved(unit.thunks, places),
        allocations=tuple(BufferAllocation(number, sizes[number]) for number in sorted(sizes)),
        parameters=moved(operands, places),
        result=moved(results, places),
        module_text="",
        source_text="",
        machine_code=None,
        divided=None,
    )


def operand_trees(unit: Unit) -> tuple[ArrayTree, ...]:
    """Return the memory of each operand, once if an instruction has it several times."""
    return tuple(dict(zip(unit.instruction.operands, unit.operands, strict=True)).values())


def _packed(pieces: set[BufferSlice]) -> dict[BufferSlice, BufferSlice]:
    """Return new places: slices that overlap stay together, each group in a separate allocation."""
    places: dict[BufferSlice, BufferSlice] = {}
    number, old, start, end = -1, -1, 0, 0
    for piece in sorted(pieces):
        if piece.allocation != old or piece.offset_bytes >= end:
            number, old, end = number + 1, piece.allocation, 0
            start = piece.offset_bytes // _ALIGNMENT_BYTES * _ALIGNMENT_BYTES
        end = max(end, piece.offset_bytes + piece.size_bytes)
        places[piece] = BufferSlice(number, piece.offset_bytes - start, piece.size_bytes)
    return places


def _slices_in(value: object) -> Iterator[BufferSlice]:
    if isinstance(value, BufferSlice):
        yield value
    elif isinstance(value, tuple):
        for part in cast("tuple[object, ...]", value):
            yield from _slices_in(part)
    elif isinstance(value, Struct):
        for name in value.__struct_fields__:
            yield from _slices_in(getattr(value, name))


def moved(value: object, places: dict[BufferSlice, BufferSlice]) -> object:
    """Return a thunk, a tree, or a tuple of them with other slices."""
    if isinstance(value, BufferSlice):
        return places[value]
    if isinstance(value, tuple):
        return tuple(moved(part, places) for part in cast("tuple[object, ...]", value))
    if isinstance(value, Struct):
        return replace(value, **{name: moved(getattr(value, name), places) for name in value.__struct_fields__})
    return value
