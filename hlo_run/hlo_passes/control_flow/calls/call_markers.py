"""The names of the custom calls and attributes that mark the place of an inlined call, as XLA has them."""

from __future__ import annotations

from collections.abc import Mapping

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.attribute_values import FrontendAttributes

BEFORE = "__xla_internal_call_marker_before"
AFTER = "__xla_internal_call_marker_after"
COMPUTATION = "xla_call_marked_computation"
INSTRUCTION = "xla_call_marked_instruction_name"


def frontend_attributes(value: HloInstruction) -> dict[str, str]:
    """Return the frontend attributes of an instruction."""
    found = value.frontend_attributes
    return dict(found.entries) if isinstance(found, FrontendAttributes) else {}


def as_attributes(attributes: Mapping[str, str]) -> FrontendAttributes:
    """Return the record of frontend attributes."""
    return FrontendAttributes(tuple(sorted(attributes.items())))
