"""Algebraic rules of reduce and map, before layout assignment."""

from __future__ import annotations

import math

import numpy as np

from hlo_run.analysis.arg_reducer import arg_extremum
from hlo_run.analysis.bitcast_kind import unmodified_dims
from hlo_run.analysis.simple_reducer import is_identity, simple_reducer
from hlo_run.hlo.edit import clone_with_fusions, remove_unused
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.traits import ASSOCIATIVE, ELEMENTWISE
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.simplifiers.algebraic.rule import Rewriter, Rules, is_float
from hlo_run.hlo_passes.simplifiers.algebraic.windows import neutral_reduction


def reduce_of_nothing(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """reduce(A, init) without elements => broadcast(init); a reduction of several arrays becomes a tuple."""
    shapes, inits = _result_shapes(i), i.operands[len(i.operands) // 2 :]
    same_types = all(init.shape.element_type == shape.element_type for init, shape in zip(inits, shapes, strict=True))
    if 0 not in i.operands[0].shape.dims or 0 in shapes[0].dims or not same_types:
        return None
    return rw.joined([rw.spread(init, shape) for init, shape in zip(inits, shapes, strict=True)], i)


def _result_shapes(i: HloInstruction) -> tuple[Shape, ...]:
    return i.shape.tuple_shapes if i.shape.is_tuple else (i.shape,)


def reduce_of_one_array(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """(f32[4]) reduce(A, init), whose reducer returns a tuple of one value => tuple(reduce(A, init)); also for reduce-window."""
    if not i.shape.is_tuple or len(i.operands) != 2 or i.to_apply.root.opcode != "tuple":
        return None
    module = i.to_apply.module
    assert module is not None, "the reducer is in the module"
    plain = clone_with_fusions(module, i.to_apply)
    plain.root = plain.root.operands[0]
    remove_unused([value for value in plain.instructions if not value.users and not value.is_root])
    keep = {name: value for name, value in i.attrs.items() if name in ("dimensions", "window")}
    return rw.tuple([rw.add_with(i.opcode, i.shape.tuple_shapes[0], i.operands, keep, {"to_apply": (plain,)})])


def reduce_arrays_of_ones(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """reduce(A, B, init, init) over dimensions of size 1 => tuple(reshape(A), reshape(B)) if the inits are identities."""
    if not i.shape.is_tuple or i.operands[0].shape.element_count != i.shape.tuple_shapes[0].element_count:
        return None
    count, root = len(i.operands) // 2, i.to_apply.root
    if root.opcode != "tuple" or len(root.operands) != count:
        return None
    for number, (value, init) in enumerate(zip(root.operands, i.operands[count:], strict=True)):
        pair = {i.to_apply.parameters[number], i.to_apply.parameters[number + count]}
        same_type = init.shape.element_type == i.shape.tuple_shapes[number].element_type
        if value.opcode not in ASSOCIATIVE or set(value.operands) != pair or not is_identity(init, value.opcode) or not same_type:
            return None
    # A get-tuple-element reads a reshape, so that the arrays stay apart from the operands.
    inputs = zip(i.operands[:count], i.shape.tuple_shapes, strict=True)
    return rw.tuple([rw.add("reshape", shape, [value]) for value, shape in inputs])


def arg_extremum_of_one_value(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """argmax(broadcast(constant)) => (broadcast(constant), 0) if the reduced dimensions include the indices' one; also argmin."""
    if not arg_extremum(i) or i.operands[0].opcode != "broadcast" or i.operands[1].iota_dimension not in i.dimensions:
        return None
    scalar = i.operands[0].operands[0]
    if scalar.opcode != "constant" or scalar.shape.dims:
        return None
    value, place = i.shape.tuple_shapes
    return rw.tuple([rw.spread(scalar, value), rw.splat(0, place)])


def reduce_of_ones(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """reduce(A), over dimensions of size 1 => reshape(A)."""
    value = i.operands[0]
    if not neutral_reduction(i) or value.shape.element_count != i.shape.element_count:
        return None
    return rw.reshape(value, i.shape.dims)


def reduce_of_transpose(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """reduce(transpose(A)) => reduce(A), with a transpose after it if the kept dimensions change order."""
    inner = i.operands[0]
    if inner.opcode != "transpose" or len(i.operands) != 2 or not simple_reducer(i.to_apply):
        return None
    permutation, reduced = inner.dimensions, i.dimensions
    kept = [permutation[d] for d in range(inner.shape.rank) if d not in reduced]
    (made,) = rw.reduce_again(i, inner.operands, [permutation[d] for d in reduced])
    return rw.at(made).transpose_view(made, [sorted(kept).index(d) for d in kept])


def reduce_twice(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """reduce(reduce(A)) => reduce(A) for two reductions with the same operation."""
    inner, opcode = i.operands[0], neutral_reduction(i)
    if inner.opcode != "reduce" or not opcode or neutral_reduction(inner) != opcode:
        return None
    kept = [d for d in range(inner.operands[0].shape.rank) if d not in inner.dimensions]
    first = inner.dimensions
    second = i.dimensions
    (made,) = rw.reduce_again(i, inner.operands[:1], sorted((*first, *(kept[d] for d in second))))
    return made


def reduce_of_reshape(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """reduce(reshape(A)) => reduce(A) if the reshape leaves the kept dimensions, reshape(reduce(A)) if the reduced."""
    inner = i.operands[0]
    if inner.opcode != "reshape" or not neutral_reduction(i) or 0 in inner.shape.dims:
        return None
    source = inner.operands[0]
    origins = {after: before for before, after in unmodified_dims(source.shape.dims, inner.shape.dims)}
    kept = [d for d in range(inner.shape.rank) if d not in i.dimensions]
    if all(d in origins for d in kept):
        remain = {origins[d] for d in kept}
        dims = [d for d in range(source.shape.rank) if d not in remain]
    elif all(d in origins for d in i.dimensions):
        dims = sorted(origins[d] for d in i.dimensions)
    else:
        return None
    if not dims:
        return None
    (made,) = rw.reduce_again(i, [source], dims)
    return rw.reshape(made, i.shape.dims)


def reduce_of_broadcast(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """sum(broadcast(A), init) over n new elements => A * n + init; max, min, and, or of a scalar => op(A, init).

    A reduction of dimensions of A alone comes before the broadcast.
    """
    inner, opcode = i.operands[0], simple_reducer(i.to_apply)
    if inner.opcode != "broadcast" or len(i.operands) != 2 or i.shape.is_tuple:
        return None
    source, init = inner.operands[0], i.operands[1]
    is_scalar = not source.shape.dims and init.shape == source.shape == i.shape
    if is_scalar and opcode in ("maximum", "minimum", "and", "or"):
        return rw.binary(opcode, source, init)
    if set(i.dimensions) <= set(inner.dimensions) and i.dimensions:
        return _reduced_before(rw, i, inner)
    count = math.prod(inner.shape.dims[d] for d in i.dimensions)
    is_same_type = i.shape.element_type == source.shape.element_type
    if opcode != "add" or set(i.dimensions) & set(inner.dimensions) or not count or not is_same_type or not _fits(count, i):
        return None
    bare, near = rw.bare, rw.at(source)
    product = bare.mul(source, near.splat(count, source.shape))
    total = bare.binary("add", bare.add("broadcast", product.shape, [init], dimensions=()), product)
    left = [d for d in range(inner.shape.rank) if d not in i.dimensions]
    return rw.add("broadcast", i.shape, [total], dimensions=tuple(left.index(place) for place in inner.dimensions))


def _reduced_before(rw: Rewriter, i: HloInstruction, inner: HloInstruction) -> HloInstruction:
    """Reduce dimensions that the broadcast did not add before it."""
    own = [list(inner.dimensions).index(d) for d in i.dimensions]
    value = rw.reduce_again(i, inner.operands, own)[0]
    left = [d for d in range(inner.shape.rank) if d not in i.dimensions]
    dims = tuple(left.index(place) for place in inner.dimensions if place in left)
    return rw.add("broadcast", i.shape, [value], dimensions=dims)


def reduce_of_negated(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """sum(-A) => -sum(A) for floats."""
    inner = i.operands[0]
    if inner.opcode != "negate" or i.shape.is_tuple or not is_float(i) or neutral_reduction(i) != "add":
        return None
    if not rw.fuel.take("algsimp"):
        return None
    users, is_root = list(i.users), i.is_root
    i.replace_operand(inner, inner.operands[0])
    negated = rw.at(inner).negate(i)
    for user in users:
        user.replace_operand(i, negated)
    if is_root:
        rw.computation.root = negated
    return i


def reduce_of_concatenate(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """sum(concatenate(A, B)) => map(sum(A), sum(B)) by add if the concatenated dimension is reduced and the shapes are equal."""
    inner = i.operands[0]
    if inner.opcode != "concatenate" or not neutral_reduction(i) or inner.dimensions[0] not in i.dimensions:
        return None
    if i.shape.dims and len({operand.shape.dims for operand in inner.operands}) > 1:
        return None
    total: HloInstruction | None = None
    for operand in inner.operands:
        (part,) = rw.reduce_again(i, [operand], i.dimensions, [i.shape])
        if total is not None:
            dimensions, called = tuple(range(i.shape.rank)), {"to_apply": [i.to_apply]}
            part = rw.add("map", i.shape, [total, part], called, dimensions=dimensions)
        total = part
    return total


def reduce_beside_arg_extremum(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """max(A) => get-tuple-element(argmax(A)), index=0 if the module computes that as well; also for min."""
    opcode = neutral_reduction(i)
    if opcode not in ("maximum", "minimum") or not is_float(i):
        return None
    for user in i.operands[0].users:
        same = user is not i and user.opcode == "reduce" and user.dimensions == i.dimensions
        if same and user.operands[0] is i.operands[0] and arg_extremum(user) == opcode:
            return rw.element(user, 0)
    return None


def _fits(count: int, i: HloInstruction) -> bool:
    return (
        bool(int(np.asarray(count).astype(i.shape.dtype.numpy).astype(np.float64).real) == count)
        if not i.shape.dtype.is_complex
        else False
    )


def map_of_one_operation(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """map(A, B), to_apply=add => add(A, B), for a body of one elementwise instruction, a parameter or a constant."""
    root = i.to_apply.root
    if root.opcode == "parameter":
        value = i.operands[root.parameter_number]
        return value if value.shape == i.shape else None
    if root.opcode == "constant":
        if not i.shape.dims:
            return rw.clone(root, [], root.shape)
        constant = rw.add("constant", root.shape, name=root.name, literal=root.constant_array)
        return rw.add("broadcast", i.shape, [constant], dimensions=())
    if root.opcode not in ELEMENTWISE - {"map"} or any(operand.opcode != "parameter" for operand in root.operands):
        return None
    return rw.clone(root, [i.operands[operand.parameter_number] for operand in root.operands], i.shape)


# Before layout assignment.
FREE_RULES: Rules = {
    "map": (map_of_one_operation,),
    "reduce-window": (reduce_of_one_array,),
    "reduce": (
        reduce_of_nothing,
        reduce_of_one_array,
        reduce_arrays_of_ones,
        arg_extremum_of_one_value,
        reduce_of_ones,
        reduce_of_negated,
        reduce_of_transpose,
        reduce_twice,
        reduce_of_reshape,
        reduce_of_concatenate,
        reduce_beside_arg_extremum,
        reduce_of_broadcast,
    ),
}
