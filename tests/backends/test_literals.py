"""Literal <-> buffer bytes: layouts, packed types, predicates."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hlo_run.backends.literals import from_bytes, size_bytes, to_bytes
from hlo_run.hlo.values.dtype import DTYPES


def random_array(dtype: str, dims: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Random bits of `dtype` (NaNs included)."""
    record = DTYPES[dtype]
    raw = np.random.default_rng(seed).integers(0, 256, (*dims, record.numpy.itemsize), dtype=np.uint8)
    if record.kind == "pred":
        return (raw[..., 0] & 1).astype(np.bool_)
    if record.bits >= 8:
        return raw.view(record.numpy)[..., 0]
    values = raw[..., 0] & ((1 << record.bits) - 1)
    if record.is_integer:
        return (values.astype(np.int8) - (1 << (record.bits - 1) if record.is_signed else 0)).astype(record.numpy)
    return values.view(record.numpy)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_round_trip_in_every_layout(dtype: str) -> None:
    dims = (3, 5, 7)
    array = random_array(dtype, dims)
    for order in itertools.permutations(range(3)):
        data = to_bytes(array, dtype, order)
        assert data.size == size_bytes(dtype, dims)
        again = from_bytes(data, dtype, dims, order)
        assert again.dtype == array.dtype
        assert again.tobytes() == array.tobytes()


def test_physical_order_follows_minor_to_major() -> None:
    array = np.arange(6, dtype=np.int8).reshape(2, 3)
    assert to_bytes(array, "s8", (1, 0)).tolist() == [0, 1, 2, 3, 4, 5]
    assert to_bytes(array, "s8", (0, 1)).tolist() == [0, 3, 1, 4, 2, 5]


def test_sub_byte_types_fill_low_bits_first() -> None:
    values = np.array([1, -1, 7, -8, 3]).astype(DTYPES["s4"].numpy)
    assert to_bytes(values, "s4", (0,)).tolist() == [0xF1, 0x87, 0x03]
    bits = np.array([1, 0, 1, 1, 0, 0, 0, 1, 1]).astype(DTYPES["u1"].numpy)
    assert to_bytes(bits, "u1", (0,)).tolist() == [0b10001101, 1]


def test_scalars_and_empty_arrays() -> None:
    assert to_bytes(np.array(True), "pred", ()).tolist() == [1]
    assert from_bytes(np.array([2], np.uint8), "pred", (), ()).item() is True
    assert from_bytes(np.array([0, 0x40], np.uint8), "bf16", (), ()).item() == 2.0
    assert from_bytes(np.zeros(0, np.uint8), "f32", (0, 4), (1, 0)).shape == (0, 4)
