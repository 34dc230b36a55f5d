"""Compiles LLVM IR text to PTX: links libdevice, runs LLVM's optimiser and the NVPTX code generator."""

from __future__ import annotations

import re

from msgspec import Struct

from hlo_run.codegen.llvm.intrinsics import check_intrinsics, is_accelerated
from hlo_run.codegen.llvm.libdevice import PREFIX, link_libdevice
from hlo_run.codegen.llvm.nvptx import Module, isa_of
from hlo_run.target import TargetSpec

_LIBDEVICE_CALL = re.compile(rf"^declare [^@\n]*@({PREFIX}\w+)\(", re.MULTILINE)


class CompiledPtx(Struct, frozen=True):
    """LLVM IR after LLVM's optimiser, and the PTX generated from it."""

    llvm_optimized: str
    ptx: str


_METADATA = re.compile(r"^!\d+ = ", re.MULTILINE)
_MODULE_FLAGS = re.compile(r"!llvm\.module\.flags = !\{!\d+")


def compile_llvm(
    ir_text: str,
    target: TargetSpec,
    *,
    cuda_data_dir: str = "",
    optimization_level: int = 3,
    flushes_denormals: bool = False,
) -> CompiledPtx:
    """Compile the LLVM IR of one kernel to PTX for `sm_NN`, or for `sm_NNa` if it calls architecture-specific intrinsics.

    `optimization_level` is XLA's, 0 to 3. With `flushes_denormals` f32 arithmetic flushes denormal numbers.
    Declared functions `__nv_*` are linked from libdevice, which is searched in
    `cuda_data_dir` first. Raises InternalError for IR that LLVM rejects, DeviceError if libdevice is not found.
    """
    isa = isa_of(target, accelerated=is_accelerated(ir_text))
    level = min(max(optimization_level, 0), 3)
    check_intrinsics(ir_text, isa.sm)
    module = Module.from_text(_flushing(ir_text) if flushes_denormals else ir_text)
    module.verify()
    link_libdevice(module, _LIBDEVICE_CALL.findall(ir_text), cuda_data_dir)
    module.optimize(isa, level)
    # Take the text first: the code generator changes the module.
    return CompiledPtx(llvm_optimized=str(module), ptx=module.assemble(isa, level))


def _flushing(ir_text: str) -> str:
    """Return LLVM IR whose functions flush denormal numbers of f32, also those that come from libdevice."""
    flushed = ir_text.replace("attributes #0 = { ", 'attributes #0 = { "denormal-fp-math-f32"="preserve-sign,preserve-sign" ')
    number = len(_METADATA.findall(flushed))
    while f"!{number} =" in flushed:
        number += 1
    flag = f'!{number} = !{{i32 4, !"nvvm-reflect-ftz", i32 1}}\n'
    named = _MODULE_FLAGS.search(flushed)
    if named is None:
        return f"{flushed}\n!llvm.module.flags = !{{!{number}}}\n{flag}"
    return flushed[: named.end()] + f", !{number}" + flushed[named.end() :] + f"\n{flag}"
