"""`hlo-tool diff`: compares two modules, two files of a dump, or two dump directories."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import click

from hlo_run.diff.dumps import diff_folders, read_bytes
from hlo_run.diff.html_page import page
from hlo_run.diff.numbers import Figure, Tolerance, diff_figures, read_tolerances, work_figures
from hlo_run.diff.texts import TextDiff, diff_parsed, diff_texts, record_of, text_of
from hlo_run.errors import HloRunError, UsageError
from hlo_run.execution.console import Console
from hlo_run.pass_support.replacements import is_kernel_dump
from hlo_run.tools.read import read

# Files that are modules whatever their first line is.
_MODULES = (".hlo", ".hlox", ".pb", ".pbtxt", ".textproto", ".stablehlo", ".mhlo", ".mlirbc")
_HELP = """Compare A with B: two modules, two files of a dump, or two dump directories of hlo-run or XLA.

Modules are compared by their graphs: names, metadata and the order of commutative operands do not count. Other files are compared
by lines. The exit code is 0 if they are the same, 1 if they differ, and 2 if one of them cannot be read."""


@click.command("diff", help=_HELP)
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@click.option("--format", "form", type=click.Choice(("text", "json", "html")), default="text", help="Print in this format.")
@click.option("--tolerance", default="", metavar="NAME=N,..", help="Accept these changes of figures: bytes=1%,registers=2.")
@click.pass_obj
def command(console: Console, before: str, after: str, form: str, tolerance: str) -> int:
    """Print the differences; return 1 if A and B differ, else 0. Raises UsageError for bad input."""
    tolerances = read_tolerances(tolerance)
    one, two = Path(before), Path(after)
    for path in (one, two):
        if str(path) != "-" and not path.exists():
            raise UsageError(f"'{path}' does not exist")
    if one.is_dir() != two.is_dir():
        raise UsageError("one is a directory and the other a file", hint="compare two directories or two files")
    if one.is_dir():
        diffs = diff_folders(one, two, tolerances)
        if not diffs:
            raise UsageError(f"neither '{one}' nor '{two}' holds a file")
    else:
        diffs = [_diff_files(before, after, tolerances)]
    match form:
        case "json":
            record = {"before": before, "after": after, "files": [record_of(diff) for diff in diffs]}
            console.artefact(json.dumps({"differs": any(diff.differs for diff in diffs), **record}, indent=1))
        case "html":
            console.artefact(page(before, after, diffs))
        case _:
            for diff in diffs:
                if diff.differs or len(diffs) == 1:
                    console.difference("\n".join(text_of(diff)))
            differ = sum(diff.differs for diff in diffs)
            console.verdict(f"{differ} of {len(diffs)} differ", good=not differ, is_result=True)
    return int(any(diff.differs for diff in diffs))


def _diff_files(before: str, after: str, tolerances: Mapping[str, Tolerance]) -> TextDiff:
    if not (_is_module(before) and _is_module(after)):
        one, two = (read_bytes(Path(path)).decode(errors="backslashreplace") for path in (before, after))
        return diff_texts(after, one, two)
    try:
        one, two = read(before, verify=False), read(after, verify=False)
        figures: list[Figure] = []
        if one.schedule is not None and two.schedule is not None:
            figures = diff_figures(work_figures(one), work_figures(two), tolerances)
    except UsageError:
        raise
    except HloRunError as error:
        raise UsageError(f"not a module: {error.message}", error.where, error.hint, error.notes) from None
    diff = diff_parsed(after, one, two)
    diff.figures = figures
    return diff


def _is_module(path: str) -> bool:
    """True for a module in a format that hlo-run reads, by the name of the file or its first line."""
    if path == "-" or path.endswith(_MODULES):
        return True
    if path.endswith(".mlir"):
        return not is_kernel_dump(path)
    start = read_bytes(Path(path))[:4096].decode(errors="replace")
    first = next((line for line in start.splitlines() if line.strip() and not line.startswith("//")), "")
    return first.startswith("HloModule")
