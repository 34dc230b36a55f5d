"""Lists every dialect that a kernel can contain, with the ops that xDSL lacks."""

from __future__ import annotations

from xdsl.dialects import affine, arith, builtin, cf, complex, dlti, func, llvm, math, memref, scf, tensor, vector
from xdsl.ir import Attribute, Dialect, Operation

from hlo_run.dialects import arith_extra, gpu, llvm_extra, nvvm, xla, xla_gpu
from hlo_run.dialects.gpu_kernel import KERNEL_ATTRIBUTES, KERNEL_OPS
from hlo_run.dialects.gpu_launch import LAUNCH_ATTRIBUTES, LAUNCH_OPS
from hlo_run.dialects.gpu_memory import MEMORY_OPS
from hlo_run.dialects.pdl import PDL_OPS
from hlo_run.dialects.upstream_syntax import SYNTAX_OPS


def _extended(dialect: Dialect, ops: tuple[type[Operation], ...], attributes: tuple[type[Attribute], ...]) -> Dialect:
    """Return the dialect with ops added; an added op takes the place of one of the same name."""
    names = {op.name for op in ops}
    kept = [op for op in dialect.operations if op.name not in names]
    return Dialect(dialect.name, [*kept, *ops], [*dialect.attributes, *attributes])


def _with_our_syntax(dialect: Dialect) -> Dialect:
    return _extended(dialect, tuple(op for op in (*SYNTAX_OPS, *xla.EXTRA_SYNTAX) if op.dialect_name() == dialect.name), ())


def _all() -> tuple[Dialect, ...]:
    complete = (
        *(builtin.Builtin, affine.Affine, cf.Cf, complex.Complex, dlti.DLTI, func.Func, math.Math, memref.MemRef),
        *(nvvm.Nvvm, xla.Xla, xla.Ub, scf.Scf, tensor.Tensor, vector.Vector),
        _extended(xla_gpu.XlaGpu, PDL_OPS, ()),
        _extended(gpu.Gpu, (*LAUNCH_OPS, *KERNEL_OPS, *MEMORY_OPS), (*LAUNCH_ATTRIBUTES, *KERNEL_ATTRIBUTES)),
        _extended(arith.Arith, arith_extra.EXTRA_OPS, ()),
        _extended(llvm.LLVM, llvm_extra.EXTRA_OPS, ()),
    )
    return tuple(map(_with_our_syntax, complete))


DIALECTS = {dialect.name: dialect for dialect in _all()}
