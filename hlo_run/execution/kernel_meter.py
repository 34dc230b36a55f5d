"""Measures which kernels of an executable a comparison sees, on the arguments of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.artifact import AsyncDoneThunk, Executable, HostTransfer, Nesting, Thunk
from hlo_run.artifact.thunks import every_thunk
from hlo_run.errors import HloRunError
from hlo_run.hlo.feeds import Feeds
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.literal import Literal
from hlo_run.hlo.values.shape import Shape
from hlo_run.kernel_checks.in_run import compare_in_run
from hlo_run.kernel_checks.outcomes import Outcome
from hlo_run.ops.parse import parse
from hlo_run.options import Options
from hlo_run.options.effects import NOT_RETURNED
from hlo_run.reference.compare.element_errors import ErrorSpec
from hlo_run.reference.compare.rounding import RoundingSamples
from hlo_run.reference.evaluate.loop_limit import loops_end_within
from hlo_run.reference.sensitivity.kernel_sight import KernelSights
from hlo_run.reference.sensitivity.measure import measure
from hlo_run.reference.sensitivity.notice import Notices
from hlo_run.reference.sensitivity.recorded_run import RecordedRun

# They give values of their own at every evaluation, or talk to the host.
_UNREPEATABLE: frozenset[Opcode] = frozenset(("infeed", "outfeed", "send", "recv", "send-done", "recv-done"))
# A recorded evaluation keeps all values of the entry.
_MOST_BYTES = 1 << 30
# Loops that take longer in the reference are not measured.
_LOOP_SECONDS = 10.0


class KernelMeter:
    """The kernels of an executable: the instructions of the optimised module that have thunks."""

    def __init__(self, executable: Executable, optimised: HloModule | None) -> None:
        """Measure with the optimised module, or (None) with its text in the executable."""
        self._executable, self._module = executable, optimised

    @staticmethod
    def of(options: Options, executable: Executable, optimised: HloModule | None, devices: int) -> KernelMeter | None:
        """Return the meter of a run's kernels; None for several devices and without the optimised module."""
        if devices > 1 or options.output_mode == NOT_RETURNED or not (optimised or executable.module_text):
            return None
        return KernelMeter(executable, optimised)

    def sights(
        self,
        arguments: Sequence[Literal],
        seed: int,
        feeds: Feeds,
        shape: Shape,
        spec: ErrorSpec,
        samples: RoundingSamples | None,
        known: KernelSights | None = None,
    ) -> KernelSights | None:
        """Return what a comparison by these rules sees of each kernel; None if that cannot be measured.

        `samples` tell what rounding explains; without them the bounds alone decide. What `known` sees is not measured again.
        """
        try:
            module = self._module = self._module or parse(self._executable.module_text)
            kernels = kernels_of(module, self._executable.thunks)
            if not kernels or not _is_repeatable(module):
                return None
            with loops_end_within(_LOOP_SECONDS):
                run = RecordedRun(module, kernels, arguments, seed, feeds)
                seen = {kernel.name for kernel in known.kernels if kernel.seen} if known is not None else ()
                found = measure(run, [k for k in kernels if k.name not in seen], Notices(shape, spec, samples))
                return found if known is None else known.or_seen_in(found)
        except (HloRunError, MemoryError):
            return None

    def compare_in_run(
        self, outcomes: Sequence[Outcome], arguments: Sequence[Literal], seed: int, feeds: Feeds, spec: ErrorSpec
    ) -> None:
        """Give the outcomes of a run the errors of each kernel in it, if they have the results."""
        try:
            module = self._module = self._module or parse(self._executable.module_text)
            kernels = kernels_of(module, self._executable.thunks)
            if any(outcome.result for outcome in outcomes) and _is_repeatable(module):
                with loops_end_within(_LOOP_SECONDS):
                    compare_in_run(outcomes, RecordedRun(module, kernels, arguments, seed, feeds).last_values, spec)
        except (HloRunError, MemoryError):
            return


def kernels_of(module: HloModule, thunks: Iterable[Thunk]) -> list[HloInstruction]:
    """Return the instructions whose thunks compute something, in the order of the thunks."""
    named: dict[str, HloInstruction] = {}
    for computation in executed_computations(module):
        for instruction in computation.instructions:
            named[instruction.name] = instruction
            if instruction.opcode == "fusion":
                # The thunks of a fused sort have the name of the sort.
                inner = instruction.fused_computation.instructions
                named |= {sort.name: instruction for sort in inner if sort.opcode == "sort"}
    names = (thunk.name for thunk in every_thunk(thunks) if not isinstance(thunk, Nesting | HostTransfer | AsyncDoneThunk))
    return list(dict.fromkeys(named[name] for name in names if name in named))


def _is_repeatable(module: HloModule) -> bool:
    size = sum(leaf.size_bytes for i in module.entry.instructions for _, leaf in i.shape.leaves() if leaf.is_array)
    return size <= _MOST_BYTES and not any(i.opcode in _UNREPEATABLE for i in module.instructions)
