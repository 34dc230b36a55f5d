"""`hlo-opt`: runs named passes, or a pipeline up to a stage, on the modules of one file and prints the result."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING

from hlo_run.cache import choose_cache
from hlo_run.commands.compilation_observers import CompilationObservers
from hlo_run.commands.target_choice import choose_target, with_dumped_target
from hlo_run.commands.validate import row_warnings
from hlo_run.containment.crash import choose_crash_directory, crash_error, set_input_file
from hlo_run.containment.relay import Relay
from hlo_run.errors import UsageError
from hlo_run.execution.console import Console
from hlo_run.execution.output_files import write_output
from hlo_run.formats.read import read_module
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.printer import module_to_string
from hlo_run.ops.parse import parse
from hlo_run.options import Options
from hlo_run.options.opt import OptFlags
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pass_support.observer import LLVM, LLVM_BEFORE_OPTIMIZATIONS, PTX, STAGES, Observer, Step, StopAtStage
from hlo_run.pass_support.print_options import dump_options
from hlo_run.pipeline.asked_passes import AskedPass, parse_asked, split_passes, with_options
from hlo_run.pipeline.named_kernel_passes import is_kernel_ir, opt_kernel
from hlo_run.records import replace

if TYPE_CHECKING:
    from hlo_run.pipeline.table import HloRow

HLO, HLO_BACKEND, HTML, LLVM_AFTER_OPTIMIZATIONS = "hlo", "hlo-backend", "html", "llvm-after-optimizations"
TRANSFORMS, GPU = "transforms", "gpu"
# Each platform has several names in XLA.
PLATFORMS = {TRANSFORMS: TRANSFORMS, "gpu": GPU, "cuda": GPU}
_SEPARATOR = "// -----"
_Texts = Callable[[PassContext, HloModule], str]


def run_opt(options: Options, flags: OptFlags, files: Sequence[str], console: Console, relay: Relay | None = None) -> int:
    """Run the command line of hlo-opt and return 0; raises errors of the HloRunError family.

    `relay` may tell of the crash of a worker, which is raised as an error.
    """
    platform = PLATFORMS.get(flags.platform.lower())
    if platform is None:
        raise UsageError(f"no platform is called '{flags.platform}'", hint=f"--platform is one of {', '.join(PLATFORMS)}")
    if flags.list_passes or flags.list_stages:
        console.out(",".join(sorted(_passes().values()) if flags.list_passes else _stages(platform)))
        return 0
    choose_crash_directory(options.crash_dir)
    set_input_file(files[0] if files else "")
    if relay is not None and relay.crash is not None:
        raise crash_error(relay.crash)
    if len(files) != 1:
        raise UsageError("Must specify a single input file", hint="hlo-opt FILE, or - for stdin")
    options = with_dumped_target(options, files[0])
    for warning in row_warnings(dataclasses.replace(options, stage="")):
        console.err(f"warning: {warning}")
    if is_kernel_ir(files[0], flags) and not options.stage:
        _write([opt_kernel(options, flags, files[0], choose_target(options)).rstrip("\n")], options, console)
        return 0
    work = _work(flags, platform, options)
    if problem := choose_cache(options.cache):
        console.err(f"warning: {problem}")
    watch, noted = CompilationObservers(0, console), set[str]()
    asked = [] if flags.emit_proto else split_passes(flags.passes)
    names = [row.pass_name for text in asked for row in _rows_of_pass(parse_asked(text).name)]
    texts = [
        _chunk(text, files[0], work, watch, dataclasses.replace(options, stage=""), names, console, noted)
        for text in _chunks(files[0], flags, options.input_format)
    ]
    _write(texts, options, console)
    return 0


def _write(texts: Sequence[str], options: Options, console: Console) -> None:
    if options.output_file in ("", "-"):
        for text in texts:
            console.artefact(text)
    else:
        write_output(options.output_file, "".join(f"{text}\n" for text in texts).encode())


def _chunks(file: str, flags: OptFlags, input_format: str) -> Iterator[str]:
    """Yield the modules of a file, each after empty lines that keep its line numbers."""
    text = read_module(file, input_format, whole=True).text
    lines = text.split("\n")
    if not flags.split_input_file:
        found = [0, len(lines) + 1]
    else:
        found = [0, *(number + 1 for number, line in enumerate(lines) if line == _SEPARATOR), len(lines) + 1]
    for begin, end in pairwise(found):
        chunk = lines[begin : end - 1]
        left = next((number for number, line in enumerate(chunk, begin + 1) if line.startswith("// ---")), 0)
        if left:
            hint = f"modules are separated by lines that are exactly '{_SEPARATOR}', with --split-input-file"
            raise UsageError(f"{file}:{left}: a separator of modules is inside a module", hint=hint)
        yield "\n" * begin + "\n".join(chunk)


def _chunk(
    text: str,
    file: str,
    work: _Texts,
    watch: CompilationObservers,
    options: Options,
    passes: Sequence[str],
    console: Console,
    noted: set[str],
) -> str:
    module = parse(text, file, options.verify != "off")
    if options.other_xla_flags:
        from hlo_run.execution.flag_notes import note_silent_flags

        note_silent_flags(options, module, noted, console.err)
    with watch.compiling(options, module, choose_target(options), passes=passes) as (ctx, working):
        return work(ctx, working).rstrip("\n")


def _work(flags: OptFlags, platform: str, options: Options) -> _Texts:
    """Return the function from a context and a module to the text to print."""
    if flags.emit_proto:
        return lambda ctx, module: _text_proto(module)
    if flags.passes:
        asked = [parse_asked(text) for text in split_passes(flags.passes)]
        known = {*_passes(), *_rows()}
        for one in asked:
            if _spelling(one.name) not in known:
                close = difflib.get_close_matches(_spelling(one.name), sorted(known), n=1)
                raise UsageError(
                    f"INVALID_ARGUMENT: Pass {one.name} not found.",
                    hint=f"did you mean {close[0]}?" if close else "see --list-passes",
                )
            for row in _rows_of_pass(one.name):
                with_options(row, one)
        return lambda ctx, module: _run_passes(asked, ctx, module)
    stage = options.stage or HLO
    if stage not in _stages(platform):
        known = ", ".join(_stages(platform))
        hint = f"--platform={platform} has {known}" + ("; --platform=gpu has more" if platform == TRANSFORMS else "")
        raise UsageError(f"no stage is called '{stage}'", hint=hint)
    if platform == TRANSFORMS:
        return lambda ctx, module: _module_text(ctx, module)
    texts: dict[str, _Texts] = {
        HLO: _optimized,
        HLO_BACKEND: _scheduled,
        LLVM_BEFORE_OPTIMIZATIONS: lambda ctx, module: _linked(ctx, module, LLVM_BEFORE_OPTIMIZATIONS),
        LLVM: lambda ctx, module: _linked(ctx, module, LLVM),
        LLVM_AFTER_OPTIMIZATIONS: lambda ctx, module: _linked(ctx, module, LLVM),
        HTML: _graph,
        PTX: lambda ctx, module: "\n".join(["// GPU Executable", *_kernel_texts(ctx, module, PTX)]),
    }
    return texts.get(stage) or (lambda ctx, module: "\n".join(_kernel_texts(ctx, module, stage)))


def _stages(platform: str) -> list[str]:
    if platform == TRANSFORMS:
        return [HLO]
    return sorted({*STAGES, HLO_BACKEND, HTML, LLVM_AFTER_OPTIMIZATIONS})


def _spelling(name: str) -> str:
    from hlo_run.pipeline.table_rows import spelling

    return spelling(name)


def _passes() -> dict[str, str]:
    """Return XLA's names of the HLO passes, which have dashes or underscores, by the same names with dashes."""
    return {_spelling(row.pass_name): row.pass_name for row in _rows().values()}


def _rows() -> dict[str, HloRow]:
    """Return the passes outside of the pipeline and the rows of the HLO table in order, by their names with dashes."""
    from hlo_run.pipeline.other_passes import OTHER_PASSES
    from hlo_run.pipeline.plugin_passes import plugin_rows
    from hlo_run.pipeline.table import PIPELINE

    rows = {_spelling(row.name): row for group in (OTHER_PASSES, *PIPELINE) for _, row in group.all_rows()}
    return {**rows, **{_spelling(name): row for name, row in plugin_rows().items()}}


def _module_text(ctx: PassContext, module: HloModule) -> str:
    return module_to_string(module, dump_options(ctx.show))


def _text_proto(module: HloModule) -> str:
    from hlo_run.formats.write import module_to_bytes

    return module_to_bytes(module, "pbtxt").decode()


def _run_passes(asked: Sequence[AskedPass], ctx: PassContext, module: HloModule) -> str:
    """Run passes in this order, including those that the target would skip. A pass may appear more than once.

    Accepts modules as XLA's tests of passes do: an instruction may mix float widths, and layouts may be inconsistent if a pass
    comes before layout assignment in the table.
    """
    from hlo_run.ops.verify import READING
    from hlo_run.pipeline.runner import run_hlo_groups
    from hlo_run.pipeline.table_rows import Group, numbered

    plain = [(row, one) for one in asked for row in _rows_of_pass(one.name)]
    order = list(_rows().values())
    settled = next(number for number, row in enumerate(order) if row.settles_layouts)
    keeps_layouts = not any(row in order[:settled] for row, _ in plain)
    chosen = [with_options(row, one) for row, one in plain]
    running = [replace(row, name=row.pass_name, number=1, required=True, when=_always) for row in chosen]
    run_hlo_groups(numbered([Group("transforms_pipeline", tuple(running))]), ctx, module, READING, keeps_layouts)
    return _module_text(ctx, module)


def _rows_of_pass(name: str) -> list[HloRow]:
    """Return the rows to run for a name: all rows that share the work of a pass, else its first row, else the row `name`."""
    rows = _rows()
    asked = _spelling(name)
    found = [row for row in rows.values() if _spelling(row.pass_name) == asked]
    if not found:
        return [rows[asked]]
    if not found[0].shares:
        return found[:1]
    return list({repr(row.make): row for row in reversed(found)}.values())[::-1]


def _always(ctx: PassContext) -> bool:
    del ctx
    return True


def _optimized(ctx: PassContext, module: HloModule) -> str:
    from hlo_run.pipeline.runner import run_hlo_groups
    from hlo_run.pipeline.table import HLO_PIPELINE, pipeline_until

    if module.schedule is None:
        _, last = ctx.options.early_exit
        run_hlo_groups(pipeline_until(last) if last else HLO_PIPELINE, ctx, module)
    return _module_text(ctx, module)


def _graph(ctx: PassContext, module: HloModule) -> str:
    """Return the page that draws all computations of the optimised module."""
    from hlo_run.pipeline.observers.hlo_graph import html_text

    _optimized(ctx, module)
    return html_text(module, module.name)


def _scheduled(ctx: PassContext, module: HloModule) -> str:
    from hlo_run.pipeline.compile import optimize

    optimize(ctx, module)
    return _module_text(ctx, module)


class _Collector(Observer):
    """Keeps the texts of a stage and stops the compilation there; each kernel stops separately."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self.texts: list[str] = []

    def after(self, step: Step) -> None:
        if step.row == self._stage:
            self._keep(step.text)

    def note(self, kernel: str, title: str, text: Callable[[], str]) -> None:
        if title == self._stage:
            self._keep(text)

    def _keep(self, text: Callable[[], str]) -> None:
        self.texts.append(text().rstrip("\n"))
        raise StopAtStage


def _kernel_texts(ctx: PassContext, module: HloModule, stage: str) -> list[str]:
    """Return the texts of a stage: one for the module, or one for each kernel in the order of the schedule."""
    from hlo_run.pipeline.compile import compile_module

    collector = _Collector(stage)
    watched = replace(ctx, observers=(*ctx.observers, collector), show=dataclasses.replace(ctx.show, stage=stage))
    with suppress(StopAtStage):
        compile_module(watched, module)
    return collector.texts


_DEFINED = re.compile(r"^define [^@\n]*@\"?([^\s\"(]+)", re.MULTILINE)


def _linked(ctx: PassContext, module: HloModule, stage: str) -> str:
    """Return the LLVM modules of all kernels linked into one, in descending order of their smallest function name, as in XLA."""
    from hlo_run.codegen.llvm.nvptx import Module

    texts = _kernel_texts(ctx, module, stage)
    texts.sort(key=lambda text: min(_DEFINED.findall(text), default=""), reverse=True)
    if not texts:
        return ""
    linked, *others = (Module.from_text(text) for text in texts)
    for other in others:
        linked.link(other)
    return str(linked)
