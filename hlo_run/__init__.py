"""hlo-run: a compiler driver for HLO text that mirrors XLA:GPU, in Python."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hlo_run.version import VERSION as __version__

if TYPE_CHECKING:
    from hlo_run.api import (
        HloPassPipeline,
        compute_constant,
        cost_analysis,
        evaluate,
        from_jax,
        isolate,
        isolate_in_run,
        load,
        random_arguments,
        run,
    )
    from hlo_run.builder.builder import HloBuilder
    from hlo_run.builder.core import HloValue
    from hlo_run.custom_calls import custom_call
    from hlo_run.errors import HloRunError
    from hlo_run.hlo.graph import HloModule
    from hlo_run.hlo.values.shape import Shape
    from hlo_run.ops.parse import parse

__all__ = [
    "HloBuilder",
    "HloModule",
    "HloPassPipeline",
    "HloRunError",
    "HloValue",
    "Shape",
    "__version__",
    "compute_constant",
    "cost_analysis",
    "custom_call",
    "evaluate",
    "from_jax",
    "isolate",
    "isolate_in_run",
    "load",
    "parse",
    "random_arguments",
    "run",
]

# The module of each lazily loaded name. `import hlo_run` and `hlo-run --help` import neither numpy nor xDSL.
_HOMES = {
    "HloBuilder": "hlo_run.builder.builder",
    "HloModule": "hlo_run.hlo.graph",
    "HloPassPipeline": "hlo_run.api",
    "HloRunError": "hlo_run.errors",
    "HloValue": "hlo_run.builder.core",
    "Shape": "hlo_run.hlo.values.shape",
    "compute_constant": "hlo_run.api",
    "cost_analysis": "hlo_run.api",
    "custom_call": "hlo_run.custom_calls",
    "evaluate": "hlo_run.api",
    "from_jax": "hlo_run.api",
    "isolate": "hlo_run.api",
    "isolate_in_run": "hlo_run.api",
    "load": "hlo_run.api",
    "parse": "hlo_run.ops.parse",
    "random_arguments": "hlo_run.api",
    "run": "hlo_run.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hlo_run' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
