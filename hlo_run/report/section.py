"""Makes the section of one file on the page: the verdict, passes, graphs, kernels, memory, differences and times."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Sequence
from dataclasses import fields

from hlo_run.artifact import KernelThunk
from hlo_run.artifact.thunks import every_thunk
from hlo_run.errors import GoldenDifference
from hlo_run.execution.results import FileResult, IterationResult
from hlo_run.hlo.values.braces import braces
from hlo_run.kernel_checks.outcomes import rows_of, summary
from hlo_run.options import Options
from hlo_run.pipeline.observers.line_diff import ChangeInContext
from hlo_run.pipeline.observers.record import CompilationRecord, GraphRecord, KernelRecord, PassRun
from hlo_run.reference.compare.detectability import total
from hlo_run.reference.compare.leaf_comparison import LeafComparison
from hlo_run.reference.compare.report import worst_errors
from hlo_run.reference.compare.report_json import element
from hlo_run.report.charts import heat_data, live_bytes, medians, memory_chart, peak_values, profile_chart, profile_rows
from hlo_run.report.goldens import goldens
from hlo_run.report.layers import place
from hlo_run.report.line_origins import OriginText, hlo_origins, kernel_ir_origins, llvm_origins, ptx_origins
from hlo_run.report.markup import milliseconds, packed, part, table, text
from hlo_run.version import VERSION

_MOST_DIFF_LINES = 20_000
_MOST_AT_PEAK = 20
_MOST_MISMATCHES = 20
_WORDS = {"passed": "agree", "mismatch": "differ", "unsupported": "not supported", "error": "error"}


def file_section(result: FileResult, options: Options) -> str:
    """Return the HTML of a file's section. It needs the style and the script of `page`."""
    verdict = _WORDS[result.outcome]
    if result.outcome == "passed" and not any(i.comparison is not None for i in result.iterations):
        verdict = "not compared"
    if result.golden is not None and isinstance(result.error, GoldenDifference | None):
        verdict = "goldens written" if result.golden["updated"] else "same as the goldens" if result.error is None else "differ"
    parts = [part("verdict", "Verdict", _verdict(result, options, verdict))]
    if differing := [i for i in result.iterations if i.findings is not None]:
        parts.append(part("differences", "Differences", "".join(_differences(i, n) for n, i in enumerate(differing))))
    if result.golden_diffs:
        parts.append(part("goldens", "Stages and their goldens", goldens(result.golden_diffs)))
    record, kernels = result.compilation, _kernels_of(result)
    if record is not None:
        parts.append(part("passes", "Passes", _passes(record)))
        parts.append(part("graphs", "Graph before and after fusion", _graphs(record, result, kernels)))
    if kernels:
        parts.append(part("kernels", "Kernels", _kernels(kernels, record, result)))
    if record is not None and record.memory is not None:
        parts.append(part("memory", "Memory", _memory(record)))
    if result.profile is not None and result.profile.events:
        body = table(("thunk", "kind", "executions", "median ms", "bytes", "GB/s"), profile_rows(result.profile), "sizes")
        chart = packed("profile", profile_chart(result.profile)) + '<div class="chart"></div>\n'
        parts.append(part("profile", "Times of thunks", f'{chart}<div class="scroll">{body}</div>\n'))
    head = f'<h2><span class="outcome {result.outcome}">{text(verdict)}</span> {text(result.file)}</h2>\n'
    return f'<section class="file" data-file="{text(result.file)}" data-outcome="{verdict}">\n{head}{"".join(parts)}</section>\n'


def _verdict(result: FileResult, options: Options, verdict: str) -> str:
    target = result.compilation.target if result.compilation is not None else ""
    target = target or (result.executable.target if result.executable is not None else "")
    facts = [
        ("result", verdict),
        ("exit code", str(result.exit_code)),
        ("command", command_line(options, result.file)),
        ("module", result.module),
        ("platform", " ".join(filter(None, (result.platform, f"({result.device})" if result.device else "")))),
        ("compiled for", target),
        ("compared with", result.reference),
        ("versions", f"hlo-run {VERSION}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"),
    ]
    made = table(("", ""), [(name, value) for name, value in facts if value != ""], "facts")
    if result.error is not None:
        made += f'<pre class="error">{text(result.error.render())}</pre>\n'
    return made + "".join(map(_iteration, result.iterations))


def command_line(options: Options, file: str) -> str:
    """Return a command with the flags that differ from their defaults, wherever they were given, and one file."""
    changed = ((f.name, getattr(options, f.name)) for f in fields(Options) if getattr(options, f.name) != f.default)
    words = [f"--{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in changed]
    return shlex.join(["hlo-run", *words, file])


def _iteration(iteration: IterationResult) -> str:
    title = f"<h3>Run {iteration.number}</h3>\n<p>Arguments: {text(iteration.arguments)}.</p>\n"
    compared = iteration.comparison
    if compared is None:
        return title + "<p>Not compared.</p>\n"
    sights = compared.sights()
    lines = [compared.summary(), *map(str, filter(None, (iteration.kernels_seen,))), str(total(sights))]
    lines += [f"chosen: {line}" for line in iteration.chosen]
    lines += [summary(iteration.kernels)] if iteration.kernels else []
    lines += [f"{later.arguments}: agree, {later.seen}" for later in iteration.later_tries]
    rows = [
        (
            braces(leaf.path),
            leaf.shape.to_string(layout=False),
            leaf.problem or ("agrees" if leaf.ok else "differs"),
            leaf.shape.element_count,
            leaf.mismatches,
            seen.seen,
            *_worst(leaf),
        )
        for leaf, seen in zip(compared.leaves, sights, strict=True)
    ]
    head = ("array", "shape", "verdict", "elements", "differ", "seen", "worst abs", "worst rel", "worst ulp")
    return (
        title
        + "".join(f"<p>{text(line)}</p>\n" for line in lines)
        + f'<div class="scroll">{table(head, rows)}</div>\n'
        + _alone(iteration)
        + _unseen(iteration)
    )


def _alone(iteration: IterationResult) -> str:
    """Return the table of the kernels that were judged alone."""
    if not iteration.kernels:
        return ""
    head, rows = rows_of(iteration.kernels)
    return f'<h3>Kernels alone</h3>\n<div class="scroll">{table(head, rows)}</div>\n'


def _unseen(iteration: IterationResult) -> str:
    """Return the table of the kernels that the comparison does not see, or of which that was not measured."""
    unseen = [k for k in iteration.kernels_seen.kernels if not k.seen] if iteration.kernels_seen is not None else []
    rows = [(k.name, "not seen" if k.seen is False else "not measured", k.reason) for k in unseen]
    return (
        f'<h3>Kernels not seen</h3>\n<div class="scroll">{table(("kernel", "a fault", "because"), rows)}</div>\n' if rows else ""
    )


def _worst(leaf: LeafComparison) -> list[object]:
    errors = {name: worst.error for name, worst in worst_errors(leaf)}
    return [float(errors[name]) if name in errors else "" for name in ("abs", "rel", "ulp")]


def _differences(iteration: IterationResult, number: int) -> str:
    assert iteration.comparison is not None
    assert iteration.findings is not None
    made = f"<h3>Run {iteration.number}</h3>\n" + packed(f"heat-{number}", heat_data(iteration.comparison))
    made += f'<div class="chart" data-source="heat-{number}"></div>\n'
    for found in iteration.findings.leaves:
        leaf, dtype = found.leaf, found.leaf.shape.dtype
        if leaf.problem:
            continue
        made += "".join(f"<p>{text(pattern)}</p>\n" for pattern in found.patterns)
        rows = [
            (
                braces(m.index),
                str(element(m.expected, dtype)),
                str(element(m.actual, dtype)),
                float(m.abs_error),
                float(m.rel_error),
            )
            for m in found.top[:_MOST_MISMATCHES]
        ]
        made += table((f"index in {braces(leaf.path)}", "expected", "actual", "abs error", "rel error"), rows)
    return made


def _passes(record: CompilationRecord) -> str:
    runs, whole = record.passes, sum(run.seconds for run in record.passes) or 1.0
    strip = "".join(
        f'<span class="{"changed" if run.changed else "same"}" data-run="{number}" style="flex:{run.seconds / whole:.6f}" '
        f'title="{text(f"{number} {run.row} of {run.pipeline}: {milliseconds(run.seconds)} ms")}"></span>'
        for number, run in enumerate(runs)
    )
    rows = "".join(_pass_row(number, run, whole) for number, run in enumerate(runs))
    changed = sum(run.changed for run in runs)
    head = "".join(f"<th>{name}</th>" for name in ("no.", "pipeline", "pass", "ms", "share", "instructions", "lines"))
    made = f"<p>{len(runs)} runs of HLO passes, {changed} changed the module, {milliseconds(whole)} ms of processor time. "
    made += "A pass that changed something opens its diff.</p>\n"
    if record.failed_row:
        made += f"<p>The compilation failed in {text(record.failed_row)}.</p>\n"
    made += f'<div class="strip">{strip}</div>\n'
    made += '<label><input type="checkbox" class="all-passes"> show passes that changed nothing</label>\n'
    made += f'<div class="scroll"><table class="passes"><thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody></table></div>\n'
    made += '<div class="diff"></div>\n'
    made += "".join(packed(f"diff-{n}", _diff(run.changes)) for n, run in enumerate(runs) if run.changes)
    kernel_rows = [(level, row, runs, milliseconds(seconds)) for (level, row), (seconds, runs) in record.rows.items()]
    return made + (
        "<h3>Kernel passes, all kernels together</h3>\n"
        f'<div class="scroll">{table(("level", "pass", "runs", "ms"), kernel_rows, "sizes")}</div>\n'
    )


def _pass_row(number: int, run: PassRun, whole: float) -> str:
    lines = f"−{sum(len(c[2]) for c in run.changes)} +{sum(len(c[3]) for c in run.changes)}" if run.changes else ""
    name = text(run.row) if not run.changes else f'<button type="button" data-diff="{number}">{text(run.row)}</button>'
    share = run.seconds / whole
    bar = f'<span class="bar" style="width:{share * 100:.2f}%"></span>'
    cells = f'<td class="number">{number}</td><td>{text(run.pipeline)}</td><td>{name}</td>'
    cells += f'<td class="number">{milliseconds(run.seconds)}</td><td class="bars">{bar}</td>'
    cells += f'<td class="number">{run.instructions}</td><td class="number">{lines}</td>'
    return f'<tr class="{"changed" if run.changed else "same"}">{cells}</tr>\n'


def _diff(changes: Sequence[ChangeInContext]) -> dict[str, object]:
    """Return the changes of a pass, up to a number of lines; `left_out` counts the lines of the others."""
    kept: list[ChangeInContext] = []
    lines = 0
    for change in changes:
        lines += len(change[2]) + len(change[3])
        if lines > _MOST_DIFF_LINES and kept:
            break
        kept.append(change)
    left_out = sum(len(gone) + len(come) for _, _, gone, come, _ in changes[len(kept) :])
    return {"changes": kept, "left_out": left_out}


def _kernels_of(result: FileResult) -> dict[str, KernelRecord]:
    """Return the kernels by name. Of a saved executable only the PTX is known."""
    if result.compilation is not None:
        return result.compilation.kernels
    program = result.executable
    return {} if program is None else {kernel.name: KernelRecord(ptx=kernel.ptx) for kernel in program.kernels}


def _launched(result: FileResult) -> dict[str, list[str]]:
    """Return the names of the instructions that launch each kernel, one per thunk."""
    program = result.executable
    carriers = result.compilation.carriers if result.compilation is not None else {}
    found: dict[str, list[str]] = {}
    for thunk in every_thunk(program.thunks) if program is not None else ():
        if isinstance(thunk, KernelThunk):
            found.setdefault(thunk.kernel, []).append(carriers.get(thunk.name, thunk.name))
    return found


def _times(result: FileResult) -> dict[str, float]:
    """Return the seconds of each instruction in the profile, by its name."""
    carriers = result.compilation.carriers if result.compilation is not None else {}
    found: dict[str, float] = {}
    for name, seconds in (medians(result.profile) if result.profile is not None else {}).items():
        name = carriers.get(name, name)
        found[name] = found.get(name, 0.0) + seconds
    return found


def _graphs(record: CompilationRecord, result: FileResult, kernels: dict[str, KernelRecord]) -> str:
    times = _times(result)
    numbers = {name: number for number, name in enumerate(kernels)}
    kernel_of = {thunk: numbers[k] for k, thunks in _launched(result).items() for thunk in thunks if k in numbers}
    made = packed(
        "graphs",
        {
            "before": [_graph(graph, {}, {}) for graph in record.before_fusion],
            "after": [_graph(graph, times, kernel_of) for graph in record.optimized],
        },
    )
    made += "<p>Drag to move, turn the wheel to zoom, click a box for its details; a kernel also opens its texts below.</p>\n"
    for side, title, graphs in (("before", "Before fusion", record.before_fusion), ("after", "After fusion", record.optimized)):
        count = sum(len(graph.nodes) for graph in graphs)
        what = f"{count} instructions" if graphs else "not recorded: the pipeline did not come to it"
        made += f'<div class="graph" data-side="{side}"><h3>{title} ({what})</h3></div>\n'
    return f'<div class="graphs">{made}</div>\n'


def _graph(graph: GraphRecord, times: dict[str, float], kernel_of: dict[str, int]) -> dict[str, object]:
    """Return a graph; a node is [name, opcode, shape, label, operands, layer, column, emitter, bytes, ms, kernel's number]."""
    places = place([node.operands for node in graph.nodes])
    return {
        "name": graph.computation,
        "nodes": [
            [
                node.name,
                node.opcode,
                node.shape,
                node.label,
                node.operands,
                layer,
                column,
                node.emitter,
                node.bytes_accessed,
                round(times[node.name] * 1e3, 3) if node.name in times else None,
                kernel_of.get(node.name),
            ]
            for node, (layer, column) in zip(graph.nodes, places, strict=True)
        ],
    }


def _kernels(kernels: dict[str, KernelRecord], record: CompilationRecord | None, result: FileResult) -> str:
    launched = _launched(result)
    times = _times(result)
    nodes = {node.name: node for graph in (record.optimized if record else ()) for node in graph.nodes}
    launches = {kernel.name: kernel for kernel in result.executable.kernels} if result.executable is not None else {}
    rows = ""
    for number, name in enumerate(kernels):
        thunks = launched.get(name, [])
        node, kernel = nodes.get(thunks[0] if thunks else name), launches.get(name)
        time = sum(times[thunk] for thunk in dict.fromkeys(thunks) if thunk in times)
        cells = [
            node.emitter if node else "",
            f"{_size(kernel.grid)} × {_size(kernel.block)}" if kernel else "",
            len(thunks),
            node.bytes_accessed if node else "",
            milliseconds(time) if time else "",
        ]
        shown = "".join(f"<td>{text(cell)}</td>" for cell in cells)
        rows += f'<tr><td><button type="button" data-kernel="{number}">{text(name)}</button></td>{shown}</tr>\n'
    head = "".join(f"<th>{name}</th>" for name in ("kernel", "emitter", "grid × block", "thunks", "bytes each", "ms"))
    made = f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody></table></div>\n'
    made += '<div class="texts"></div>\n'
    for number, (name, kernel) in enumerate(kernels.items()):
        sources = record.sources if record is not None else {}
        instruction = next((n for n in (*launched.get(name, []), name) if n in sources), "")
        made += packed(f"kernel-{number}", _texts(name, kernel, instruction, sources.get(instruction, "")))
    return made


def _texts(name: str, kernel: KernelRecord, instruction: str, source: str) -> dict[str, object]:
    """Return the texts of a kernel, and per line the numbers of its HLO instruction and of its op in `names`; -1 for none.

    An op that is named after the kernel belongs to no instruction inside, so it comes from `instruction` as a whole.
    """
    names: dict[str, int] = {"": -1}

    def numbered(made: OriginText) -> dict[str, object]:
        def number(name: str) -> int:
            return names.setdefault(name, len(names) - 1)

        return {
            "lines": made.lines,
            "ops": [number(instruction if o == name else o) for o in made.ops],
            "places": [number(p) for p in made.places],
        }

    panes = [
        ("HLO", hlo_origins(source)),
        ("Kernel IR", kernel_ir_origins(kernel.kernel_ir)),
        ("LLVM IR, optimised", llvm_origins(kernel.llvm)),
        ("PTX", ptx_origins(kernel.ptx)),
    ]
    made = [{"title": title, **numbered(origins)} for title, origins in panes]
    return {"name": name, "panes": made, "names": list(names)[1:], "notes": kernel.notes}


def _memory(record: CompilationRecord) -> str:
    memory = record.memory
    assert memory is not None
    live = live_bytes(memory)
    peak = max(range(len(live)), key=lambda time: live[time], default=0)
    where = f"at {memory.schedule[peak]}" if peak < len(memory.schedule) else "after the last instruction"
    alive = peak_values(memory, peak)
    rows = [(v.name, v.shape, v.kind, v.allocation, v.offset_bytes, v.size_bytes) for v in alive[:_MOST_AT_PEAK]]
    made = f"<p>Peak: {live[peak] if live else 0:,} bytes of live values {text(where)} (time {peak}). "
    made += f"The allocations have {memory.allocated_bytes:,} bytes.</p>\n" + packed("memory", memory_chart(memory))
    made += '<div class="chart"></div>\n<h3>The largest values at the peak</h3>\n'
    made += table(("value", "shape", "kind", "allocation", "offset", "bytes"), rows, "sizes")
    more = len(alive) - len(rows)
    return made + (f"<p>{more} smaller values are live too.</p>\n" if more > 0 else "")


def _size(size: Sequence[int]) -> str:
    return "x".join(map(str, size))
