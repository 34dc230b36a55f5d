"""The page of `--report_html` in a real browser: it draws every part, reacts to the reader, and loads nothing."""

from __future__ import annotations

from collections.abc import Generator

import pytest
import webdriver
from report_pages import write_page_of_a_mismatch

_DRAWN = """const parts = [...document.querySelectorAll(".part")].filter(p => p.dataset.part !== "verdict");
            for (const part of parts) if (!part.dataset.drawn) { part.scrollIntoView(); return false; }
            return parts.length > 0;"""

pytestmark = pytest.mark.skipif(bool(webdriver.missing()), reason=webdriver.missing())


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Generator[webdriver.Browser]:
    page = write_page_of_a_mismatch(tmp_path_factory.mktemp("page"))
    with webdriver.browser(tmp_path_factory.mktemp("browser")) as browser:
        browser.resize(1400, 900)
        browser.open(page)
        browser.wait(_DRAWN, "the parts")
        yield browser


def test_every_part_is_drawn_without_errors_or_requests(window: webdriver.Browser) -> None:
    assert window.script("return [...document.querySelectorAll('.problem')].map(p => p.textContent)") == []
    assert window.script("return performance.getEntriesByType('resource').map(r => r.name)") == []
    assert window.logs() == []
    parts = window.script("return [...document.querySelectorAll('.part')].map(p => p.dataset.part)")
    assert parts == ["verdict", "differences", "passes", "graphs", "kernels", "memory", "profile"]


def test_a_pass_shows_its_diff(window: webdriver.Browser) -> None:
    window.script("[...document.querySelectorAll('[data-diff]')].find(b => b.textContent === 'priority-fusion').click()")
    window.wait("return document.querySelector('.diff .come') !== null", "the diff")
    gone, come = (
        window.script(f"return [...document.querySelectorAll('.diff .{css}')].map(c => c.textContent)")
        for css in ("gone", "come")
    )
    assert any("tanh(p)" in line for line in gone)
    assert any("fusion(" in line for line in come)


def test_the_graph_moves_and_zooms(window: webdriver.Browser) -> None:
    window.script("document.querySelector('[data-side=after] svg').scrollIntoView({block: 'center'})")
    where = "const b = document.querySelector('[data-side=after] svg').getBoundingClientRect();"
    x, y = window.script(where + "return [Math.round(b.x + b.width / 2), Math.round(b.y + b.height - 40)]")
    transform = "return document.querySelector('[data-side=after] svg > g').getAttribute('transform')"
    first = window.script(transform)
    window.drag((x, y), (x + 30, y - 50))
    window.wait(f"{transform} !== '{first}'", "the move")
    second = window.script(transform)
    window.wheel(x, y, -200)
    window.wait(f"{transform} !== '{second}'", "the zoom")
    assert first.split("scale")[1] == second.split("scale")[1] != window.script(transform).split("scale")[1]


def test_a_box_opens_its_kernel(window: webdriver.Browser) -> None:
    window.script("document.querySelector('[data-side=after] svg').scrollIntoView({block: 'center'})")
    box = "[...document.querySelectorAll('[data-side=after] .node')].find(n => n.textContent.includes('transpose kernel'))"
    x, y = window.script(f"const b = {box}.getBoundingClientRect(); return [b.x + 20, b.y + 10].map(Math.round)")
    window.drag((x, y), (x, y))
    window.wait("return document.querySelector('.texts h3').textContent.includes('transpose')", "the kernel")
    about = window.script("return document.querySelector('[data-side=after] .about').textContent")
    assert "emitter transpose; 30,720 bytes" in about
    assert " ms" in about


def test_lines_from_one_instruction_light_up_together(window: webdriver.Browser) -> None:
    window.script("[...document.querySelectorAll('[data-kernel]')].find(b => b.textContent.includes('reduce')).click()")
    window.wait("return document.querySelector('.texts h3').textContent.includes('reduce')", "the kernel")
    window.script(
        "[...document.querySelectorAll('.pane')][0].querySelectorAll('[data-op]').forEach("
        "l => { if (l.textContent.includes(' tanh(')) l.click(); })"
    )
    lit = "return [...document.querySelectorAll('.pane')].map(p => p.querySelectorAll('.op, .place').length)"
    counts = window.script(lit)
    assert counts[0] == 1
    assert all(counts[1:]), counts
    window.script("[...document.querySelectorAll('.pane')][3].querySelector('.op').click()")
    dark = window.script("return [...document.querySelectorAll('.pane')].map(p => p.querySelectorAll('.place').length)")
    assert dark[2] >= 1, "a line of LLVM IR has the same op as a line of PTX"
    assert dark[3] >= 1


def test_the_heat_map_shows_where(window: webdriver.Browser) -> None:
    words = window.script("return [...document.querySelectorAll('[data-part=differences] svg title')].map(t => t.textContent)")
    assert len(words) == 16
    assert words[0] == "dimension 0: 8..9, dimension 1: 4\n2 of 2 elements differ"
