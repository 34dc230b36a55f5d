"""Colours at a terminal: when there are some, and of which lines."""

from __future__ import annotations

import io

import pytest

from hlo_run.cli import ColourConsole, PlainConsole, console_of_streams, run
from hlo_run.colours import difference_text, error_text, has_colours, verdict_text
from hlo_run.errors import UsageError

_RED, _GREEN, _CYAN, _END = "\x1b[31m", "\x1b[32m", "\x1b[36m", "\x1b[0m"


class _Stream(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.mark.parametrize(
    ("is_terminal", "environment", "expected"),
    [
        (True, {"TERM": "xterm"}, True),
        (False, {"TERM": "xterm"}, False),
        (True, {"TERM": "dumb"}, False),
        (True, {}, False),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (True, {"TERM": "xterm", "NO_COLOR": ""}, True),
        (False, {"FORCE_COLOR": "1"}, True),
        (False, {"CLICOLOR_FORCE": "1"}, True),
        (False, {"CLICOLOR_FORCE": "0"}, False),
        (False, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_when_there_are_colours(
    is_terminal: bool, environment: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TERM", "NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    stream = _Stream(is_terminal)
    assert has_colours(stream) == expected
    monkeypatch.setattr("sys.stdout", _Stream(False))
    monkeypatch.setattr("sys.stderr", stream)
    assert type(console_of_streams()) is (ColourConsole if expected else PlainConsole)
    assert run(["--no_such_flag"]) == 2
    assert ("\x1b[1;31musage error: " in stream.getvalue()) == expected


def test_a_closed_stream_has_no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.delenv("CLICOLOR_FORCE", raising=False)
    assert not has_colours(None)


def test_each_stream_has_its_own_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only stdout is a terminal: what goes to a file has no colours."""
    out, err = _Stream(True), _Stream(False)
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", err)
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)
    console = console_of_streams()
    console.verdict("agree", good=True)
    console.error(UsageError("no"))
    console.verdict("m: 0 of 2 stages differ", good=True, is_result=True)
    console.difference("-a\x1b[5m\n+b")
    assert err.getvalue() == "agree\nusage error: no\n"
    assert out.getvalue() == f"\x1b[1;32mm: 0 of 2 stages differ{_END}\n{_RED}-a\\x1b[5m{_END}\n{_GREEN}+b{_END}\n"


def test_the_lines_of_texts() -> None:
    assert error_text("error: a\nnote: b\n  c") == f"\x1b[1;31merror: a{_END}\n{_CYAN}note: {_END}b\n  c"
    assert verdict_text("\n** differ **", good=False) == f"\n\x1b[1;31m** differ **{_END}"
    lines = ["  @@ line 3 @@", "   -kept", "  -gone", "+come", "  changed [e] x", "same", "--- file", ""]
    coloured = difference_text("\n".join(lines)).split("\n")
    assert [line.startswith("\x1b[") for line in coloured] == [True, False, True, True, True, False, False, False]
