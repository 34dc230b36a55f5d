"""`--xla_detect_unstable_reductions`: reports reductions that compute in floats of fewer than 32 bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hlo_run.errors import Unsupported
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.pass_support.observer import OPTIMIZED_HLO, Level, Observer, Step

_FIRST_PIPELINE = "optimization"
_SAFE_BITS = 32


class UnstableReductions(Observer):
    """Looks at `module` before XLA's pipeline `optimization`, and after the last one `again`.

    `report` gets one line per reduction. With the mode `FAIL`, a reduction raises Unsupported.
    """

    def __init__(self, module: HloModule, mode: str, again: bool, report: Callable[[str], None]) -> None:
        self._module, self._fails, self._again, self._report = module, mode == "FAIL", again, report
        self._is_done = False

    def before(self, step: Step) -> None:
        """Look at the module before the first row of the pipeline."""
        if step.level is Level.HLO and step.pipeline == _FIRST_PIPELINE and not self._is_done:
            self._is_done = True
            self._look()

    def after(self, step: Step) -> None:
        """Look at the optimised module."""
        if step.row == OPTIMIZED_HLO and self._again:
            self._look()

    def _look(self) -> None:
        found = list(unstable_reductions(self._module))
        for reduction in found:
            self._report(f"warning: unstable reduction in {reduction.shape.element_type}: {_place(reduction)}")
        if found and self._fails:
            places = "; ".join(dict.fromkeys(map(_place, found)))
            raise Unsupported(f"{len(found)} unstable reductions found in module '{self._module.name}': {places}")


def unstable_reductions(module: HloModule) -> Iterator[HloInstruction]:
    """Yield the reductions to floats of fewer than 32 bits whose order of steps matters: neither minima nor maxima.

    As in XLA, reductions of several values count as stable.
    """
    for computation in module.computations:
        for instruction in computation.instructions:
            if instruction.opcode == "reduce" and instruction.shape.is_array and _is_unstable(instruction):
                yield instruction


def _is_unstable(reduction: HloInstruction) -> bool:
    dtype = reduction.shape.dtype
    if not dtype.is_float or dtype.bits >= _SAFE_BITS:
        return False
    root = reduction.to_apply.root
    if root.opcode in ("maximum", "minimum") and all(operand.opcode == "parameter" for operand in root.operands):
        return False
    return any(reduction.operands[0].shape.dims[d] != 1 for d in reduction.dimensions)


def _place(reduction: HloInstruction) -> str:
    return f"%{reduction.name} {reduction.metadata or ''}".strip()
