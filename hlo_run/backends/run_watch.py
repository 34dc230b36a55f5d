"""The interface of observers that watch a run thunk by thunk, with its memory before and after each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from hlo_run.artifact import BufferSlice, Thunk, WhileThunk
from hlo_run.backends.literals import Bytes

Read: TypeAlias = "Callable[[BufferSlice], Bytes]"
"""Returns the bytes of a slice. They may be a view of the run's memory, which changes as the run goes on."""


class RunWatch(Protocol):
    """Watches every thunk of a run, also thunks that contain others.

    It chooses the iterations of each loop in which it is called. The others run as if nothing watched them.
    """

    def on_device(self, device: int, count: int) -> RunWatch:
        """Return the watch of one of `count` devices that run the same executable; a run on one device is watched by this one."""
        ...

    def next_watched(self, loop: WhileThunk, iteration: int) -> int:
        """Return the number of the first iteration of a loop, from `iteration` on, that is watched; it may never come."""
        ...

    def loop_ended(self, loop: WhileThunk, count: int) -> None:
        """Take note that a loop without a known number of iterations has ended after `count` of them."""
        ...

    def before(self, thunk: Thunk, read: Read, iterations: Sequence[int]) -> Sequence[BufferSlice]:
        """Take note that a thunk runs next, in these iterations of the loops around it, innermost last.

        Return slices that the run poisons first: a right thunk writes them whole and reads nothing from them.
        """
        ...

    def after(self, thunk: Thunk, read: Read) -> None:
        """Take note that a thunk has run."""
        ...
