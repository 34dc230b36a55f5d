"""The results of a program of the gpu dialect by interpretation, in the order of its executable."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from hlo_run.codegen.gpu_modules.program import Program
from hlo_run.dialects.gpu_kernel import GpuFuncOp
from hlo_run.dialects.parse import PlacedModule
from hlo_run.errors import DeviceError, Unsupported
from hlo_run.hlo.values.literal import Literal
from hlo_run.interpret.gpu_kernel import Fault
from hlo_run.interpret.gpu_program import interpret_kernel, interpret_program
from hlo_run.interpret.scalars import NotInterpreted
from hlo_run.pipeline.gpu_modules import Output


def interpreted(
    placed: PlacedModule, program: Program, outputs: Sequence[Output], values: Sequence[Literal], seconds: float
) -> Literal:
    """Return the results of a program by interpretation of its IR.

    Raises DeviceError at the operation at fault, and Unsupported after `seconds`.
    """
    given = iter(values)
    arguments = [next(given) if argument.value is None else argument.value for argument in program.arguments]
    until = time.monotonic() + seconds
    arrays = [np.asarray(value) for value in arguments]
    try:
        if isinstance(program.entry, GpuFuncOp):
            assert program.launch is not None, "the flags give the launch"
            outcome = interpret_kernel(placed.module, program.entry, program.launch, arrays, until)
        else:
            outcome = interpret_program(placed.module, program.entry.sym_name.data, arrays, until)
    except Fault as fault:
        raise DeviceError(fault.message, placed.where(fault.op)) from None
    except NotInterpreted as error:
        raise Unsupported(f"the interpreter stops: {error}", hint='--reference_platform="" runs without a comparison') from None
    buffers = [
        outcome.arguments[output.argument] if output.argument >= 0 else outcome.allocated[output.number] for output in outputs
    ]
    results = tuple(outcome.array(buffer) for buffer in buffers)
    return results if len(results) != 1 else results[0]
