"""The checks of floats in a run: the watch, and the results of instructions, by which it knows the content of memory."""

from __future__ import annotations

from collections.abc import Callable

from hlo_run.artifact import Executable
from hlo_run.backends.float_watch import FloatWatch
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.ops.parse import parse
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import compile_module


def float_watch(options: Options, report: Callable[[str], None]) -> FloatWatch:
    """Return the watch that the flags ask for; it knows no results yet."""
    return FloatWatch(options.nan_check, options.inf_check, options.xla_gpu_log_minmax, report)


def compile_watched(watch: FloatWatch, ctx: PassContext, module: HloModule) -> Executable:
    """Compile a module in place, without the cache of executables, and tell the watch its results."""
    executable = compile_module(ctx, module)
    watch_results(watch, module)
    return executable


def watch_saved(watch: FloatWatch, executable: Executable) -> None:
    """Tell the watch the results of a saved executable, which has the text of its module."""
    watch_results(watch, parse(executable.module_text))


def watch_results(watch: FloatWatch, module: HloModule) -> None:
    """Tell the watch the arrays of all results in a compiled module."""
    watch.results = {i.name: tuple(_arrays(i.shape)) for c in module.computations if not c.is_fusion for i in c.instructions}


def _arrays(shape: Shape) -> list[tuple[str, int]]:
    if shape.is_tuple:
        return [array for inner in shape.tuple_shapes for array in _arrays(inner)]
    return [(shape.element_type, shape.element_count)] if shape.is_array else []
