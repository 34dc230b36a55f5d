"""Record the computations in which a pass found nothing to do, so that it skips them until they are edited.

Pipelines run the same pass many times, until nothing changes. Most computations, such as reducers, never change.
"""

from __future__ import annotations

from collections.abc import Hashable

from hlo_run.hlo.graph import HloComputation, HloModule


def is_unchanged_since(module: HloModule, work: Hashable, computation: HloComputation) -> bool:
    """True if `work` (a pass and its options) found nothing in the computation, which was not edited since, nor its callees."""
    return module.settled.get((work, computation)) == _last_edit(computation)


def mark_settled(module: HloModule, work: Hashable, computation: HloComputation) -> None:
    """Record that `work` finds nothing to do in the current computation and its callees."""
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
