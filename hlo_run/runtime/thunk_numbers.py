"""The numbers of thunks (XLA's thunk ids), which texts print and which name command buffers."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.artifact import AsyncStartThunk, CommandBufferThunk, CopyThunk, Thunk, WhileThunk, nested_sequences

NO_NUMBER = 0
"""The number of a command buffer, which XLA makes after it has numbered the thunks."""


def thunk_numbers(sequence: Sequence[Thunk]) -> dict[int, int]:
    """Return the number of each thunk by its `id()`. Numbers count from 1 in the order in which XLA makes the thunks.

    Inner thunks come before the outer one, except for loops, starts, groups, and library calls on slices. An asynchronous copy of
    a whole array comes before its start, one of a slice before the thunk that knows its place, others after it.
    """
    numbers: dict[int, int] = {}
    count = 0

    def visit(thunks: Sequence[Thunk], in_start: bool = False) -> None:
        nonlocal count
        for thunk in thunks:
            is_start = isinstance(thunk, AsyncStartThunk)
            is_group = thunk.kind == "kGroup" or (thunk.kind == "kDynamicSliceFusion" and not in_start)
            if isinstance(thunk, WhileThunk) or is_group or (is_start and not _copies_whole(thunk)):
                count += 1
                numbers[id(thunk)] = count
            for inner in nested_sequences(thunk):
                visit(inner, is_start)
            if isinstance(thunk, CommandBufferThunk):
                numbers[id(thunk)] = NO_NUMBER
            elif id(thunk) not in numbers:
                count += 1
                numbers[id(thunk)] = count

    visit(sequence)
    return numbers


def _copies_whole(thunk: Thunk) -> bool:
    """True for the start of a copy of a whole array."""
    return isinstance(thunk, AsyncStartThunk) and len(thunk.thunks) == 1 and isinstance(thunk.thunks[0], CopyThunk)
