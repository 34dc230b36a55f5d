"""Collects the functions that make texts for observers. A compilation without observers does not import this file."""

from __future__ import annotations

from hlo_run.pipeline.constant_texts import constant_texts
from hlo_run.pipeline.fusion_table import fusion_table
from hlo_run.runtime.buffer_dumps import buffer_texts
from hlo_run.runtime.float_checks import checked_outputs, float_checks
from hlo_run.runtime.gpu_dialect import gpu_dialect_text
from hlo_run.runtime.memory_use import memory_use
from hlo_run.runtime.proto_dumps import memory_usage_proto, thunk_metadata_proto
from hlo_run.runtime.thunk_text import thunk_metadata_text, thunk_sequence_text

__all__ = [
    "buffer_texts",
    "checked_outputs",
    "constant_texts",
    "float_checks",
    "fusion_table",
    "gpu_dialect_text",
    "memory_usage_proto",
    "memory_use",
    "thunk_metadata_proto",
    "thunk_metadata_text",
    "thunk_sequence_text",
]
