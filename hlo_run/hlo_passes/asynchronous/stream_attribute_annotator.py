"""Give a fusion the stream of its root, if all its instructions may run there.

    fusion whose root has operation_queue_id 3   =>   fusion, backend_config={"operation_queue_id":"3", ..}

In a scheduled module, copies that start get the next free channel as their stream. XLA's `StreamAttributeAnnotator`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import next_channel_id
from hlo_run.hlo.graph import HloComputation, HloModule
from hlo_run.hlo.values.backend_config import config_of
from hlo_run.hlo_passes.subgraphs.async_pairs import queue_of, set_queue
from hlo_run.pass_support.hlo_pass import PassContext

_DEFAULT = "0"


class StreamAttributeAnnotator(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "stream-attribute-annotator"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit the configurations of fusions and copies."""
        del ctx
        for fusion in module.instructions_of("fusion"):
            queue = _own_queue(fusion.fused_computation)
            if queue != _DEFAULT and queue_of(fusion) == _DEFAULT:
                set_queue(fusion, queue)
        copies = module.instructions_of("copy-start")
        if copies and module.schedule is not None:
            channel = next_channel_id(module)
            for copy in copies:
                if queue_of(copy) == _DEFAULT:
                    set_queue(copy, str(channel))


def _own_queue(computation: HloComputation) -> str:
    """Return the queue of the root; the default if another instruction has another one."""
    root = computation.root
    if root.opcode == "tuple" or not config_of(root.backend_config):
        return _DEFAULT
    queue = queue_of(root)
    others = {queue_of(instruction) for instruction in computation.instructions}
    return queue if others <= {queue, _DEFAULT} else _DEFAULT
