"""Algebraic rules of gathers and scatters."""

from __future__ import annotations

from hlo_run.analysis.simple_reducer import simple_reducer
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo_passes.simplifiers.algebraic.rule import Rewriter, Rules
from hlo_run.hlo_passes.subgraphs.gather_scatter import has_simple_scatter_form

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


def add_to_scattered(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """A + scatter(B, at, u), to_apply=add => scatter(A + B, at, u) if the scatter has no other users.

    Of two scatters, one becomes the operand of the other, or both are merged into one with all indices and updates. Both need
    fewer updates than the result has elements.
    """
    one, two = i.operands
    scatters = [value for value in (one, two) if _adds(value)]
    if one is two or not scatters:
        return None
    if len(scatters) == 1:
        scatter = scatters[0]
        value = two if scatter is one else one
        pair = (scatter.operands[0], value) if scatter is one else (value, scatter.operands[0])
        return rw.like(scatter, [rw.binary("add", *pair), *scatter.operands[1:]])
    if one.operands[1].shape.rank != two.operands[1].shape.rank or not _are_few(one, two):
        return None
    begin = rw.binary("add", one.operands[0], two.operands[0])
    if _may_join(one, two):
        joined = [rw.concatenate([a, b], 0) for a, b in zip(one.operands[1:], two.operands[1:], strict=True)]
        return rw.like(one, [begin, *joined])
    return rw.like(one, [rw.like(two, [begin, *two.operands[1:]]), *one.operands[1:]])


def _adds(value: HloInstruction) -> bool:
    is_plain = value.opcode == "scatter" and len(value.operands) == 3 and not value.control_predecessors
    return is_plain and len(value.users) == 1 and simple_reducer(value.to_apply) == "add"


def _are_few(one: HloInstruction, two: HloInstruction) -> bool:
    return one.operands[2].shape.element_count + two.operands[2].shape.element_count < one.shape.element_count


_FORM = ("index_vector_dim", "scatter_dims_to_operand_dims", "inserted_window_dims", "update_window_dims")


def _may_join(one: HloInstruction, two: HloInstruction) -> bool:
    """Return True for scatters of one form, without promises (sorted, unique), with equal types and update windows."""
    simple = has_simple_scatter_form(one) and has_simple_scatter_form(two)
    alike = all(one.attrs.get(name) == two.attrs.get(name) for name in _FORM)
    promised = any(scatter.attrs.get(name) for scatter in (one, two) for name in ("unique_indices", "indices_are_sorted"))
    same_index = one.operands[1].shape.element_type == two.operands[1].shape.element_type
    same_width = one.operands[1].shape.dims[1:] == two.operands[1].shape.dims[1:]
    same_window = one.operands[2].shape.dims[1:] == two.operands[2].shape.dims[1:]
    return simple and alike and not promised and same_index and same_width and same_window


def scatter_of_nothing(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """scatter(A, at, u) => A if u has no elements."""
    is_empty = len(i.operands) == 3 and i.operands[2].shape.element_count == 0
    return i.operands[0] if is_empty and i.operands[0].shape == i.shape else None


RULES: Rules = {"gather": (gather_of_nothing, gather_of_few), "scatter": (scatter_of_nothing,)}
# Before layout assignment.
FREE_RULES: Rules = {"add": (add_to_scattered,)}
