"""Rewrites instructions that the partitioner would divide with several exchanges of halos where one is enough.

    concatenate(slice(x) [6:8], slice(x) [0:6])             =>   rotate(x) right by 2
    slice(pad(x))                                           =>   pad(x)
    concatenate(slice(x) [6:8], x, slice(x) [0:1])          =>   selects of pad(x) and its rotations

Rotations are the custom calls that `handlers/rotate.py` divides. Only along dimensions that are divided. XLA's
`SpmdPartitioner::PreprocessHlos`.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from hlo_run.analysis.elementwise import is_elementwise
from hlo_run.hlo.edit import Editor, copy_instruction, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import SingleSharding
from hlo_run.records import replace
from hlo_run.sharding.partitioning.state import key_of
from hlo_run.sharding.values.make import REPLICATED

ROTATE = "_SPMDInternalOp_RotateRight"


def prepare(module: HloModule) -> None:
    """Edit in place; every instruction must have a sharding, and new ones get one."""
    for computation in module.computations:
        for value in computation.post_order():
            made = None
            if value.opcode == "slice" and _is_tiled(value):
                made = _merged_pad(value)
            elif value.opcode == "concatenate" and _is_tiled(value) and _dims(value)[value.dimensions[0]] > 1:
                made = _rotation(value) or _wrapped(value)
            if made is not None:
                module.replace_uses(value, made)
                remove_unused([value])


def _is_tiled(value: HloInstruction) -> bool:
    return isinstance(value.sharding, SingleSharding) and value.sharding.kind == "tiled"


def _dims(value: HloInstruction) -> Sequence[int]:
    """Return into how many tiles the dimensions are divided."""
    assert isinstance(value.sharding, SingleSharding)
    return value.sharding.dims


def _have_one_sharding(*values: HloInstruction) -> bool:
    keys = [key_of(value.sharding) for value in values if value.sharding is not None]
    return len(keys) == len(values) and all(key == keys[0] for key in keys)


def _source(value: HloInstruction) -> HloInstruction:
    """Look through copies that have one user."""
    while value.opcode == "copy" and len(value.users) == 1:
        value = value.operands[0]
    return value


def _only_source(value: HloInstruction) -> HloInstruction | None:
    """Look through copies, as far as all have one user; None if the source has more."""
    value = _source(value)
    return value if len(value.users) == 1 else None


def _merged_pad(cut: HloInstruction) -> HloInstruction | None:
    """Return one pad for a slice of a pad, perhaps with negative edges, if a divided dimension is padded and sliced."""
    pad = _only_source(cut.operands[0])
    if pad is None or pad.opcode != "pad" or not _have_one_sharding(cut, pad, pad.operands[0]):
        return None
    edges: list[tuple[int, int, int]] = []
    pays_off = False
    for dim, ((low, high, inner), (start, limit, stride)) in enumerate(zip(pad.padding, cut.slice_ranges, strict=True)):
        if inner or stride != 1:
            return None
        whole = pad.shape.dims[dim]
        pays_off |= _dims(cut)[dim] != 1 and (low, high) != (0, 0) and cut.shape.dims[dim] != whole
        edges.append((low - start, limit - (whole - high), 0))
    if not pays_off:
        return None
    made = Editor(pad).add("pad", cut.shape, pad.operands, padding=tuple(edges))
    made.attrs["sharding"] = cut.given_sharding
    return made


def _slices(values: Sequence[HloInstruction], dim: int) -> bool:
    return all(value.opcode == "slice" and value.slice_ranges[dim][2] == 1 for value in values)


def _rotation(joined: HloInstruction) -> HloInstruction | None:
    """Return the rotation that two slices of one value make, the end first."""
    parts = [part for part in map(_only_source, joined.operands) if part is not None]
    dim = joined.dimensions[0]
    if len(joined.operands) != 2 or len(parts) != 2 or not _slices(parts, dim):
        return None
    end, start = parts
    (value,) = end.operands
    is_whole = value.shape.dims == joined.shape.dims and value.shape.element_type == joined.shape.element_type
    if start.operands[0] is not value or not is_whole or not _have_one_sharding(joined, value):
        return None
    if end.slice_ranges[dim][0] != start.slice_ranges[dim][1]:
        return None
    return _rotated(Editor(joined), value, dim, end.shape.dims[dim])


def _rotated(editor: Editor, value: HloInstruction, dim: int, amount: int) -> HloInstruction:
    config = f"dimension={dim},amount={amount}"
    return editor.add("custom-call", value.shape, [value], custom_call_target=ROTATE, backend_config=config)


class _Edge(Struct, frozen=True):
    """A slice of the middle value before or after it, and the elementwise instructions that change it, the last one first."""

    start: int
    changes: tuple[HloInstruction, ...]


def _edge(part: HloInstruction | None, middle: HloInstruction, dim: int) -> _Edge | None:
    changes: list[HloInstruction] = []
    while part is not None and is_elementwise(part) and len(part.operands) == 1 and len(part.users) == 1:
        changes += [part] if part.opcode != "copy" else []
        part = part.operands[0]
    if part is None or not _slices([part], dim) or part.operands[0] is not middle:
        return None
    return _Edge(part.slice_ranges[dim][0], tuple(changes))


def _wrapped(joined: HloInstruction) -> HloInstruction | None:
    """Return a value between two slices of it as a pad, into which its rotations are selected."""
    dim = joined.dimensions[0]
    if len(joined.operands) != 3:
        return None
    before, middle, after = joined.operands
    middle = _source(middle)
    left, right = (_edge(_only_source(part), middle, dim) for part in (before, after))
    if left is None or right is None:
        return None
    editor, size = Editor(joined), joined.shape.dims[dim]
    low, high = before.shape.dims[dim], after.shape.dims[dim]
    zero = _replicated(joined, 0, joined.shape.element_type)
    edges = tuple((low, high, 0) if d == dim else (0, 0, 0) for d in range(joined.shape.rank))
    merged = padded = editor.add("pad", joined.shape, [middle, zero], padding=edges)
    first = _changed(_rotated(editor, padded, dim, size - (left.start + low)), left.changes)
    last = _changed(_rotated(editor, padded, dim, size - (right.start + low + high)), right.changes)
    index = editor.add("iota", joined.shape.with_element_type("u32"), iota_dimension=dim)
    for limit, value, direction in ((low, first, "LT"), (size - high, last, "GE")):
        bound = editor.add("broadcast", index.shape, [_replicated(joined, limit, "u32")], dimensions=())
        merged = editor.add("select", joined.shape, [editor.compare(index, bound, direction), value, merged])
    return merged


def _replicated(joined: HloInstruction, value: int, element_type: str) -> HloInstruction:
    """Return a scalar constant that all devices have."""
    made = Editor(joined, derives=False).constant(value, element_type)
    made.attrs["sharding"] = REPLICATED
    return made


def _changed(value: HloInstruction, changes: Sequence[HloInstruction]) -> HloInstruction:
    for change in reversed(changes):
        assert change.parent is not None, "it is in a computation"
        shape: Shape = replace(value.shape, element_type=change.shape.element_type)
        value = change.parent.add(copy_instruction(change, [value], shape))
    return value
