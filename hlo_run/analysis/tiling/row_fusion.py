"""Recognises fusions that can be computed row by row, each row by threads of one block.

    m = max(x) along rows;  e = exp(x - m);  s = sum(e) along rows;  ROOT e / s       yes: a softmax

All reduces go along rows of one size, and every reader of a reduce's result reads the result of its own row. Several reduces
may depend on each other, which no other emitter supports: XLA compiles such fusions with Triton, one or several rows a block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from hlo_run.analysis.decision import Decision, no
from hlo_run.analysis.tiling.reduction_description import init_may_repeat
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.hlo.values.shape import Shape
from hlo_run.indexing.compose import compose
from hlo_run.indexing.expr import dim
from hlo_run.indexing.indexing_map import IndexingMap
from hlo_run.indexing.reshape import delinearize
from hlo_run.ops.index import operand_map

# These do not compute single elements, or have loops that each element would repeat.
_ELSEWHERE = opcode_set("convolution dot fusion reduce-window scaled-dot scatter sort")
# Give up on an instruction that is read at more indices than this.
_MAX_MAPS = 8


class RowFusion(Struct, frozen=True):
    """`rows` of `columns` elements, and the reduces along them, producers first.

    An instruction that depends on a reduce has one element for each element of a row, or one for each row.
    """

    reductions: tuple[HloInstruction, ...]
    rows: int
    columns: int

    @property
    def instruction(self) -> HloInstruction:
        """The first reduce."""
        return self.reductions[0]

    def is_per_row(self, shape: Shape) -> bool:
        """True if `shape` has one element for each row and rows have several elements."""
        return shape.element_count != self.rows * self.columns

    def index_map(self, shape: Shape) -> IndexingMap:
        """Return (row, column) -> index of `shape`, which has an element for each of them, or one for each row."""
        linear = dim(0) if self.is_per_row(shape) else dim(0) * self.columns + dim(1)
        return IndexingMap.from_sizes(delinearize(linear, shape.dims), (self.rows, self.columns)).simplify()

    def __str__(self) -> str:
        return f"{len(self.reductions)} along {self.rows} rows of {self.columns}"


def find_row_fusion(roots: Sequence[HloInstruction]) -> RowFusion | Decision:
    """Return the row fusion with these roots, or the reason why it cannot be computed by rows."""
    assert roots[0].parent is not None, "roots are in a computation"
    body = roots[0].parent.post_order()
    other = next((instruction for instruction in body if instruction.opcode in _ELSEWHERE), None)
    if other is not None:
        return no(f"{other.name} is a {other.opcode}")
    reductions = tuple(instruction for instruction in body if instruction.opcode == "reduce")
    if not reductions:
        return no("the fusion has no reduce")
    if refusal := next((reason for reduce in reductions if (reason := _no_row(reduce))), ""):
        return no(refusal)
    (rows, columns), *others = [_row_sizes(reduce) for reduce in reductions]
    if any(sizes != (rows, columns) for sizes in others):
        return no("reduces go along rows of different sizes")
    if not rows * columns:
        return no("it reduces nothing")
    found = RowFusion(reductions, rows, columns)
    targets = [*(reduce.operands[0] for reduce in reductions), *(root for root in roots if root not in reductions)]
    refusals = (_leaves_row(found, target) for target in dict.fromkeys(targets))
    return no(refusal) if (refusal := next(filter(None, refusals), "")) else found


def _no_row(reduce: HloInstruction) -> str:
    """Return why a reduce does not go along rows; empty if it does."""
    if len(reduce.operands) != 2:
        return f"{reduce.name} has several results"
    if not init_may_repeat(reduce):
        return f"the init value of {reduce.name} counts, and threads would each start with it"
    if reduce.operands[1].opcode not in ("constant", "parameter"):
        return f"the init value of {reduce.name} is computed"
    sizes = reduce.operands[0].shape.dims
    reduced = [d in reduce.dimensions for d, size in enumerate(sizes) if size > 1]
    return "" if reduced == sorted(reduced) else f"{reduce.name} keeps a dimension that is minor to one it reduces"


def _row_sizes(reduce: HloInstruction) -> tuple[int, int]:
    sizes, reduced = reduce.operands[0].shape.dims, set[int](reduce.dimensions)
    return reduce.shape.element_count, math.prod(size for d, size in enumerate(sizes) if d in reduced)


def _leaves_row(fusion: RowFusion, target: HloInstruction) -> str:
    """Return why `target` cannot be computed element by element from reduces of the element's own row; empty if it can."""
    if not target.shape.is_array or target.shape.element_count not in (fusion.rows, fusion.rows * fusion.columns):
        return f"{target.name} has neither an element for each row nor one for each of their elements"
    maps: dict[HloInstruction, set[IndexingMap | None]] = {target: {fusion.index_map(target.shape)}}
    assert target.parent is not None, "a target is in a computation"
    for instruction in reversed(target.parent.post_order()):
        found = maps.get(instruction, set())
        if instruction in fusion.reductions and instruction is not target:
            if found - {fusion.index_map(instruction.shape)}:
                return f"{target.name} reads {instruction.name} of other rows"
            continue
        if len(found) > _MAX_MAPS:
            return f"{instruction.name} is read in too many ways"
        for number, operand in enumerate(instruction.operands if found else ()):
            step = operand_map(instruction, number)
            maps.setdefault(operand, set()).update(_step(before, step) for before in found)
    return ""


def _step(before: IndexingMap | None, step: IndexingMap | None) -> IndexingMap | None:
    composed = compose(before, step)
    return None if composed is None else composed.simplify().remove_unused_symbols()[0]
