"""The interface of what watches a run thunk by thunk, with its memory before and after each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from hlo_run.artifact import BufferSlice, Thunk
from hlo_run.backends.literals import Bytes

Read: TypeAlias = "Callable[[BufferSlice], Bytes]"
"""Returns the bytes of a slice. They may be a view of the run's memory, which changes as the run goes on."""


class RunWatch(Protocol):
    """Is called around every thunk of a run on one device, also around those that contain others."""

    def before(self, thunk: Thunk, read: Read) -> None:
        """Take note that a thunk runs next."""
        ...

    def after(self, thunk: Thunk, read: Read) -> None:
        """Take note that a thunk has run."""
        ...
