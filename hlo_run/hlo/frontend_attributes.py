"""Read and write the attributes that a framework gave instructions and modules."""

from __future__ import annotations

from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.attribute_values import FrontendAttributes
from hlo_run.sharding.values.shardy import PREFIX


def frontend_attribute(holder: HloInstruction | HloModule, name: str) -> str | None:
    """Return the value of a frontend attribute, or None."""
    found = holder.attrs.get("frontend_attributes")
    return found.get(name) if isinstance(found, FrontendAttributes) else None


def set_frontend_attribute(holder: HloInstruction | HloModule, name: str, value: str | None) -> None:
    """Set a frontend attribute; None removes it."""
    found = holder.attrs.get("frontend_attributes")
    entries = dict(found.entries) if isinstance(found, FrontendAttributes) else {}
    entries.pop(name, None)
    if value is not None:
        entries[name] = value
    if entries:
        holder.attrs["frontend_attributes"] = FrontendAttributes(tuple(sorted(entries.items())))
    elif found is not None:
        del holder.attrs["frontend_attributes"]


def has_shardy_attributes(module: HloModule) -> bool:
    """True if the module, or an instruction of it, has an attribute of Shardy."""
    holders: tuple[HloModule | HloInstruction, ...] = (module, *module.instructions)
    return any(
        name.startswith(PREFIX)
        for holder in holders
        if isinstance(found := holder.attrs.get("frontend_attributes"), FrontendAttributes)
        for name, _ in found.entries
    )
