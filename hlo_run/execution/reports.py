"""Writes the results of all files as JSON and as JUnit XML, for `--report_json`, `--report_jsonl` and `--report_junit`.

Reports contain no times, so equal results give equal bytes. docs/report.md is the schema of the JSON.
"""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence

from hlo_run.diff.texts import TextDiff, text_of
from hlo_run.errors import GoldenDifference, HloRunError, Where, escaped
from hlo_run.execution.results import FileResult, IterationResult
from hlo_run.execution.signatures import bucket_table, buckets, golden_signature
from hlo_run.kernel_checks.outcomes import sentence
from hlo_run.reference.compare.report import report
from hlo_run.reference.compare.report_json import comparison_record, sight_record
from hlo_run.reference.sensitivity.kernel_sight import kernels_record

SCHEMA_VERSION = 1
# What a case shows of a long difference of a stage.
_MOST_LINES = 200
# Characters that XML 1.0 forbids. Control characters are escaped before.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def file_report(result: FileResult) -> dict[str, str]:
    """Return the texts of the reports on a file: its outcome, its exit code, its JSON record, its JUnit test cases."""
    return {
        "file": result.file,
        "outcome": result.outcome,
        "exit_code": str(result.exit_code),
        "bucket": signature.bucket if (signature := result.signature) is not None else "",
        "json": json.dumps(_file_record(result), allow_nan=False),
        "junit": ET.tostring(_cases(result), encoding="unicode"),
    }


def to_json(reports: Sequence[Mapping[str, str]], version: str) -> str:
    """Return the results of a command line as JSON text. `reports` has a `file_report` per file."""
    record = _summary_record(reports, version) | {"files": [json.loads(report["json"]) for report in reports]}
    return json.dumps(record, indent=1, allow_nan=False) + "\n"


def to_json_line(reports: Sequence[Mapping[str, str]], version: str) -> str:
    """Return the last line of `--report_jsonl`: the contents of `to_json` without the files."""
    return json.dumps(_summary_record(reports, version), allow_nan=False)


def _summary_record(reports: Sequence[Mapping[str, str]], version: str) -> dict[str, object]:
    outcomes = [report["outcome"] for report in reports]
    return {
        "schema": SCHEMA_VERSION,
        "hlo_run": version,
        "exit_code": next((code for report in reports if (code := int(report["exit_code"]))), 0),
        "counts": {name: outcomes.count(name) for name in ("passed", "mismatch", "unsupported", "error")},
        "buckets": [{"bucket": bucket, "files": files} for bucket, files in buckets(_failures(reports)).items()],
    }


def _failures(reports: Sequence[Mapping[str, str]]) -> list[tuple[str, str]]:
    return [(report["bucket"], report["file"]) for report in reports if report["bucket"]]


def _file_record(result: FileResult) -> dict[str, object]:
    return {
        "file": result.file,
        "module": result.module,
        "outcome": result.outcome,
        "exit_code": result.exit_code,
        "platform": result.platform,
        "device": result.device,
        "reference": result.reference,
        "error": _error_record(result.error) if result.error is not None else None,
        "signature": signature.record() if (signature := result.signature) is not None else None,
        "iterations": [_iteration_record(iteration) for iteration in result.iterations],
        "launches": result.launches,
        "xla_diff": result.xla_diff,
        "golden": result.golden,
    }


def _error_record(error: HloRunError) -> dict[str, object]:
    return {
        "kind": type(error).__name__,
        "message": error.message,
        "where": _where_record(error.where) if error.where is not None else None,
        "notes": list(error.notes),
        "hint": error.hint,
    }


def _where_record(where: Where) -> dict[str, object]:
    return {"file": where.file, "line": where.line, "column": where.column, "source_line": where.source_line}


def _iteration_record(iteration: IterationResult) -> dict[str, object]:
    compared = iteration.comparison
    return {
        "number": iteration.number,
        "arguments": iteration.arguments,
        "chosen": iteration.chosen,
        "comparison": comparison_record(compared, iteration.findings) if compared is not None else None,
        "kernels": [outcome.record() for outcome in iteration.kernels],
        "later_tries": [{"arguments": later.arguments, "seen": sight_record(later.seen)} for later in iteration.later_tries],
        "kernels_seen": kernels_record(iteration.kernels_seen) if iteration.kernels_seen is not None else None,
    }


def to_junit(reports: Sequence[Mapping[str, str]]) -> str:
    """Return the results as JUnit XML with one test case per file, of goldens per stage of a file.

    A mismatch is a failure; an unsupported file is skipped.
    """
    cases = [case for report in reports for case in ET.fromstring(report["junit"])]
    counts = {"tests": str(len(cases))}
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        counts[name] = str(sum(case.find(tag) is not None for case in cases))
    root = ET.Element("testsuites", {"name": "hlo-run", **counts})
    suite = ET.SubElement(root, "testsuite", {"name": "hlo-run", **counts})
    suite.extend(cases)
    if table := bucket_table(_failures(reports)):
        ET.SubElement(suite, "system-out").text = _xml("\n".join(table))
    ET.indent(root, " ")
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _cases(result: FileResult) -> ET.Element:
    """Return an element with the test cases of a file."""
    cases = ET.Element("testsuite")
    is_compared = bool(result.golden_diffs) and isinstance(result.error, GoldenDifference | None)
    cases.extend([_golden_case(result, diff) for diff in result.golden_diffs] if is_compared else [_case(result)])
    return cases


def _golden_case(result: FileResult, diff: TextDiff) -> ET.Element:
    """Return the test case of a stage that is compared with its golden, or written."""
    case = ET.Element("testcase", {"classname": "hlo-run.golden", "name": _xml(f"{result.file}: {diff.name}")})
    if result.error is None or not diff.differs:
        return case
    what = "missing" if diff.missing == "before" else f"{diff.name} differs"
    properties = ET.SubElement(case, "properties")
    ET.SubElement(properties, "property", {"name": "bucket", "value": _xml(golden_signature(what).bucket)})
    message = "no golden" if diff.missing == "before" else f"differs from its golden: {diff.summary}"
    entry = ET.SubElement(case, "failure", {"message": _xml(message), "type": type(result.error).__name__})
    notes = [f"note: {note}" for note in result.error.notes]
    lines = [result.error.message, f"hint: {result.error.hint}"] if diff.missing else text_of(diff, _MOST_LINES)
    entry.text = _xml("\n".join([*notes, *lines]))
    return case


def _case(result: FileResult) -> ET.Element:
    case = ET.Element("testcase", {"classname": f"hlo-run.{result.platform or 'none'}", "name": _xml(result.file)})
    tag = {"mismatch": "failure", "unsupported": "skipped", "error": "error"}.get(result.outcome)
    signature = result.signature
    if signature is not None:
        properties = ET.SubElement(case, "properties")
        ET.SubElement(properties, "property", {"name": "bucket", "value": _xml(signature.bucket)})
    if tag is not None and result.error is not None:
        entry = ET.SubElement(case, tag, {"message": _xml(result.error.message), "type": type(result.error).__name__})
        texts = [report(iteration.findings) for iteration in result.iterations if iteration.findings is not None]
        wrong = [sentence(outcome) for iteration in result.iterations for outcome in iteration.kernels if outcome.differs]
        entry.text = _xml("\n\n".join([result.error.render(), *texts, *wrong]))
    lines = [f"iteration {i.number}: {i.comparison.summary()}" for i in result.iterations if i.comparison is not None]
    if lines:
        ET.SubElement(case, "system-out").text = _xml("\n".join(lines))
    return case


def _xml(text: str) -> str:
    return _NOT_XML.sub("\ufffd", escaped(text))
