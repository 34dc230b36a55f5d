"""Emits a fusion as a kernel in the `xla_gpu` dialect: analyses it, chooses the emitter, and runs it."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.analysis.tiling.analyze_fusion import analyze
from hlo_run.codegen.emitters.kernel import EmittedKernel, EntryArgument
from hlo_run.codegen.emitters.table import EMITTERS
from hlo_run.hlo.graph import HloInstruction
from hlo_run.records import replace
from hlo_run.target import TargetSpec

__all__ = ["EmittedKernel", "EntryArgument", "emit_kernel"]


def emit_kernel(
    fusion: HloInstruction, kernel_name: str, target: TargetSpec, arguments: Sequence[EntryArgument], part: int = 0
) -> EmittedKernel:
    """Return the kernel of `fusion`, with `kernel_name` as its entry function; `arguments` are operands, then results.

    `part` is the number of the kernel in a fusion with several kernels. Raises Unsupported, with the position in the text,
    for an instruction or element type that no emitter supports.
    """
    analysis = replace(analyze(fusion, target), part=part)
    for emitter_type in EMITTERS:
        emitter = emitter_type()
        if emitter.accepts(analysis, arguments):
            return emitter.emit(analysis, kernel_name, arguments)
    raise AssertionError("the loop emitter accepts every fusion")
