"""Read and write the attributes that a framework gave instructions and modules."""

from __future__ import annotations

from collections.abc import Callable

from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.attribute_values import FrontendAttributes, LateEntry


def frontend_attribute(holder: HloInstruction | HloModule, name: str) -> str | None:
    """Return the value of a frontend attribute, or None."""
    found = holder.attrs.get("frontend_attributes")
    return found.get(name) if isinstance(found, FrontendAttributes) else None


def set_frontend_attribute(holder: HloInstruction | HloModule, name: str, value: str | None) -> None:
    """Set a frontend attribute; None removes it."""
    entries, late = _parts(holder, name)
    if value is not None:
        entries[name] = value
    if entries or late is not None:
        holder.attrs["frontend_attributes"] = FrontendAttributes(tuple(sorted(entries.items())), late)
    elif "frontend_attributes" in holder.attrs:
        del holder.attrs["frontend_attributes"]


def set_late_attribute(module: HloModule, name: str, value: Callable[[], str]) -> None:
    """Set a frontend attribute of a module to a value that is computed when it is first read."""
    entries, _ = _parts(module, name)
    module.attrs["frontend_attributes"] = FrontendAttributes(tuple(sorted(entries.items())), LateEntry(name, value))


def _parts(holder: HloInstruction | HloModule, name: str) -> tuple[dict[str, str], LateEntry | None]:
    """Return the frontend attributes other than `name`."""
    found = holder.attrs.get("frontend_attributes")
    if not isinstance(found, FrontendAttributes):
        return {}, None
    late = found.late if found.late is not None and found.late.name != name else None
    return {key: value for key, value in found.entries if key != name}, late
