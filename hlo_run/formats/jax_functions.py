"""JAX functions to HLO text."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hlo_run.formats.xla import full_text, require


def lower_to_text(
    function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any], platform: str
) -> tuple[str, str]:
    """Return `function`, lowered for `platform`, as HLO text in full, and the name that errors show for it."""
    require("jax", "from_jax")
    jax: Any = importlib.import_module("jax")
    # Unused arguments stay, so that the module takes what the function takes.
    jitted: Any = function if hasattr(function, "trace") else jax.jit(function, keep_unused=True)
    lowered = jitted.trace(*arguments, **keywords).lower(lowering_platforms=(platform,))
    module = lowered.compiler_ir("hlo").get_hlo_module()
    return full_text(module), f"<jax function {getattr(function, '__name__', 'unnamed')}>"
