"""Verify once that a module can be run or evaluated: its limits, the sizes of its arrays, and its calls of libraries."""

from __future__ import annotations

from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.verify.library_calls import verify_library_calls
from hlo_run.hlo.verify.limits import verify_limits, verify_sizes

_TO_RUN, _TO_EVALUATE = "verified to run", "verified to evaluate"


def verify_runnable(module: HloModule) -> None:
    """Raise Unsupported or DeviceError for a module that cannot be compiled and run. An unchanged module is verified once."""
    if not _is_verified(module, _TO_RUN):
        verify_limits(module)
        _verify_rest(module, _TO_RUN)


def verify_evaluable(module: HloModule) -> None:
    """Raise Unsupported or DeviceError for a module that the reference cannot evaluate. An unchanged module is verified once."""
    if not _is_verified(module, _TO_RUN) and not _is_verified(module, _TO_EVALUATE):
        verify_limits(module, to_evaluate=True)
        _verify_rest(module, _TO_EVALUATE)


def _is_verified(module: HloModule, what: str) -> bool:
    return module.settled.get((what, module.entry)) == module.version


def _verify_rest(module: HloModule, what: str) -> None:
    verify_sizes(module)
    verify_library_calls(module)
    module.settled[what, module.entry] = module.version
