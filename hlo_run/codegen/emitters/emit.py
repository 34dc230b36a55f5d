"""From a fusion to a kernel in the `xla_gpu` dialect: analyse it, choose the emitter, emit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hlo_run.analysis.tiling.analyze_fusion import analyze
from hlo_run.codegen.emitters.kernel import EmittedKernel, EntryArgument
from hlo_run.codegen.emitters.table import EMITTERS
from hlo_run.hlo.graph import HloInstruction
from hlo_run.target import TargetSpec

__all__ = ["EmittedKernel", "EntryArgument", "emit_kernel"]


def emit_kernel(
    fusion: HloInstruction, kernel_name: str, target: TargetSpec, arguments: Sequence[EntryArgument], part: int = 0
) -> EmittedKernel:
    """Return the kernel of `fusion`, with `kernel_name` as its entry function; `arguments` are operands, then results.

    `part` says which, for a fusion that takes several.
    Raises Unsupported, with the place in the text, for an instruction or element type that no emitter takes.
    """
    analysis = replace(analyze(fusion, target), part=part)
    for emitter_type in EMITTERS:
        emitter = emitter_type()
        if emitter.accepts(analysis, arguments):
            return emitter.emit(analysis, kernel_name, arguments)
    raise AssertionError("the loop emitter takes every fusion")
