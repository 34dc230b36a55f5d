"""Replace sums of slices by windows and dots.

    a = f32[8] slice(x), slice={[0:8]}
    b = f32[8] slice(x), slice={[2:10]}       =>   reduce-window(slice(x)), window={size=2 rhs_dilate=2}, to_apply=sum
    add(a, b)

Sums and differences are seen as lists of weighted terms: equal ones are added up, and x - x goes. XLA's `RecognizeReduceWindow`.
It does nothing unless `--xla_recognize_reduction_optimization_level` is 1; level 2 makes dots with a constant vector of sums of
other weighted arrays, level 3 dots of arrays with arrays. A reduce-window that the module has already takes one more slice or pad
if its reducer and start are those of the sum, maximum, or other operation around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from msgspec import Struct

from hlo_run.analysis.simple_reducer import is_identity, simple_reducer
from hlo_run.hlo.edit import Editor, remove_unused, scalar_reducer
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.opcodes.traits import COMMUTATIVE
from hlo_run.hlo.values.attribute_values import Window, WindowDim
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.reductions.weighted_sums import Term, folded, have_shape, terms_of
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.records import replace

_REDUCER = "recognize_rw_reducer"


class RecognizeReduceWindow(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "recognize-reduce-window"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        level = ctx.options.xla_recognize_reduction_optimization_level
        if level <= 0:
            return
        for computation in list(module.computations):
            if computation.is_fusion:
                continue
            version = module.version
            _make_static(module, computation)
            for value in reversed(computation.post_order()):
                if value.parent is computation and (value.users or value.is_root):
                    _rewrite(module, value, level)
            if module.version != version:
                remove_unused([value for value in computation.instructions if not value.users])


def _make_static(module: HloModule, computation: HloComputation) -> None:
    """Make slices of dynamic slices at constant places, and read elements of tuples directly."""
    for value in computation.post_order():
        if value.opcode == "get-tuple-element" and value.operands[0].opcode == "tuple":
            module.replace_uses(value, value.operands[0].operands[value.tuple_index])
        elif value.opcode == "dynamic-slice" and all(start.opcode == "constant" for start in value.operands[1:]):
            source, *starts = value.operands
            sizes = value.shape.dims
            first = [
                max(0, min(int(start.constant_array.reshape(-1)[0]), whole - size))
                for start, whole, size in zip(starts, source.shape.dims, sizes, strict=True)
            ]
            ranges = tuple((start, start + size, 1) for start, size in zip(first, sizes, strict=True))
            made = Editor(value, derives=False).add("slice", value.shape, [source], slice=ranges)
            module.replace_uses(value, made)


def _rewrite(module: HloModule, value: HloInstruction, level: int) -> None:
    opcode = value.opcode
    if len(value.operands) != 2 or not value.shape.is_array or not value.shape.dims:
        return
    if opcode in COMMUTATIVE and _grow_window(module, value):
        return
    if opcode not in ("add", "subtract") or value.shape.element_type == "pred":
        return
    terms = terms_of(value, with_factors=level >= 3)
    if terms is None or not have_shape(terms, value.shape):
        return
    made = _Sum(value, terms, level).made()
    if made is not None and made is not value:
        module.replace(value, made)
        remove_unused([value])


class _Place(Struct, frozen=True):
    """The part of an array, which a pad extends without end, that a slice or pad is: `starts` to `limits` per dimension."""

    starts: tuple[int, ...]
    limits: tuple[int, ...]


def _place(value: HloInstruction) -> _Place | None:
    """Return the part that a slice or pad is, None for other values and if elements are left out or spread."""
    if value.opcode == "slice":
        if any(stride != 1 for _, _, stride in value.slice_ranges):
            return None
        return _Place(tuple(start for start, _, _ in value.slice_ranges), tuple(limit for _, limit, _ in value.slice_ranges))
    if value.opcode != "pad" or value.operands[1].opcode != "constant" or any(inner for _, _, inner in value.padding):
        return None
    sizes = value.operands[0].shape.dims
    limits = tuple(size + high for size, (_, high, _) in zip(sizes, value.padding, strict=True))
    return _Place(tuple(-low for low, _, _ in value.padding), limits)


def _same_source(one: HloInstruction, two: HloInstruction) -> bool:
    if one.opcode != two.opcode or one.operands[0] is not two.operands[0]:
        return False
    if one.opcode != "pad" or one.operands[1] is two.operands[1]:
        return True
    fills = one.operands[1].constant_array, two.operands[1].constant_array
    return fills[0].dtype == fills[1].dtype and fills[0].tobytes() == fills[1].tobytes()


def _cover(like: HloInstruction, place: _Place) -> HloInstruction:
    """Return a slice or pad of the source of `like` that is another part of it."""
    editor = Editor(like, derives=False)
    dims = tuple(limit - start for start, limit in zip(place.starts, place.limits, strict=True))
    shape = replace(like.shape, dims=dims)
    if like.opcode == "slice":
        ranges = tuple((start, limit, 1) for start, limit in zip(place.starts, place.limits, strict=True))
        return editor.add("slice", shape, like.operands, slice=ranges)
    sizes = like.operands[0].shape.dims
    edges = tuple((-start, limit - size, 0) for start, limit, size in zip(place.starts, place.limits, sizes, strict=True))
    return editor.add("pad", shape, like.operands, padding=edges)


def _along(places: Sequence[_Place]) -> tuple[int, int] | None:
    """Return the only dimension along which the places differ and their distance, if that is the same from each to the next."""
    first = places[0]
    differing = [
        d
        for d in range(len(first.starts))
        if any((p.starts[d], p.limits[d]) != (first.starts[d], first.limits[d]) for p in places[1:])
    ]
    if len(differing) != 1:
        return None
    (dim,) = differing
    distance = places[1].starts[dim] - first.starts[dim]
    if distance <= 0:
        return None
    for number, place in enumerate(places):
        shift = number * distance
        if (place.starts[dim], place.limits[dim]) != (first.starts[dim] + shift, first.limits[dim] + shift):
            return None
    return dim, distance


def _window_over(
    value: HloInstruction, base: HloInstruction, start: HloInstruction, opcode: Opcode, dim: int, along: WindowDim
) -> HloInstruction:
    """Return a reduce-window over `base` with the shape of `value`, which combines elements along a dimension."""
    editor = Editor(value, derives=False)
    module = editor.computation.module
    assert module is not None, "the instruction is in a module"
    scalar = Shape.array(value.shape.element_type, ())
    reducer = module.add_computation(scalar_reducer(_REDUCER, opcode, scalar, ("lhs", "rhs"), value.where))
    dims = tuple(along if d == dim else WindowDim() for d in range(value.shape.rank))
    return editor.add("reduce-window", value.shape, [base, start], {"to_apply": [reducer]}, window=Window(dims))


def _grow_window(module: HloModule, value: HloInstruction) -> bool:
    """Let a reduce-window among the operands take the other operand, the next slice or pad of its source, into its window."""
    windows = [operand for operand in value.operands if operand.opcode == "reduce-window"]
    if not windows:
        return False
    window = windows[0]
    other = value.operands[1] if window is value.operands[0] else value.operands[0]
    dim = _only_dim(window, value.opcode)
    inner, place = window.operands[0], _place(other)
    old = _place(inner)
    if dim is None or old is None or place is None or not _same_source(inner, other):
        return False
    others = [d for d in range(value.shape.rank) if d != dim]
    if any((old.starts[d], old.limits[d]) != (place.starts[d], place.limits[d]) for d in others):
        return False
    step, size = window.window.dims[dim].window_dilation, window.window.dims[dim].size
    # The parts of the source that the next and the last element of the window are.
    after = old.starts[dim] + step * size, old.limits[dim] + step
    before = old.starts[dim] - step, old.limits[dim] - step * size
    if (place.starts[dim], place.limits[dim]) not in (after, before):
        return False
    starts = tuple(min(pair) for pair in zip(old.starts, place.starts, strict=True))
    limits = tuple(max(pair) for pair in zip(old.limits, place.limits, strict=True))
    base = _cover(inner, _Place(starts, limits))
    along = WindowDim(size + 1, window_dilation=step)
    grown = _window_over(value, base, window.operands[1], value.opcode, dim, along)
    module.replace_uses(value, grown)
    remove_unused([value])
    return True


def _only_dim(window: HloInstruction, opcode: Opcode) -> int | None:
    """Return the dimension along which a reduce-window combines elements with an opcode from its identity, if it only does that.

    A window of one element may be along any dimension: None.
    """
    if len(window.operands) != 2 or simple_reducer(window.to_apply) != opcode or not is_identity(window.operands[1], opcode):
        return None
    plain = [replace(dim, size=1, window_dilation=1) == WindowDim() for dim in window.window.dims]
    sized = [d for d, dim in enumerate(window.window.dims) if dim.size != 1]
    return sized[0] if all(plain) and len(sized) == 1 else None


class _Sum:
    """Builds what a sum or difference becomes."""

    def __init__(self, value: HloInstruction, terms: Sequence[Term], level: int) -> None:
        self._value = value
        self._level = level
        self._editor = Editor(value, derives=False)
        self._has_factors = any(term.factors for term in terms)
        first = terms[0].array
        # Parts of one array, side by side.
        self._are_parts = not self._has_factors and all(
            term.array.opcode in ("slice", "pad")
            and (term.array.opcode == "pad" or _place(term.array) is not None)
            and (term.array.opcode == "slice" or term.array.operands[1].opcode == "constant")
            and _same_source(term.array, first)
            for term in terms
        )
        self._one = np.ones((), value.shape.dtype.numpy)[()]
        self._terms = folded(terms, np.zeros((), value.shape.dtype.numpy)[()])

    def made(self) -> HloInstruction | None:
        """Return the new value; None to leave the sum as it is."""
        terms = self._terms
        if not terms:
            return self._filled(0)
        if len(terms) == 1:
            return self._single(terms[0])
        window = self._window()
        if window is not None:
            return window
        if len(terms) == 2 and not self._has_factors and not (self._level >= 2 and self._are_parts):
            pair = self._pair(terms[0], terms[1])
            if pair is not None:
                return pair
        if self._level >= 2 and sum(_holds_data(term.array) for term in terms) >= 2:
            return self._dot()
        return None

    def _filled(self, number: object) -> HloInstruction:
        kind = self._value.shape.element_type
        return self._editor.add("broadcast", self._value.shape, [self._editor.constant(number, kind)], dimensions=())

    def _single(self, term: Term) -> HloInstruction:
        result = term.array
        for factor in term.factors:
            result = self._editor.binary("multiply", result, factor)
        return result if term.weight == self._one else self._editor.binary("multiply", result, self._filled(term.weight))

    def _window(self) -> HloInstruction | None:
        """Return a reduce-window if the terms are parts of one array at equal distances."""
        places = [_place(term.array) for term in self._terms] if self._are_parts else []
        found = [place for place in places if place is not None]
        if len(found) != len(self._terms) or any(term.weight != self._one for term in self._terms):
            return None
        along = _along(found)
        if along is None:
            return None
        dim, distance = along
        limits = tuple(max(pair) for pair in zip(found[0].limits, found[-1].limits, strict=True))
        base = _cover(self._terms[0].array, _Place(found[0].starts, limits))
        zero = self._editor.constant(0, self._value.shape.element_type)
        return _window_over(self._value, base, zero, "add", dim, WindowDim(len(found), window_dilation=distance))

    def _pair(self, one: Term, two: Term) -> HloInstruction | None:
        """Return a sum or difference of two arrays without weights: the value itself, if it is one of them already."""
        if one.weight == self._one and two.weight == self._one:
            if self._value.opcode == "add" and set(self._value.operands) == {one.array, two.array}:
                return self._value
            return self._editor.binary("add", one.array, two.array)
        if one.weight == self._one and two.weight == -self._one:
            first, second = one.array, two.array
        elif two.weight == self._one and one.weight == -self._one:
            first, second = two.array, one.array
        else:
            return None
        if self._value.opcode == "subtract" and self._value.operands == (first, second):
            return self._value
        return self._editor.binary("subtract", first, second)

    def _dot(self) -> HloInstruction:
        """Return a dot of the arrays, concatenated along a new dimension, with their weights or with their factors."""
        shape, editor = self._value.shape, self._editor
        row = (1, *shape.dims)
        arrays: list[HloInstruction] = []
        weights: list[HloInstruction] = []
        for term in self._terms:
            arrays.append(editor.reshape(term.array, row))
            if self._has_factors:
                weights.append(self._weights(term, row))
        values = editor.concatenate(arrays, 0)
        if not self._has_factors:
            numbers = editor.constant(np.array([term.weight for term in self._terms]), shape.element_type)
            return editor.add("dot", shape, [values, numbers], lhs_contracting_dims=(0,), rhs_contracting_dims=(0,))
        batch = tuple(range(1, shape.rank + 1))
        return editor.add(
            "dot",
            shape,
            [values, editor.concatenate(weights, 0)],
            lhs_batch_dims=batch,
            rhs_batch_dims=batch,
            lhs_contracting_dims=(0,),
            rhs_contracting_dims=(0,),
        )

    def _weights(self, term: Term, row: tuple[int, ...]) -> HloInstruction:
        """Return the product of a term's factors and its weight, as an array of dimensions `row`."""
        editor, kind = self._editor, self._value.shape.element_type
        if not term.factors:
            return editor.broadcast(editor.constant(term.weight, kind), row)
        product = term.factors[0]
        for factor in term.factors[1:]:
            product = editor.binary("multiply", product, factor)
        product = editor.reshape(product, row)
        if term.weight == self._one:
            return product
        return editor.binary("multiply", product, editor.broadcast(editor.constant(term.weight, kind), row))


def _holds_data(value: HloInstruction) -> bool:
    """False for a scalar that is repeated, and for an iota."""
    return value.opcode != "iota" and not (value.opcode == "broadcast" and not value.operands[0].shape.dims)
