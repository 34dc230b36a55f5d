"""Record in the backend_config of collective-permutes and all-gathers in which memory devices exchange their values.

    collective-permute(x)   =>   collective-permute(x), backend_config={.."collectives_mode":"COLLECTIVES_SYMMETRIC_MEMORY"..}

`--xla_gpu_collective_permute_mode` and `--xla_gpu_all_gather_mode` choose it: private (no note), symmetric or peer. XLA's
`CollectiveBackendAssigner`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo_passes.subgraphs.async_pairs import set_collective_config
from hlo_run.options.collective_flags import PRIVATE_MEMORY
from hlo_run.pass_support.hlo_pass import PassContext


class CollectiveBackendAssigner(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "collective-backend-assigner"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        modes: dict[Opcode, str] = {
            "collective-permute": ctx.options.collective_permute_mode,
            "all-gather": ctx.options.all_gather_mode,
        }
        for collective in module.instructions_of(*modes):
            if (mode := modes[collective.opcode]) != PRIVATE_MEMORY:
                set_collective_config(collective, collectives_mode=mode)
