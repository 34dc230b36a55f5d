"""Exit code 1 means that results differ, and nothing else: output that cannot be written, and the user's Python code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import hlo_run
from hlo_run import cli, custom_calls
from hlo_run.cli import run
from hlo_run.commands import dispatch
from hlo_run.errors import Unsupported

MODULE = "HloModule m\nENTRY e { p = f32[4] parameter(0) ROOT n = f32[4] negate(p) }"
CALL = 'HloModule m\nENTRY e { p = f32[4] parameter(0) ROOT n = f32[4] custom-call(p), custom_call_target="leave" }'
COMMAND = [sys.executable, "-m", "hlo_run"]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    file = tmp_path / "m.hlo"
    file.write_text(MODULE)
    return file


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("flags", [["--list_passes"], ["--help"]])
def test_a_full_disk_is_a_usage_error(flags: list[str]) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run([*COMMAND, *flags], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "usage error: stdout cannot be written: No space left on device\n"


def test_a_closed_stdout_is_a_usage_error() -> None:
    done = subprocess.run(f"'{sys.executable}' -m hlo_run --help >&-", shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "usage error: stdout is closed, so results cannot be printed\n"


def test_a_reader_that_leaves_ends_the_command_quietly() -> None:
    process = subprocess.Popen([*COMMAND, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait() == 141
    assert err == b""
    process.stderr.close()


@pytest.mark.parametrize(
    "code", ["raise SystemExit(0)", "raise SystemExit(1)", "1 / 0", "class E(BaseException): pass\nraise E", "("]
)
def test_a_custom_call_file_that_raises_is_a_usage_error(code: str, module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = module.with_name("calls.py")
    file.write_text(code)
    assert run(["--platform=Interpreter", f"--custom_calls={file}", str(module)]) == 2
    assert f"--custom_calls={file}: " in capsys.readouterr().err


@pytest.mark.parametrize("platform", ["Interpreter", "Host"])
def test_a_custom_call_that_leaves_is_a_device_error(platform: str, module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def leave(x: object) -> None:
        raise SystemExit(0)

    custom_calls.custom_call("leave")(leave)
    module.write_text(CALL)
    try:
        assert run([f"--platform={platform}", str(module)]) == 5
    finally:
        custom_calls.unregister("leave")
    assert "custom call leave raised SystemExit" in capsys.readouterr().err


def test_a_bug_before_the_first_file_is_an_internal_error(
    module: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> int:
        raise KeyError("x")

    monkeypatch.setattr(dispatch, "run_files", broken)
    assert cli.run([str(module)]) == 70
    assert "internal error: KeyError: 'x'\nnote: at test_exit_codes.py" in capsys.readouterr().err


def test_a_dump_that_cannot_be_written_is_a_usage_error(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = module.with_name("file")
    folder.write_text("not a folder")
    assert run(["--platform=Host", f"--xla_dump_to={folder}", str(module)]) == 2
    assert "internal error" not in capsys.readouterr().err


def test_a_custom_partitioning_of_jax_says_what_to_lower() -> None:
    call = 'f32[4] custom-call(c), custom_call_target="CustomSPMDPartitioning"'
    text = f"HloModule m\nENTRY e {{ c = f32[4] constant({{1, 2, 3, 4}}) ROOT r = {call} }}"
    with pytest.raises(Unsupported) as error:
        hlo_run.run(hlo_run.parse(text), platform="Host")
    assert "lower the plain function" in error.value.hint
