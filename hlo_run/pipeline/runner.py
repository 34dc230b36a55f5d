"""Runs the rows of both pass tables: applies a row, verifies the result, and tells the observers."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from hlo_run.containment.board import PLUGIN_PLACE, at_place, counted
from hlo_run.errors import DeviceError, HloRunError, InternalError, ParseError, PluginError, Unsupported, UsageError
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.printer import module_to_string
from hlo_run.hlo.verify.library_calls import verify_library_calls
from hlo_run.hlo.verify.limits import verify_limits, verify_shuffles
from hlo_run.ops.layouts import fused_layouts_fit, layouts_fit
from hlo_run.ops.verify import COMPILING, LAID_OUT, READING, Strictness, verify
from hlo_run.pass_support.fuel import Fuel
from hlo_run.pass_support.hlo_pass import HloPass, PassContext
from hlo_run.pass_support.observer import PIPELINE_END, PIPELINE_START, Level, Observer, Step
from hlo_run.pass_support.print_options import dump_options
from hlo_run.pipeline.table_rows import Group, Row
from hlo_run.records import replace
from hlo_run.sharding.analysis.whole import is_for_partitioner

if TYPE_CHECKING:
    from xdsl.context import Context
    from xdsl.dialects.builtin import ModuleOp

    from hlo_run.pipeline.kernel_table import KernelPass

_Item: TypeAlias = "Row[PassContext, HloPass] | Group[PassContext, HloPass]"


def run_hlo_groups(
    groups: tuple[Group[PassContext, HloPass], ...],
    ctx: PassContext,
    module: HloModule,
    taken: Strictness = COMPILING,
    keeps_layouts: bool = True,
) -> None:
    """Run groups of HLO rows on `module` in place. A group with `repeat` runs until the module stops changing.

    `taken` is the strictness of the verifier. `keeps_layouts` False: rows may make consistent layouts inconsistent. Raises
    ParseError for an invalid module, Unsupported for one that is nested too deep or whose calls of libraries do not fit,
    InternalError for a row that fails. Rows that run with the strictness READING take any calls, as XLA's passes do.
    """
    verify_limits(module)
    if taken != READING:
        verify_library_calls(module)
    numbers = {id(row): number for number, row in enumerate((row for group in groups for _, row in group.all_rows()), 1)}
    run = _HloRun(replace(ctx, fuel=Fuel(ctx.options.fuel_limits)), module, numbers, is_for_partitioner(module))
    if ctx.options.verify != "off":
        rows = [row for group in groups for names, row in group.all_rows() if row.runs(ctx, names)]
        settles = any(row.settles_layouts or row.mixes_layouts for row in rows)
        run.strictness = verify_input(module, settles or not keeps_layouts, taken)
        run.settled = replace(taken, layouts=fused_layouts_fit(module), windows=False)
    try:
        for group in groups:
            run.group(group, ())
    except InternalError:
        if taken == READING:  # a pass may rely on the calls, which were not verified: then the module is to blame
            verify_library_calls(module)
        raise
    if taken != READING:
        verify_shuffles(module)
    if ctx.options.verify != "off":
        verify(module, run.strictness)


def verify_input(module: HloModule, settles_layouts: bool = False, taken: Strictness = COMPILING) -> Strictness:
    """Verify a module before the first row with strictness `taken`, and return the strictness after rows.

    If the module's layouts are consistent and no row settles layouts later (`settles_layouts`), the rows must keep them
    consistent. Raises ParseError.
    """
    verify(module, taken)
    return replace(taken, layouts=True, windows=False) if not settles_layouts and layouts_fit(module) else taken


class _HloRun(Struct):
    """A run of the HLO table on one module.

    `strictness` is that of the verifier now, `settled` that after the row that settles layouts. `settled` does not demand
    consistent layouts if the module came with fusions that have inconsistent layouts inside, which no row changes.
    """

    ctx: PassContext
    module: HloModule
    numbers: dict[int, int]
    """The places of the rows in the table, from 1, by `id`."""
    is_for_partitioner: bool
    strictness: Strictness = COMPILING
    settled: Strictness = LAID_OUT
    _verified: tuple[int, int, Strictness] | None = None

    def group(self, group: Group[PassContext, HloPass], outer: tuple[str, ...]) -> None:
        """Run a group until it changes nothing, at most `repeat` times."""
        names = (*outer, group.name)
        items = [item for item in group.rows if self._runs(item, names)] if self._fits(group) else []
        if not items:
            return
        for _ in range(group.repeat):
            version = self.module.version
            self._once(group.name, items, names)
            if self.module.version == version:
                break

    def _runs(self, item: _Item, names: tuple[str, ...]) -> bool:
        if isinstance(item, Row):
            return item.runs(self.ctx, names)
        if not self._fits(item):
            return False
        return any(row.runs(self.ctx, (*names, *inner)) for inner, row in item.all_rows())

    def _fits(self, group: Group[PassContext, HloPass]) -> bool:
        """True if the group is for modules that the partitioner divides, or for others, as this one is."""
        return group.for_partitions is None or group.for_partitions is self.is_for_partitioner

    def _once(self, name: str, items: list[_Item], names: tuple[str, ...]) -> None:
        pass_names = [item.pass_name if isinstance(item, Row) else item.name for item in items]
        following = [*pass_names, PIPELINE_END]
        base = Step(
            Level.HLO,
            name,
            PIPELINE_START,
            text=lambda: module_to_string(self.module, dump_options(self.ctx.show)),
            next_row=following[0],
            changed=False,
            op_count=lambda: sum(len(c.instructions) for c in self.module.computations),
        )
        _tell(self.ctx.observers, base)
        for number, item in enumerate(items):
            step = replace(base, row=item.name, pass_name=pass_names[number], next_row=following[number + 1])
            if isinstance(item, Row):
                self._row(item, step)
            else:
                self._inner(item, step, names)

    def _inner(self, group: Group[PassContext, HloPass], step: Step, names: tuple[str, ...]) -> None:
        """Run a group inside another as one step of it. The step has no seconds, since its rows count theirs."""
        version = self.module.version
        self.group(group, names)
        _tell(self.ctx.observers, replace(step, changed=self.module.version != version))

    def _row(self, row: Row[PassContext, HloPass], step: Step) -> None:
        version = self.module.version
        counted(f"row {self.numbers[id(row)]} of {len(self.numbers)}")
        for observer in self.ctx.observers:
            observer.before(step)

        def apply() -> None:
            if not self.ctx.fuel.is_out(row.pass_name):
                if not row.for_opcodes or self.module.instructions_of(*row.for_opcodes):
                    row.make(self.ctx).apply(self.ctx, self.module)
                self.ctx.fuel.ran(row.pass_name, self.module.version != version)
            if row.settles_layouts:
                self.strictness = self.settled
            if row.settles_broadcasts:
                self.strictness = replace(self.strictness, broadcasts=True)
            # A plugin must not let the rows after it fail.
            if self.ctx.options.verify == "every" or (row.plugin and self.ctx.options.verify != "off"):
                self._verify(row.name)

        seconds = _guarded(apply, step, self.ctx.observers, row.plugin)
        _tell(self.ctx.observers, replace(step, changed=self.module.version != version, seconds=seconds))

    def _verify(self, row: str) -> None:
        """Verify the module if it changed since the last verification. Raises InternalError: it was valid before the row."""
        if self._state() != self._verified:
            try:
                verify(self.module, self.strictness)
            except ParseError as error:
                message = f"row '{row}' made an invalid module: {error.message}"
                raise InternalError(message, error.where, error.hint, error.notes) from error
            # Verification may itself edit the module when it settles open shapes.
            self._verified = self._state()

    def _state(self) -> tuple[int, int, Strictness]:
        return self.module.version, id(self.module.schedule), self.strictness


class Emitted(Protocol):
    """The part of an emitter's result that the runner uses."""

    @property
    def module(self) -> ModuleOp:
        """The kernel's IR, which the rows transform in place."""
        ...

    @property
    def launch(self) -> object:
        """The launch dimensions, whose `str` observers print."""
        ...

    @property
    def unroll_factor(self) -> int:
        """The maximum unroll factor of the kernel's loops."""
        ...

    @property
    def kind(self) -> str:
        """The name of the emitter; empty for a dump."""
        ...


EmittedT = TypeVar("EmittedT", bound=Emitted)


class KernelRun:
    """Runs the rows of one kernel. Keeps the text of the last step, so that observers cost one printing per row.

    `printer` gets the kernel, the row after which it is printed, and the name of the emitter.
    """

    def __init__(self, kernel: str, ctx: PassContext, printer: Callable[[ModuleOp, str, str], str]) -> None:
        self._kernel = kernel
        self._ctx = ctx
        self._printer = printer
        self._watched = any(observer.watches(Level.KERNEL) for observer in ctx.observers)
        self._text = ""
        self._launch = ""
        self._kind = ""
        self._unroll_factor = 0
        self._verified: list[object] = []

    def emit(self, row: str, work: Callable[[], EmittedT]) -> EmittedT:
        """Run an emitter and return its result, verified unless `--verify=off`."""
        result: list[EmittedT] = []

        def apply() -> None:
            result.append(work())
            if self._ctx.options.verify != "off":
                result[0].module.verify()

        # Before the emitter has run, the kernel has no text.
        step = Step(Level.KERNEL, "kernel", row, text=str, kernel=self._kernel)
        seconds = _guarded(apply, step, self._ctx.observers)
        self.resume(result[0], row)
        _tell(self._ctx.observers, replace(self._step(row, result[0].module), changed=True, seconds=seconds))
        return result[0]

    def resume(self, emitted: Emitted, row: str) -> None:
        """Continue with the IR of an emitter or of a dump after a row."""
        self._launch, self._kind, self._unroll_factor = str(emitted.launch), emitted.kind, emitted.unroll_factor
        if self._watched:
            self._text = self._printer(emitted.module, row, self._kind)

    def apply(self, row: str, pass_name: str, made: KernelPass, xdsl_context: Context, module: ModuleOp) -> None:
        """Apply one row and verify with `--verify=every`. LLVM verifies the result of the last row, as LLVM IR.

        A row without fuel is skipped.
        """
        step = self._step(row, module)
        for observer in self._ctx.observers:
            observer.before(step)

        def apply() -> None:
            fuel = self._ctx.fuel
            if not fuel.has_limit(pass_name):
                made.apply(xdsl_context, module)
            elif not fuel.is_out(pass_name):
                parts = _parts(module)
                made.apply(xdsl_context, module)
                fuel.ran(pass_name, _parts(module) != parts)
            if self._ctx.options.verify == "every":
                self._verify(module)

        seconds = _guarded(apply, step, self._ctx.observers)
        changed: bool | None = None
        if self._watched:
            text = self._printer(module, row, self._kind)
            changed, self._text = text != self._text, text
        if self._ctx.observers:
            _tell(self._ctx.observers, replace(step, changed=changed, seconds=seconds))

    def _verify(self, module: ModuleOp) -> None:
        """Verify the kernel if it changed since the last verification. Most rows change nothing."""
        parts = _parts(module)
        if parts != self._verified:
            module.verify()
            self._verified = parts

    def _step(self, row: str, module: ModuleOp) -> Step:
        return Step(
            Level.KERNEL,
            "kernel",
            row,
            text=lambda: self._text if self._watched else self._printer(module, row, self._kind),
            kernel=self._kernel,
            launch=self._launch,
            unroll_factor=self._unroll_factor,
            op_count=lambda: sum(1 for _ in module.walk()),
        )


def run_crossing(step: Step, ctx: PassContext, work: Callable[[], str]) -> str:
    """Run `work`, which makes a text (LLVM IR, PTX), tell the observers, and return the text."""
    result: list[str] = []
    seconds = _guarded(lambda: result.append(work()), step, ctx.observers)
    _tell(ctx.observers, replace(step, text=lambda: result[0], changed=True, seconds=seconds))
    return result[0]


def _guarded(work: Callable[[], None], step: Step, observers: tuple[Observer, ...], plugin: str = "") -> float:
    """Run `work` and return its processor seconds, 0 without observers.

    An exception outside the HloRunError family becomes an InternalError.
    If the row is that of a `plugin`, what it raises becomes a PluginError, except what says that something is not supported.
    """
    begin = time.process_time() if observers else 0.0
    place = f"row '{step.row}', kernel '{step.kernel}'" if step.kernel else f"row '{step.row}'"
    at_place(f"{PLUGIN_PLACE}{step.row}'" if plugin else place)
    try:
        if plugin:
            work = functools.partial(_run_plugin, work, step.row, plugin)
        work()
    except HloRunError as error:
        _failed(observers, step, error)
        raise
    except Exception as error:
        internal = InternalError(f"{type(error).__name__} in {place}: {_first_line(error)}", notes=_frames(error))
        _failed(observers, step, internal)
        raise internal from error
    return time.process_time() - begin if observers else 0.0


def _run_plugin(work: Callable[[], None], name: str, plugin: str) -> None:
    try:
        work()
    except (Unsupported, DeviceError, UsageError, KeyboardInterrupt):
        raise
    except BaseException as error:  # whatever a plugin raises, SystemExit too: its code is not that of a run
        if isinstance(error, InternalError) and error.message.startswith(f"row '{name}' "):
            made = error.message.partition("' ")[2]
            raise PluginError(f"the pass '{name}' ({plugin}) {made}", error.where, error.hint, error.notes) from error
        raised = f"raised {type(error).__name__}: {_first_line(error)}"
        raise PluginError(f"the pass '{name}' ({plugin}) {raised}", notes=(_plugin_frame(error, plugin),)) from error


def _plugin_frame(error: BaseException, plugin: str) -> str:
    """Return the innermost line of the plugin in a traceback, else the innermost one that is not hlo-run's."""
    package = plugin.partition(":")[0].partition(".")[0] if ":" in plugin else ""
    found = ("", "")
    traceback = error.__traceback__
    while traceback is not None:
        code, name = traceback.tb_frame.f_code, str(traceback.tb_frame.f_globals.get("__name__", ""))
        line = f"at {code.co_filename}:{traceback.tb_lineno}, {code.co_qualname}"
        if package and name.partition(".")[0] == package:
            found = (line, line)
        elif not name.startswith("hlo_run."):
            found = (found[0], line)
        traceback = traceback.tb_next
    return found[0] or found[1] or f"at the import of {plugin}"


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else "no message"


def _frames(error: Exception, count: int = 3) -> tuple[str, ...]:
    """Return the innermost `count` frames as notes."""
    frames: list[str] = []
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        module = str(traceback.tb_frame.f_globals.get("__name__", "?"))
        frames.append(f"at {module}.{code.co_qualname}, line {traceback.tb_lineno}")
        traceback = traceback.tb_next
    return tuple(frames[-count:])


def _failed(observers: tuple[Observer, ...], step: Step, error: HloRunError) -> None:
    for observer in observers:
        observer.failed(step, error)


def _tell(observers: tuple[Observer, ...], step: Step) -> None:
    for observer in observers:
        observer.after(step)


def _parts(module: ModuleOp) -> list[object]:
    """Return everything that a verifier looks at, in order. Operations, values and blocks compare by identity."""
    parts: list[object] = []
    for op in module.walk():
        parts.append(op)
        parts.extend(op.operands)
        parts.extend(op.successors)
        parts.extend(op.properties.items())
        parts.extend(op.attributes.items())
        parts.extend(result.type for result in op.results)
        for region in op.regions:
            for block in region.blocks:
                parts.append(block)
                parts.extend(argument.type for argument in block.args)
    return parts
