"""Text protos of flags: every form of a field, and errors that name the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from hlo_run.cli import run
from hlo_run.errors import UsageError
from hlo_run.options.text_proto import text_proto_fields


def _fields(text: str) -> list[tuple[str, list[str]]]:
    return list(text_proto_fields(text, "the file"))


FIELDS: list[tuple[str, list[tuple[str, list[str]]]]] = [
    ("", []),
    ("# only a comment\n", []),
    ("a: 1 b: true, c: -1.5e3; d: FOO", [("a", ["1"]), ("b", ["true"]), ("c", ["-1.5e3"]), ("d", ["FOO"])]),
    ("a: \"x # y\" # z\nb: 'it\\'s'", [("a", ["x # y"]), ("b", ["it's"])]),
    ('a: "x"\n   "y"', [("a", ["xy"])]),
    ('a: ["x", "y"] b: []', [("a", ["x", "y"]), ("b", [])]),
    ('m { key: "a" n < b: 1 > } a: 2', [("m", []), ("a", ["2"])]),
    ("m: { a: 1 }", [("m", [])]),
]


@pytest.mark.parametrize(("text", "expected"), FIELDS)
def test_fields(text: str, expected: list[tuple[str, list[str]]]) -> None:
    assert _fields(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb 2", "line 2: expected ':' after b, found 2"),
        ("a:", "line 1: expected the value of a, found the end"),
        ("a: 1\n\n: 2", "line 3: expected the name of a flag, found :"),
        ("--a=1", "line 1: "),
        ('a: "x', 'line 1: unexpected "'),
        ("a: [1, 2", "line 1: expected ']', found the end"),
        ("m {\n a: 1", "expected the end of a message"),
        ("a: $", "line 1: unexpected $"),
    ],
)
def test_malformed_text(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        _fields(text)
    assert message in caught.value.message


def test_a_malformed_file_of_flags_is_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    file = tmp_path / "flags.txt"
    file.write_text("xla_dump_disable_metadata: true\nnonsense here\n")
    assert run([f"--debug_options_file={file}", "--list_passes"]) == 2
    assert f"{file}:2:10: usage error" in capsys.readouterr().err


def test_what_xla_flags_ignore_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_disable_metadata stray --xla_dump_to=x")
    assert run(["--list_passes"]) == 0
    assert "XLA_FLAGS: 'stray' is not a flag, so it and what follows are ignored" in capsys.readouterr().err
