"""The contents of the page of `--report_html`."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import pytest
from report_pages import MARKUP, MODULE, Page, references, write_page, write_page_of_a_mismatch

from hlo_run.cli import run

SORT = """HloModule s

less {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = pred[] compare(a, b), direction=LT
}

ENTRY e {
  p = f32[1000] parameter(0)
  ROOT sort.1 = f32[1000] sort(p), dimensions={0}, to_apply=less
}
"""
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a run that agrees."""
    return write_page(tmp_path_factory.mktemp("page")).read_text(encoding="utf-8")


def test_the_page_of_a_run_holds_every_part(text: str) -> None:
    page = Page(text)
    assert list(page.parts) == ["verdict", "passes", "graphs", "kernels", "memory", "profile"]
    verdict = page.parts["verdict"]
    assert "kernels agree alone" in verdict
    assert "worst abs alone" in verdict
    for words in (
        "agree",
        "hlo-run --platform=Host --profile=-",
        "hlo-run 0.1.0, Python 3.",
        "3880 elements agree",
        "sees all 3880",
    ):
        assert words in verdict, words
    assert "priority-fusion" in page.parts["passes"]
    assert "emit-kernels" in page.parts["passes"]
    assert references(text) == []


def test_a_pass_that_changed_something_has_its_lines(text: str) -> None:
    page = Page(text)
    number = next(v["data-diff"] for tag, v in page.tags if tag == "button" and "data-diff" in v)
    for _, _, gone, come, above in page.data[f"diff-{number}"]["changes"]:
        assert gone != come
        assert len(above) <= 2
    rows = [v for tag, v in page.tags if tag == "tr" and v.get("class") == "changed"]
    assert 3 < len(rows) < 60
    assert len(rows) == sum(v.get("class") == "changed" for tag, v in page.tags if tag == "span")


def test_the_graph_after_fusion_has_kernels_with_bytes_time_and_emitter(text: str) -> None:
    page = Page(text)
    before, after = page.data["graphs"]["before"][0]["nodes"], page.data["graphs"]["after"][0]["nodes"]
    assert {"tanh", "reduce", "transpose"} <= {node[1] for node in before}
    kernels = {node[0]: node for node in after if node[1] == "fusion"}
    assert {node[7] for node in kernels.values()} == {"reduction", "transpose"}
    transposed = next(node for node in kernels.values() if node[7] == "transpose")
    assert transposed[8] == 2 * 40 * 96 * 4
    for node in kernels.values():
        assert node[9] > 0, "a time"
        assert page.data[f"kernel-{node[10]}"]["name"] == node[0]
    for nodes in (before, after):
        for node in nodes:
            assert all(nodes[operand][5] < node[5] for operand in node[4]), "operands are in layers above"


def test_lines_of_the_texts_belong_together(text: str) -> None:
    page = Page(text)
    kernel = next(data for name, data in page.data.items() if name.startswith("kernel-") and "reduce" in data["name"])
    panes = {pane["title"]: pane for pane in kernel["panes"]}
    assert list(panes) == ["HLO", "Kernel IR", "LLVM IR, optimised", "PTX"]
    hlo = panes["HLO"]
    line = next(n for n, words in enumerate(hlo["lines"]) if " tanh(" in words)
    op = hlo["ops"][line]
    assert kernel["names"][op] == hlo["lines"][line].split(" =")[0].strip()
    for pane in panes.values():
        assert op in pane["ops"], pane["title"]
        assert len(pane["lines"]) == len(pane["ops"]) == len(pane["places"])
        assert not any("hlo.op" in words or "!dbg" in words or ".loc" in words for words in pane["lines"])
    shared = set(panes["LLVM IR, optimised"]["places"]) & set(panes["PTX"]["places"]) - {-1}
    assert len(shared) > 10
    for place in shared:
        kinds = [pane["ops"][pane["places"].index(place)] for pane in (panes["LLVM IR, optimised"], panes["PTX"])]
        assert kinds[0] == kinds[1] >= 0
    stored = [n for n, words in enumerate(panes["PTX"]["lines"]) if "st.global" in words]
    assert all(panes["PTX"]["ops"][n] >= 0 for n in stored)


def test_a_mismatch_has_a_heat_map(tmp_path: Path) -> None:
    page = Page(write_page_of_a_mismatch(tmp_path).read_text(encoding="utf-8"))
    assert "differ" in page.parts["verdict"]
    array = page.data["heat-0"][0]
    assert (array["index"], array["dims"]) == ([1], [96, 40])
    heat = array["maps"][0]
    assert (heat["height"], heat["width"], heat["row_size"], heat["column_size"]) == (96, 40, 2, 1)
    wrong = {(2 * r, c): count for r, row in enumerate(heat["counts"]) for c, count in enumerate(row) if count}
    assert wrong == {(r, c): 2 for r in range(8, 16, 2) for c in range(4, 8)}
    assert "{8,4}" in page.parts["differences"]


def test_memory_has_its_peak(text: str) -> None:
    page = Page(text)
    chart = page.data["memory"]
    assert f"Peak: {max(chart['live']):,} bytes" in page.parts["memory"]
    assert {chart["kinds"][box[2]] for box in chart["boxes"]} == {"parameter", "output", "temporary"}
    # Two parameters and a result of 40 x 96 f32, and one of 40; the product lives until it is transposed.
    assert max(chart["live"]) >= 4 * 40 * 96 * 4
    assert len(chart["live"]) == len(chart["schedule"]) + 1


def test_names_cannot_be_markup(tmp_path: Path) -> None:
    name = "<b>'\"&.hlo"
    text = write_page_of_a_mismatch(tmp_path, name).read_text(encoding="utf-8")
    page = Page(text)
    assert not any(tag == "b" for tag, _ in page.tags)
    assert name in page.parts["verdict"]
    module = MODULE.replace("tanh(p)", f'tanh(p), metadata={{op_name="{MARKUP}"}}').replace("HloModule m", "HloModule m.1")
    (tmp_path / "n.hlo").write_text(module.replace("ROOT o = (", "ROOT o = (u32[], ", 1), encoding="utf-8")
    assert run(["--platform=Host", f"--report_html={tmp_path / 'n.html'}", str(tmp_path / "n.hlo")]) == 3
    text = (tmp_path / "n.html").read_text(encoding="utf-8")
    assert sum(tag == "script" and "data-name" not in v for tag, v in Page(text).tags) == 1
    assert "alert(1)</script>" not in text


def test_the_policy_allows_only_the_script_of_the_page(text: str) -> None:
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    policy = next(v["content"] for tag, v in Page(text).tags if tag == "meta" and "http-equiv" in v)
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def test_several_files_are_sections_of_one_page(tmp_path: Path) -> None:
    (tmp_path / "bad.hlo").write_text("HloModule", encoding="utf-8")
    page = Page(write_page(tmp_path, str(tmp_path / "bad.hlo"), code=3).read_text(encoding="utf-8"))
    sections = [v for tag, v in page.tags if tag == "section"]
    assert [Path(v["data-file"]).name for v in sections] == ["bad.hlo", "m.hlo"]
    assert [v["data-outcome"] for v in sections] == ["error", "agree"]
    assert [v["href"] for tag, v in page.tags if tag == "a"] == ["#file-0", "#file-1"]


@pytest.mark.parametrize("flags", [["--platform=Interpreter"], ["--platform=Host", "--reference_platform="]])
def test_what_did_not_happen_is_absent(flags: list[str], tmp_path: Path) -> None:
    file, out = tmp_path / "m.hlo", tmp_path / "p.html"
    file.write_text(MODULE, encoding="utf-8")
    assert run([*flags, f"--report_html={out}", str(file)]) == 0
    page = Page(out.read_text(encoding="utf-8"))
    assert ("passes" in page.parts) == (flags[0] == "--platform=Host")
    assert "profile" not in page.parts
    assert ("not compared" in page.parts["verdict"]) == (len(flags) == 2)


def test_a_saved_executable_has_its_ptx(tmp_path: Path) -> None:
    file, saved, out = tmp_path / "m.hlo", tmp_path / "m.hlox", tmp_path / "p.html"
    file.write_text(MODULE, encoding="utf-8")
    assert run([f"--output={saved}", str(file)]) == 0
    assert run(["--platform=Host", f"--report_html={out}", str(saved)]) == 0
    page = Page(out.read_text(encoding="utf-8"))
    assert list(page.parts) == ["verdict", "kernels"]
    assert any(".entry" in line for line in page.data["kernel-0"]["panes"][3]["lines"])


@pytest.mark.parametrize("size", [33, 1000])
def test_a_sort_and_a_renamed_kernel_have_their_instruction(size: int, tmp_path: Path) -> None:
    """A kernel's name has no dots, so it may differ from its instruction's. A short sort is the hero of a fusion."""
    (tmp_path / "s.hlo").write_text(SORT.replace("1000", str(size)), encoding="utf-8")
    assert run(["--platform=Host", f"--report_html={tmp_path / 's.html'}", str(tmp_path / "s.hlo")]) == 0
    page = Page((tmp_path / "s.html").read_text(encoding="utf-8"))
    kernels = {data["name"]: data for name, data in page.data.items() if name.startswith("kernel-")}
    assert kernels
    for name, kernel in kernels.items():
        hlo, ptx = kernel["panes"][0], kernel["panes"][3]
        assert any("sort" in line for line in hlo["lines"]), name
        assert set(ptx["ops"]) & set(hlo["ops"]) - {-1}, "some lines come from the instruction"
    launching = [node for graph in page.data["graphs"]["after"] for node in graph["nodes"] if node[10] is not None]
    assert {node[1] for node in launching} <= {"fusion", "sort"}
    assert launching
