"""One instruction's result is judged by a few roundings of the terms that it adds."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hlo_run
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.isolate import isolate_instruction
from hlo_run.ops.parse import parse
from hlo_run.reference.compare.compare import Comparison, ErrorSpec
from hlo_run.reference.evaluate import alone
from hlo_run.reference.evaluate.alone import judge_alone
from hlo_run.reference.evaluate.evaluate import Reference
from hlo_run.reference.evaluate.perturbed import term_count

SPEC = ErrorSpec(1e-3, 1e-3)
FUSION = """HloModule f
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
body {
  p = f32[16,300] parameter(0) q = f32[16,300] parameter(1) m = f32[16,300] multiply(p, q) z = f32[] constant(0)
  ROOT r = f32[16] reduce(m, z), dimensions={1}, to_apply=add
}
ENTRY e { p = f32[16,300] parameter(0) q = f32[16,300] parameter(1) ROOT f = f32[16] fusion(p, q), kind=kInput, calls=body }
"""


def _isolated() -> HloModule:
    return isolate_instruction(hlo_run.parse(FUSION).entry.root)


def _operands(seed: int) -> list[Any]:
    random = np.random.default_rng(seed)
    return [random.normal(size=(16, 300)).astype(np.float32) for _ in range(2)]


def _judged(operands: list[Any], actual: Any) -> Comparison:
    expected: Any = Reference(_isolated()).run([operands])[0]
    return judge_alone(_isolated(), operands, expected, actual, SPEC)


def test_the_exponential_of_zero_has_no_rounding() -> None:
    module = hlo_run.parse(
        "HloModule m ENTRY e { p = f32[64] parameter(0) q = f32[64] parameter(1) x = f32[64] exponential(p) "
        "y = f32[64] multiply(x, q) ROOT s = f32[64] sine(y) }"
    )
    operands = [np.zeros(64, np.float32), np.arange(40, 104, dtype=np.float32)]
    expected: Any = Reference(module).run([operands])[0]
    wrong = np.sin(operands[1].astype(np.float64) * (1 + 2.0**-24)).astype(np.float32)
    assert judge_alone(module, operands, expected, wrong, SPEC).mismatches > 32
    operands[0] += np.float32(1e-3)
    expected = Reference(module).run([operands])[0]
    wrong = np.sin(np.exp(1e-3) * operands[1].astype(np.float64) * (1 + 2.0**-24)).astype(np.float32)
    assert judge_alone(module, operands, expected, wrong, SPEC).ok


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_sum_may_be_added_in_any_order_but_not_be_one_percent_off(seed: int) -> None:
    p, q = operands = _operands(seed)
    # The last term cancels the others but for their rounding.
    p[:, -1], q[:, -1] = -np.sum(p[:, :-1].astype(np.float64) * q[:, :-1], axis=1), 1
    sequential = np.zeros(16, np.float32)
    for column in (p * q).T:
        sequential += column
    assert _judged(operands, sequential).ok
    p[:, -1] = 0
    right: Any = Reference(_isolated()).run([operands])[0]
    assert _judged(operands, right * np.float32(1.01)).mismatches == 16
    lost_term = right - p[:, 7] * q[:, 7] * 0.1
    assert _judged(operands, lost_term.astype(np.float32)).mismatches >= 8


def test_what_the_bounds_or_two_roundings_accept_is_not_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    module = hlo_run.parse("HloModule m ENTRY e { p = bf16[64] parameter(0) ROOT m = bf16[64] multiply(p, p) }")
    p = np.linspace(1, 2, 64).astype(ml_dtypes.bfloat16)
    right: Any = Reference(module).run([[p]])[0]
    monkeypatch.setattr(alone, "Reference", None)
    above = (right.view(np.uint16) + 1).view(ml_dtypes.bfloat16)
    assert judge_alone(module, [p], right, above, SPEC).ok
    monkeypatch.undo()
    assert judge_alone(module, [p], right, (right.view(np.uint16) + 3).view(ml_dtypes.bfloat16), SPEC).mismatches == 64


def test_what_rounds_nothing_must_be_equal() -> None:
    text = "HloModule m ENTRY e { p = bf16[64] parameter(0) q = bf16[64] OPCODE(p) ROOT c = f32[64] convert(q) }"
    p = np.linspace(1, 2, 64).astype(ml_dtypes.bfloat16)
    for opcode, is_seen in (("copy", True), ("negate", True), ("tanh", False)):
        module = hlo_run.parse(text.replace("OPCODE", opcode))
        right: Any = Reference(module).run([[p]])[0]
        assert judge_alone(module, [p], right, right, SPEC).ok
        assert judge_alone(module, [p], right, right * np.float32(1 + 2.0**-11), SPEC).ok is not is_seen


def test_an_instruction_that_cannot_be_evaluated_is_judged_by_the_bounds() -> None:
    module = hlo_run.parse(
        'HloModule c ENTRY e { p = f32[4] parameter(0) ROOT c = f32[4] custom-call(p), custom_call_target="x" }'
    )
    one = np.ones(4, np.float32)
    assert not judge_alone(module, [one], one, one * np.float32(1.01), SPEC).ok


@pytest.mark.parametrize("opcode", ["abs", "sign"])
def test_the_size_of_a_complex_number_is_rounded(opcode: str) -> None:
    result = "f32[64]" if opcode == "abs" else "c64[64]"
    module = hlo_run.parse(f"HloModule m ENTRY e {{ p = c64[64] parameter(0) ROOT r = {result} {opcode}(p) }}")
    p = (np.linspace(1, 2, 64) + 1j * np.linspace(-3, 3, 64)).astype(np.complex64)
    right: Any = Reference(module).run([[p]])[0]
    assert judge_alone(module, [p], right, right * np.float32(1 + 2.0**-22), SPEC).ok
    assert judge_alone(module, [p], right, right * np.float32(1.01), SPEC).mismatches == 64


def test_a_number_of_fewer_digits_has_one_right_value() -> None:
    """What is stored with two digits of mantissa is off by less than its rounding, but wrong."""
    text = "ENTRY e { x = f32[8] parameter(0) ROOT r = f32[8] reduce-precision(x), exponent_bits=5, mantissa_bits=2 }"
    module = hlo_run.parse(f"HloModule m\n{text}")
    operands: list[Any] = [np.linspace(0.3, 2, 8, dtype=np.float32)]
    expected: Any = Reference(module).run([operands])[0]
    assert judge_alone(module, operands, expected, expected, SPEC).ok
    assert not judge_alone(module, operands, expected, (expected * 1.01).astype(np.float32), SPEC).ok


def test_a_small_term_beside_a_large_number_is_not_lost() -> None:
    """The step of an optimiser is far below the absolute bound, and below the rounding of the largest number."""
    text = """ENTRY e {
  x = f32[8] parameter(0)
  y = f32[8] parameter(1)
  c = f32[] constant(1e-3)
  cs = f32[8] broadcast(c), dimensions={}
  s = f32[8] multiply(y, cs)
  ROOT r = f32[8] add(x, s)
}"""
    module = hlo_run.parse(f"HloModule m\n{text}")
    x, y = np.array([100, 1e-3, 1, 1, 1, 1, 1, 1], np.float32), np.full(8, 1e-3, np.float32)
    expected: Any = Reference(module).run([[x, y]])[0]
    wrong = expected.copy()
    wrong[1] += np.float32(1e-6)
    assert not judge_alone(module, [x, y], expected, wrong, SPEC).ok
    assert judge_alone(module, [x, y], expected, np.nextafter(expected, np.float32(2)), SPEC).ok


@pytest.mark.parametrize(
    ("target", "shapes", "attributes", "count"),
    [
        ("__cublas$gemm", ("f32[6,50]", "f32[50,9]", "f32[6,9]"), "", 50),
        (
            "__cudnn$convBackwardFilter",
            ("f32[4,14,14,6]", "f32[4,14,14,8]", "f32[3,3,6,8]"),
            ", window={size=3x3 pad=1_1x1_1}",
            784,
        ),
        ("cu_threefry2x32", ("f32[6,50]", "f32[50,9]", "f32[6,9]"), "", 50),
    ],
)
def test_a_call_of_a_library_adds_as_many_terms_as_its_product(
    target: str, shapes: tuple[str, str, str], attributes: str, count: int
) -> None:
    a, b, c = shapes
    text = f"""HloModule m
ENTRY e {{
  a = {a} parameter(0)
  b = {b} parameter(1)
  ROOT c = {c} custom-call(a, b), custom_call_target="{target}"{attributes}
}}"""
    assert term_count(parse(text, verified=False).entry.root) == count
