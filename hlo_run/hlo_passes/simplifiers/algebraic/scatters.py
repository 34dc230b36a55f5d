"""Algebraic rules of gathers and scatters."""

from __future__ import annotations

from hlo_run.analysis.bitcast_kind import common_groups
from hlo_run.analysis.simple_reducer import simple_reducer
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.views.indexed import Indexed
from hlo_run.hlo_passes.simplifiers.algebraic.rule import Rewriter, Rules
from hlo_run.records import replace

# The maximum number of elements for which selects replace a gather.
_FEW_ROWS = 4


def gather_of_nothing(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """gather(A, at) => 0 if A has no elements, broadcast(reshape(A)) if it has one."""
    value = i.operands[0]
    if value.shape.element_count == 0:
        return rw.splat(0, i.shape)
    return rw.spread(rw.reshape(value, ()), i.shape) if value.shape.element_count == 1 else None


def gather_of_few(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """gather(f32[2] A, at) of single elements => select(at >= 1, A[1], A[0]), for at most four elements."""
    value, at = i.operands
    count = value.shape.dims[0] if value.shape.rank == 1 else 0
    is_plain = i.index_vector_dim == at.shape.rank and len(i.collapsed_slice_dims) == 1
    if not 0 < count <= _FEW_ROWS or not is_plain or at.shape.dims != i.shape.dims:
        return None
    rows = [rw.spread(rw.reshape(rw.slice(value, [n], [n + 1]), ()), i.shape) for n in range(count)]
    result = rows[0]
    for number, row in enumerate(rows[1:], 1):
        is_behind = rw.compare(at, rw.splat(number, at.shape), "GE")
        result = rw.select(is_behind, row, result)
    return result


def gather_of_padded(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """gather(pad(A, c), at) => pad(gather(A, at), c) if the padded dimensions are taken whole; also of a reshaped pad."""
    value, at = i.operands
    whole = _whole_dims(i)
    if value.opcode == "pad":
        padded = [d for d, edge in enumerate(value.padding) if any(edge)]
        batch = _padded_batch_dims(i, padded, whole)
        if batch is None:
            return None
        places, indices = {**whole, **batch}, at.operands[0] if batch else at
        return _padded_after(rw, i, value, (value.operands[0], indices), {d: (d, places[d]) for d in padded})
    if value.opcode != "reshape" or value.operands[0].opcode != "pad" or 0 in value.shape.dims:
        return None
    pad = value.operands[0]
    groups = common_groups(pad.shape.dims, value.shape.dims)
    kept = {ours[0]: theirs[0] for ours, theirs in groups if len(ours) == len(theirs) == 1}
    padded = [d for d, edge in enumerate(pad.padding) if any(edge)]
    if any(d not in kept or kept[d] not in whole for d in padded):
        return None
    sizes = list(value.shape.dims)
    for d in padded:
        sizes[kept[d]] = pad.operands[0].shape.dims[d]
    narrow = rw.reshape(pad.operands[0], sizes)
    return _padded_after(rw, i, pad, (narrow, at), {d: (kept[d], whole[kept[d]]) for d in padded})


def _whole_dims(i: HloInstruction) -> dict[int, int]:
    """Map the operand's dimensions that a gather takes whole to dimensions of the result."""
    view, sizes = Indexed.of(i), i.operands[0].shape.dims
    pairs = zip(view.kept_dims, view.window_dims, strict=True)
    return {d: place for d, place in pairs if view.slice_sizes[d] == sizes[d]}


def _padded_batch_dims(i: HloInstruction, padded: list[int], whole: dict[int, int]) -> dict[int, int] | None:
    """Map padded batching dimensions to dimensions of the result; None if the indices are not padded in the same way."""
    value, at = i.operands
    batch = [d for d in padded if d not in whole]
    if not batch:
        return {}
    if any(d not in i.operand_batching_dims for d in batch) or at.opcode != "pad":
        return None
    matching = {d: i.start_indices_batching_dims[i.operand_batching_dims.index(d)] for d in batch}
    if any(at.padding[matching[d]] != value.padding[d] for d in batch):
        return None
    if sum(any(edge) for edge in at.padding) != len(batch):
        return None
    view = Indexed.of(i)
    results = dict(zip(view.row_dims, view.batch_dims, strict=True))
    return {d: results[matching[d]] for d in batch}


def _padded_after(
    rw: Rewriter,
    i: HloInstruction,
    pad: HloInstruction,
    operands: tuple[HloInstruction, HloInstruction],
    places: dict[int, tuple[int, int]],
) -> HloInstruction:
    """Gather from the unpadded operand, then pad. `places` maps padded dimensions to the gather's operand's and result's."""
    taken, dims, edges = list(i.gather_slice_sizes), list(i.shape.dims), [(0, 0, 0)] * i.shape.rank
    for d, (source, result) in places.items():
        size = pad.operands[0].shape.dims[d]
        taken[source] = taken[source] if source in i.operand_batching_dims else size
        dims[result], edges[result] = size, pad.padding[d]
    narrow = rw.like(i, operands, replace(i.shape, dims=tuple(dims)))
    narrow.attrs["slice_sizes"] = tuple(taken)
    return rw.add("pad", i.shape, [narrow, pad.operands[1]], padding=tuple(edges))


def add_to_scattered(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """A + scatter(B, at, u), to_apply=add => scatter(A + B, at, u) if the scatter has no other users.

    Of two scatters, one becomes the operand of the other, or both are merged into one with all indices and updates. Both need
    fewer updates than the result has elements.
    """
    one, two = i.operands
    scatters = [value for value in (one, two) if _adds(value)]
    # The scatters are changed in place, so the caller must have fuel for the replacement and no reason to refuse it.
    if one is two or not scatters or rw.fuel.is_out("algsimp") or any(not _is_like(scatter, i) for scatter in scatters):
        return None
    if len(scatters) == 1:
        scatter = scatters[0]
        value = two if scatter is one else one
        pair = (scatter.operands[0], value) if scatter is one else (value, scatter.operands[0])
        return _from(scatter, rw.bare.binary("add", *pair))
    if one.operands[1].shape.rank != two.operands[1].shape.rank or not _are_few(one, two):
        return None
    dims = _joined_dims(one, two)
    if dims is None:
        return None
    begin = rw.bare.binary("add", one.operands[0], two.operands[0])
    if _may_join(one, two):
        pairs = zip(one.operands[1:], two.operands[1:], dims, strict=True)
        return rw.like(one, [begin, *(_joined(rw, a, b, d) for a, b, d in pairs)], i.shape)
    return _from(one, _from(two, begin))


def _joined(rw: Rewriter, one: HloInstruction, two: HloInstruction, dim: int) -> HloInstruction:
    """Concatenate two values to an array in the default layout, whatever theirs are."""
    dims = [*one.shape.dims[:dim], one.shape.dims[dim] + two.shape.dims[dim], *one.shape.dims[dim + 1 :]]
    return rw.bare.add("concatenate", Shape.array(one.shape.element_type, tuple(dims)), [one, two], dimensions=(dim,))


def _is_like(one: HloInstruction, two: HloInstruction) -> bool:
    """Return True for equal sizes and types; layouts may differ."""
    return (one.shape.dims, one.shape.element_type) == (two.shape.dims, two.shape.element_type)


def _from(scatter: HloInstruction, begin: HloInstruction) -> HloInstruction:
    """Let a scatter of one operand begin with another value, and return it."""
    scatter.operands = (begin, *scatter.operands[1:])
    return scatter


def _adds(value: HloInstruction) -> bool:
    is_plain = value.opcode == "scatter" and len(value.operands) == 3 and not value.control_predecessors
    return is_plain and len(value.users) == 1 and simple_reducer(value.to_apply) == "add"


def _are_few(one: HloInstruction, two: HloInstruction) -> bool:
    return one.operands[2].shape.element_count + two.operands[2].shape.element_count < one.shape.element_count


_FORM = (
    "index_vector_dim",
    "scatter_dims_to_operand_dims",
    "inserted_window_dims",
    "update_window_dims",
    "input_batching_dims",
    "scatter_indices_batching_dims",
)


def _joined_dims(one: HloInstruction, two: HloInstruction) -> tuple[int, int] | None:
    """Return the dimension of the indices, and of the updates, along which the scatters are joined.

    That is the only one whose sizes differ, or else the first. None if several differ, or no dimension counts updates.
    """
    view = Indexed.of(one)
    batching, counting, updates = view.indices_batching, view.row_dims, view.batch_dims
    sizes = [(one.operands[1].shape.dims[d], two.operands[1].shape.dims[d]) for d in counting]
    if len(updates) != len(counting) or any(a != b for d, (a, b) in zip(counting, sizes, strict=True) if d in batching):
        return None
    free = [n for n, d in enumerate(counting) if d not in batching]
    differ = [n for n in free if sizes[n][0] != sizes[n][1]]
    if not free or len(differ) > 1:
        return None
    number = (differ or free)[0]
    return counting[number], updates[number]


def _may_join(one: HloInstruction, two: HloInstruction) -> bool:
    """Return True for scatters of one form, without promises (sorted, unique), with equal types and update windows."""
    alike = all(one.attrs.get(name) == two.attrs.get(name) for name in _FORM)
    promised = any(scatter.attrs.get(name) for scatter in (one, two) for name in ("unique_indices", "indices_are_sorted"))
    same_index = one.operands[1].shape.element_type == two.operands[1].shape.element_type
    windows = [[value.operands[2].shape.dims[d] for d in value.update_window_dims] for value in (one, two)]
    return alike and not promised and same_index and windows[0] == windows[1]


def scatter_of_nothing(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """scatter(A, at, u) => A if u has no elements."""
    is_empty = len(i.operands) == 3 and i.operands[2].shape.element_count == 0
    return i.operands[0] if is_empty and i.operands[0].shape == i.shape else None


def transpose_of_scatter(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """transpose(scatter(A, at, u)) => scatter(transpose(A), at, transpose(u)) if the scatter has no other users.

    The scatter has one row of indices per update, and windows with all dimensions of A (`scatter_simplifier`).
    """
    scatter = i.operands[0]
    if scatter.opcode != "scatter" or len(scatter.users) > 1 or len(scatter.operands) != 3:
        return None
    if not Indexed.of(scatter).is_simple or scatter.input_batching_dims or scatter.scatter_indices_batching_dims:
        return None
    value, at, updates = scatter.operands
    permutation = i.dimensions
    moved = rw.add("transpose", i.shape, [value], dimensions=permutation)
    windows = rw.transpose_view(updates, [0, *(d + 1 for d in permutation)])
    result = rw.like(scatter, [moved, at, windows], i.shape)
    result.attrs["scatter_dims_to_operand_dims"] = tuple(permutation.index(d) for d in scatter.scatter_dims_to_operand_dims)
    return result


RULES: Rules = {
    "gather": (gather_of_nothing, gather_of_few, gather_of_padded),
    "scatter": (scatter_of_nothing,),
    "transpose": (transpose_of_scatter,),
}
# Before layout assignment.
FREE_RULES: Rules = {"add": (add_to_scattered,)}
