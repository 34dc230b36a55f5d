"""`--xla_diff`: compares the compilation of a module with real XLA:GPU's, by the same measures of kernels, bytes and memory."""

from __future__ import annotations

from hlo_run.analysis.cost.device_work import device_work
from hlo_run.analysis.cost.side_by_side import Side, XlaDiff, diff_record, diff_sides, make_side
from hlo_run.artifact import every_thunk
from hlo_run.codegen.llvm.ptxas import find_ptxas
from hlo_run.commands.target_choice import choose_target, target_config
from hlo_run.commands.task import Task
from hlo_run.errors import UsageError
from hlo_run.formats.xla_gpu import EMITTERS_ONLY, XlaCompilation, compile_with_xla, environment_flags
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.printer import FULL, module_to_string
from hlo_run.ops.parse import parse
from hlo_run.options import CompileOptions
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import plan_module

MODES = ("emitters", "default")
_AS_IS = "--xla_disable_all_hlo_passes"


def xla_flags(options: CompileOptions, mode: str) -> list[str]:
    """Return the flags for XLA's compiler: by `mode`, by the environment, and by our command line where XLA shares the flag.

    Raises UsageError for an unknown mode.
    """
    if mode not in MODES:
        raise UsageError(f"--xla_diff={mode} is unknown", hint=f"choose one of {', '.join(MODES)}")
    flags = [*(EMITTERS_ONLY if mode == "emitters" else ()), *environment_flags()]
    if not options.xla_allow_excess_precision:
        flags.append("--xla_allow_excess_precision=false")
    if options.hlo_rows.required_only:
        flags.append(_AS_IS)
    if disabled := options.hlo_rows.disabled:
        flags.append("--xla_disable_hlo_passes=" + ",".join(disabled))
    return flags


def compare_with_xla(ctx: PassContext, working: HloModule, text: str, file: str, target_config: str) -> XlaDiff:
    """Compile `text` with XLA and the same module `working` with our compiler, in place, and return the comparison.

    `target_config` is the GPU of `ctx` as an XLA `gpu_target_config`. Raises UsageError if XLA's compiler is not installed.
    """
    ptxas = find_ptxas(ctx.options.xla_gpu_cuda_data_dir)
    cuda = ptxas.parent.parent if ptxas is not None else None
    # XLA's passes cannot run on their own output. A schedule marks such a module.
    as_is = [_AS_IS] if working.schedule is not None else []
    made = compile_with_xla(text, file, target_config, [*xla_flags(ctx.options, ctx.show.xla_diff), *as_is], cuda)
    ours = our_side(ctx, working)
    return diff_sides(working.name, ctx.target.name, ctx.show.xla_diff, ours, xla_side(made))


def our_side(ctx: PassContext, module: HloModule) -> Side:
    """Optimise `module` in place, and return our side of the comparison."""
    plan = plan_module(ctx, module)
    memory = sum(allocation.size_bytes for allocation in plan.buffers.planned)
    return make_side([thunk.kind for thunk in every_thunk(plan.thunks)], memory, device_work(module))


def xla_side(made: XlaCompilation) -> Side:
    """Return XLA's side of the comparison."""
    module = parse(made.text, "XLA's module", verified=False)
    return make_side(made.thunk_kinds, made.memory_bytes, device_work(module))


def show_xla_diff(task: Task, module: HloModule) -> None:
    """Print and record the comparison of a module with XLA:GPU; raises errors of the HloRunError family."""
    options = task.options
    text = module_to_string(module, FULL)
    with task.observers.compiling(options, module, choose_target(options)) as (ctx, working):
        diff = compare_with_xla(ctx, working, text, task.file, target_config(options))
    task.result.xla_diff = diff_record(diff)
    task.console.xla_diff(diff)
