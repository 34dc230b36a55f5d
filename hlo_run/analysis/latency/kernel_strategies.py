"""The strategies of Triton kernels for collectives, as the backend_config of a collective names them."""

from __future__ import annotations

from hlo_run.analysis.latency.async_kinds import collective_config
from hlo_run.hlo.graph import HloInstruction

ONE_SHOT, TWO_SHOT = "KERNEL_STRATEGY_TRITON_ONE_SHOT", "KERNEL_STRATEGY_TRITON_TWO_SHOT"


def strategy_of(collective: HloInstruction) -> str:
    """Return the strategy of a collective's Triton kernel; empty if it has none."""
    found = str(collective_config(collective).get("kernel_strategy", ""))
    return found if found in (ONE_SHOT, TWO_SHOT) else ""
