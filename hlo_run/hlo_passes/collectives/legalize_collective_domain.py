"""Move the domain in which devices communicate from the frontend attributes of a collective to its backend_config.

    all-gather(x), frontend_attributes={collective_communication_domain="scale_up_fabric"}
      =>   all-gather(x), backend_config={.."communication_domain":"COLLECTIVE_COMMUNICATION_DOMAIN_SCALE_UP_FABRIC"..}

The domain `unspecified` is the default and leaves no note. XLA's `LegalizeCollectiveDomain`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.errors import Unsupported
from hlo_run.hlo.frontend_attributes import frontend_attribute, set_frontend_attribute
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.opcodes.traits import COLLECTIVE
from hlo_run.hlo_passes.subgraphs.async_pairs import set_collective_config
from hlo_run.options.collective_flags import COMMUNICATION_DOMAINS, UNSPECIFIED_DOMAIN
from hlo_run.pass_support.hlo_pass import PassContext

_ATTRIBUTE = "collective_communication_domain"


class LegalizeCollectiveDomain(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "legalize-collective-domain"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place. Raises Unsupported for an unknown domain."""
        del ctx
        for collective in module.instructions_of(*COLLECTIVE):
            name = frontend_attribute(collective, _ATTRIBUTE)
            if name is None:
                continue
            domain = COMMUNICATION_DOMAINS.get(name.lower())
            if domain is None:
                known = ", ".join(COMMUNICATION_DOMAINS)
                raise Unsupported(
                    f"%{collective.name}: unknown {_ATTRIBUTE} '{name}'", collective.where, hint=f"choose from {known}"
                )
            set_frontend_attribute(collective, _ATTRIBUTE, None)
            if domain != UNSPECIFIED_DOMAIN:
                set_collective_config(collective, communication_domain=domain)
