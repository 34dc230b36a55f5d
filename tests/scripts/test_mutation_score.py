"""Faults in kernels are found with default flags; what the faults are."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hlo_run.options import Options

MODULES = {
    # Products of small numbers: nearly all are within the absolute bound.
    "small": "p = f32[64] parameter(0) q = f32[64] parameter(1) m = f32[64] multiply(p, q) ROOT r = f32[64] multiply(m, m)",
    # All zero with the first arguments.
    "floor": "p = f32[64] parameter(0) a = f32[64] abs(p) ROOT r = s32[64] convert(a)",
    # NaN for negative numbers.
    "log": "p = bf16[64] parameter(0) ROOT r = bf16[64] log(p)",
    "transpose": "p = f16[33,40] parameter(0) ROOT r = f16[40,33] transpose(p), dimensions={1,0}",
}


@pytest.fixture(scope="module")
def score() -> Iterator[Any]:
    folder = str(Path(__file__).resolve().parents[2] / "scripts")
    sys.path.insert(0, folder)
    yield importlib.import_module("mutation_score")
    sys.path.remove(folder)


@pytest.mark.parametrize("name", MODULES)
def test_default_flags_find_every_fault(name: str, score: Any, tmp_path: Path) -> None:
    file = tmp_path / f"{name}.hlo"
    file.write_text(f"HloModule {name}\nENTRY e {{ {MODULES[name]} }}")
    found = list(score.outcomes(file, Options(platform="Host", compile_processes=1), 2, 1))
    assert [outcome.fault for outcome in found] == list(score.FAULTS)
    assert {outcome.verdict for outcome in found} == {score.FOUND}


def test_a_fault_that_changes_no_bit_is_equivalent(score: Any, tmp_path: Path) -> None:
    file = tmp_path / "zeros.hlo"
    file.write_text(
        """HloModule zeros
        ENTRY e {
          p = f32[64] parameter(0)
          z = f32[] constant(0)
          zs = f32[64] broadcast(z), dimensions={}
          a = f32[64] abs(p)
          ROOT m = f32[64] clamp(zs, a, zs)
        }"""
    )
    verdicts = {o.fault: o.verdict for o in score.outcomes(file, Options(platform="Host", compile_processes=1), 1, 1)}
    assert verdicts["zero"] == score.EQUIVALENT


def test_the_texts_of_faults(score: Any) -> None:
    ptx = "\n".join(
        (
            ".visible .entry k(\n\t.param .u64 k_param_0\n)\n{",
            "\t.reg .b32 \t%r<3>;",
            "\t@%p1 st.global.v2.b32 \t[%rd2+8], {%r1, %r2};",
            "\tred.global.add.f32 \t[%rd1], %r1;",
            "\tst.shared.b32 \t[%rd1], %r1;",
            "\tret;\n}",
        )
    )
    zero = score.mutate(ptx, "zero", [(0, 16)])
    assert "@%p1 st.global.v2.b32 \t[%rd2+8], {%mutant_r0, %mutant_r1};" in zero
    assert "red.global.add.f32 \t[%rd1], %mutant_r0;" in zero
    assert "st.shared.b32 \t[%rd1], %r1;" in zero
    assert "xor.b32 \t%mutant_r0, %mutant_r0, -2147483648;" in score.mutate(ptx, "negate", [(0, 16)])
    last = score.mutate(ptx, "skip last", [(0, 16)])
    assert "add.s64 \t%mutant_d3, %mutant_d2, 8;" in last
    assert "@%mutant_p0 st.global.v2.b32 \t[%rd2+8], {%r1, %r2};" in last
    assert score.mutate(".visible .entry k(\n)\n{\n\tret;\n}", "zero", []) is None
