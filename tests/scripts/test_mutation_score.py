"""Faults in kernels are found with default flags; what the faults are, and which of them count."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
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
OPTIONS = Options(platform="Host", compile_processes=1)
PTX = """.visible .entry k(
	.param .u64 k_param_0,
	.param .u64 k_param_1
)
{
	.reg .pred 	%p<4>;
	.reg .b32 	%r<12>;
	.reg .b64 	%rd<4>;

	ld.param.b64 	%rd1, [k_param_0];
	ld.param.b64 	%rd2, [k_param_1];
	mov.u32 	%r1, %tid.x;
	add.s32 	%r2, %r1, 8;
	setp.gt.u32 	%p1, %r2, 15;
	@%p1 bra 	$L__BB0_3;
	mul.wide.u32 	%rd3, %r2, 4;
	ld.global.nc.b32 	%r3, [%rd1+8];
	mov.b32 	%r4, 0f00000000;
$L__BB0_2:
	fma.rn.f32 	%r4, %r3, %r4, %r3;
	setp.lt.f32 	%p2, %r4, 0f40000000;
	@%p2 bra 	$L__BB0_2;
	sub.rn.f32 	%r5, %r4, %r3;
	max.NaN.f32 	%r6, %r5, %r4;
	st.shared.b32 	[%rd3], %r6;
	bar.sync 	0;
	ld.shared.b32 	%r7, [%rd3+4];
	mul.rn.f32 	%r8, %r7, %r6;
	add.rn.f32 	%r9, %r8, %r7;
	@%p2 st.global.v2.b32 	[%rd2+8], {%r9, %r8};
	red.global.add.f32 	[%rd2], %r9;
$L__BB0_3:
	ret;
}
"""
# The kind, and the lines in the place of one, for every place in the kernel above.
CHANGES = {
    "swap": ["sub.rn.f32 %r5, %r3, %r4"],
    "mul for add": ["mul.rn.f32 %r9, %r8, %r7"],
    "add for mul": ["add.rn.f32 %mutant_r0, %r3, %r4; add.rn.f32 %r4, %mutant_r0, %r3", "add.rn.f32 %r8, %r7, %r6"],
    "sign": [
        "neg.f32 %mutant_r0, %r3; fma.rn.f32 %r4, %mutant_r0, %r4, %r3",
        "add.rn.f32 %r5, %r4, %r3",
        "sub.rn.f32 %r9, %r8, %r7",
    ],
    "min for max": ["min.NaN.f32 %r6, %r5, %r4"],
    "lost max": ["mov.b32 %r6, %r5", "mov.b32 %r6, %r4"],
    "lost term": ["mul.rn.f32 %r4, %r3, %r4", "mov.b32 %r4, %r3", "mov.b32 %r9, %r8", "mov.b32 %r9, %r7"],
    "accumulator": ["mov.b32 %r4, 0f3F800000"],
    "stale shared": ["nothing", "nothing"],
    "off by one": ["add.s32 %r2, %r1, 9", "add.s32 %r2, %r1, 7", "ld.shared.b32 %r7, [%rd3+8]", "ld.shared.b32 %r7, [%rd3+0]"],
    "predicate": [
        "setp.ge.u32 %p1, %r2, 15",
        "@!%p1 bra $L__BB0_3",
        "setp.le.f32 %p2, %r4, 0f40000000",
        "@!%p2 bra $L__BB0_2",
    ],
}


@pytest.fixture(scope="module")
def scripts() -> Iterator[Any]:
    folder = str(Path(__file__).resolve().parents[2] / "scripts")
    sys.path.insert(0, folder)
    yield importlib.import_module
    sys.path.remove(folder)


@pytest.mark.parametrize("name", MODULES)
def test_default_flags_find_every_fault(name: str, scripts: Any, tmp_path: Path) -> None:
    subject: Any = scripts("mutation.subject")
    file = tmp_path / f"{name}.hlo"
    file.write_text(f"HloModule {name}\nENTRY e {{ {MODULES[name]} }}")
    kinds = ("zero", "negate", "skip last")
    found = list(subject.outcomes(file, OPTIONS, 2, 3, 1, kinds))
    assert {outcome.kind for outcome in found} == set(kinds)
    assert {outcome.lines for outcome in found} == {f"{subject.ALONE}, {subject.END_TO_END}"}
    assert {outcome.verdict for outcome in found} == {subject.FOUND}


def test_a_fault_that_changes_no_number_of_the_kernel_is_equivalent(scripts: Any, tmp_path: Path) -> None:
    subject: Any = scripts("mutation.subject")
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
    (outcome,) = subject.outcomes(file, OPTIONS, 1, 1, 1, ("zero",))
    assert outcome.verdict == subject.EQUIVALENT


def test_the_initial_value_of_a_reduction_is_its_identity(scripts: Any, tmp_path: Path) -> None:
    """A product that begins with zero is always zero."""
    subject: Any = scripts("mutation.subject")
    file = tmp_path / "both.hlo"
    file.write_text(
        """HloModule both
        f {
          s = f32[] parameter(0)
          p = f32[] parameter(1)
          x = f32[] parameter(2)
          y = f32[] parameter(3)
          a = f32[] add(s, x)
          m = f32[] multiply(p, y)
          ROOT t = (f32[], f32[]) tuple(a, m)
        }
        ENTRY e {
          x = f32[8,3] parameter(0)
          y = f32[8,3] parameter(1)
          i = f32[] parameter(2)
          ROOT r = (f32[8], f32[8]) reduce(x, y, i, i), dimensions={1}, to_apply=f
        }"""
    )
    found = list(subject.outcomes(file, OPTIONS, 1, 1, 1, ("add for mul",)))
    assert {outcome.verdict for outcome in found} <= {subject.FOUND, subject.EQUIVALENT}
    both = subject.Subject(file, OPTIONS)
    (thunk,) = both.launches().values()
    assert list(subject.identities_of(both.optimized, both._buffers, thunk).values()) == [0]


def test_a_fault_that_the_result_undoes_is_hidden(scripts: Any, tmp_path: Path) -> None:
    subject: Any = scripts("mutation.subject")
    file = tmp_path / "square.hlo"
    file.write_text(
        """HloModule square
        ENTRY e {
          p = f32[8,8] parameter(0)
          x = f32[8,8] exponential(p)
          ROOT r = f32[8,8] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        }"""
    )
    hidden, shown = subject.outcomes(file, OPTIONS, 1, 2, 1, ("negate", "zero"))
    if hidden.kind == "zero":
        hidden, shown = shown, hidden
    assert (hidden.lines, hidden.of_result) == (subject.ALONE, 0)
    assert (shown.lines, shown.of_result) == (f"{subject.ALONE}, {subject.END_TO_END}", math.inf)
    table: str = scripts("mutation_score").table([hidden, shown])
    assert "| all | 2 | 100.0 % | 100.0 % | 50.0 % | 100.0 % | 0 | 0 | 1 | 0 | 0 | 0 |" in table


def test_a_kernel_that_stops_alone_counts_apart(scripts: Any, tmp_path: Path) -> None:
    subject: Any = scripts("mutation.subject")
    file = tmp_path / "guard.hlo"
    file.write_text("HloModule guard\nENTRY e { p = f32[130] parameter(0) ROOT r = f32[130] negate(p) }")
    found = list(subject.outcomes(file, OPTIONS, 1, 1, 1, ("predicate",)))
    assert subject.STOPPED in {outcome.verdict for outcome in found}
    assert all("out-of-bounds" in outcome.detail for outcome in found if outcome.verdict == subject.STOPPED)


def test_a_condition_that_never_runs_has_no_launch(scripts: Any) -> None:
    subject: Any = scripts("mutation.subject")
    artifact: Any = importlib.import_module("hlo_run.artifact")
    piece = artifact.BufferSlice(0, 0, 1)
    step, test = (artifact.KernelThunk(name, name, ()) for name in ("step", "test"))
    for trips, launched in ((3, ["step"]), (None, ["test", "step"])):
        loop = artifact.WhileThunk("loop", piece, (test,), (step,), trips)
        assert [thunk.kernel for thunk in subject.launched([loop])] == launched


def test_the_faults_of_all_stores(scripts: Any) -> None:
    stores: Any = scripts("mutation.stores")
    arrays = [stores.Array(0, 64, "f32"), stores.Array(1, 16, "f32", is_written=True)]
    zero = stores.mutate_stores(PTX, "zero", arrays)
    assert "@%p2 st.global.v2.b32 \t[%rd2+8], {%mutant_r0, %mutant_r1};" in zero
    assert "red.global.add.f32 \t[%rd2], %mutant_r0;" in zero
    assert "st.shared.b32 \t[%rd3], %r6;" in zero
    assert "xor.b32 \t%mutant_r0, %mutant_r0, -2147483648;" in stores.mutate_stores(PTX, "negate", arrays)
    scaled = stores.mutate_stores(PTX, "scale", arrays)
    assert scaled.count("mul.rn.f32 \t%mutant_r0, %mutant_r0, 0f3F8147AE;") == 2
    last = stores.mutate_stores(PTX, "skip last", arrays)
    assert "add.s64 \t%mutant_d3, %mutant_d2, 8;" in last
    assert "@%mutant_p0 st.global.v2.b32 \t[%rd2+8], {%r9, %r8};" in last
    assert stores.mutate_stores(".visible .entry k(\n)\n{\n\tret;\n}", "zero", []) is None


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_pairs_of_small_floats_are_scaled_apart(dtype: str, scripts: Any) -> None:
    stores: Any = scripts("mutation.stores")
    scaled = stores.mutate_stores(PTX, "scale", [stores.Array(1, 16, dtype, is_written=True)])
    assert scaled.count(f"cvt.rn.{dtype}.f32") == 6
    assert "mov.b32 \t{%mutant_h14, %mutant_h15}, %mutant_r1;" in scaled


@pytest.mark.parametrize("kind", CHANGES)
def test_the_faults_of_one_instruction(kind: str, scripts: Any) -> None:
    faults: Any = scripts("mutation.faults")
    found = faults.faults(PTX, kind, [], (1, 1, 1))
    assert [fault.place.split(" => ")[1] for fault in found] == CHANGES[kind]
    for fault in found:
        (number,) = (int(n) for n in [fault.place.split()[1].rstrip(":")])
        assert PTX.splitlines()[number - 1] not in fault.ptx.splitlines() or kind == "accumulator"


def test_the_last_block_ends_at_once(scripts: Any) -> None:
    faults: Any = scripts("mutation.faults")
    (fault,) = faults.faults(PTX, "last block", [], (1, 3, 1))
    assert fault.place == "grid.y: 3 => 2"
    assert "setp.eq.s32 \t%mutant_p0, %mutant_r0, 2;\n\t@%mutant_p0 ret;\n\tld.param.b64" in fault.ptx


def test_the_next_element_stays_in_the_array(scripts: Any) -> None:
    faults: Any = scripts("mutation.faults")
    stores: Any = scripts("mutation.stores")
    found = faults.faults(PTX, "next element", [stores.Array(0, 64)], (1, 1, 1))
    assert [fault.place.split("; ")[1] for fault in found] == ["+4 bytes", "-4 bytes"]
    assert "add.s64 \t%mutant_d1, %mutant_d0, 60;" in found[0].ptx


def test_differences_are_in_units_of_the_largest_number(scripts: Any) -> None:
    alone: Any = scripts("mutation.alone")

    def difference(dtype: str, one: list[float], two: list[float], kind: Any) -> float:
        return alone.difference(dtype, *(np.array(part, kind).view(np.uint8) for part in (one, two)))

    assert difference("f32", [2.0, math.nan, 0.0], [2.0, math.nan, -0.0], np.float32) == 0
    assert difference("f32", [2.0, 1.0], [2.0, 1.0 + 2.0**-22], np.float32) == 1
    assert difference("f32", [2.0, 1.0], [2.0, 1.0 + 2.0**-23], np.float32) == 0, "neighbours"
    assert difference("f32", [2.0, 1.0], [2.0, math.nan], np.float32) == math.inf
    assert difference("s32", [2, 1], [2, 2], np.int32) == math.inf


def test_the_table_counts_apart_what_is_equivalent_or_stops(scripts: Any) -> None:
    score: Any = scripts("mutation_score")
    subject: Any = scripts("mutation.subject")
    verdicts = [subject.FOUND] * 3 + [subject.MISSED, subject.EQUIVALENT, subject.STOPPED]
    made = [subject.Outcome("m", "k", "scale", "all stores", v, "end to end" * (v == subject.FOUND), 9.0) for v in verdicts]
    assert score.score(made) == 0.75
    assert score.table(made).splitlines()[-1] == "| all | 4 | 75.0 % | 0.0 % | 75.0 % | 75.0 % | 1 | 0 | 0 | 1 | 1 | 0 |"
