"""Recognises fusions whose roots are all slices of equally shaped arrays.

    (s0, s1) with s0 = f32[30] slice(e), [10:40]; s1 = f32[20] slice(q), [0:20]; e and q of 100 elements each

A kernel over the 100 elements computes each of e and q once. A kernel over the results would recompute them for each slice.
Mirrors XLA's rule for its `InputSlicesFusion`.
"""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.analysis.decision import Decision, no, yes
from hlo_run.hlo.graph import HloInstruction


def judge_slices(roots: Sequence[HloInstruction]) -> Decision:
    """Return whether the fusion has several roots, all slices with unit stride of equally shaped operands."""
    if len(roots) == 1:
        return no("the fusion has only one root")
    for root in roots:
        if root.opcode != "slice":
            return no(f"root {root.name} is not a slice")
        ranges = root.slice_ranges
        if any(stride != 1 for _, _, stride in ranges):
            return no(f"root {root.name} skips elements")
    source = roots[0].operands[0].shape
    for root in roots[1:]:
        shape = root.operands[0].shape
        if (shape.dims, shape.minor_to_major) != (source.dims, source.minor_to_major):
            return no(f"{roots[0].name} and {root.name} cut differently shaped arrays")
    return yes("every root is a slice")
