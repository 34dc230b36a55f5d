"""Mark the fusions that only copy a contiguous slice whose place is known: they are copies, not kernels.

    f = f32[1,6] fusion(x, i), kind=kLoop, calls={ ROOT s = dynamic-slice(..) }
        =>   fusion(x, i), kind=kCustom, calls={ s = dynamic-slice(..)  ROOT copy = copy(s) },
             backend_config={.."fusion_backend_config":{"kind":"__custom_fusion",
                 "custom_fusion_config":{"name":"dynamic_slice_fusion",..}}..}

The fusion reads a slice, or writes one into its operand. `dynamic-slice-annotator` wrote where the slices are. Needs layouts.
XLA's `FusionDynamicMemcpyRewriter` of jaxlib 0.10.2; newer ones wrap such fusions (`dynamic-slice-copy-fusion-async-wrapper`).
"""

from __future__ import annotations

import re
from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.buffers.slice_copies import behind_bitcasts, copied_value
from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo_passes.subgraphs.library_calls import gpu_backend_config
from hlo_run.pass_support.hlo_pass import PassContext

_RECORD = {"kind": "__custom_fusion", "custom_fusion_config": {"name": "dynamic_slice_fusion", "kernel_index": 0}}
_COSTS = re.compile(r'"reification_cost":\[[^\]]*\]')


class FusionDynamicMemcpyRewriter(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "fusion-dynamic-memcpy-rewriter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        for fusion in module.instructions_of("fusion"):
            source = copied_value(fusion)
            if source is None:
                continue
            copy = Editor(source).add("copy", source.shape, [source])
            copy.attrs.pop("metadata", None)
            root, body = fusion.fused_computation.root, fusion.fused_computation
            if source is root:
                body.root = copy
            else:
                update = behind_bitcasts(root)
                update.operands = (update.operands[0], copy, *update.operands[2:])
            fusion.attrs["kind"] = "kCustom"
            fusion.attrs["backend_config"] = _config(fusion.backend_config)
            fusion.touch()


def _config(before: str) -> str:
    """Return the backend_config with the record. Estimates of time that it holds stay, as they are written."""
    costs = _COSTS.search(before)
    config = gpu_backend_config("fusion_backend_config", _RECORD)
    return config if costs is None else _COSTS.sub(costs[0], config)
