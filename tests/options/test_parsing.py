"""Flags: spelling, precedence, XLA_FLAGS, flag files, and usage errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from hlo_run.cli import parse_arguments
from hlo_run.errors import UsageError
from hlo_run.options import Options
from hlo_run.options.parsing import read_flags
from hlo_run.options.programs import FIELDS


@pytest.fixture(autouse=True)
def no_flags_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)


def _options(*arguments: str) -> Options:
    return parse_arguments([*arguments, "x.hlo"])[0]


def test_defaults_are_those_of_the_fields() -> None:
    assert _options() == Options()


@pytest.mark.parametrize(
    ("flag", "name", "value"),
    [
        ("--print_literals", "print_literals", True),
        ("--print-literals", "print_literals", True),
        ("--print_literals=TRUE", "print_literals", True),
        ("--run_test_hlo_passes=false", "run_test_hlo_passes", False),
        ("--run_test_hlo_passes=0", "run_test_hlo_passes", False),
        ("--v=5", "v", 5),
        ("--host_check", "host_check", "all"),
        ("--host_check=race", "host_check", "race"),
        ("--abs_error_bound=1e-7", "abs_error_bound", 1e-7),
        ("--only=cse,inliner", "xla_enable_hlo_passes_only", "cse,inliner"),
        ("--disable=cse", "xla_disable_hlo_passes", "cse"),
        ("--reference_platform=", "reference_platform", ""),
        ("--reference_platform=''", "reference_platform", "''"),
    ],
)
def test_spellings(flag: str, name: str, value: object) -> None:
    assert getattr(_options(flag), name) == value


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--v", "not a valid integer"),
        ("--v=much", "not a valid integer"),
        ("--verify=sometimes", "is not one of"),
        ("--print_literals=perhaps", "not a valid boolean"),
        ("--nonsense", "unknown flag --nonsense"),
        ("--strict_flags --xla_gpu_fts=true", "unknown flag --xla_gpu_fts"),
    ],
)
def test_refusals(flag: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        _options(*flag.split())


def test_a_near_miss_gets_a_hint() -> None:
    with pytest.raises(UsageError) as raised:
        _options("--iteration=3")
    assert "--iterations" in raised.value.hint


def test_files_dashes_and_the_end_of_flags() -> None:
    _, files, _ = parse_arguments(["a.hlo", "-", "--", "--v=1"])
    assert files == ("a.hlo", "-", "--v=1")


def test_precedence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "flags.pbtxt"
    file.write_text('# comment\nseed: 11\niterations: 12\nxla_dump_to: "d"\n')
    monkeypatch.setenv("XLA_FLAGS", "--iterations=22 --v=2")
    options = _options(f"--debug_options_file={file}", "--v=3")
    assert (options.seed, options.iterations, options.v, options.xla_dump_to) == (11, 22, 3, "d")


def test_xla_flags_may_name_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "flags"
    file.write_text("--v=4\n--seed=9\n")
    monkeypatch.setenv("XLA_FLAGS", str(file))
    options = _options()
    assert (options.v, options.seed) == (4, 9)
    monkeypatch.setenv("XLA_FLAGS", str(tmp_path / "missing"))
    with pytest.raises(UsageError, match="cannot be read"):
        _options()


def test_unknown_xla_flags_warn_once() -> None:
    _, _, warnings = parse_arguments(["--xla_gpu_fts=true", "--xla_gpu_fts=false", "--xla_qq", "x.hlo"])
    assert warnings == ("unknown XLA flags are ignored: --xla_gpu_fts (did you mean --xla_gpu_ftz?), --xla_qq",)


def test_every_flag_has_help() -> None:
    assert all(info.metadata["help"].endswith((".", ")", "..")) for info in FIELDS.values())


@pytest.mark.parametrize("name", ["custom_calls", "trust_machine_code"])
def test_a_file_of_flags_cannot_let_files_run_code(name: str, tmp_path: Path) -> None:
    file = tmp_path / "flags.txt"
    file.write_text(f'{name}: "true"\n', encoding="utf-8")
    with pytest.raises(UsageError, match=f"sets {name}, which runs code"):
        _options(f"--debug_options_file={file}")


def test_a_value_may_be_the_next_word() -> None:
    raw = read_flags(["--stage", "ptx", "m.hlo", "--v", "2", "--reference_platform", "", "--print_literals", "n.hlo"], {})
    assert raw.given == {"stage": "ptx", "v": "2", "reference_platform": "", "print_literals": "true"}
    assert raw.files == ("m.hlo", "n.hlo")


@pytest.mark.parametrize("arguments", [["--stage"], ["--stage", "--v=2"]])
def test_a_flag_is_not_a_value(arguments: list[str]) -> None:
    with pytest.raises(UsageError, match="--stage needs a value"):
        read_flags(arguments, {})


def test_a_flag_file_may_not_set_a_value_with_a_nul_byte(tmp_path: Path) -> None:
    (tmp_path / "flags").write_text('--xla_dump_to="a\0b"')
    with pytest.raises(UsageError, match="NUL byte"):
        _options(f"--flagfile={tmp_path / 'flags'}")
