"""Chains of reshapes and transposes as one transpose: numpy moves the elements the same way."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

import hlo_run
from hlo_run.hlo_passes.dots.rearrangement import NotOneTranspose, Rearrangement
from hlo_run.reference.evaluate.evaluate import evaluate

_SIZES = (1, 2, 3, 4, 6)


def _elements(moves: Rearrangement) -> np.ndarray:
    """Return the number in the source of each element of the result."""
    numbers = np.zeros(1, np.int64)
    for stride, extent in moves.parts:
        numbers = (numbers[:, None] + stride * np.arange(extent)).reshape(-1)
    return numbers.reshape(moves.result)


def _chain(seed: int) -> tuple[Rearrangement, np.ndarray]:
    """Return a random chain, and what numpy makes of the numbers of the elements."""
    rng = random.Random(seed)
    dims = [rng.choice(_SIZES) for _ in range(3)]
    moves, numbers = Rearrangement.none(dims), np.arange(math.prod(dims)).reshape(dims)
    for _ in range(3):
        if rng.random() < 0.5:
            order = rng.sample(range(numbers.ndim), numbers.ndim)
            moves, numbers = moves.transposed(order), numbers.transpose(order)
        else:
            first = rng.choice([size for size in range(1, numbers.size + 1) if numbers.size % size == 0])
            moves, numbers = moves.reshaped((first, numbers.size // first)), numbers.reshape(first, -1)
    return moves, numbers


def _chains() -> list[tuple[Rearrangement, np.ndarray]]:
    found: list[tuple[Rearrangement, np.ndarray]] = []
    for seed in range(60):
        try:
            found.append(_chain(seed))
        except NotOneTranspose:
            continue
    assert len(found) > 30
    return found


def test_a_chain_moves_elements_as_numpy_does() -> None:
    for moves, numbers in _chains():
        assert np.array_equal(_elements(moves), numbers)


def test_a_chain_and_its_inverse_change_nothing() -> None:
    for moves, _ in _chains():
        both = moves.then(moves.inverse())
        assert both.result == moves.source
        assert np.array_equal(_elements(both).reshape(-1), np.arange(math.prod(moves.source)))


def test_chains_beside_each_other_keep_to_their_dimensions() -> None:
    one = Rearrangement.none((2, 3)).transposed((1, 0)).reshaped((6,))
    two = Rearrangement.none((4,)).reshaped((2, 2))
    numbers = np.arange(24).reshape(2, 3, 4).transpose(1, 0, 2).reshape(6, 2, 2)
    assert np.array_equal(_elements(Rearrangement.beside((one, two))), numbers)


def test_some_dimensions_alone() -> None:
    moves = Rearrangement.none((2, 3, 5)).transposed((2, 1, 0)).reshaped((15, 2))
    assert np.array_equal(_elements(moves.only((1, 2)).reshaped((15,))), np.arange(15).reshape(3, 5).T.reshape(15))
    assert moves.dims_of((1, 2)) == (0,)
    assert moves.dims_of((0,)) == (1,)
    assert moves.dims_of((1,)) is None


def test_a_mixture_of_dimensions_is_refused() -> None:
    with pytest.raises(NotOneTranspose):
        Rearrangement.none((2, 3)).transposed((1, 0)).reshaped((2, 3)).transposed((1, 0))


def test_the_chain_that_is_made_has_the_same_values() -> None:
    for moves, numbers in _chains():
        dims = ",".join(map(str, moves.source))
        module = hlo_run.parse(f"HloModule m\nENTRY e {{ ROOT p = s32[{dims}] parameter(0) }}")
        module.entry.root = moves.make(module.entry.root)
        made = evaluate(module, [np.arange(numbers.size, dtype=np.int32).reshape(moves.source)])
        assert np.array_equal(np.asarray(made), numbers)
