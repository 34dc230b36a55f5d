"""`--check_each_pass`: names a test row that changes the module's result, and the smallest computation that differs."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from planted_rows import SwapsAdditions, SwapsSubtractions, plant

import hlo_run
from hlo_run.cli import run
from hlo_run.commands.check_each_pass import smallest_difference
from hlo_run.hlo.graph import HloModule
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline import compile as compile_module
from hlo_run.pipeline.table import PIPELINE, HloGroup, HloRow
from hlo_run.reference.compare.compare import ErrorSpec
from hlo_run.reference.literal_files import read_values

MODULE = """HloModule m

ENTRY e {
  p = f32[6,7] parameter(0)
  q = f32[6,7] parameter(1)
  a = f32[6,7] exponential(p)
  b = f32[6,7] add(a, q)
  c = f32[6,7] subtract(b, a)
  ROOT d = f32[6,7] multiply(c, b)
}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    path = tmp_path / "m.hlo"
    path.write_text(MODULE)
    return str(path)


def _check(file: str, folder: Path) -> int:
    return run(["--platform=Host", "--check_each_pass", f"--xla_dump_to={folder}", file])


def test_right_rows_pass(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, SwapsAdditions())
    assert _check(file, tmp_path) == 0


DIVIDED = """HloModule m, num_partitions=2

ENTRY e {
  p = f32[6,7] parameter(0), sharding={devices=[2,1]<=[2]}
  q = f32[7] parameter(1)
  a = f32[6,7] exponential(p)
  b = f32[6,7] broadcast(q), dimensions={1}
  c = f32[6,7] subtract(a, b)
  ROOT t = (f32[6,7], f32[7]) tuple(c, q), sharding={{devices=[2,1]<=[2]}, {replicated}}
}
"""


def test_rows_of_a_divided_module_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "divided.hlo"
    file.write_text(DIVIDED)
    assert _check(str(file), tmp_path) == 0
    assert "is not checked" not in capsys.readouterr().err
    row = HloRow("swaps-subtractions", lambda c: SwapsSubtractions())
    monkeypatch.setattr(compile_module, "PIPELINE", (PIPELINE[0], PIPELINE[1], HloGroup("planted", (row,)), *PIPELINE[2:]))
    assert _check(str(file), tmp_path) == 1
    assert "row 'swaps-subtractions' of pipeline 'planted' changed the meaning of m" in capsys.readouterr().err


def test_a_wrong_row_is_named_and_cut_out(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(monkeypatch, SwapsSubtractions())
    assert _check(file, tmp_path) == 1
    err = capsys.readouterr().err
    assert "row 'swaps-subtractions' of pipeline 'planted' changed the meaning of m" in err
    assert "smallest computation that shows it: %c" in err
    modules = {when: hlo_run.parse((tmp_path / f"m.swaps-subtractions.{when}.hlo").read_text()) for when in ("before", "after")}
    assert [i.opcode for i in modules["before"].entry.instructions] == ["parameter", "parameter", "subtract"]
    b, a = read_values(
        str(tmp_path / "m.swaps-subtractions.before.npz"), "arg", [p.shape for p in modules["before"].entry.parameters], ["", ""]
    )
    before = hlo_run.evaluate(modules["before"], b, a)
    after = hlo_run.evaluate(modules["after"], b, a)
    np.testing.assert_array_equal(np.abs(np.asarray(before)), np.abs(np.asarray(after)))
    assert not np.array_equal(np.asarray(before), np.asarray(after))


HIDDEN = """HloModule m

ENTRY e {
  p = f32[6,7] parameter(0)
  q = f32[6,7] parameter(1)
  c = f32[6,7] subtract(p, q)
  a = f32[6,7] exponential(c)
  large = f32[] constant(100)
  all_large = f32[6,7] broadcast(large), dimensions={}
  never = pred[6,7] compare(p, all_large), direction=GT
  ROOT r = f32[6,7] select(never, a, q)
}
"""


def test_a_wrong_row_is_named_that_the_result_does_not_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    file = tmp_path / "m.hlo"
    file.write_text(HIDDEN)
    assert _check(str(file), tmp_path) == 0
    plant(monkeypatch, SwapsSubtractions())
    assert _check(str(file), tmp_path) == 1
    err = capsys.readouterr().err
    assert "row 'swaps-subtractions' of pipeline 'planted' rewrote a part of m wrongly" in err
    assert "%c => %c: 42 of 42 elements differ on random operands; the first is at {0,0}: " in err
    assert "look at HLO row 'swaps-subtractions'" in err
    assert "reproduce: hlo-run" in err
    modules = [hlo_run.parse((tmp_path / f"m.swaps-subtractions.{when}.hlo").read_text()) for when in ("before", "after")]
    assert [[i.opcode for i in module.entry.instructions] for module in modules] == [["parameter", "parameter", "subtract"]] * 2


class _OtherNumbers:
    name: ClassVar[str] = "other-numbers"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        del ctx
        for instruction in module.instructions_of("rng"):
            instruction.attrs["distribution"] = "rng_normal"


UNUSED_NUMBERS = """HloModule m

ENTRY e {
  p = f32[4] parameter(0)
  l = f32[] constant(0)
  h = f32[] constant(1)
  r = f32[4] rng(l, h), distribution=rng_uniform
  large = f32[] constant(100)
  all_large = f32[4] broadcast(large), dimensions={}
  never = pred[4] compare(p, all_large), direction=GT
  ROOT s = f32[4] select(never, r, p)
}
"""


def test_changes_that_nothing_judges_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    file = tmp_path / "m.hlo"
    file.write_text(UNUSED_NUMBERS)
    plant(monkeypatch, _OtherNumbers())
    assert _check(str(file), tmp_path) == 0
    assert "row 'other-numbers': 1 of 1 changed instructions not judged: %r (random numbers)" in capsys.readouterr().err


def test_random_numbers_stay_the_same_when_their_rng_is_expanded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    path = tmp_path / "r.hlo"
    path.write_text(
        """HloModule r
ENTRY e {
  l = f32[] constant(1)
  h = f32[] constant(2)
  ROOT u = f32[100] rng(l, h), distribution=rng_uniform
}
"""
    )
    assert run(["--platform=Host", "--check_each_pass", "--v=2", str(path)]) == 0
    err = capsys.readouterr().err
    assert "rng-expander, changed" in err
    assert "not checked" not in err


def test_agreeing_modules_have_no_difference() -> None:
    module = hlo_run.parse(MODULE)
    other = hlo_run.parse(MODULE.replace("add(a, q)", "add(q, a)"))
    values = [np.linspace(-1, 1, 42, dtype=np.float32).reshape(6, 7), np.linspace(2, 3, 42, dtype=np.float32).reshape(6, 7)]
    assert smallest_difference(module, other, values, ErrorSpec()) is None


def test_a_difference_at_the_root_is_found_under_another_name() -> None:
    module = hlo_run.parse(MODULE)
    other = hlo_run.parse(MODULE.replace("ROOT d = f32[6,7] multiply(c, b)", "ROOT x = f32[6,7] divide(c, b)"))
    values = [np.linspace(-1, 1, 42, dtype=np.float32).reshape(6, 7), np.linspace(2, 3, 42, dtype=np.float32).reshape(6, 7)]
    found = smallest_difference(module, other, values, ErrorSpec())
    assert found is not None
    assert [i.opcode for i in found.before.entry.instructions] == ["parameter", "parameter", "multiply"]
    assert [i.opcode for i in found.after.entry.instructions] == ["parameter", "parameter", "divide"]
    assert found.name == "x"
