"""Send a value once where two collective-permutes between the same devices send it, or send it and a slice of it.

    p = f32[8] collective-permute(x), source_target_pairs={{0,1},{1,0}}
    q = f32[3] collective-permute(slice(x)), source_target_pairs={{1,0},{0,1}}
        =>   q = f32[3] slice(p)

Two slices of one value count too, if one of them has all elements of the other. XLA's `CollectivePermuteCSE`. It runs only with
`--xla_enable_enzyme_comms_opt`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.topological_order import runs_before
from hlo_run.hlo.edit import Editor, has_order
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.pass_support.hlo_pass import PassContext

# Start, limit and stride of each dimension.
Ranges = tuple[tuple[int, int, int], ...]


class CollectivePermuteCse(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "collective-permute-cse"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        for computation in dict.fromkeys(i.parent for i in module.instructions_of("collective-permute")):
            if computation is not None and not computation.is_fusion:
                _merge_in(module, computation)


def _merge_in(module: HloModule, computation: HloComputation) -> None:
    permutes = [i for i in computation.post_order() if i.opcode == "collective-permute" and len(i.operands) == 1 and i.users]
    gone: set[HloInstruction] = set()
    for place, first in enumerate(permutes):
        for second in permutes[place + 1 :]:
            if first in gone:
                break
            if second not in gone and sorted(first.source_target_pairs) == sorted(second.source_target_pairs):
                gone.update(_merged(module, computation, first, second))


def _merged(
    module: HloModule, computation: HloComputation, first: HloInstruction, second: HloInstruction
) -> tuple[HloInstruction, ...]:
    """Let one permute do the work of both, if one of them sends all that the other does; return the one that is gone."""
    for large, small in ((first, second), (second, first)):
        ranges = _part_of(large.operands[0], small.operands[0])
        # The permute that stays would have to run before what it waits for.
        if ranges is None or runs_before(small, large.operands[0]):
            continue
        large.control_predecessors = [before for before in large.control_predecessors if not runs_before(small, before)]
        module.replace_uses(small, _sliced(large, small, ranges) if ranges else large)
        if not has_order(small):
            computation.remove(small)
        return (small,)
    return ()


def _part_of(large: HloInstruction, small: HloInstruction) -> Ranges | None:
    """Return which elements of `large` the value `small` has: none of the ranges if all, and None if it has others."""
    if large is small:
        return ()
    if small.opcode != "slice":
        return None
    if small.operands[0] is large:
        return small.slice_ranges
    if large.opcode != "slice" or large.operands[0] is not small.operands[0]:
        return None
    found: list[tuple[int, int, int]] = []
    for outer, inner, size, wanted in zip(
        large.slice_ranges, small.slice_ranges, large.shape.dims, small.shape.dims, strict=True
    ):
        distance, stride = inner[0] - outer[0], outer[2]
        first = distance // stride
        if stride != inner[2] or distance < 0 or distance % stride or first + wanted > size:
            return None
        found.append((first, first + wanted, 1))
    return tuple(found)


def _sliced(large: HloInstruction, small: HloInstruction, ranges: Ranges) -> HloInstruction:
    source = small.operands[0]
    # Of a value that is sent whole, XLA copies the slice, with all that is noted about it.
    is_copy = large.operands[0] is source.operands[0]
    return Editor(source, derives=is_copy).add("slice", small.shape, [large], slice=ranges)
