"""Compiles a module of the gpu dialect, runs it on Host, and interprets its IR."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlo_run.backends.host.backend import HostBackend
from hlo_run.codegen.gpu_modules.program import Program, plan_program
from hlo_run.dialects.gpu_kernel import GpuFuncOp
from hlo_run.dialects.parse import PlacedModule, parse_gpu_module
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.interpret.gpu_program import interpret_kernel, interpret_program
from hlo_run.options import CompileOptions
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.gpu_modules import CompiledProgram, compile_program
from hlo_run.target import preset

DATA = Path(__file__).resolve().parent / "data" / "gpu"
EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
Array = NDArray[Any]


def planned(text: str, sizes: str = "", launch: str = "") -> tuple[PlacedModule, Program]:
    """Return the module of a text and its program."""
    placed = parse_gpu_module(text, "m.mlir")
    return placed, plan_program(placed, "m", sizes, launch)


def compiled(text: str, sizes: str = "", launch: str = "") -> tuple[PlacedModule, Program, CompiledProgram]:
    """Return the executable of a text too."""
    placed, program = planned(text, sizes, launch)
    ctx = PassContext(preset("h100_sxm"), CompileOptions(verify="every"), assembles=False)
    return placed, program, compile_program(ctx, placed, program)


def made_arguments(program: Program, seed: int = 0) -> list[Array]:
    """Return random arguments for a run."""
    engine = np.random.default_rng(seed)
    found: list[Array] = []
    for argument in program.given:
        dtype = np.dtype(DTYPES[argument.dtype].numpy)
        if argument.dtype == "pred":
            found.append(engine.integers(0, 2, argument.dims).astype(np.bool_))
        elif argument.dtype.startswith("s"):
            found.append(engine.integers(-100, 100, argument.dims).astype(dtype))
        else:
            found.append(np.asarray(engine.uniform(-2, 2, argument.dims)).astype(dtype))
    return found


def interpreted(placed: PlacedModule, program: Program, outputs: CompiledProgram, given: Sequence[Array]) -> list[Array]:
    """Return the results by interpretation."""
    rest = iter(given)
    values = [np.asarray(next(rest) if a.value is None else a.value) for a in program.arguments]
    until = time.monotonic() + 600
    if isinstance(program.entry, GpuFuncOp):
        assert program.launch is not None
        outcome = interpret_kernel(placed.module, program.entry, program.launch, values, until)
    else:
        outcome = interpret_program(placed.module, program.entry.sym_name.data, values, until)
    return [
        outcome.array(outcome.arguments[each.argument] if each.argument >= 0 else outcome.allocated[each.number])
        for each in outputs.outputs
    ]


def on_host(program: CompiledProgram, given: Sequence[Array], engine: str, checks: Sequence[str] = ()) -> list[Array]:
    """Return the results on Host."""
    result = HostBackend(checks=checks, engine=engine).run(program.executable, list(given))
    return [np.asarray(each) for each in (result if isinstance(result, tuple) else (result,))]
