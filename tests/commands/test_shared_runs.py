"""A run that two processes share, and what the flags for it refuse."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from processes import environment

from hlo_run.cli import run
from hlo_run.execution.sharing import options_of_process
from hlo_run.options import Options
from hlo_run.processes.launcher import Launch

# Without kernels, so that the processes compile little.
MODULE = """HloModule m, replica_count=4
ENTRY e {
  p = f32[6,3] parameter(0)
  ROOT g = f32[24,3] all-gather(p), dimensions={0}, replica_groups={}
}
"""
FEED = """HloModule feeds, replica_count=2
ENTRY e {
  k = token[] after-all()
  i = (f32[2], token[]) infeed(k)
  ROOT x = f32[2] get-tuple-element(i), index=0
}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    path = tmp_path / "m.hlo"
    path.write_text(MODULE, encoding="utf-8")
    return path


def test_two_processes_share_a_run(file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Process 0 compares and writes; both have the same exit code. Process 1 is that of the test, which has imported all."""
    monkeypatch.chdir(file.parent)
    common = (
        "--one_process",
        "--platform=Host",
        "--num_nodes=2",
        "--num_repeats=2",
        "--compile_processes=1",
        "--save_outputs=out.npz",
        "--report_json=report.json",
        "--print_literals",
    )
    command = [sys.executable, "-m", "hlo_run", "--task_id=0", "--address=127.0.0.1:0", *common, "m.hlo"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment(file.parent), stdout=pipe, stderr=pipe, text=True) as first:
        assert first.stderr is not None
        lines: list[str] = []
        while "listens at" not in (line := first.stderr.readline()):
            lines.append(line)
            assert line, "".join(lines)
        code = run(["--task_id=1", f"--address={line.split()[-1]}", *common, "m.hlo"])
        text, messages = first.communicate()
    other_text, other_messages = capsys.readouterr()
    assert (first.returncode, code) == (0, 0), messages + other_messages
    assert "process 0 of 2: devices 0 to 1" in "".join(lines)
    assert "process 1 of 2: devices 2 to 3" in other_messages
    assert "2 processes, 4 replicas x 1 partitions" in messages
    assert "0/1 runs failed" in messages
    assert "0/1 runs failed" not in other_messages
    assert "Result with test runner Host" in text
    assert "Result" not in other_text
    with np.load(file.parent / "out.npz") as found:
        assert [found[name].shape for name in sorted(found.files)] == [(24, 3)] * 4


def test_processes_after_the_first_write_nothing() -> None:
    given = replace(
        Options(), xla_dump_to="d", xla_dump_hlo_as_text=True, xla_dump_hlo_snapshots=True, report_json="r", save_outputs="o"
    )
    assert options_of_process(given, Launch(2, 0)) == given
    others = options_of_process(given, Launch(2, 1))
    assert (others.dumps_to, others.dumps_snapshots, others.report_json, others.save_outputs) == ("", False, "", "")
    assert not others.print_locations
    paged = options_of_process(replace(Options(), report_html="page.html"), Launch(2, 1))
    assert (paged.report_html, paged.print_locations) == ("", True), "the kernels of a run for a page have locations"


def test_what_processes_cannot_share(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two = ["--num_nodes=2", "--task_id=0", "--address=127.0.0.1:0"]
    feeds = file.with_name("feeds.hlo")
    feeds.write_text(FEED, encoding="utf-8")
    for flags, code, message in (
        (["--num_nodes=2", str(file)], 2, "--num_nodes=2 needs --task_id"),
        (["--platform=Interpreter", *two, str(file)], 2, "Interpreter runs in one process, but there are 2"),
        (["--platform=Host", "--num_nodes=3", *two[1:], str(file)], 2, "cannot be divided evenly between 3 processes"),
        (["--platform=Host", *two, str(feeds)], 4, "infeeds and outfeeds"),
        (["--platform=Host", "--jobs=2", *two, str(file)], 2, "--jobs=2: 2 processes share each file"),
        (["--check_each_pass", *two, str(file)], 2, "--check_each_pass runs in one process"),
        (["--stage=hlo", *two, str(file)], 2, "--num_nodes has no effect with --stage"),
    ):
        assert run(flags) == code, flags
        assert message in capsys.readouterr().err
