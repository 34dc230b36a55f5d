"""The pages for users name flags, rows and files that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Pages that tell of former states may name flags that have gone.
_HISTORY = {"changelog.md"}
_COMMAND = re.compile(r"(?<![-/\w.])(hlo-run|hlo-opt) ([^`\n|]*)")
_FLAG = re.compile(r"(?<!\S)'?--?([a-zA-Z_][\w-]*)")
_LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")


@cache
def flags(program: str) -> frozenset[str]:
    """Return the names of the flags in the program's `--help`."""
    entry = "main" if program == "hlo-run" else "opt_main"
    code = f"import sys; sys.argv = ['{program}', '--help']; from hlo_run.cli import {entry}; {entry}()"
    text = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stdout
    return frozenset(re.findall(r"(?<!\S)--(\w+)", text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    missing: list[str] = []
    for file, heading in _LINK.findall(page.read_text()):
        if "://" in file or file.startswith("mailto:"):
            continue
        target = page.parent / file if file else page
        if not target.exists() or (heading and heading not in _headings(target)):
            missing.append(f"{file}#{heading}")
    assert not missing


@cache
def _headings(page: Path) -> frozenset[str]:
    """Return the names by which links reach the headings of a page: lower case, spaces as hyphens, no punctuation."""
    found = re.findall(r"^#+ +(.*)$", page.read_text(), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found)


def test_the_index_lists_each_document_once() -> None:
    listed = re.findall(r"\]\((\w+\.md|\w+/)\)", (ROOT / "docs" / "README.md").read_text(encoding="utf-8"))
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert sorted(listed) == sorted(pages | {"decisions/"})


# A path of the project; not a pattern (`*`) or a name to fill in (`NAME`).
_OUR_FILE = re.compile(r"(?<![\w./-])((?:benchmarks|docs|examples|hlo_run|scripts|tests)/[\w./-]*\w)(?!\.?[\w/*-])")
_TO_FILL_IN = re.compile(r"[A-Z]{4}")


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in _HISTORY], ids=lambda page: str(page.relative_to(ROOT))
)
def test_files_that_pages_name_exist(page: Path) -> None:
    named = set(_OUR_FILE.findall(page.read_text(encoding="utf-8")))
    # docs/tests.md names files of `tests/` without that folder.
    known = {name for name in named if any((folder / name).exists() for folder in (ROOT, ROOT / "tests"))}
    assert not [name for name in sorted(named - known) if not _TO_FILL_IN.search(name)]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in _HISTORY], ids=lambda page: str(page.relative_to(ROOT))
)
def test_commands_use_flags_that_exist(page: Path) -> None:
    unknown = [
        f"{program} {arguments.strip()}: {flag}"
        for program, arguments in _COMMAND.findall(page.read_text())
        for flag in _FLAG.findall(arguments.split("#")[0])
        if flag.replace("-", "_") not in flags(program) and len(flag) != 1
    ]
    assert not unknown


def test_commands_are_found() -> None:
    text = (ROOT / "docs" / "cookbook.md").read_text()
    found = _COMMAND.findall(text)
    assert len(found) > 30
    assert sum(len(_FLAG.findall(arguments)) for _, arguments in found) > 30


def test_the_changelog_has_unreleased_first_and_short_releases() -> None:
    """A merge that keeps both sides may bring back lines that a release has summarised."""
    _, *sections = (ROOT / "docs" / "changelog.md").read_text(encoding="utf-8").split("\n## ")
    assert [section.split("\n")[0] for section in sections] == ["Unreleased", "0.1.0"]
    assert all(len(section.splitlines()) <= 200 for section in sections[1:])


_SKIPS = re.compile(r"\bpytest\.(?:mark\.)?(?:skip|skipif|importorskip)\(|\bneeds_released_xla\(\)")


def test_files_that_skip_tests_are_listed() -> None:
    table = re.findall(r"^\| .* \| \d+ \| (.*) \|$", (ROOT / "docs" / "tests.md").read_text(encoding="utf-8"), re.MULTILINE)
    listed = {name for names in table for name in re.findall(r"`([^`]+)`", names)}
    tests = ROOT / "tests"
    files = {str(path.relative_to(tests)) for path in tests.rglob("test_*.py") if _SKIPS.search(path.read_text(encoding="utf-8"))}
    assert files == listed
