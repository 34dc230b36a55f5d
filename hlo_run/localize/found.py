"""The findings of a replay, and the reproducer of its culprit, compiled and run alone."""

from __future__ import annotations

import dataclasses

from msgspec import Struct

from hlo_run.artifact import Executable
from hlo_run.backends.host.backend import HostBackend
from hlo_run.errors import DeviceError, HloRunError, UsageError
from hlo_run.execution.arguments import MODULE_SEED
from hlo_run.execution.error_bounds import error_spec, has_fixed_bounds
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.printer import FULL
from hlo_run.kernel_checks.verdicts import Verdicts
from hlo_run.localize.replay import Event, Kind, Replay
from hlo_run.localize.reproducer import Reproducer, make_reproducer, smallest_that_differs
from hlo_run.ops.parse import parse
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pass_support.replacements import Replacements
from hlo_run.pipeline.compile import compile_module
from hlo_run.platforms import HOST, platform_name
from hlo_run.records import replace
from hlo_run.reference.compare.compare import Comparison
from hlo_run.reference.evaluate.evaluate import evaluate
from hlo_run.runtime.buffers import BufferAssignment


class Localized(Struct, frozen=True):
    """The findings of `--localize`: the compiled run, its replay, and the comparison of the whole modules' results.

    `passes` compares the optimised module with the module by the reference, and is None if the reference cannot evaluate it.
    `run` compares the run with the module, and is None after a fault.
    """

    ctx: PassContext
    buffers: BufferAssignment
    executable: Executable
    replay: Replay
    passes: Comparison | None
    run: Comparison | None


def open_host(options: Options) -> HostBackend:
    """Return the platform of a replay; raises UsageError if the flags ask for another one."""
    if options.platform and platform_name(options.platform) != HOST:
        raise UsageError(f"the replay runs on Host, not on {platform_name(options.platform)}", hint="--platform=Host")
    return HostBackend((), options.timeout, options.host_engine, options.xla_gpu_deterministic_ops)


def verdicts_of(options: Options) -> Verdicts:
    """Return the rules by which a run with these flags compares."""
    return Verdicts(error_spec(options), has_fixed_bounds(options), MODULE_SEED)


def unscheduled(module: HloModule) -> HloModule:
    """Return a copy of a module for the reference, without the order of a schedule."""
    copy = module.clone()
    copy.schedule = None
    return copy


def reproducer_of(found: Localized, event: Event, options: Options) -> tuple[Reproducer, bool]:
    """Return the reproducer of a thunk that differs or fails, and whether it shows that alone."""

    def make(scheduled: bool) -> Reproducer:
        given = found.ctx.replacements
        return make_reproducer(event.instruction, event.kernels, event.operands, found.buffers, given, scheduled, event.leaves)

    fails = event.kind is Kind.FAULT
    return smallest_that_differs(make, lambda made: shows(found.ctx, made, options, fails))


def shows(ctx: PassContext, made: Reproducer, options: Options, fails: bool) -> bool:
    """True if the reproducer, as it will be read from its files, differs from the reference; with `fails`, if it fails."""
    try:
        module = parse(made.module.to_string(FULL), f"{made.name}.hlo")
        expected = evaluate(unscheduled(module), made.values, seed=MODULE_SEED)
        executable = compile_module(alone_context(ctx, made), module)
        actual = open_host(options).run(executable, made.values, MODULE_SEED)
    except DeviceError:
        return fails
    except HloRunError:
        return False
    return not verdicts_of(options).of_module(module, made.values, expected, actual).ok


def alone_context(ctx: PassContext, made: Reproducer) -> PassContext:
    """Return a context for the reproducer: the replacements of its kernels, no observers and no checks of passes."""
    given = ctx.replacements
    own = Replacements(
        {kernel: dump for kernel, dump in given.ir.items() if kernel in made.kernels},
        {kernel: text for kernel, text in given.llvm.items() if kernel in made.kernels},
        {kernel: text for kernel, text in given.ptx.items() if kernel in made.kernels},
    )
    return replace(ctx, observers=(), replacements=own, options=dataclasses.replace(ctx.options, check_each_pass=False))
