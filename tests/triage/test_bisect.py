"""Bisect: planted faults in a pass, text that an LLVM pass makes, and files that do not fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from hlo_run.tool import run_tool
from hlo_run.triage.bisect import optional_rows

_MODULE = """HloModule t
ENTRY e {
  a = f32[4,64]{1,0} parameter(0)
  b = f32[4,64]{1,0} parameter(1)
  c = f32[4,64]{1,0} add(a, b)
  d = f32[4,64]{1,0} add(a, b)
  x = f32[4,64]{1,0} multiply(c, d)
  s = f32[4,64]{1,0} subtract(x, b)
  ROOT r = f32[4,64]{1,0} multiply(s, a)
}
"""
_PLANT = """from hlo_run.hlo_passes.simplifiers.hlo_cse import HloCse
apply, done = HloCse.apply, set()
def wrong(self, ctx, module):
    apply(self, ctx, module)
    for found in module.instructions_of("subtract"):
        if found.name not in done and ctx.fuel.take("cse"):
            done.add(found.name)
            found.operands = found.operands[::-1]
HloCse.apply = wrong
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "t.hlo"
    path.write_text(_MODULE, encoding="utf-8")
    return path


def test_a_wrong_rewrite_is_found(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planted = tmp_path / "plant.py"
    planted.write_text(_PLANT, encoding="utf-8")
    assert run_tool(["bisect", str(file), f"--run=hlo-run --platform=Host --custom_calls={planted}", "--jobs=2"]) == 0
    text = capsys.readouterr().out
    assert "The row 'cse' is the first with which it fails; the whole pipeline without it does not fail." in text
    assert "The 2nd rewrite of 'cse' is the first" in text
    assert "--xla_fuel=cse=1" in text
    assert "- %s = f32[4,64]{1,0} subtract(%x, %b)" in text
    assert "+ %s = f32[4,64]{1,0} subtract(%b, %x)" in text


def test_an_llvm_pass_is_found(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tool(["bisect", str(file), r"--matches=llvm:= tail call", "--jobs=2"]) == 0
    text = capsys.readouterr().out
    assert "tailcallelim on" in text
    assert "--llvm_opt_bisect_limit=" in text


def test_a_command_gets_the_flags_in_xla_flags(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command fails unless priority-fusion is skipped, which it sees in the flags."""
    test = "case $XLA_FLAGS in *priority-fusion*|*disable_all*) false;; *) grep -q tanh {} || true;; esac"
    assert run_tool(["bisect", str(file), f"--test={test}", "--jobs=2"]) == 0
    assert "The row 'priority-fusion' is the first" in capsys.readouterr().out


def test_a_fault_outside_of_the_passes_is_said_to_be_there(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tool(["bisect", str(file), "--test=test -s {}", "--jobs=2"]) == 0
    assert "without any pass that can be skipped" in capsys.readouterr().out


def test_a_file_that_does_not_fail_gives_1(file: Path) -> None:
    assert run_tool(["bisect", str(file), "--test=false {}"]) == 1


@pytest.mark.parametrize("flag", ["--matches=x", "--matches=nothing:x", "--matches=ptx:(", "--repeat=0", "--test=true"])
def test_bad_flags_give_2(file: Path, flag: str) -> None:
    assert run_tool(["bisect", str(file), flag]) == 2


def test_flaky_failures_are_reported(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command fails every second time."""
    flag = tmp_path / "flag"
    test = f"test {{}} && if [ -e {flag} ]; then rm {flag}; false; else touch {flag}; fi"
    assert run_tool(["bisect", str(file), f"--test={test}", "--jobs=1", "--repeat=2"]) == 0
    assert "flaky" in capsys.readouterr().out


def test_optional_rows_are_in_order_and_no_required_one() -> None:
    rows = [(row.name, row.is_kernel) for row in optional_rows()]
    assert len(rows) == len(set(rows))
    names = [name for name, is_kernel in rows if not is_kernel]
    assert names.index("cse") < names.index("layout-assignment") < names.index("priority-fusion")
    assert "fusion-wrapper" not in names


def test_a_row_that_never_ends_is_named(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planted = tmp_path / "plant.py"
    planted.write_text(_PLANT.replace("    apply(self, ctx, module)\n", "    while True: pass\n"), encoding="utf-8")
    run = f"--run=hlo-run --platform=Host --custom_calls={planted}"
    assert run_tool(["bisect", str(file), run, "--jobs=1", "--trial_seconds=6"]) == 0
    text = capsys.readouterr().out
    assert "failure: row 'cse': time-out:" in text
    assert "The failure names the row 'cse'; the whole pipeline without it does not fail." in text
