"""Do all results of a fusion cut pieces out of arrays of one shape?

    (s0, s1) with s0 = f32[30] slice(e), [10:40]; s1 = f32[20] slice(q), [0:20]; e and q of 100 elements each

A kernel over the 100 elements then computes each of e and q once, where one over a result would compute them per piece.
Mirrors the rule by which XLA chose its `InputSlicesFusion`.
"""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.analysis.decision import Decision, no, yes
from hlo_run.hlo.graph import HloInstruction


def judge_slices(roots: Sequence[HloInstruction]) -> Decision:
    """Return whether there are several roots, all of them slices of unit stride of equally shaped operands."""
    if len(roots) == 1:
        return no("there is one root only")
    for root in roots:
        if root.opcode != "slice":
            return no(f"root {root.name} is no slice")
        ranges: tuple[tuple[int, int, int], ...] = root.attrs["slice"]
        if any(stride != 1 for _, _, stride in ranges):
            return no(f"root {root.name} skips elements")
    source = roots[0].operands[0].shape
    for root in roots[1:]:
        shape = root.operands[0].shape
        if (shape.dims, shape.minor_to_major) != (source.dims, source.minor_to_major):
            return no(f"{roots[0].name} and {root.name} cut differently shaped arrays")
    return yes("every root is a slice")
