"""Values as a faulty kernel might leave them: near, of the same type, and never equal."""

from __future__ import annotations

import numpy as np
import pytest

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.ops.parse import parse
from hlo_run.reference.sensitivity.altered_values import RELATIVE, altered, parts_read
from hlo_run.reference.values import as_array

CALL = """HloModule c
ENTRY e { x = f32[4] parameter(0)
  c = (f32[4], s8[64]) custom-call(x), custom_call_target="f"
  ROOT r = f32[4] get-tuple-element(c), index=0 }
"""


def _parameter(shape: str) -> HloInstruction:
    return parse(f"HloModule m\nENTRY e {{ ROOT p = {shape} parameter(0) }}").entry.root


@pytest.mark.parametrize("name", ["f64", "f32", "bf16", "f16", "f8e4m3fn", "f8e5m2"])
def test_floats_move_by_a_few_percent(name: str) -> None:
    values = np.array([1, -2, 3, 0, np.nan, 64], np.float32).astype(DTYPES[name].numpy)
    wide = values.astype(np.float64)
    moved = [as_array(altered(values, _parameter(f"{name}[6]"), 1, sign)) for sign in (1, -1)]
    for array in moved:
        assert array.dtype == values.dtype
        error = np.abs(array.astype(np.float64) - wide)[[0, 1, 2, 3, 5]]
        assert np.all(error > 0)
        assert np.all(error <= 0.52 * np.maximum(np.abs(wide[[0, 1, 2, 3, 5]]), 3))
        assert np.isnan(array[4].astype(np.float64))
    up = [array.astype(np.float64)[:4] > wide[:4] for array in moved]
    assert np.all(up[0] != up[1])


@pytest.mark.parametrize("name", ["s32", "u8", "s4", "u64"])
def test_integers_stay_in_range(name: str) -> None:
    values = np.array([3, 3, 1, 6, 2], DTYPES[name].numpy)
    got = as_array(altered(values, _parameter(f"{name}[5]"), 1)).astype(np.int64)
    assert np.all(got != values.astype(np.int64))
    assert got.min() >= 1
    assert got.max() <= 6


def test_scalars_and_pred_change() -> None:
    zero = np.asarray(0, np.uint64)
    assert as_array(altered(zero, _parameter("u64[]"), 1, -1)) == np.uint64(2**64 - 1)
    for shape, value in (("s32[]", np.asarray(4, np.int32)), ("pred[]", np.asarray(True)), ("f32[]", np.asarray(0, np.float32))):
        assert as_array(altered(value, _parameter(shape), 1)) != value
    pred = np.ones(64, np.bool_)
    assert 0 < np.count_nonzero(as_array(altered(pred, _parameter("pred[64]"), 1))) < 64


def test_complex_numbers_move_in_both_parts() -> None:
    values = np.array([1 + 2j, -3j], np.complex64)
    got = as_array(altered(values, _parameter("c64[2]"), 1))
    assert got.dtype == values.dtype
    assert np.all(got.view(np.float32) != values.view(np.float32))


def test_workspaces_stay() -> None:
    module = parse(CALL)
    (call,) = [i for i in module.instructions if i.opcode == "custom-call"]
    assert parts_read(call) == {0}
    value = np.ones(4, np.float32), np.zeros(64, np.int8)
    result, workspace = altered(value, call, 1)
    assert np.all(as_array(result) != 1)
    assert workspace is value[1]


def test_a_zero_moves_by_the_step_of_a_usual_element() -> None:
    values = np.array([0, 8, 16, 32, np.inf], np.float32)
    moved = as_array(altered(values, _parameter("f32[5]"), 1))
    assert abs(moved[0]) == np.float32(RELATIVE * 16)
