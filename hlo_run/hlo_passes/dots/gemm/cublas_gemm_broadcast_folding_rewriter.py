"""Fold a broadcast over the batch into a cuBLASLt call, which then reads one matrix for the whole batch.

    custom-call(f32[4,33,64] broadcast(p), q), lhs batch {0}, contracting {2}   =>   custom-call(p, q), lhs contracting {1}

The dimensions that the broadcast adds must be exactly the batch dimensions, and come first. At most one side is folded; the
left side is tried if it is a broadcast, else the right one. XLA's `GemmBroadcastFoldingRewriter`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.backend_config import config_of
from hlo_run.hlo_passes.subgraphs.library_calls import to_json
from hlo_run.pass_support.hlo_pass import PassContext

_TARGETS = ("__cublas$gemm", "__cublas$lt$matmul")


class CublasGemmBroadcastFoldingRewriter(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "cublas-gemm-broadcast-folding-rewriter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        folded: list[HloInstruction] = []
        for call in module.instructions_of("custom-call"):
            if call.custom_call_target in _TARGETS:
                number = next((n for n in (0, 1) if call.operands[n].opcode == "broadcast"), None)
                if number is not None and _fold(call, number):
                    folded.append(call.operands[number])
                    operands = list(call.operands)
                    operands[number] = operands[number].operands[0]
                    call.operands = tuple(operands)
        remove_unused(folded)


def _fold(call: HloInstruction, number: int) -> bool:
    """Change the call's config to the dimension numbers of the broadcast's operand; return False if that is not possible."""
    broadcast, side = call.operands[number], ("lhs", "rhs")[number]
    config = config_of(call.backend_config)
    dims: dict[str, object] = config["gemm_backend_config"]["dot_dimension_numbers"]
    added = broadcast.shape.rank - broadcast.operands[0].shape.rank
    batch, contracting = _numbers(dims, f"{side}_batch_dimensions"), _numbers(dims, f"{side}_contracting_dimensions")
    kept: Sequence[int] = broadcast.dimensions
    if (
        added != len(_numbers(dims, "lhs_batch_dimensions"))
        or not added
        or any(d < added or d in batch for d in kept)
        or len(contracting) != 1
    ):
        return False
    dims[f"{side}_contracting_dimensions"] = [str(contracting[0] - added)]
    dims[f"{side}_batch_dimensions"] = []
    call.attrs["backend_config"] = to_json(config)
    return True


def _numbers(dims: Mapping[str, Any], name: str) -> list[int]:
    return [int(number) for number in dims.get(name, ())]
