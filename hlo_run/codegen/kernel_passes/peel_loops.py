"""Peel the last step of a loop if only that step needs the bounds check.

    xla_gpu.loop (%th)[%i] .. in #map         i in [0, 3], th + i * 128 in [0, 499]
      =>
    %0 = xla_gpu.loop (%th)[%i] .. in #map1   i in [0, 2]
    xla_gpu.loop (%th)[%i] .. in #map2        i in [3, 3], th + i * 128 in [0, 499]     with %0 as init

The pass tries range variables from the last to the first, while the product of their trip counts is below 64. It peels the
first one that has more than one step and is in a constraint, but in no constraint without its last step. Parts without
steps are not emitted. Mirrors XLA's pass of this name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from hlo_run.dialects.editing.loops import hand_on_origin
from hlo_run.dialects.editing.rewriting import ops_in, replace_op, unlimited
from hlo_run.dialects.xla_gpu import LoopOp
from hlo_run.indexing.indexing_map import IndexingMap
from hlo_run.indexing.interval import Interval
from hlo_run.indexing.variable import Variable
from hlo_run.records import replace

_MAX_STEPS = 64


@dataclass(frozen=True)
class PeelLoops(ModulePass):
    """Peels the last step of a loop if only that step needs the bounds check. `take` allows to peel."""

    name = "peel-loops"
    take: Callable[[], bool] = unlimited

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Peel every `xla_gpu.loop`, then the loops that peeling made."""
        pending = [inner for inner in ops_in(op) if type(inner) is LoopOp]
        while pending:
            pending += _peel(pending.pop(), self.take)


def _peel(loop: LoopOp, take: Callable[[], bool]) -> list[LoopOp]:
    """Split one loop, and return the parts, which may be split further. Empty if the loop is not split."""
    parts = _split(loop.map)
    if parts is None or not take():
        return []
    made: list[LoopOp] = []
    values: Sequence[SSAValue] = loop.inits
    for part in parts:
        if part.is_known_empty:
            continue
        new = LoopOp(part, loop.dims, values, loop.body.clone())
        new.attributes |= loop.attributes
        Rewriter.insert_op(hand_on_origin(loop, new), InsertPoint.before(loop))
        for old, result in zip(loop.res, new.res, strict=True):
            result.name_hint = old.name_hint
        made.append(new)
        values = new.res
    replace_op(loop, values)
    return made


def _split(used_map: IndexingMap) -> tuple[IndexingMap, IndexingMap] | None:
    """Return the map without the last step of the range variable to peel, and the map of that step. None: do not peel."""
    steps = 1
    for index in reversed(range(len(used_map.ranges))):
        bounds = used_map.ranges[index].bounds
        steps *= bounds.size
        if steps >= _MAX_STEPS:
            return None
        if bounds.size < 2 or not _is_constrained(used_map, index):
            continue
        main = _with_bounds(used_map, index, Interval(bounds.lower, bounds.upper - 1))
        if not _is_constrained(main, index):
            return main, _with_bounds(used_map, index, Interval.point(bounds.upper))
    return None


def _is_constrained(used_map: IndexingMap, index: int) -> bool:
    return any(expr.uses_symbol(index) for expr, _ in used_map.constraints)


def _with_bounds(used_map: IndexingMap, index: int, bounds: Interval) -> IndexingMap:
    ranges = list(used_map.ranges)
    ranges[index] = Variable(bounds, ranges[index].name)
    return replace(used_map, ranges=tuple(ranges)).simplify()
