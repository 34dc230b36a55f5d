"""Bisect: planted faults in a pass, text that an LLVM pass makes, and files that do not fail."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from clocks import Clock, use_clock

from hlo_run.containment.progress import Progress
from hlo_run.tool import run_tool
from hlo_run.triage import asking, predicates, questions
from hlo_run.triage.bisect import optional_rows
from hlo_run.triage.predicates import RunPredicate
from hlo_run.triage.row_flags import merged
from hlo_run.triage.trials import Ended

_MODULE = """HloModule t
ENTRY e {
  a = f32[4]{0} parameter(0)
  b = f32[4]{0} parameter(1)
  c = f32[4]{0} add(a, b)
  d = f32[4]{0} add(a, b)
  x = f32[4]{0} multiply(c, d)
  ROOT s = f32[4]{0} subtract(x, b)
}
"""
_SMALL_MODULE = """HloModule t
ENTRY e {
  a = f32[4]{0} parameter(0)
  b = f32[4]{0} parameter(1)
  ROOT s = f32[4]{0} subtract(a, b)
}
"""
_Values: TypeAlias = Mapping[str, str]
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


@pytest.fixture
def small_file(tmp_path: Path) -> Path:
    path = tmp_path / "t.hlo"
    path.write_text(_SMALL_MODULE, encoding="utf-8")
    return path


@pytest.fixture
def few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask each question once. How often a search asks is a matter of test_blame.py and of the tests of flaky failures."""
    monkeypatch.setattr(asking, "_FIRST_RUNS", 1)
    monkeypatch.setattr(asking, "_CONFIRMING_RUNS", 1)


class _MadeUp:
    """A made-up hlo-run: by its flags it fails or takes seconds of processor time. It runs in this process."""

    def __init__(self) -> None:
        self.fails: Callable[[_Values], bool] = lambda flags: False
        self.seconds: Callable[[_Values], float] = lambda flags: 0.0
        self._clock = 0.0

    def run(self, words: Sequence[str]) -> int:
        flags = {name.lstrip("-"): value for name, _, value in (word.partition("=") for word in words)}
        self._clock += self.seconds(flags)
        return int(self.fails(flags))

    def times(self) -> tuple[float, ...]:
        return (self._clock, 0.0, 0.0, 0.0, 0.0)


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> _MadeUp:
    def in_this_process(works: Sequence[Callable[[], Any]], *_: object, **__: object) -> list[Ended]:
        return [Ended(work()) for work in works]

    made_up = _MadeUp()
    for module in (predicates, questions):
        monkeypatch.setattr(module, "run", made_up.run)
    monkeypatch.setattr(os, "times", made_up.times)
    monkeypatch.setattr(asking, "run_forks", in_this_process)
    return made_up


def _has_row(flags: _Values, row: str) -> bool:
    return row not in flags.get("xla_disable_hlo_passes", "").split(",")


def test_a_wrong_rewrite_is_found(file: Path, tmp_path: Path, few_runs: None, capsys: pytest.CaptureFixture[str]) -> None:
    planted = tmp_path / "plant.py"
    planted.write_text(_PLANT, encoding="utf-8")
    rows = "--check_kernels=off --xla_enable_hlo_passes_only=cse,dce,priority-fusion"
    assert run_tool(["bisect", str(file), f"--run=hlo-run --platform=Host {rows} --custom_calls={planted}", "--jobs=1"]) == 0
    text = capsys.readouterr().out
    assert "The row 'cse' is the first with which it fails; the whole pipeline without it does not fail." in text
    assert "The 2nd rewrite of 'cse' is the first" in text, text
    assert "--xla_fuel=cse=1" in text
    assert "- ROOT %s = f32[4]{0} subtract(%x, %b)" in text
    assert "+ ROOT %s = f32[4]{0} subtract(%b, %x)" in text


_KERNEL_PLANT = """from xdsl.dialects.arith import SubfOp
from hlo_run.codegen.kernel_passes.cse import Cse
apply, done = Cse.apply, set()
def wrong(self, ctx, module):
    apply(self, ctx, module)
    for found in [op for op in module.walk() if isinstance(op, SubfOp) and op not in done]:
        done.add(found)
        if self.take():
            found.operands = found.operands[::-1]
Cse.apply = wrong
"""


def test_a_wrong_rewrite_in_a_kernel_row_is_found(
    small_file: Path, tmp_path: Path, few_runs: None, capsys: pytest.CaptureFixture[str]
) -> None:
    planted = tmp_path / "plant.py"
    planted.write_text(_KERNEL_PLANT, encoding="utf-8")
    run = f"--run=hlo-run --platform=Host --check_kernels=off --xla_disable_all_hlo_passes --custom_calls={planted}"
    assert run_tool(["bisect", str(small_file), run, "--jobs=1"]) == 0
    text = capsys.readouterr().out
    assert "The kernel row 'cse' is the first" in text
    assert "rewrite of 'cse' is the first" in text
    assert "--kernel_fuel=cse=" in text
    assert "- %" in text
    assert "arith.subf" in text
    assert "The levels of ptxas cannot matter" in text


def test_a_run_that_changes_a_kernel_is_found(file: Path, made_up: _MadeUp, capsys: pytest.CaptureFixture[str]) -> None:
    """symbol-dce counts no rewrites."""
    made_up.fails = lambda flags: (
        "symbol-dce" not in flags.get("disable_kernel_passes", "").split(",")
        and flags.get("kernel_fuel", "symbol-dce=9") > "symbol-dce=1"
    )
    assert run_tool(["bisect", str(file), "--run=hlo-run --platform=Host", "--jobs=2"]) == 0
    text = capsys.readouterr().out
    assert "The kernel row 'symbol-dce' is the first" in text
    assert "The 2nd run that changes a kernel of 'symbol-dce' is the first" in text
    assert "--kernel_fuel=symbol-dce=1" in text


# An ELF file without sections.
_CUBIN = r"\177ELF" + r"\0" * 60
_FAKE_PTXAS = f"""#!/bin/sh
for text do [ "$last" = -o ] && output=$text; last=$text; done
printf '{_CUBIN}' > "$output"
case "$*" in *-O0*) exit 0;; esac
while read -r line; do
  case "$line" in *mul.wide*) echo "ptxas kernel.ptx, line 1; error: too wide" >&2; exit 255;; esac
done < "$text"
"""


def test_a_failure_of_ptxas_gives_the_llvm_pass_and_the_level(
    small_file: Path, tmp_path: Path, few_runs: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """ptxas rejects wide products, which a pass of LLVM makes, unless it runs at -O0."""
    ptxas = tmp_path / "bin" / "ptxas"
    ptxas.parent.mkdir()
    ptxas.write_text(_FAKE_PTXAS, encoding="utf-8")
    ptxas.chmod(0o755)
    run = f"--run=hlo-run --platform=Host --xla_gpu_cuda_data_dir={tmp_path}"
    assert run_tool(["bisect", str(small_file), run, "--jobs=1"]) == 0
    text = capsys.readouterr().out
    assert "failure: ptxas: ptxas failure: error: too wide" in text
    assert re.search(r"LLVM pass \d+ of \d+, .* on function .*, is the first with which it fails\.", text), text
    assert "ptxas at -O1 is the lowest level with which it fails; it does not fail with -O0." in text
    assert "--ptxas_opt_level=0" in text


def test_an_llvm_pass_is_found(small_file: Path, few_runs: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tool(["bisect", str(small_file), r"--matches=llvm:= tail call", "--jobs=1"]) == 0
    text = capsys.readouterr().out
    assert "tailcallelim on" in text
    assert "--llvm_opt_bisect_limit=" in text


def test_a_command_gets_the_flags_in_xla_flags(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command fails unless priority-fusion is skipped, which it sees in the flags."""
    test = "case $XLA_FLAGS in *priority-fusion*|*disable_all*) false;; *) test -s {};; esac"
    assert run_tool(["bisect", str(file), f"--test={test}", "--jobs=1"]) == 0
    assert "The row 'priority-fusion' is the first" in capsys.readouterr().out


def test_a_fault_outside_of_the_passes_is_said_to_be_there(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tool(["bisect", str(file), "--test=test -s {}", "--jobs=2"]) == 0
    assert "without any pass that can be skipped" in capsys.readouterr().out


def test_a_file_that_cannot_be_read_blames_no_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.hlo"
    broken.write_text("HloModule inf\nENTRY e { ROOT c = f32[] constant(1) }\n", encoding="utf-8")
    assert run_tool(["bisect", str(broken), "--run=hlo-run --platform=Host", "--jobs=1"]) == 0
    text = capsys.readouterr().out
    assert "It fails while the file is read, before any pass" in text
    assert "required row" not in text
    assert "ptxas" not in text


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


@pytest.fixture
def endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A row that never ends. When one begins to wait, the clock of the trials goes beyond their limit, so none takes long."""
    begun, planted = tmp_path / "begun", tmp_path / "plant.py"
    begun.touch()
    waits = f"    import signal\n    with open({str(begun)!r}, 'a') as begun: begun.write('.')\n    signal.pause()\n"
    planted.write_text(_PLANT.replace("    apply(self, ctx, module)\n", waits), encoding="utf-8")

    class BegunClock(Clock):
        def monotonic(self) -> float:
            return super().monotonic() + 10_000 * begun.stat().st_size

    def soon(_: Progress, seconds: float) -> float:
        return min(seconds, 0.02)

    use_clock(monkeypatch, BegunClock(), "triage.trials")
    monkeypatch.setattr(Progress, "draw", soon)
    return planted


def test_a_row_that_never_ends_is_named(file: Path, endless: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = f"--run=hlo-run --platform=Host --xla_enable_hlo_passes_only=algsimp,cse --custom_calls={endless}"
    assert run_tool(["bisect", str(file), run, "--jobs=1", "--trial_seconds=5000"]) == 0
    text = capsys.readouterr().out
    assert "failure: row 'cse': time-out:" in text
    assert "The failure names the row 'cse'; the whole pipeline without it does not fail." in text


def test_the_time_out_of_hlo_run_limits_trials() -> None:
    assert RunPredicate.of("hlo-run --platform=Host --timeout=4").timeout_seconds == 4


def test_the_row_of_a_slow_compilation_is_found(file: Path, made_up: _MadeUp, capsys: pytest.CaptureFixture[str]) -> None:
    """The row sets the clock forward, so that the test takes no time."""
    made_up.seconds = lambda flags: 3600.0 * _has_row(flags, "multi_output_fusion")
    run = "--run=hlo-run --platform=Host --one_process"
    assert run_tool(["bisect", str(file), run, "--slower_than=3000", "--jobs=2"]) == 0
    text = capsys.readouterr().out
    assert "The row 'multi_output_fusion' is the first with which it fails; the whole pipeline without it does not fail." in text
    assert "time hlo-run" in text


def test_the_row_of_a_flaky_failure_is_found(file: Path, made_up: _MadeUp, capsys: pytest.CaptureFixture[str]) -> None:
    """Every second run of the row is wrong."""
    turns = cycle((True, False))
    made_up.fails = lambda flags: _has_row(flags, "cse") and next(turns)
    assert run_tool(["bisect", str(file), "--run=hlo-run --platform=Host", "--jobs=1", "--repeat=2"]) == 0
    text = capsys.readouterr().out
    assert "flaky" in text
    assert "'cse'" in text


@pytest.mark.parametrize(
    ("flags", "extra", "merged_flags"),
    [
        (["--v=1"], ["--xla_disable_hlo_passes=dce"], ["--v=1", "--xla_disable_hlo_passes=dce"]),
        (["--disable=cse"], ["--xla_fuel=dce=1"], ["--disable=cse", "--xla_fuel=dce=1"]),
        (
            ["--xla_disable_hlo_passes=dce", "--v=1"],
            ["--xla_disable_hlo_passes=cse-2"],
            ["--v=1", "--xla_disable_hlo_passes=dce,cse-2"],
        ),
    ],
)
def test_rows_that_the_user_skips_stay_skipped(flags: list[str], extra: list[str], merged_flags: list[str]) -> None:
    found, expected = ([flag.partition("=")[::2] for flag in each] for each in (merged(flags, extra), merged_flags))
    assert [name for name, _ in found] == [name for name, _ in expected]
    for (_, have), (_, want) in zip(found, expected, strict=True):
        assert set(want.split(",")) <= set(have.split(","))


def test_rows_beside_the_only_ones_are_skipped() -> None:
    (flag,) = merged(["--enable_kernel_passes_only=cse"], ["--disable_kernel_passes=cse-2"])
    name, _, rows = flag.partition("=")
    assert name == "--disable_kernel_passes"
    assert {"inliner", "cse-2"} <= set(rows.split(","))
    assert not {"cse", "cse-3", "lower-tensors"} & set(rows.split(","))
