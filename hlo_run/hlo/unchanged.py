"""Which computations did a pass leave as they were, and has nobody edited them since? Then it would leave them again.

Pipelines run the same pass many times, until nothing changes; most computations, reducers above all, never do.
"""

from __future__ import annotations

from collections.abc import Hashable

from hlo_run.hlo.graph import HloComputation, HloModule


def is_settled(module: HloModule, work: Hashable, computation: HloComputation) -> bool:
    """True if `work` (a pass and its options) was marked as done there, and neither it nor what it calls was edited since."""
    return module.settled.get((work, computation)) == _last_edit(computation)


def settle(module: HloModule, work: Hashable, computation: HloComputation) -> None:
    """Mark that `work` finds nothing to do in a computation as it is now, which it read with what it calls."""
    module.settled[work, computation] = _last_edit(computation)


def _last_edit(computation: HloComputation) -> int:
    newest = computation.edited_at
    seen, waiting = {computation}, [computation]
    while waiting:
        for instruction in waiting.pop().instructions:
            for called in instruction.called_computations:
                if called not in seen:
                    seen.add(called)
                    waiting.append(called)
                    newest = max(newest, called.edited_at)
    return newest
