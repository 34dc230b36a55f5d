"""Inputs at the edge of what a run takes end with a message, never with an internal error."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from hlo_run.cli import run

_TEXT = "HloModule m\nENTRY e {\n  x = f32[4] parameter(0)\n  ROOT r = f32[4] negate(x)\n}\n"


@pytest.mark.parametrize(
    ("flag", "code", "message"),
    [
        ("--num_partitions=-2", 2, "--num_partitions must be >= -1, got -2"),
        ("--num_replicas=-3", 2, "--num_replicas must be >= -1, got -3"),
        ("--num_replicas=1000000", 4, "a run has 1 to 4096 devices"),
    ],
)
def test_numbers_of_devices(flag: str, code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "m.hlo"
    file.write_text(_TEXT)
    assert run(["--cache=off", flag, str(file)]) == code
    assert message in capsys.readouterr().err


_GATHER = """HloModule m
ENTRY e {
  x = f32[4] parameter(0)
  ROOT r = f32[8] all-gather(x), dimensions={0}, replica_groups={{0,1}}, channel_id=1, use_global_device_ids=true
}
"""


@pytest.mark.parametrize("name", ["replica_count", "num_partitions"])
@pytest.mark.parametrize(
    ("text", "count", "code", "message"),
    [
        (_GATHER, "-2", 3, "at least one replica and one partition, found "),
        (_GATHER, "0", 3, "at least one replica and one partition, found "),
        (_GATHER, "5000", 3, "=5000"),
        (_TEXT, "1000000", 4, "1 to 4096 devices"),
    ],
)
def test_numbers_of_devices_in_the_header(
    name: str, text: str, count: str, code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "m.hlo"
    file.write_text(text.replace("HloModule m", f"HloModule m, {name}={count}"))
    assert run(["--cache=off", str(file)]) == code
    assert message in capsys.readouterr().err


def test_a_closed_stdin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert run(["-"]) == 2
    assert "stdin is closed" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["m.pb", "m.pbtxt"])
def test_protobuf_is_missing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / name
    file.write_bytes(b"hlo_module {}")

    def without_google(package: str) -> object:
        return None if package.startswith("google") else find_spec(package)

    monkeypatch.setattr("importlib.util.find_spec", without_google)
    assert run([str(file)]) == 2
    assert "which is not installed" in capsys.readouterr().err


@pytest.mark.parametrize("operands", ["", "x", "x, x"])
def test_an_annotation_keeps_the_shape(operands: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "m.hlo"
    call = f'custom-call({operands}), custom_call_target="Sharding"'
    file.write_text(f"HloModule m\nENTRY e {{\n  x = f32[4] parameter(0)\n  ROOT r = f32[8] {call}\n}}\n")
    assert run(["--cache=off", str(file)]) == 4
    assert (
        "m.hlo:4:8: unsupported: 'r': the custom call Sharding needs one operand, and a result like it" in capsys.readouterr().err
    )
