"""What became of every file of a command line, and the artefacts that say so: `--report_json`, `--report_junit`.

Both are the same, byte for byte, for the same results: no times in them. docs/report.md is the schema of the JSON.
"""

from __future__ import annotations

import json
import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hlo_run.errors import HloRunError, Mismatch, Unsupported, UsageError, Where
from hlo_run.reference.compare.compare import Comparison
from hlo_run.reference.compare.findings import Findings
from hlo_run.reference.compare.report import report
from hlo_run.reference.compare.report_json import comparison_record

SCHEMA_VERSION = 1
# What XML 1.0 cannot hold, even escaped.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(slots=True)
class IterationResult:
    """One run with one set of arguments; `arguments` says where those came from. No comparison: nothing to compare with."""

    number: int
    arguments: str
    comparison: Comparison | None = None
    findings: Findings | None = None


@dataclass(slots=True)
class FileResult:
    """One file of the command line, filled in while it runs; `error` is what ended it.

    `launches` are the records of the last run's kernels, where the backend keeps account of them; `xla_diff` is the comparison
    of `--xla_diff`.
    """

    file: str
    module: str = ""
    platform: str = ""
    device: str = ""
    reference: str = ""
    iterations: list[IterationResult] = field(default_factory=list[IterationResult])
    launches: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    xla_diff: dict[str, Any] | None = None
    error: HloRunError | None = None

    @property
    def outcome(self) -> str:
        """`passed`, `mismatch`, `unsupported` or `error`."""
        match self.error:
            case None:
                return "passed"
            case Mismatch():
                return "mismatch"
            case Unsupported():
                return "unsupported"
            case _:
                return "error"

    @property
    def exit_code(self) -> int:
        return self.error.exit_code if self.error is not None else 0


def check_writable(path: str, flag: str) -> None:
    """Raise UsageError if a file cannot be made at `path`: better before a long run than after it."""
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        raise UsageError(f"--{flag}={path} is a directory")
    if not os.path.isdir(folder):
        raise UsageError(f"--{flag}={path}: there is no directory '{folder}'")


def write_artefact(path: str, text: str) -> None:
    """Write a text file; raises UsageError."""
    try:
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"'{path}' cannot be written: {os.strerror(error.errno or 0)}") from None


def to_json(results: Sequence[FileResult], version: str) -> str:
    """Return the results of a command line as JSON text."""
    outcomes = [result.outcome for result in results]
    record = {
        "schema": SCHEMA_VERSION,
        "hlo_run": version,
        "exit_code": next((result.exit_code for result in results if result.exit_code), 0),
        "counts": {name: outcomes.count(name) for name in ("passed", "mismatch", "unsupported", "error")},
        "files": [_file_record(result) for result in results],
    }
    return json.dumps(record, indent=1, allow_nan=False) + "\n"


def _file_record(result: FileResult) -> dict[str, Any]:
    return {
        "file": result.file,
        "module": result.module,
        "outcome": result.outcome,
        "exit_code": result.exit_code,
        "platform": result.platform,
        "device": result.device,
        "reference": result.reference,
        "error": _error_record(result.error) if result.error is not None else None,
        "iterations": [_iteration_record(iteration) for iteration in result.iterations],
        "launches": result.launches,
        "xla_diff": result.xla_diff,
    }


def _error_record(error: HloRunError) -> dict[str, Any]:
    return {
        "kind": type(error).__name__,
        "message": error.message,
        "where": _where_record(error.where) if error.where is not None else None,
        "notes": list(error.notes),
        "hint": error.hint,
    }


def _where_record(where: Where) -> dict[str, Any]:
    return {"file": where.file, "line": where.line, "column": where.column, "source_line": where.source_line}


def _iteration_record(iteration: IterationResult) -> dict[str, Any]:
    compared = iteration.comparison
    return {
        "number": iteration.number,
        "arguments": iteration.arguments,
        "comparison": comparison_record(compared, iteration.findings) if compared is not None else None,
    }


def to_junit(results: Sequence[FileResult]) -> str:
    """Return the results as JUnit XML: one test case per file; a mismatch is a failure, unsupported is skipped."""
    outcomes = [result.outcome for result in results]
    counts = {
        "tests": str(len(results)),
        "failures": str(outcomes.count("mismatch")),
        "errors": str(outcomes.count("error")),
        "skipped": str(outcomes.count("unsupported")),
    }
    root = ET.Element("testsuites", {"name": "hlo-run", **counts})
    suite = ET.SubElement(root, "testsuite", {"name": "hlo-run", **counts})
    for result in results:
        _add_case(suite, result)
    ET.indent(root, " ")
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _add_case(suite: ET.Element, result: FileResult) -> None:
    case = ET.SubElement(suite, "testcase", {"classname": f"hlo-run.{result.platform or 'none'}", "name": _xml(result.file)})
    tag = {"mismatch": "failure", "unsupported": "skipped", "error": "error"}.get(result.outcome)
    if tag is not None and result.error is not None:
        entry = ET.SubElement(case, tag, {"message": _xml(result.error.message), "type": type(result.error).__name__})
        texts = [report(iteration.findings) for iteration in result.iterations if iteration.findings is not None]
        entry.text = _xml("\n\n".join([result.error.render(), *texts]))
    lines = [f"iteration {i.number}: {i.comparison.summary()}" for i in result.iterations if i.comparison is not None]
    if lines:
        ET.SubElement(case, "system-out").text = _xml("\n".join(lines))


def _xml(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
