"""Bisect's answers yes, no and unknown: a made-up compiler says which rows and files are wrong, so that a trial costs nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from hlo_run.containment.progress import Progress
from hlo_run.errors import UsageError
from hlo_run.triage import asking
from hlo_run.triage.asking import Asker, Bisection, Limits
from hlo_run.triage.bisect import Bisector, optional_rows
from hlo_run.triage.predicates import INTERESTING, RunPredicate, TestPredicate
from hlo_run.triage.row_flags import merged
from hlo_run.triage.trials import Ended

_WRONG = "compare: mismatch: wrong values"
_OTHER = "hlo passes: internal error: KeyError: NAME (dce: hlo_passes.dce)"
_ROWS = [row.name for row in optional_rows() if not row.is_kernel]
_PTX = "--xla_gpu_ptx_file"
_PLUGIN = "--insert_passes"


class _Trial(Struct, frozen=True):
    """A command line of the made-up compiler: the HLO rows that run, and the values of all flags."""

    rows: frozenset[str]
    flags: Mapping[str, str]

    def has(self, flag: str, part: str) -> bool:
        return part in self.flags.get(flag, "").split(",")


class _Compiler(Struct, frozen=True):
    """A question about the made-up compiler. `printed` is its answer to commands as they are printed, if that is another one."""

    run: RunPredicate
    answer: Callable[[_Trial], str]
    printed: Callable[[_Trial], str] | None = None

    def ask(self, path: str, extra: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> str:
        del path, environment
        return self.answer(self._trial(extra))

    def ask_as_printed(self, path: str, extra: Sequence[str] = ()) -> str:
        del path
        return (self.printed or self.answer)(self._trial(extra))

    def command(self, path: str, extra: Sequence[str] = ()) -> str:
        return self.run.command(path, extra)

    def _trial(self, extra: Sequence[str]) -> _Trial:
        flags = {name: value for name, _, value in (flag.partition("=") for flag in self.run.with_flags(extra))}
        skipped = set(flags.get("--xla_disable_hlo_passes", "").split(","))
        return _Trial(frozenset(_ROWS) - skipped, flags)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials without forks, which would take most of the time."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setattr(asking, "run_forks", _in_this_process)


def _in_this_process(works: Sequence[Callable[[], Any]], jobs: int, limit_seconds: float, progress: Progress) -> list[Ended]:
    del jobs, limit_seconds, progress
    return [Ended(work()) for work in works]


def _bisect(
    answer: Callable[[_Trial], str], command: str = "hlo-run", printed: Callable[[_Trial], str] | None = None, repeat: int = 1
) -> Bisection:
    run = RunPredicate.of(command)
    question = _Compiler(run, answer, printed)
    return Bisector(question, run, "m.hlo", Limits(2, 60.0, repeat)).bisect()


def _if(fails: bool) -> str:
    return _WRONG if fails else ""


def _sentences(found: Bisection) -> list[str]:
    return [finding.sentence for finding in found.findings]


def test_a_wrong_row_is_blamed() -> None:
    found = _bisect(lambda trial: _if("dot-merger" in trial.rows))
    (finding,) = found.findings
    assert (
        finding.sentence == "The row 'dot-merger' is the first with which it fails; the whole pipeline without it does not fail."
    )
    assert finding.with_it == "hlo-run m.hlo"
    assert finding.without_it == "hlo-run --xla_disable_hlo_passes=dot-merger m.hlo"


def test_two_wrong_rows_are_both_blamed() -> None:
    found = _bisect(lambda trial: _if(bool({"dot-merger", "copy_fusion"} & trial.rows)))
    first, second = _sentences(found)
    assert first.startswith("The row 'dot-merger' is the first with which it fails; later rows also show")
    assert second == (
        "Without row 'dot-merger', the row 'copy_fusion' is the first with which it fails;"
        " the whole pipeline without it does not fail."
    )
    assert found.findings[1].without_it == "hlo-run --xla_disable_hlo_passes=copy_fusion,dot-merger m.hlo"


def test_all_rows_of_a_wrong_pass_are_blamed() -> None:
    """The second and the fourth row of algsimp are wrong, so neither decides alone."""
    (sentence,) = _sentences(_bisect(lambda trial: _if(bool({"algsimp-2", "algsimp-4"} & trial.rows))))
    assert sentence == "The row 'algsimp-2' is the first with which it fails; it does not fail without its pass."


def test_a_search_goes_around_another_failure() -> None:
    """With some of the first rows alone, it fails in another way."""
    low, high = _ROWS.index("dot-merger"), _ROWS.index("copy_fusion")
    between = set(_ROWS[low:high])

    def answer(trial: _Trial) -> str:
        if "copy_fusion" in trial.rows:
            return _WRONG
        return _OTHER if between & trial.rows and _ROWS[-1] not in trial.rows else ""

    found = _bisect(answer)
    assert _sentences(found) == ["The whole pipeline without the row 'copy_fusion' does not fail."]
    assert not found.flaky


def test_what_cannot_be_narrowed_is_said() -> None:
    """Without any row of the last half it fails in another way, so no row can be named."""
    middle = len(_ROWS) // 2
    late = set(_ROWS[middle:])

    def answer(trial: _Trial) -> str:
        return _WRONG if late <= trial.rows else _OTHER if late & trial.rows else ""

    found = _bisect(answer)
    (sentence,) = _sentences(found)
    stated = re.match(r"The row that it needs is between others: after '(.+)', and at the latest '(.+)'\.", sentence)
    assert stated is not None, sentence
    last_right = _ROWS.index(stated[1])
    assert middle - 8 < last_right < middle, "the last number of rows that was tried and does not fail"
    assert any("cannot narrow it further" in note and _OTHER in note for note in found.notes)


def test_a_pipeline_that_only_works_as_a_whole_blames_the_row_that_decides() -> None:
    """Without optional rows the module is refused."""

    def answer(trial: _Trial) -> str:
        return _if("dot-merger" in trial.rows) if len(trial.rows) > len(_ROWS) - 5 else "compile: unsupported: NAME"

    assert _sentences(_bisect(answer)) == ["The whole pipeline without the row 'dot-merger' does not fail."]


def test_flags_that_are_refused_blame_no_row() -> None:
    """A command that fails in its own way as soon as any flag is added looks as if it passed."""
    found = _bisect(lambda trial: _if(not trial.flags))
    assert not found.findings
    assert any("no row can be blamed" in note for note in found.notes)


def test_a_row_that_never_ends_is_blamed_by_its_name() -> None:
    wanted = "row 'dot-merger': time-out: the run took longer than its limit"
    (sentence,) = _sentences(_bisect(lambda trial: wanted if "dot-merger" in trial.rows else ""))
    assert sentence == "The failure names the row 'dot-merger'; the whole pipeline without it does not fail."


def test_a_replaced_file_is_asked_about_first() -> None:
    found = _bisect(lambda trial: _if(trial.has(_PTX, "bad.ptx")), f"hlo-run {_PTX}=good.ptx,bad.ptx")
    (finding,) = found.findings
    assert finding.sentence == "The replaced file 'bad.ptx' is the fault: without it, it does not fail."
    assert finding.with_it == "hlo-run --xla_gpu_ptx_file=good.ptx,bad.ptx m.hlo"
    assert finding.without_it == "hlo-run --xla_gpu_ptx_file=good.ptx m.hlo"


def test_an_inserted_pass_is_blamed_with_its_rewrite() -> None:
    def answer(trial: _Trial) -> str:
        return _if(trial.has(_PLUGIN, "p:after:cse") and trial.flags.get("--xla_fuel", "p=9") > "p=1")

    fault, rewrite = _bisect(answer, f"hlo-run {_PLUGIN}=p:after:cse").findings
    assert fault.sentence == "The inserted pass 'p' is the fault: without it, it does not fail."
    assert fault.without_it == "hlo-run m.hlo"
    assert rewrite.sentence == "The 2nd run that changes the module of 'p' is the first with which it fails."


def test_an_inserted_pass_that_only_shows_the_fault_of_a_row() -> None:
    def answer(trial: _Trial) -> str:
        return _if(trial.has(_PLUGIN, "p:after:cse") and "copy_fusion" in trial.rows)

    sentences = _sentences(_bisect(answer, f"hlo-run {_PLUGIN}=p:after:cse"))
    assert sentences[0] == "It does not fail without the inserted pass 'p'."
    assert sentences[-1].startswith("The row 'copy_fusion' is the first with which it fails; the whole pipeline")


def test_a_replaced_file_and_a_row_are_both_blamed() -> None:
    def answer(trial: _Trial) -> str:
        return _if(trial.has(_PTX, "bad.ptx") or "dot-merger" in trial.rows)

    found = _bisect(answer, f"hlo-run {_PTX}=bad.ptx")
    row, file = found.findings
    assert row.sentence.startswith("The row 'dot-merger' is the first")
    assert row.with_it == "hlo-run m.hlo"
    assert file.sentence == "The replaced file 'bad.ptx' is at fault as well."
    assert file.with_it == "hlo-run --xla_gpu_ptx_file=bad.ptx --xla_disable_hlo_passes=dot-merger m.hlo"


def test_two_replaced_files_are_both_blamed() -> None:
    def answer(trial: _Trial) -> str:
        return _if(trial.has(_PTX, "a.ptx") or trial.has(_PTX, "b.ptx"))

    found = _bisect(answer, f"hlo-run {_PTX}=a.ptx,b.ptx,c.ptx")
    assert _sentences(found) == [f"The replaced file '{name}.ptx' is at fault, also without the others." for name in "ab"]


def test_a_replaced_file_that_cannot_be_left_out_is_not_blamed() -> None:
    def answer(trial: _Trial) -> str:
        return _if("dot-merger" in trial.rows) if trial.has(_PTX, "needed.ptx") else _OTHER

    found = _bisect(answer, f"hlo-run {_PTX}=needed.ptx")
    assert [sentence.partition(" is ")[0] for sentence in _sentences(found)] == ["The row 'dot-merger'"]
    assert any("cannot be said whether the replaced file 'needed.ptx' is at fault" in note for note in found.notes)


def test_a_claim_needs_both_of_its_commands() -> None:
    """What the search has seen does not happen again."""
    found = _bisect(lambda trial: _if("dot-merger" in trial.rows), printed=lambda trial: "")
    assert not found.findings
    assert found.flaky
    assert any(note.startswith("Not confirmed, so not claimed: The row 'dot-merger'") for note in found.notes)


def test_a_command_line_that_is_refused_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="the command line is refused"):
        _bisect(lambda trial: "read: usage error: NAME cannot be read")


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (_WRONG, True),
        ("compare: mismatch: NaN", True),
        ("", False),
        (_OTHER, None),
        ("run: time-out: the run took longer than its limit", None),
        ("hlo-run: exit code 2", None),
        ("run: crash: SIGSEGV", None),
    ],
)
def test_answers_that_are_neither_yes_nor_no_are_unknown(answer: str, verdict: bool | None) -> None:
    asker = Asker(TestPredicate.of("true {}"), "m.hlo", Limits(), Progress())
    asker.result.wanted = _WRONG
    assert asker.verdict(answer) is verdict


@pytest.mark.parametrize(
    ("code", "answer"), [(0, INTERESTING), (1, ""), *((code, f"the command: exit code {code}") for code in (125, 127, 139))]
)
def test_a_command_may_say_nothing(code: int, answer: str) -> None:
    assert TestPredicate.of(f"(exit {code}) # {{}}").ask("m.hlo") == answer


def test_a_flaky_failure_is_asked_about_more_often(tmp_path: Path) -> None:
    """Every second run of the row is wrong."""
    toggle = tmp_path / "toggle"

    def answer(trial: _Trial) -> str:
        if "dot-merger" not in trial.rows:
            return ""
        if toggle.exists():
            toggle.unlink(missing_ok=True)
            return _WRONG
        toggle.touch()
        return ""

    found = _bisect(answer)
    assert found.flaky
    assert any("so each question was asked 8 times" in note for note in found.notes)
    assert _sentences(found)[0].startswith("The row 'dot-merger' is the first with which it fails; the whole")


@pytest.mark.parametrize(
    ("flags", "extra", "result"),
    [
        (["--xla_fuel=cse=2"], ["--xla_fuel=dce=1"], ["--xla_fuel=cse=2,dce=1"]),
        (["--xla_fuel=cse=2"], ["--xla_fuel=cse=1"], ["--xla_fuel=cse=1"]),
        ([f"{_PTX}=a.ptx", "--seed=2"], [f"{_PTX}="], ["--seed=2"]),
        ([f"{_PTX}=a.ptx,b.ptx"], [f"{_PTX}=b.ptx"], [f"{_PTX}=b.ptx"]),
    ],
)
def test_flags_of_the_search_join_those_of_the_user(
    flags: list[str], extra: list[str], result: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    assert merged(flags, extra) == result


def test_flags_of_the_environment_are_in_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", f"{_PTX}=a.ptx --xla_gpu_autotune_level=2")
    run = RunPredicate.of("hlo-run --seed 3")
    assert run.command("m.hlo") == f"hlo-run --seed=3 {_PTX}=a.ptx --xla_gpu_autotune_level=2 m.hlo"
    assert run.command("m.hlo", (f"{_PTX}=",)).endswith(f" {_PTX}= m.hlo")
    assert TestPredicate.of("x {}").command("m.hlo").startswith("XLA_FLAGS=")
