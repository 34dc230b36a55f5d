"""Makes the xDSL context of hlo-run, with the dialects that a kernel can contain."""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects import affine, arith, builtin, cf, complex, dlti, func, llvm, math, scf, tensor, vector
from xdsl.ir import Attribute, Dialect, Operation

from hlo_run.dialects import arith_extra, gpu, llvm_extra, nvvm, xla_gpu
from hlo_run.dialects.upstream_syntax import SYNTAX_OPS


def make_context() -> Context:
    """Return a context with the ops, types and attributes of all stages from emission to the LLVM dialect."""
    context = Context()
    for dialect in (
        builtin.Builtin,
        affine.Affine,
        cf.Cf,
        complex.Complex,
        dlti.DLTI,
        func.Func,
        gpu.Gpu,
        math.Math,
        nvvm.Nvvm,
        xla_gpu.XlaGpu,
    ):
        context.load_dialect(_with_our_syntax(dialect))
    for dialect, extra_ops, extra_attributes in (
        (arith.Arith, arith_extra.EXTRA_OPS, ()),
        (llvm.LLVM, llvm_extra.EXTRA_OPS, ()),
        (scf.Scf, (), ()),
        (tensor.Tensor, (), ()),
        (vector.Vector, (), ()),
    ):
        context.load_dialect(_with_our_syntax(_extended(dialect, extra_ops, extra_attributes)))
    return context


def _extended(dialect: Dialect, ops: tuple[type[Operation], ...], attributes: tuple[type[Attribute], ...]) -> Dialect:
    """Return the dialect with ops and attributes added. An added op replaces the op of the same name."""
    names = {op.name for op in ops}
    kept = [op for op in dialect.operations if op.name not in names]
    return Dialect(dialect.name, [*kept, *ops], [*dialect.attributes, *attributes])


def _with_our_syntax(dialect: Dialect) -> Dialect:
    return _extended(dialect, tuple(op for op in SYNTAX_OPS if op.dialect_name() == dialect.name), ())
