"""Reads the owner of a custom fusion: `__triton`, `__custom_fusion`, ..; XLA's `FusionBackendConfig.kind`."""

from __future__ import annotations

import functools
import re
from typing import cast

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.backend_config import config_of

TRITON_COLLECTIVE = "__triton_collective"
BLOCK_LEVEL_KINDS = frozenset(("__triton", "__triton_gemm", "__triton_nested_gemm_fusion"))
_SLICE_FUSION = re.compile(r'"?\bcustom_fusion_config"?\s*:\s*{\s*"?name"?\s*:\s*"dynamic_slice_fusion"')


def fusion_owner(fusion: HloInstruction) -> str:
    """Return the kind in the backend config of a kCustom fusion; empty for other fusions and without a kind."""
    if not fusion.is_custom_fusion:
        return ""
    return _owner(fusion.backend_config)


@functools.cache
def _owner(config: str) -> str:
    record: object = config_of(config).get("fusion_backend_config")
    return str(cast("dict[str, object]", record).get("kind", "")) if isinstance(record, dict) else ""


def is_slice_copy(fusion: HloInstruction) -> bool:
    """True for a fusion around one operation on slices, which XLA runs as it is: a copy, or a call of a library."""
    return fusion.is_custom_fusion and _SLICE_FUSION.search(fusion.backend_config) is not None


def is_triton_fusion(fusion: HloInstruction) -> bool:
    """True for a fusion that XLA compiles with Triton by tiles. Fusions with a matrix product have another kind."""
    return fusion_owner(fusion) == "__triton"


def is_block_level(fusion: HloInstruction) -> bool:
    """True for a fusion that XLA compiles with Triton by tiles, with or without a matrix product."""
    return fusion_owner(fusion) in BLOCK_LEVEL_KINDS


def is_collective_fusion(fusion: HloInstruction) -> bool:
    """True for a fusion of one collective, for which XLA has a Triton kernel."""
    return fusion_owner(fusion) == TRITON_COLLECTIVE
