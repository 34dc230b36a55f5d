"""Rewrite triangular solves to calls of cuBLAS.

    t = f32[16,8] triangular-solve(a, b), left_side=true, ..
        =>   c = (f32[16,8], s8[0]) custom-call(a, b), custom_call_target="__cublas$triangularSolve"
             t = get-tuple-element(c), index=0

XLA's `TriangularSolveRewriter`. Without cuBLAS, numpy computes these calls.
"""

from __future__ import annotations

import math
from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Leftovers
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.subgraphs.library_calls import library_call, result_of, to_json
from hlo_run.pass_support.hlo_pass import PassContext

_TYPES = ("f32", "f64", "c64", "c128")
_POINTER_BYTES = 8


class TriangularSolveRewriter(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "triangular-solve-rewriter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        unused = Leftovers()
        for solve in [solve for solve in module.instructions_of("triangular-solve") if solve.shape.element_type in _TYPES]:
            assert solve.parent is not None, "the instruction is in a computation"
            call = solve.parent.add(_call(solve))
            call.name = module.unique_instruction_name("triangular-solve")
            module.replace(solve, solve.parent.add(result_of(call)))
            unused.add(solve)
        unused.remove()


def _call(solve: HloInstruction) -> HloInstruction:
    options = {
        "left_side": solve.left_side,
        "lower": solve.lower,
        "unit_diagonal": solve.unit_diagonal,
        "transpose_a": solve.transpose_a,
    }
    attrs = {"custom_call_target": "__cublas$triangularSolve", "backend_config": to_json(options)}
    # cuBLAS takes a batch as two arrays of pointers.
    batch = math.prod(solve.shape.dims[:-2])
    workspace = Shape.array("s8", (0 if batch == 1 else 2 * _POINTER_BYTES * batch,))
    return library_call(solve, "custom-call", solve.operands, workspace, attrs)
