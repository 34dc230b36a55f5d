"""Files of several modules: which lines separate them, how a part is named, and that each runs as a file does."""

from __future__ import annotations

from pathlib import Path

import pytest

import hlo_run
from hlo_run.cli import run, run_opt
from hlo_run.errors import ParseError, UsageError
from hlo_run.formats.read import read_module
from hlo_run.options.module_parts import module_of, split_name, with_parts
from hlo_run.tool import run_tool

_ONE = "HloModule one\nENTRY e { p = f32[4] parameter(0)\n  ROOT n = f32[4] negate(p) }\n"
_TWO = "HloModule two\nENTRY e { p = f32[4] parameter(0)\n  ROOT n = f32[5] negate(p) }\n"
_BARE = "ENTRY e { ROOT c = f32[] constant(3) }\n"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (f"{_ONE}// -----\n{_TWO}", 2),
        (f"{_ONE}---\n{_TWO}", 2),
        (f"// of two modules\n// -----\n{_ONE}// -----\n\n{_TWO}---\n{_BARE}// -----\n", 3),
        (f"{_ONE}// -----\n// -----\n", 1),
        (_ONE.replace("ENTRY", "// -----\nENTRY"), 1),
        (f"HloModule m\n// -----\nf {{ ROOT c = f32[] constant(1) }}\n// -----\n{_BARE}", 1),
        (_ONE, 1),
    ],
)
def test_lines_between_modules(text: str, count: int, tmp_path: Path) -> None:
    file = tmp_path / "m.hlo"
    file.write_text(text)
    names = [f"{file}#{number}" for number in range(1, count + 1)] if count > 1 else [str(file)]
    assert with_parts([str(file)], "") == tuple(names)
    for name in names:
        assert read_module(name).text.count("ENTRY") == 1


def test_a_part_is_a_file_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, dumps = tmp_path / "m.hlo", tmp_path / "dumps"
    file.write_text(f"{_ONE}// -----\n{_TWO}// -----\n{_ONE.replace('one', 'three')}")
    flags = ["--platform=Interpreter", "--reference_platform=", f"--xla_dump_to={dumps}"]
    assert run([*flags, str(file)]) == 3
    captured = capsys.readouterr()
    for number in (1, 2, 3):
        assert f"** Running {file}#{number} **" in captured.out
    assert f"{file}:7:8: error" in captured.err
    assert run(["--stage=hlo-input", f"{file}#3"]) == 0
    assert "HloModule three" in capsys.readouterr().out
    assert run(["--stage=hlo-input", f"{file}#4"]) == 2
    assert "holds 3 modules, and no module 4" in capsys.readouterr().err


def test_dumps_are_numbered_by_module(tmp_path: Path) -> None:
    file = tmp_path / "m.hlo"
    file.write_text(f"{_ONE}---\n{_BARE}")
    assert run(["--compile_only", f"--xla_dump_to={tmp_path / 'dumps'}", str(file)]) == 0
    assert {path.name[:12] for path in (tmp_path / "dumps").iterdir()} >= {"module_0000.", "module_0001."}


def test_tools_take_one_module(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "m.hlo"
    file.write_text(f"{_ONE}// -----\n{_TWO}")
    assert run_tool(["convert", str(file)]) == 2
    assert f"hint: name one: {file}#1 to {file}#2" in capsys.readouterr().err
    assert run_tool(["convert", f"{file}#1"]) == 0
    assert "HloModule one" in capsys.readouterr().out
    assert run_opt(["--passes=dce", f"{file}#1"]) == 0
    assert "HloModule one" in capsys.readouterr().out
    assert hlo_run.load(f"{file}#1").name == "one"
    with pytest.raises(ParseError, match="shape equal"):
        hlo_run.load(f"{file}#2")
    with pytest.raises(UsageError, match="holds 2 modules"):
        hlo_run.load(str(file))


def test_a_file_may_have_the_name_of_a_part(tmp_path: Path) -> None:
    (tmp_path / "m.hlo").write_text(_ONE)
    (tmp_path / "m.hlo#1").write_text(_TWO)
    assert split_name(str(tmp_path / "m.hlo#1")) == (str(tmp_path / "m.hlo#1"), 0)
    assert split_name(str(tmp_path / "m.hlo#2")) == (str(tmp_path / "m.hlo"), 2)
    assert split_name("no.hlo#2") == ("no.hlo#2", 0)


def test_stdin_holds_one_module() -> None:
    with pytest.raises(UsageError, match="stdin holds 2 modules"):
        module_of(f"{_ONE}---\n{_TWO}", "-", 0)
