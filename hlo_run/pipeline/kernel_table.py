"""Defines the table of kernel passes; `table.py` explains the names of rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, ClassVar, Protocol

from hlo_run.options.compile import RowSelection
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pass_support.observer import EMIT_KERNELS
from hlo_run.pipeline.table_rows import PassAt, Row

if TYPE_CHECKING:
    from xdsl.context import Context
    from xdsl.dialects.builtin import ModuleOp


class KernelContext(PassContext, frozen=True):
    """The context of a kernel row, with the unroll factor of the kernel's emitter (4 for all but the loop emitter)."""

    max_unroll_factor: int = 4

    @cached_property
    def rows(self) -> RowSelection:
        """The kernel rows that the flags select."""
        return self.options.kernel_rows


class KernelPass(Protocol):
    """A pass over a kernel: the interface of xDSL's `ModulePass`, without an import of xDSL."""

    name: ClassVar[str]

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Edit `op` in place; raises errors of the HloRunError family only."""
        ...


KernelRow = Row[KernelContext, KernelPass]


def _kernel(module: str, **options: Callable[[KernelContext], object]) -> PassAt[KernelContext, KernelPass]:
    return PassAt(f"hlo_run.codegen.{module}", options)


def _counted(module: str, **options: Callable[[KernelContext], object]) -> PassAt[KernelContext, KernelPass]:
    """Return a kernel pass that takes fuel before every rewrite."""
    return _kernel(f"kernel_passes.{module}", take=lambda c: partial(c.fuel.take, module), **options)


def _waits_for_dependencies(c: KernelContext) -> bool:
    """Tell whether kernels wait for those before them: the GPU has programmatic dependent launch, and the flag is on."""
    return c.options.xla_gpu_enable_pdl and c.target.sm >= 90


KERNEL_GROUP = "kernel"
"""The name of the kernel rows' pipeline in dumps, steps and flags."""
KERNEL_PIPELINE: tuple[KernelRow, ...] = (
    KernelRow("simplify-arith", _counted("simplify_arith")),
    KernelRow("canonicalize", _counted("canonicalize")),
    KernelRow("cse", _counted("cse")),
    KernelRow("erase-dead-functions", _kernel("kernel_passes.erase_dead_functions")),
    KernelRow("lower-xla-to-scf", _kernel("kernel_passes.lower_xla_to_scf"), required=True),
    KernelRow("inliner", _counted("inliner")),
    KernelRow("canonicalize-2", _counted("canonicalize")),
    KernelRow("cse-2", _counted("cse")),
    KernelRow("peel-loops", _counted("peel_loops")),
    KernelRow("lower-xla-gpu-to-scf", _kernel("kernel_passes.lower_xla_gpu_to_scf"), required=True),
    KernelRow("propagate-slice-indices", _kernel("kernel_passes.propagate_slice_indices"), required=True),
    KernelRow("simplify-arith-2", _counted("simplify_arith")),
    KernelRow("flatten-tensors", _kernel("kernel_passes.flatten_tensors"), required=True),
    KernelRow("canonicalize-3", _counted("canonicalize")),
    KernelRow("cse-3", _counted("cse")),
    KernelRow("loop-invariant-code-motion", _counted("loop_invariant_code_motion")),
    KernelRow("unswitch-loops", _counted("unswitch_loops")),
    KernelRow("loop-invariant-code-motion-2", _counted("loop_invariant_code_motion")),
    KernelRow("vectorize-loads-stores", _counted("vectorize_loads_stores", sm=lambda c: c.target.sm)),
    KernelRow("optimize-loops", _counted("optimize_loops", max_unroll_factor=lambda c: c.max_unroll_factor)),
    KernelRow("canonicalize-4", _counted("canonicalize")),
    KernelRow("cse-4", _counted("cse")),
    KernelRow("insert-pdl", _kernel("kernel_passes.pdl.insert_pdl"), when=_waits_for_dependencies),
    KernelRow("convert-pure-call-ops", _kernel("kernel_passes.convert_pure_call_ops"), required=True),
    KernelRow("lower-tensors", _kernel("kernel_passes.lower_tensors"), required=True),
    KernelRow("lower-pdl-wait", _kernel("kernel_passes.pdl.lower_pdl_wait"), required=True),
    KernelRow("convert-complex-to-standard", _kernel("kernel_passes.convert_complex_to_standard"), required=True),
    KernelRow("merge-pointers-to-same-slice", _kernel("kernel_passes.merge_pointers_to_same_slice"), required=True),
    KernelRow("canonicalize-5", _counted("canonicalize")),
    KernelRow("cse-5", _counted("cse")),
    KernelRow("simplify-arith-3", _counted("simplify_arith")),
    KernelRow("simplify-affine", _kernel("kernel_passes.simplify_affine"), required=True),
    KernelRow("convert-index-type", _kernel("kernel_passes.convert_index_type"), required=True),
    KernelRow("loop-invariant-code-motion-3", _counted("loop_invariant_code_motion")),
    KernelRow("symbol-dce", _kernel("kernel_passes.symbol_dce")),
    KernelRow("cse-6", _counted("cse")),
    KernelRow("convert-float-nvidia", _kernel("kernel_passes.convert_float_nvidia", sm=lambda c: c.target.sm)),
    KernelRow("expand-float-ops", _kernel("kernel_passes.expand_float_ops"), required=True),
    KernelRow("scf-to-cf", _kernel("kernel_passes.scf_to_cf"), required=True),
    KernelRow("lower-to-llvm-gpu", _kernel("to_llvm.lower_to_llvm_gpu"), required=True),
)
GPU_MODULE_GROUP = "gpu-module"
"""The name in `--list_passes` of the rows that only modules of the gpu dialect have."""
GPU_INPUT, SPECIALIZE_KERNEL = "gpu-input", "specialize-kernel"
"""What modules of the gpu dialect have before their rows: the module as read, and the kernel of one launch."""
_AFTER_TENSORS = next(number for number, row in enumerate(KERNEL_PIPELINE, 1) if row.name == "lower-tensors")
GPU_MODULE_PIPELINE: tuple[KernelRow, ...] = (
    KernelRow("gpu-kernel-outlining", _kernel("kernel_passes.gpu_kernel_outlining"), required=True),
    KernelRow("lower-gpu-ids", _kernel("kernel_passes.lower_gpu_ids"), required=True),
    KernelRow("lower-gpu-reductions", _kernel("kernel_passes.lower_gpu_reductions"), required=True),
    KernelRow("arith-expand", _kernel("kernel_passes.arith_expand"), required=True),
    KernelRow("lower-memrefs", _kernel("kernel_passes.lower_memrefs"), required=True),
    *KERNEL_PIPELINE[_AFTER_TENSORS:],
)
"""The rows of a module of the gpu dialect: the first is for the whole module, the others are for each kernel."""
_FOR_GPU_MODULES = len(GPU_MODULE_PIPELINE) - len(KERNEL_PIPELINE) + _AFTER_TENSORS
EMITTED_ROWS = (EMIT_KERNELS, "simplify-arith")
"""The rows before XLA's first canonicalize, after which maps have all ids of threads and blocks as dimensions in XLA."""
SHARED_ROWS = ("canonicalize", "cse", "erase-dead-functions")
"""The further rows after which XLA has `scf.forall` over the threads. lower-xla-to-scf stands for XLA's lower-xla-shared too."""

# Kernel passes of XLA that its pipeline for NVIDIA GPUs does not run; hlo-opt runs them by name.
OTHER_KERNEL_PASSES: tuple[KernelRow, ...] = (
    KernelRow("recover-exp2", _kernel("kernel_passes.recover_exp2")),
    KernelRow("integer-power", _kernel("kernel_passes.integer_power")),
    *GPU_MODULE_PIPELINE[:_FOR_GPU_MODULES],
)
