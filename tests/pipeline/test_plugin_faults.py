"""A pass of another package that is wrong: the error is the pass's, names its line, and commands keep the pass."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest

from hlo_run.cli import run, run_opt
from hlo_run.containment.crash import Crash, crash_error
from hlo_run.errors import PluginError
from hlo_run.pipeline import plugin_passes

_TEXT = """HloModule m
ENTRY e {
  a = f32[4,8]{1,0} parameter(0)
  b = f32[4,8]{1,0} parameter(1)
  x = f32[4,8]{1,0} exponential(a)
  s = f32[4,8]{1,0} subtract(x, b)
  ROOT r = f32[4,8]{1,0} multiply(s, a)
}
"""
_CODE = """
import hlo_run

class raises:
    name = "raises"
    def apply(self, ctx, module):
        {}["no"]

class exits:
    name = "exits"
    def apply(self, ctx, module):
        raise SystemExit(0)

class breaks:
    name = "breaks"
    def apply(self, ctx, module):
        module.entry.root.shape = hlo_run.Shape.array("f32", (5,))

class parses:
    name = "parses"
    def apply(self, ctx, module):
        hlo_run.parse("HloModule")

class swaps:
    name = "swaps"
    def apply(self, ctx, module):
        for found in module.instructions_of("subtract"):
            found.operands = found.operands[::-1]
"""
_NAMES = ("raises", "exits", "breaks", "parses", "swaps", "missing")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    package = ModuleType("their_passes")
    exec(compile(_CODE, "their_passes.py", "exec"), package.__dict__)
    monkeypatch.setitem(sys.modules, "their_passes", package)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    points = [EntryPoint(name, f"their_passes:{name}", plugin_passes.GROUP) for name in _NAMES]
    monkeypatch.setattr(plugin_passes, "_points", lambda: points)
    plugin_passes.plugin_rows.cache_clear()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.hlo").write_text(_TEXT)
    yield "m.hlo"
    plugin_passes.plugin_rows.cache_clear()


@pytest.mark.parametrize(
    ("name", "message", "place"),
    [
        ("raises", "raised KeyError: 'no'", "note: at their_passes.py:7, raises.apply"),
        ("exits", "raised SystemExit: 0", "note: at their_passes.py:12, exits.apply"),
        ("parses", "raised ParseError: ", "note: at their_passes.py:22, parses.apply"),
        ("breaks", "made an invalid module: 'r' (multiply): ", "m.hlo:7:"),
        ("missing", "raised AttributeError: ", "note: at "),
    ],
)
def test_what_a_plugin_raises_is_its_error(
    name: str, message: str, place: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([f"--insert_passes={name}:after:cse", "--stage=hlo", file]) == PluginError.exit_code == 2
    err = capsys.readouterr().err
    assert f"plugin error: the pass '{name}' (their_passes:{name}) {message}" in err
    assert place in err
    assert "next:" not in err


def test_hlo_opt_blames_the_plugin_too(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_opt(["--passes=raises", file]) == 2
    assert "plugin error: the pass 'raises' (their_passes:raises) raised KeyError" in capsys.readouterr().err


def test_a_plugin_that_dies_is_at_fault() -> None:
    error = crash_error(Crash(-11, "the pass 'dies'"))
    assert isinstance(error, PluginError)
    assert error.message == "the process died with SIGSEGV in the pass 'dies'"


def test_check_each_pass_gives_a_command_that_keeps_the_pass(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--platform=Host", "--insert_passes=swaps:after:cse", "--xla_disable_hlo_passes=dce"]
    assert run([*flags, "--check_each_pass", file]) == 1
    err = capsys.readouterr().err
    assert "row 'swaps' of pipeline 'simplification' changed the meaning of m" in err
    found = re.search(r"reproduce: hlo-run (.*)", err)
    assert found is not None, err
    words = shlex.split(found[1])
    assert words == [*words[:1], "--inputs=m.swaps.before.npz", *words[2:4], "m.swaps.before.hlo"]
    assert {*flags} == {*words[:1], *words[2:4]}
    assert run(words) == 1
    assert "--insert_passes=swaps:after:cse" in err.partition("next: hlo-tool bisect")[2]
