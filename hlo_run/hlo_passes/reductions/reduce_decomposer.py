"""Give the result of a reduce its input's dimension order, and copy it to the wanted layout.

    r = f32[3,4]{0,1} reduce(f32[3,4,5]{2,1,0} p), dimensions={2}   =>   copy(f32[3,4]{1,0} reduce(p))

XLA's `ReduceDecomposer`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hlo_run.hlo.edit import Editor, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.hlo_pass import PassContext


@dataclass(frozen=True)
class ReduceDecomposer:
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "reduce-decomposer"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place; reductions of several arrays at once stay."""
        del ctx
        replaced: list[HloInstruction] = []
        for reduce in module.instructions_of("reduce"):
            if reduce.shape.is_tuple:
                continue
            natural = _natural(reduce)
            if natural.minor_to_major != reduce.shape.minor_to_major:
                editor = Editor(reduce)
                (new,) = editor.reduce_again(reduce, reduce.operands[:1], reduce.dimensions, [natural])
                module.replace(reduce, editor.add("copy", reduce.shape, [new]))
                replaced.append(reduce)
        remove_unused(replaced)


def _natural(reduce: HloInstruction) -> Shape:
    """Return the result's shape, in the layout of the input without the reduced dimensions."""
    source, reduced = reduce.operands[0].shape, reduce.dimensions
    kept = [d for d in range(source.rank) if d not in reduced]
    order = tuple(kept.index(d) for d in source.minor_to_major if d not in reduced)
    return Shape.array(reduce.shape.element_type, reduce.shape.dims, order)
