"""Tells modules that carry Shardy's attributes, which are frontend attributes of a known prefix."""

from __future__ import annotations

from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.attribute_values import FrontendAttributes
from hlo_run.sharding.values.shardy import PREFIX


def has_shardy_attributes(module: HloModule) -> bool:
    """True if the module, or an instruction of it, has an attribute of Shardy."""
    holders: tuple[HloModule | HloInstruction, ...] = (module, *module.instructions)
    return any(
        name.startswith(PREFIX)
        for holder in holders
        if isinstance(found := holder.attrs.get("frontend_attributes"), FrontendAttributes)
        for name, _ in found.entries
    )
