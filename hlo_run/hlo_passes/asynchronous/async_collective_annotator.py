"""Record in the backend_config of the start of every collective whether it may run beside other work.

    s = all-gather-start(p)   =>   s = all-gather-start(p), backend_config={.. "collective_backend_config":{"is_sync":false,..}}

`--xla_gpu_disable_async_collectives` names kinds that may not. XLA's `AsyncCollectiveAnnotator`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.latency.async_kinds import async_kind, is_collective_start
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.opcodes.traits import ASYNC_START, COLLECTIVE
from hlo_run.hlo_passes.subgraphs.async_pairs import set_sync
from hlo_run.options.flag import names
from hlo_run.pass_support.hlo_pass import PassContext

_ALL = "ALLCOLLECTIVES"


class AsyncCollectiveAnnotator(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "async-collective-annotator"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        disabled = {word.lstrip("+").upper() for word in names(ctx.options.xla_gpu_disable_async_collectives)}
        for start in module.instructions_of("async-start", *COLLECTIVE & ASYNC_START):
            if is_collective_start(start):
                kind = async_kind(start).inner.replace("-", "").upper()
                set_sync(start, kind in disabled or _ALL in disabled)
                module.version += 1  # XLA reports a change even if the record says so already
