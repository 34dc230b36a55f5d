"""The LLVM module of constants that XLA compiles beside the kernels: a global variable per constant in memory.

The variables only reserve memory. Their bytes are copied when the executable is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from hlo_run.analysis.executed_computations import constants_in_memory
from hlo_run.codegen.llvm.emit_ptx import compile_llvm
from hlo_run.codegen.llvm.nvptx import DATA_LAYOUT, TRIPLE
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.options import CompileOptions
from hlo_run.pass_support.observer import CONSTANTS
from hlo_run.target import TargetSpec

# ptxas has problems with smaller variables.
_LEAST_BYTES = 64
_ALIGNMENT_BYTES = 256


def constant_texts(module: HloModule, target: TargetSpec, options: CompileOptions) -> dict[str, Callable[[], str]]:
    """Return functions that make the texts of the module of constants, by the titles `CONSTANTS`."""
    before, after, ptx = CONSTANTS
    sizes = {_name(constant): _bytes(constant) for constant in constants_in_memory(module)}

    def compiled(form: str) -> str:
        made = compile_llvm(
            _module_text(module.name, sizes),
            target,
            cuda_data_dir=options.xla_gpu_cuda_data_dir,
            optimization_level=options.xla_backend_optimization_level,
        )
        return getattr(made, form)

    return {
        before: lambda: _module_text(module.name, sizes),
        after: lambda: compiled("llvm_optimized"),
        ptx: lambda: compiled("ptx"),
    }


def _name(constant: HloInstruction) -> str:
    return "buffer_for_" + "".join(letter if letter.isalnum() else "_" for letter in constant.name)


def _bytes(constant: HloInstruction) -> int:
    bits = math.prod(constant.shape.dims) * DTYPES[constant.shape.element_type].bits
    return max(-(-bits // 8), _LEAST_BYTES)


def _module_text(name: str, sizes: dict[str, int]) -> str:
    head = f"; ModuleID = '{name}_consts'\nsource_filename = \"{name}_consts\"\n"
    head += f'target datalayout = "{DATA_LAYOUT}"\ntarget triple = "{TRIPLE}"\n'
    lines = [f"@{name} = global [{size} x i8] zeroinitializer, align {_ALIGNMENT_BYTES}" for name, size in sizes.items()]
    return head + "\n" + "\n".join(lines) + "\n"
