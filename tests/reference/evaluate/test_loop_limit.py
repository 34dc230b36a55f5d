"""A loop that does not end raises after its limit of time, and only there."""

from __future__ import annotations

import numpy as np
import pytest

from hlo_run.ops.parse import parse
from hlo_run.reference.evaluate.evaluate import evaluate
from hlo_run.reference.evaluate.loop_limit import EndlessLoop, loops_end_within

_MODULE = """HloModule m
body { i = s32[] parameter(0)
 one = s32[] constant(1)
 ROOT j = s32[] STEP(i, one) }
cond { i = s32[] parameter(0)
 n = s32[] constant(5)
 ROOT c = pred[] compare(i, n), direction=LT }
ENTRY e { i = s32[] parameter(0)
 ROOT w = s32[] while(i), condition=cond, body=body }
"""


def test_an_endless_loop_is_named() -> None:
    # The product with 1 stays below 5.
    with loops_end_within(0.05), pytest.raises(EndlessLoop, match="the loop %w has not ended"):
        evaluate(parse(_MODULE.replace("STEP", "multiply")), [np.asarray(0, np.int32)])


def test_a_loop_that_ends_is_not_stopped() -> None:
    with loops_end_within(60):
        assert evaluate(parse(_MODULE.replace("STEP", "add")), [np.asarray(0, np.int32)]) == 5
