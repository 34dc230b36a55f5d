"""--jobs: the workers share the files, and what they print and report is that of one worker."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from processes import ABS, NEGATE, hlo_run, piped, reproducers, warm

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot copy processes")

DIES = """
import os, signal
from hlo_run.pipeline import llvm_ahead
compile_llvm = llvm_ahead.compile_llvm
def dying(text, *rest, **more):
    if "fneg" in text:
        os.kill(os.getpid(), signal.SIGSEGV)
    return compile_llvm(text, *rest, **more)
llvm_ahead.compile_llvm = dying
"""
# The module `neg` waits until the module `abs` has run.
WAITS = """
from hlo_run.commands import run
run_module = run.run
def waiting(task, module):
    open({pipe!r}, "rb" if module.name == "neg" else "wb").close()
    run_module(task, module)
run.run = waiting
"""
# The module `neg` waits for ever.
HANGS = """
import signal
from hlo_run.commands import run
run_module = run.run
def waiting(task, module):
    if module.name == "neg":
        signal.pause()
    run_module(task, module)
run.run = waiting
"""
_TIME = re.compile(r"ran in [\d.]+s")


def _write(folder: Path, *texts: str) -> list[str]:
    """Write texts as modules of a new folder, and return their paths."""
    folder.mkdir()
    paths = [folder / f"file{number}.hlo" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text, encoding="utf-8")
    return [str(path) for path in paths]


def test_output_and_reports_do_not_depend_on_the_number_of_jobs(tmp_path: Path) -> None:
    unsupported = (
        'HloModule u\nENTRY e {\n  p = f32[4] parameter(0)\n  ROOT r = f32[4] custom-call(p), custom_call_target="no"\n}\n'
    )
    files = _write(tmp_path / "modules", NEGATE, "HloModule bad x", ABS, unsupported, NEGATE, "")
    found: list[list[object]] = []
    for jobs in (1, 3):
        folder = tmp_path / str(jobs)
        folder.mkdir()
        reports = [folder / name for name in ("json", "junit", "jsonl")]
        flags = [f"--report_{path.name}={path}" for path in reports]
        done = hlo_run(tmp_path, "--platform=Host", f"--jobs={jobs}", *flags, *files)
        texts = [path.read_text(encoding="utf-8") for path in reports[:2]]
        *lines, last = reports[2].read_text(encoding="utf-8").splitlines()
        stderr = _TIME.sub("", done.stderr)
        found.append([done.returncode, done.stdout, stderr, *texts, sorted(lines), last])
    assert found[0] == found[1]
    assert found[0][0] == 3
    report = json.loads(str(found[0][3]))
    lines = [json.loads(line) for line in found[0][5]]  # pyright: ignore
    assert sorted(report.pop("files"), key=lambda file: file["file"]) == sorted(lines, key=lambda file: file["file"])
    assert json.loads(str(found[0][6])) == report


def test_a_file_that_is_finished_early_is_printed_in_its_place_and_recorded_at_once(tmp_path: Path) -> None:
    files = _write(tmp_path / "modules", NEGATE, ABS)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "waits.py").write_text(WAITS.format(pipe=str(tmp_path / "pipe")), encoding="utf-8")
    flags = ("--platform=Host", "--jobs=2", f"--custom_calls={tmp_path / 'waits.py'}")
    done = hlo_run(tmp_path, *flags, *files)
    assert done.returncode == 0
    assert re.findall(r"\*\* Running (.*) \*\*", done.stdout) == files


def test_files_that_crash_do_not_end_the_others(tmp_path: Path) -> None:
    files = _write(tmp_path / "modules", NEGATE, ABS, NEGATE)
    (tmp_path / "dies.py").write_text(DIES, encoding="utf-8")
    flags = ("--platform=Host", "--jobs=2", f"--custom_calls={tmp_path / 'dies.py'}", f"--report_json={tmp_path / 'json'}")
    done = hlo_run(tmp_path, *flags, *files)
    assert done.returncode == 70
    report = json.loads((tmp_path / "json").read_text(encoding="utf-8"))
    assert [file["outcome"] for file in report["files"]] == ["error", "passed", "error"]
    assert [bucket["files"] for bucket in report["buckets"]] == [[files[0], files[2]]]
    assert len(reproducers(tmp_path)) == 2
    assert "2 failures in 1 bucket:" in done.stderr


def test_bad_flags_are_said_once(tmp_path: Path) -> None:
    files = _write(tmp_path / "modules", NEGATE, ABS)
    done = hlo_run(tmp_path, "--jobs=2", "--stage=nothing", *files)
    assert done.returncode == 2
    assert done.stderr.count("no stage is called 'nothing'") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_the_reports_of_finished_files(number: signal.Signals, tmp_path: Path) -> None:
    files = _write(tmp_path / "modules", NEGATE, ABS, NEGATE, NEGATE)
    (tmp_path / "hangs.py").write_text(HANGS, encoding="utf-8")
    flags = ("--platform=Host", "--jobs=2", f"--custom_calls={tmp_path / 'hangs.py'}", f"--report_json={tmp_path / 'json'}")
    with piped(tmp_path, *flags, "--report_jsonl=-", *files) as (process, stdout):
        # Its line comes although the first file has not ended, so it does not wait for its place.
        assert json.loads(stdout.readline())["file"] == files[1]
        os.kill(process, number)
        output = stdout.read()
        assert warm().wait() == (130 if number == signal.SIGINT else -number)
    errors = (tmp_path / "stderr").read_text(encoding="utf-8")
    assert json.loads(output)["counts"]["passed"] == 1
    report = json.loads((tmp_path / "json").read_text(encoding="utf-8"))
    assert [file["file"] for file in report["files"]] == [files[1]]
    assert errors.count("interrupted\n") == 1
    assert "** 1 of 4 files: 1 fine **" in errors
    assert "Traceback" not in errors


def test_a_reader_that_leaves_ends_all(tmp_path: Path) -> None:
    files = _write(tmp_path / "modules", *[ABS] * 4)
    with piped(tmp_path, "--stage=ptx", "--jobs=2", *files) as (_, output):
        output.close()
        assert warm().wait() == 141


def test_a_reader_of_both_streams_that_leaves_is_no_bug(tmp_path: Path) -> None:
    (file,) = _write(tmp_path / "modules", ABS)
    with piped(tmp_path, "--v=1", "--stage=ptx", file, both=True) as (_, output):
        output.close()
        assert warm().wait() == 141
