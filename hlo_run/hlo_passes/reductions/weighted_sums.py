"""Sums and differences of arrays, seen as lists of terms: a number times an array, or times a product of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from msgspec import Struct

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.shape import Shape

# A sum that uses its parts many times over may have any number of terms.
_MOST_TERMS = 1 << 14
_SUMS: tuple[Opcode, ...] = ("add", "subtract")


class Term(Struct, frozen=True):
    """A number, of the sum's type, times an array, times the arrays `factors`."""

    array: HloInstruction
    weight: Any
    factors: tuple[HloInstruction, ...] = ()


def terms_of(total: HloInstruction, with_factors: bool) -> list[Term] | None:
    """Return the terms of a sum or difference from left to right; None if there are more than 16384.

    Products with constants are weights. `with_factors` splits other products, too. A dot of concatenated reshaped arrays with a
    constant vector is a sum as well.
    """
    numpy_type = total.shape.dtype.numpy
    found: list[Term] = []
    waiting = [Term(total, np.ones((), numpy_type))]
    with np.errstate(all="ignore"):
        while waiting:
            term = waiting.pop()
            parts = _split(term, with_factors)
            if parts is None:
                found.append(term)
            else:
                waiting += reversed(parts)
            if len(found) + len(waiting) > _MOST_TERMS:
                return None
    return found


def _split(term: Term, with_factors: bool) -> list[Term] | None:
    """Return the parts of a term that is a sum or product itself, otherwise None."""
    value, weight, factors = term.array, term.weight, term.factors
    if value.opcode in _SUMS:
        one, two = value.operands
        return [Term(one, weight, factors), Term(two, -weight if value.opcode == "subtract" else weight, factors)]
    if value.opcode == "dot":
        return _dot_parts(term)
    if value.opcode != "multiply":
        return None
    one, two = value.operands
    for number, other in ((_number(one), two), (_number(two), one)):
        if number is not None:
            return [Term(other, weight * number, factors)]
    if not with_factors:
        return None
    if not _is_split(one) and _is_split(two):
        one, two = two, one
    return [Term(one, weight, (*factors, two))]


def _is_split(value: HloInstruction) -> bool:
    return value.opcode in (*_SUMS, "multiply")


def _number(value: HloInstruction) -> object:
    """Return the number of which an array consists, None if it has different ones or they are not known."""
    if value.opcode == "broadcast":
        value = value.operands[0]
    if value.opcode != "constant" or not value.shape.is_array:
        return None
    numbers = value.constant_array.reshape(-1)
    return numbers[0] if numbers.size and bool((numbers == numbers[0]).all()) else None


def _dot_parts(term: Term) -> list[Term] | None:
    """Return the terms of a dot of a concatenation of reshaped arrays, along dimension 0, with a constant vector."""
    dot = term.array
    values, weights = dot.operands
    if values.opcode != "concatenate" or weights.opcode != "constant" or weights.shape.rank != 1:
        return None
    if dot.lhs_contracting_dims != (0,) or dot.rhs_contracting_dims != (0,) or values.dimensions != (0,):
        return None
    if len(values.operands) != weights.shape.dims[0]:
        return None
    if any(part.opcode != "reshape" or part.operands[0].shape != dot.shape for part in values.operands):
        return None
    parts = [part.operands[0] for part in values.operands]
    numbers = [np.asarray(number, dot.shape.dtype.numpy)[()] for number in weights.constant_array]
    return [Term(part, term.weight * number, term.factors) for part, number in zip(parts, numbers, strict=True)]


def folded(terms: Sequence[Term], zero: object) -> list[Term]:
    """Sort terms by arrays and factors, add the weights of equal terms, and leave out terms whose weight is `zero`.

    The order is XLA's: by opcode, then slices by operand and bounds, parameters by number, and others by place in the text.
    """
    computation = terms[0].array.parent
    assert computation is not None, "the terms are in a computation"
    places = {value: place for place, value in enumerate(computation.instructions)}

    @cache
    def key(value: HloInstruction) -> tuple[object, ...]:
        name = "clz" if value.opcode == "count-leading-zeros" else value.opcode
        details: tuple[object, ...] = ()
        if value.opcode == "slice":
            details = (key(value.operands[0]), *zip(*value.slice_ranges, strict=True))
        elif value.opcode == "pad":
            edges = tuple((-low, high, interior) for low, high, interior in value.padding)
            details = (key(value.operands[0]), key(value.operands[1]), edges)
        elif value.opcode == "parameter":
            details = (value.parameter_number,)
        return name, *details, places[value]

    def ordered(term: Term) -> Term:
        if not term.factors:
            return term
        *factors, array = sorted((term.array, *term.factors), key=key)
        return Term(array, term.weight, tuple(factors))

    together: list[Term] = []
    by_array = sorted((ordered(t) for t in terms), key=lambda t: (key(t.array), len(t.factors), *map(key, t.factors)))
    with np.errstate(all="ignore"):
        for term in by_array:
            last = together[-1] if together else None
            if last is not None and (last.array, last.factors) == (term.array, term.factors):
                together[-1] = Term(last.array, last.weight + term.weight, last.factors)
            else:
                together.append(term)
    return [term for term in together if term.weight != zero]


def have_shape(terms: Sequence[Term], shape: Shape) -> bool:
    """True if all arrays and factors have this shape and layout."""
    return all(value.shape == shape for term in terms for value in (term.array, *term.factors))
