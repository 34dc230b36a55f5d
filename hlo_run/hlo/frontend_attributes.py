"""Read and write the attributes that a framework gave instructions and modules."""

from __future__ import annotations

from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.attribute_values import FrontendAttributes


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
