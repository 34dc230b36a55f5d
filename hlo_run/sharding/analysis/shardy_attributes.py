"""Tells modules that carry Shardy's attributes, which are frontend attributes of a known prefix."""

from __future__ import annotations

from hlo_run.analysis.facts import fact
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.attribute_values import FrontendAttributes
from hlo_run.sharding.values.shardy import PREFIX


def has_shardy_attributes(module: HloModule) -> bool:
    """True if the module, or an instruction of it, has an attribute of Shardy."""
    return _has_own(module) or fact(module, _is_of_instructions)


def _is_of_instructions(module: HloModule) -> bool:
    return any(map(_has_own, module.instructions))


def _has_own(holder: HloModule | HloInstruction) -> bool:
    found = holder.attrs.get("frontend_attributes")
    return isinstance(found, FrontendAttributes) and any(name.startswith(PREFIX) for name, _ in found.entries)
