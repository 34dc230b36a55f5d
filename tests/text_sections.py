"""Text tests: one file of sections, each with its own input, flags and expectations in comments.

    // RUN: --only=cse          flags of the section
    func.func @f() { .. }       the input: the whole section, comments included
    // CHECK: return            what the output must contain (package filecheck)
    // ERROR: some text         instead of CHECK: the run must fail with this text in its error
    // GOLDEN                   the rest of the section is the whole output, each line behind `// `
    // -----                    the next section begins

`pytest --update-golden` rewrites golden blocks and nothing else.
"""

from __future__ import annotations

import difflib
import io
import re
from dataclasses import dataclass
from pathlib import Path

from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options
from filecheck.parser import Parser, pattern_for_opts

from hlo_run.errors import HloRunError

SEPARATOR = "// -----"
GOLDEN = "// GOLDEN"


@dataclass(frozen=True)
class Section:
    """One section of a text test; `line` is the number of its first line in the file, from 1; `text` lacks the golden block."""

    path: Path
    line: int
    text: str
    golden: str | None

    @property
    def flags(self) -> tuple[str, ...]:
        """The words behind all `// RUN:` of the section."""
        return tuple(" ".join(re.findall(r"^\s*// RUN:(.*)$", self.text, re.MULTILINE)).split())

    @property
    def error(self) -> str | None:
        """The text behind `// ERROR:`, None if the section must run."""
        found = re.search(r"// ERROR:(.*)$", self.text, re.MULTILINE)
        return found[1].strip() if found else None

    @property
    def has_checks(self) -> bool:
        return re.search(r"// CHECK[-A-Z0-9]*:", self.text) is not None


class SectionFailure(AssertionError):
    """The output of a section is not what it says."""


def read_sections(path: Path) -> list[Section]:
    """Return the sections of a file in order; empty ones are left out."""
    sections: list[Section] = []
    line = 1
    for part in re.split(rf"^{SEPARATOR}\s*$\n?", path.read_text(encoding="utf-8"), flags=re.MULTILINE):
        text, marker, golden = part.partition(f"{GOLDEN}\n")
        if text.strip():
            block = "".join(f"{row.removeprefix('//').removeprefix(' ')}\n" for row in golden.splitlines())
            sections.append(Section(path, line, text, block if marker else None))
        line += part.count("\n") + 1
    return sections


def check_output(section: Section, output: str) -> None:
    """Raise SectionFailure if the output does not match the section's checks and golden block, or if it has neither."""
    if section.error is not None:
        raise SectionFailure(f"expected an error with {section.error!r}, but the section ran:\n{output}")
    if section.golden is None and not section.has_checks:
        raise SectionFailure("the section checks nothing: add // CHECK, // ERROR or // GOLDEN")
    if section.has_checks:
        _filecheck(section, output)
    if section.golden is not None and _golden_lines(section.golden) != _golden_lines(output):
        diff = difflib.unified_diff(_golden_lines(section.golden), _golden_lines(output), "golden", "output", lineterm="")
        raise SectionFailure("\n".join(diff))


def check_error(section: Section, error: HloRunError) -> None:
    """Raise SectionFailure if the section did not ask for this error."""
    if section.error is None:
        raise SectionFailure(error.render()) from error
    if section.error not in error.render():
        raise SectionFailure(f"expected an error with {section.error!r}, got:\n{error.render()}") from error


def update_golden(section: Section, output: str) -> None:
    """Write the output into the section's golden block; the rest of the file stays."""
    assert section.golden is not None, "the section has a golden block"
    lines = section.path.read_text(encoding="utf-8").splitlines()
    first = next(i for i in range(section.line - 1, len(lines)) if lines[i] == GOLDEN) + 1
    last = next((i for i in range(first, len(lines)) if lines[i].rstrip() == SEPARATOR), len(lines))
    block = [f"// {line}".rstrip() for line in _golden_lines(output)]
    section.path.write_text("\n".join([*lines[:first], *block, *lines[last:]]) + "\n", encoding="utf-8")


def _golden_lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _filecheck(section: Section, output: str) -> None:
    options = Options(match_filename=str(section.path))
    before = "\n" * (section.line - 1)  # so that messages count lines as the file does
    checks = Parser(options, io.StringIO(before + section.text), *pattern_for_opts(options))
    matcher = Matcher(options, FInput(f"{section.path.name}:{section.line}", output), checks)
    said = io.StringIO()
    matcher.stderr = said
    if matcher.run() != 0:
        raise SectionFailure(f"{said.getvalue()}\noutput was:\n{output}")
