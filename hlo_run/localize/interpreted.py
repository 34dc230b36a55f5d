"""Interprets the IR of a kernel after each row that no run can skip, and names the first row after which it is wrong."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hlo_run.artifact import Executable, KernelThunk
from hlo_run.backends.host.stepper import Stepper, flattened
from hlo_run.dialects.parse import parse_module
from hlo_run.errors import HloRunError
from hlo_run.execution.arguments import MODULE_SEED
from hlo_run.hlo.feeds import NO_FEEDS
from hlo_run.hlo.printer import FULL
from hlo_run.interpret.kernel import interpret
from hlo_run.interpret.memory import Memory
from hlo_run.interpret.scalars import BadAccess, NotInterpreted
from hlo_run.localize.found import alone_context, open_host, unscheduled, verdicts_of
from hlo_run.localize.reproducer import Reproducer
from hlo_run.ops.parse import parse
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pass_support.observer import EMIT_KERNELS
from hlo_run.pass_support.replacements import KernelIr
from hlo_run.pipeline.compile import compile_module
from hlo_run.records import replace
from hlo_run.reference.evaluate.evaluate import evaluate

_SECONDS = 20.0


def blame_by_interpreter(ctx: PassContext, made: Reproducer, options: Options, dumps: Sequence[KernelIr], known: str = "") -> str:
    """Return a sentence that names the first row after which the kernel is wrong by interpretation; "" if no row is sure.

    `dumps` are those of a compilation that skipped the optional rows after the first dump. `known` is the row of the first
    dump if completing the dumps before it has shown that they are right; the sentence is empty if it is the culprit.
    """
    until = time.monotonic() + _SECONDS
    trial = Trial(ctx, made, options)
    last = ""
    for dump in dumps:
        wrong = "wrong"
        try:
            is_right = trial.agrees(dump, until)
        except BadAccess as error:
            is_right, wrong = False, f"stops at {error}"
        except NotInterpreted as error:
            if not last:
                return "" if dump.row == known else f"the interpreter stops at '{dump.row}': {error}"
            return _after(last, f"; '{dump.row}' is not checked: {error}")
        if not is_right and dump.row == known:
            return ""
        if not is_right and dump.row == EMIT_KERNELS:
            return f"look at '{EMIT_KERNELS}': interpreted, the IR that the emitter writes is wrong"
        if not is_right:
            before = f"the IR is right after '{last}', and " if last else "the IR "
            return f"look at kernel row '{dump.row}': interpreted, {before}{wrong} after '{dump.row}'"
        last = dump.row
    return _after(last, "") if last else ""


def _after(row: str, end: str) -> str:
    if end:
        return f"interpreted, the IR is right up to '{row}'{end}"
    return (
        f"look at what follows row '{row}', whose IR is right when it is interpreted: the LLVM IR's text and libdevice,"
        " LLVM, or the PTX (--stage=llvm-before-optimizations, llvm and ptx print them)"
    )


class Trial:
    """A reproducer, compiled once without replaced IR, to run with one kernel interpreted."""

    def __init__(self, ctx: PassContext, made: Reproducer, options: Options) -> None:
        self._made, self._options = made, options
        module = parse(made.module.to_string(FULL), f"{made.name}.hlo")
        self._reference = unscheduled(module)
        self._expected = evaluate(self._reference, made.values, seed=MODULE_SEED)
        with_kernel = replace(alone_context(ctx, made), replacements=replace(ctx.replacements, ir={}))
        self._executable: Executable = compile_module(with_kernel, module)

    def agrees(self, dump: KernelIr, until: float) -> bool:
        """Run with the kernel of the dump interpreted; True if the result agrees with the reference."""
        stepper = Stepper(open_host(self._options), self._executable)
        stepper.begin(self._made.values, MODULE_SEED, NO_FEEDS(0))
        for step in flattened(stepper.steps):
            if isinstance(step.thunk, KernelThunk) and step.thunk.kernel == dump.kernel:
                _interpret(stepper, step.thunk, dump, until)
            else:
                stepper.run([step])
        actual = stepper.read(self._executable.result)
        return verdicts_of(self._options).of_module(self._reference, self._made.values, self._expected, actual).ok


def _interpret(stepper: Stepper, thunk: KernelThunk, dump: KernelIr, until: float) -> None:
    """Interpret a kernel on the memory of `stepper`. Raises NotInterpreted, also for IR that the interpreter does not expect."""
    if thunk.sort is not None:
        raise NotInterpreted("a sort")
    memory = Memory()
    starts: dict[int, int] = {}
    for argument in thunk.arguments:
        number = argument.slice.allocation
        if number not in starts:
            data = stepper.allocation(number)
            starts[number] = memory.allocate(data.size, data)
    addresses = [starts[argument.slice.allocation] + argument.slice.offset_bytes for argument in thunk.arguments]
    try:
        interpret(parse_module(dump.text, dump.file), dump.kernel, dump.launch, memory, addresses, until)
    except (HloRunError, ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise NotInterpreted(f"{type(error).__name__}: {error}") from error
    for number, start in starts.items():
        target = stepper.allocation(number)
        if any(argument.written and argument.slice.allocation == number for argument in thunk.arguments):
            target[:] = memory.data[start : start + target.size]
