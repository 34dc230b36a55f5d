"""Control characters of the input reach no terminal and no report: messages show them as escapes."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from hlo_run.cli import ColourConsole, PlainConsole, run
from hlo_run.errors import ParseError, UsageError, Where, escaped

NASTY = "HloModule m\nENTRY e { p = f32[] parameter(0)\n ROOT r = f33[] \x1b[31mnegate\x1b]0;pwned\x07(p)\n}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\nc", "a\tb\nc"),
        ("\x1b[31m\x07\r\x7f", "\\x1b[31m\\x07\\x0d\\x7f"),
        ("\x9b31m\u202e\u2066\u2028", "\\x9b31m\\u202e\\u2066\\u2028"),
        ("bad\udcff\ud800", "bad\\xff\\ud800"),
        ("größe β 漢", "größe β 漢"),
    ],
)
def test_escapes(text: str, shown: str) -> None:
    assert escaped(text) == shown
    assert escaped(shown) == shown


def test_the_caret_is_below_its_character() -> None:
    lines = ParseError("bad", Where("f\x1b", 1, 4, "\t\x1bab")).render().split("\n")
    assert lines == ["f\\x1b:1:4: error: bad", "  \t\\x1bab", "  \t     ^"]


def test_a_module_cannot_write_to_the_terminal(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["\x1b[2Jx.hlo", "bytes\udcff.hlo"]
    for name in names:
        Path(name).write_text(NASTY, encoding="utf-8")
    assert run(["--report_junit=r.xml", "--report_json=r.json", *names]) == 3
    printed = b"".join(capsysbinary.readouterr())
    assert not set(printed) & (set(range(32)) - set(b"\n\t")) | {0x7F}.intersection(printed)
    assert b"\\x1b[2Jx.hlo" in printed
    assert b"bytes\\xff.hlo" in printed
    assert b"\\x1b[31mnegate\\x1b]0;pwned\\x07(p)" in printed
    cases = [case.get("name") for case in ET.parse("r.xml").getroot().iter("testcase")]
    assert cases == ["\\x1b[2Jx.hlo", "bytes\\xff.hlo"]
    assert b"\x1b" not in Path("r.json").read_bytes()


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_our_colours_only(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = _Terminal(), _Terminal()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", err)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    console = ColourConsole()
    console.error(UsageError("a\x1b[5m", hint="[red]\x1b[5m"))
    console.err("\x1b[5m")
    console.artefact("\x1b[5m")
    assert "\x1b[1;31m" in err.getvalue(), "the first line of an error is bold and red"
    assert "\x1b[5m" not in err.getvalue() + out.getvalue()
    assert "[red]\\x1b[5m" in err.getvalue()


def test_a_file_gets_an_artefact_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    PlainConsole().artefact("// \r\x1b[5m")
    assert capsys.readouterr().out == "// \r\x1b[5m\n"


def test_stdout_of_another_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr("sys.stdout", stdout)
    PlainConsole().out("β")
    assert stdout.buffer.getvalue() == b"\\u03b2\n"
