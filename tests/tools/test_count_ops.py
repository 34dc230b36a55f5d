"""hlo-tool: its list of tools, its errors, and `count-ops`."""

from __future__ import annotations

import importlib
from pathlib import Path

import click
import pytest

from hlo_run.tool import TOOLS, run_tool

_MODULE = """HloModule m
ENTRY e { a = f32[4]{0} parameter(0) b = f32[4]{0} add(a, a) c = f32[4]{0} add(b, a) ROOT n = f32[4]{0} negate(c) }
"""


def test_every_tool_is_a_command_of_its_name() -> None:
    for name, (module, _) in TOOLS.items():
        command = importlib.import_module(module).command
        assert isinstance(command, click.Command)
        assert command.name == name


def test_the_help_lists_the_tools(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tool(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in TOOLS)


def test_count_ops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "m.hlo"
    file.write_text(_MODULE, encoding="utf-8")
    assert run_tool(["count-ops", str(file)]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [["2", "add"], ["1", "negate"], ["1", "parameter"]]


def test_wrong_names_and_files_are_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tool(["no-such-tool"]) == 2
    assert run_tool(["count-ops", "/no/such/file.hlo"]) == 2
    assert "no-such-tool" in capsys.readouterr().err


def test_ctrl_c_in_a_tool_gives_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(path: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hlo_run.tools.count_ops.read", interrupted)
    assert run_tool(["count-ops", "m.hlo"]) == 130
