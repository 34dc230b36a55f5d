"""Writes the results of all files as JSON and as JUnit XML, for `--report_json` and `--report_junit`.

Reports contain no times, so equal results give equal bytes. docs/report.md is the schema of the JSON.
"""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from typing import Any

from hlo_run.errors import HloRunError, Where, escaped
from hlo_run.execution.results import FileResult, IterationResult
from hlo_run.reference.compare.report import report
from hlo_run.reference.compare.report_json import comparison_record, sight_record

SCHEMA_VERSION = 1
# Characters that XML 1.0 forbids. Control characters are escaped before.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


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
        "later_tries": [{"arguments": later.arguments, "seen": sight_record(later.seen)} for later in iteration.later_tries],
    }


def to_junit(results: Sequence[FileResult]) -> str:
    """Return the results as JUnit XML with one test case per file. A mismatch is a failure; an unsupported file is skipped."""
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
    return _NOT_XML.sub("\ufffd", escaped(text))
