"""`hlo-tool diff`: modules, files and dump directories; text, JSON and HTML."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hlo_run.diff.dumps import pair_names
from hlo_run.tool import run_tool

MODULE = """HloModule m

ENTRY e {
  a = f32[4]{0} parameter(0)
  b = f32[4]{0} add(a, a)
  ROOT n = f32[4]{0} negate(b)
}
"""


def _files(folder: Path, one: str, two: str, ending: str = "hlo") -> list[str]:
    paths = [folder / f"one.{ending}", folder / f"two.{ending}"]
    for path, text in zip(paths, (one, two), strict=True):
        path.write_text(text, encoding="utf-8")
    return [str(path) for path in paths]


def test_renamed_modules_are_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = _files(tmp_path, MODULE, MODULE.replace("b = ", "c = ").replace("(b)", "(c)"))
    assert run_tool(["diff", *files]) == 0
    assert "1 of 3 matched instructions have other names" in capsys.readouterr().out


def test_a_difference_as_text_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = _files(tmp_path, MODULE, MODULE.replace("negate(b)", "sine(b)"))
    assert run_tool(["diff", *files]) == 1
    assert "opcode: negate -> sine" in capsys.readouterr().out
    assert run_tool(["diff", "--format=json", *files]) == 1
    record = json.loads(capsys.readouterr().out)
    assert record["differs"]
    assert record["files"][0]["module"]["changes"][0]["details"] == [{"what": "opcode", "before": "negate", "after": "sine"}]


class _Page(HTMLParser):
    """Collects the classes of cells and everything that names another file; checks that tags are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.others: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.others += [
            value or "" for name, value in attrs if name == "src" or (name == "href" and not (value or "").startswith("#"))
        ]
        if tag == "td":
            self.cells.append(dict(attrs).get("class") or "")
        if tag not in ("meta", "br"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


def test_the_page_is_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = _files(tmp_path, MODULE, MODULE.replace("negate(b)", 'sine(b), frontend_attributes={a="<script>"}'))
    assert run_tool(["diff", "--format=html", *files]) == 1
    text = capsys.readouterr().out
    page = _Page(text)
    assert page.others == []
    assert {"old", "new"} <= set(page.cells)
    assert "&lt;script&gt;" in text
    assert text.count("<script>") == 1


def test_other_texts_are_compared_by_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"  add.s32 %r{n}, %r{n}, 1;" for n in range(40)]
    one = "\n".join(lines)
    lines[20] = "  sub.s32 %r20, %r20, 1;"
    assert run_tool(["diff", *_files(tmp_path, one, "\n".join(lines), "ptx")]) == 1
    out = capsys.readouterr().out
    assert "@@ line 18 @@" in out
    assert "-  add.s32 %r20" in out
    assert "+  sub.s32 %r20" in out
    assert "%r30" not in out


def test_dump_directories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    scheduled = MODULE.replace("HloModule m", "HloModule m, is_scheduled=true")
    for folder, gpu, text in ((one, "sm_9.0", scheduled), (two, "sm_8.0", scheduled.replace("f32[4]", "f32[8]"))):
        folder.mkdir()
        (folder / f"module_0001.m.{gpu}_gpu_after_optimizations.txt").write_text(text, encoding="utf-8")
        (folder / "module_0001.m.before_optimizations.txt").write_text(MODULE, encoding="utf-8")
    assert run_tool(["diff", str(one), str(two)]) == 1
    out = capsys.readouterr().out
    assert "3 changed" in out
    assert [line.split()[:4] for line in out.splitlines() if "bytes-written" in line] == [["bytes-written", "32", "64", "+32"]]
    assert "1 of 2 differ" in out
    (two / "extra.ptx").write_bytes(b"\0\1")
    assert run_tool(["diff", str(one), str(two)]) == 1
    assert "extra.ptx: only after" in capsys.readouterr().out
    assert run_tool(["diff", str(one), str(one)]) == 0


def test_names_of_dumps_are_paired() -> None:
    ones = [
        "module_0000.f.before_optimizations.txt",
        "module_0000.f.sm_9.0a_gpu_after_optimizations.txt",
        "module_0000.f.0003.fusion.after_cse.before_dce.txt",
        "module_0000.f.thunk_sequence.txt",
        "module_0000.f.k.ptx",
    ]
    twos = [
        "module_0005.jit_f.before_optimizations.txt",
        "module_0005.jit_f.sm_8.0_gpu_after_optimizations.txt",
        "module_0005.jit_f.0007.fusion.after_cse.before_dce.txt",
        "module_0005.jit_f.thunk_sequence.txt",
        "module_0005.jit_f.other.ptx",
    ]
    pairs = pair_names(ones, twos)
    assert pairs[:4] == list(zip(ones[:4], twos[:4], strict=True))
    assert pairs[4:] == [(ones[4], None), (None, twos[4])]


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = _files(tmp_path, MODULE, "HloModule m\nENTRY e { nonsense }")
    assert run_tool(["diff", file[0], str(tmp_path / "none.hlo")]) == 2
    assert run_tool(["diff", file[0], str(tmp_path)]) == 2
    assert run_tool(["diff", *file]) == 2
    assert run_tool(["diff", file[0]]) == 2
    assert run_tool(["diff", "--tolerance=x=1", *file]) == 2
    said = capsys.readouterr().err
    assert "does not exist" in said
    assert "not a module" in said
