"""Record the domain in which devices communicate in the backend_config of collectives that have none.

    all-gather(x)
      =>   all-gather(x), backend_config={.."communication_domain":"COLLECTIVE_COMMUNICATION_DOMAIN_SCALE_UP_FABRIC"..}

`--xla_gpu_collective_domain_assignment` names the domain. Collectives in fusions stay. XLA's `CollectiveDomainAssigner`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.latency.async_kinds import collective_config
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import COLLECTIVE
from hlo_run.hlo_passes.subgraphs.async_pairs import set_collective_config
from hlo_run.options.collective_flags import UNSPECIFIED_DOMAIN
from hlo_run.pass_support.hlo_pass import PassContext


class CollectiveDomainAssigner(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "collective-domain-assigner"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place. Raises UsageError if the flag names an unknown domain."""
        domain = ctx.options.communication_domain
        for collective in module.instructions_of(*COLLECTIVE):
            if domain != UNSPECIFIED_DOMAIN and _has_no_domain(collective):
                set_collective_config(collective, communication_domain=domain)


def _has_no_domain(collective: HloInstruction) -> bool:
    is_fused = collective.parent is not None and collective.parent.is_fusion
    return not is_fused and collective_config(collective).get("communication_domain", UNSPECIFIED_DOMAIN) == UNSPECIFIED_DOMAIN
