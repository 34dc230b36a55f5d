"""Whether a module has annotations of Shardy."""

from __future__ import annotations

from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.shardings.shardy import PREFIX
from hlo_run.hlo.values.attribute_values import FrontendAttributes


def is_annotated(module: HloModule) -> bool:
    """True if the module, or an instruction of it, has an attribute of Shardy."""
    return any(
        name.startswith(PREFIX)
        for holder in (module, *module.instructions)
        if isinstance(found := holder.attrs.get("frontend_attributes"), FrontendAttributes)
        for name, _ in found.entries
    )
