"""Sets up the observers of one file's compilations: logs, dumps and times; writes a reproducer after an internal error."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from hlo_run.containment.board import limited
from hlo_run.containment.crash import REPRODUCER, reproducer_notes
from hlo_run.errors import InternalError
from hlo_run.execution.console import Console
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.printer import FULL, module_to_string
from hlo_run.options import Options, ShowOptions
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pass_support.observer import Observer
from hlo_run.pass_support.replacements import read_replacements
from hlo_run.pipeline.observers.timing import TimingObserver
from hlo_run.pipeline.observers.verbose import VerboseObserver
from hlo_run.target import TargetSpec

if TYPE_CHECKING:
    from hlo_run.pipeline.observers.dump import DumpObserver


class CompilationObservers:
    """The observers of one file's compilations. `number` is the file's place on the command line, from 0."""

    def __init__(self, number: int, console: Console) -> None:
        self._number, self._console = number, console
        self._timing = TimingObserver()

    @contextmanager
    def compiling(
        self,
        options: Options,
        module: HloModule,
        target: TargetSpec,
        watching: Sequence[Callable[[HloModule], Observer]] = (),
        passes: Sequence[str] = (),
    ) -> Generator[tuple[PassContext, HloModule]]:
        """Yield the context of a compilation and the copy of `module` to compile, since compilation edits in place.

        `watching` are functions from that copy to another observer; `passes` are the names of the only passes that run, by
        default XLA's pipelines. Adds the path of a reproducer to an InternalError.
        """
        working = module.clone()
        observers = self.create(options)
        dump = self._dump_observer(options, working, target, passes)
        if dump is not None:
            dump.start()
            observers.append(dump)
        observers += [make(working) for make in watching]
        if options.reduction_check != "NONE":
            from hlo_run.pipeline.observers.unstable_reductions import UnstableReductions  # few command lines look for them

            again = options.checks_reductions_again
            observers.append(UnstableReductions(working, options.reduction_check, again, self._console.err))
        try:
            replacements = read_replacements(options, module.name)
            # With locations, a fault that Host's checks find names the HLO instruction, and a page links lines of texts.
            locates = options.print_locations or bool(options.host_check or options.report_html)
            show = replace(options.show, print_locations=True) if options.report_html else options.show
            with limited(options.timeout):
                yield PassContext(target, options.compile, tuple(observers), replacements, show, locates), working
            if dump is not None and passes:
                dump.passes_done()
        except InternalError as error:
            if not any(note.startswith(REPRODUCER) for note in error.notes):
                error.notes = (
                    *error.notes,
                    *reproducer_notes(module.name, {"module.hlo": module_to_string(module, FULL).encode()}),
                )
            raise
        finally:
            for observer in observers:
                if isinstance(observer, VerboseObserver):
                    observer.finish()
            self.show_times(options)

    def create(self, options: ShowOptions) -> list[Observer]:
        """Return the observers that see every compilation."""
        watching: list[Observer] = []
        if options.v:
            is_diff = options.v_format == "diff"
            write = partial(self._console.difference, is_result=False) if is_diff else self._console.err
            watching.append(VerboseObserver(options.v, write, is_diff))
        if options.time_passes or options.xla_gpu_print_compilation_stats:
            watching.append(self._timing)
        return watching

    def show_times(self, options: ShowOptions) -> None:
        """Print the times so far if `--time_passes` asks for them."""
        if options.time_passes or options.xla_gpu_print_compilation_stats:
            self._console.err(self._timing.table())

    def _dump_observer(
        self, options: Options, module: HloModule, target: TargetSpec, passes: Sequence[str]
    ) -> DumpObserver | None:
        """Return the observer that dumps `module`, the copy that is compiled; None if nothing is dumped."""
        most = options.xla_dump_max_hlo_modules
        if not options.dumps_to or 0 < most <= self._number:
            return None
        from hlo_run.pipeline.observers.dump import DumpObserver  # few command lines dump
        from hlo_run.pipeline.xla_pipelines import order_of_passes, xla_order

        def write_proto(module: HloModule) -> bytes:
            from hlo_run.formats.write import module_proto  # imports jaxlib

            return module_proto(module)

        ctx = PassContext(target, options.compile)
        order = order_of_passes(passes) if passes else xla_order(ctx, module, self._number)
        return DumpObserver(
            options, module, self._number, target, self._console.artefact, order, write_proto, of_passes=bool(passes)
        )
