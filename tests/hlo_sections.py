"""Runs a section of a `.hlo` test: the rows of `--only`, or `--stage=NAME` through the driver.

Flags: `--only=ROW,ROW` (exactly these rows of the HLO table, or passes outside of the pipeline; none: only parse and print; a
pass's options are in braces), `--stage=NAME` and any other flag of the command line, `--twice` (a second run must change
nothing). `// NUMERIC: reference` evaluates the section before and after its rows and compares, on each device of several;
`// NUMERIC: host` runs it on Host as well.
"""

from __future__ import annotations

import re
from pathlib import Path

from text_sections import Section, SectionFailure

import hlo_run
from hlo_run.analysis.cost.side_by_side import XlaDiff, diff_text
from hlo_run.artifact import Executable
from hlo_run.cli import parse_arguments
from hlo_run.commands.dispatch import run_files
from hlo_run.errors import HloRunError
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.printer import module_to_string
from hlo_run.hlo.wrap import wrap_bare_module
from hlo_run.ops.verify import LAID_OUT, verify
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.asked_passes import parse_asked, split_passes, with_options
from hlo_run.pipeline.compile import compile_module
from hlo_run.pipeline.other_passes import OTHER_PASSES
from hlo_run.pipeline.runner import verify_input
from hlo_run.pipeline.table import PIPELINE
from hlo_run.pipeline.table_rows import spelling
from hlo_run.platforms import open_backend
from hlo_run.reference.arguments.fake_arguments import make_fake_arguments
from hlo_run.reference.compare.agreement import disagreements
from hlo_run.reference.compare.findings import Findings
from hlo_run.reference.compare.report import report
from hlo_run.reference.evaluate.evaluate import Reference, evaluate
from hlo_run.target import DEFAULT_TARGET, preset


class CapturingConsole:
    """Collects what a run prints; errors are raised instead of printed."""

    def __init__(self) -> None:
        self.stdout: list[str] = []
        self.stderr: list[str] = []

    def out(self, text: str) -> None:
        self.stdout.append(text)

    def artefact(self, text: str) -> None:
        self.stdout.append(text)

    def out_bytes(self, data: bytes) -> None:
        self.stdout.append(data.decode(errors="replace"))

    def record(self, line: str) -> None:
        self.stdout.append(line)

    def err(self, text: str) -> None:
        self.stderr.append(text)

    def error(self, error: HloRunError) -> None:
        raise error

    def verdict(self, text: str, good: bool, is_result: bool = False) -> None:
        (self.stdout if is_result else self.stderr).append(text)

    def difference(self, text: str, is_result: bool = True) -> None:
        (self.stdout if is_result else self.stderr).append(text)

    def mismatch(self, findings: Findings) -> None:
        self.stdout.append(report(findings))

    def xla_diff(self, diff: XlaDiff) -> None:
        self.stdout.append(diff_text(diff))


def run_hlo(section: Section, folder: Path) -> str:
    """Return the text that the section's checks are matched against; `folder` takes the section's text as a file."""
    flags = [flag for flag in section.flags if flag != "--twice"]
    file = folder / section.path.name
    file.write_text(section.text, encoding="utf-8")
    options, _, _ = parse_arguments([*flags, str(file)])
    if options.stage:
        console = CapturingConsole()
        run_files(options, [str(file)], console)
        return "\n".join(console.stdout)
    module = wrap_bare_module(hlo_run.parse(section.text, section.path.name))
    original = module.clone()
    output = _run_rows(module, options)
    if "--twice" in section.flags and (again := _run_rows(module, options)) != output:
        raise SectionFailure(f"a second run changes more; first:\n{output}\nsecond:\n{again}")
    numeric = re.search(r"^\s*// NUMERIC: (host|reference)\b", section.text, re.MULTILINE)
    if numeric:
        _compare(original, module, options, on_host=numeric[1] == "host")
    return output


def _run_rows(module: HloModule, options: Options) -> str:
    ctx = PassContext(preset(options.target or DEFAULT_TARGET), options)
    asked = {spelling(one.name): one for one in map(parse_asked, split_passes(",".join(options.hlo_rows.only)))}
    rows = [
        with_options(row, asked[spelling(row.name)])
        for group in (OTHER_PASSES, *PIPELINE)
        for _, row in group.all_rows()
        if spelling(row.name) in asked
    ]
    strictness = verify_input(module, any(row.mixes_layouts for row in rows))
    for row in rows:
        row.make(ctx).apply(ctx, module)
        strictness = LAID_OUT if row.settles_layouts else strictness
        verify(module, strictness)
    return module_to_string(module)


def _compare(original: HloModule, edited: HloModule, options: Options, on_host: bool) -> None:
    replicas, partitions = original.replica_count, original.num_partitions
    if replicas * partitions > 1:
        _compare_devices(original, edited, options if on_host else None, replicas, partitions)
        return
    arguments = make_fake_arguments(original, 1)
    expected = evaluate(original, arguments)
    results = [("after the rows", evaluate(edited, arguments))]
    if on_host:
        results.append(("on Host", open_backend("Host", options).run(_compiled(edited, options), arguments)))
    for name, actual in results:
        for index, comparison in disagreements(expected, actual, original.entry.root.shape):
            raise SectionFailure(f"{name}, result {list(index)}: {comparison.report()}")


def _compiled(module: HloModule, options: Options) -> Executable:
    ctx = PassContext(preset(options.target or DEFAULT_TARGET), Options(xla_allow_excess_precision=False))
    return compile_module(ctx, module.clone())


def _compare_devices(original: HloModule, edited: HloModule, host: Options | None, replicas: int, partitions: int) -> None:
    """Compare what each device computes. The devices get different arguments, except for replicated parameters."""
    arguments = [make_fake_arguments(original, device + 1) for device in range(replicas * partitions)]
    for number, parameter in enumerate(original.entry.parameters):
        if parameter.attrs.get("parameter_replication") or parameter.attrs.get("sharding"):
            for own in arguments:
                own[number] = arguments[0][number]
    expected, actual = (Reference(module).run(arguments, replicas, partitions) for module in (original, edited))
    results = [("after the rows", actual)]
    if host is not None:
        devices = open_backend("Host", host).run_devices(_compiled(edited, host), arguments, replicas, partitions)
        results.append(("on Host", devices))
    for name, actual in results:
        for device, (one, other) in enumerate(zip(expected, actual, strict=True)):
            for index, comparison in disagreements(one, other, original.entry.root.shape):
                raise SectionFailure(f"{name}, device {device}, result {list(index)}: {comparison.report()}")
