"""Sorts with a known order: numpy replaces the kernels once both have given the same result.

At the first launch the kernels run as well, and numpy's result must equal theirs bit by bit. Otherwise the kernels run at every
launch. They also run whenever the order of some elements is undefined, since the result then depends on the kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from math import prod

import numpy as np

from hlo_run.artifact import ArraySpec, CountingOperand, KernelThunk, Thunk
from hlo_run.backends.host.machine import Machine
from hlo_run.backends.host.steps import KernelStep, Step
from hlo_run.backends.library.arrays import Array, view
from hlo_run.backends.library.keyed_sort import is_known, sorted_arrays, store_rows

# The kernels of smaller sorts take less time than the calls of numpy.
_LEAST_ELEMENTS = 1024
_LEAST_ROW = 16


def sort_launches(machine: Machine, first: Thunk, others: Iterable[Thunk]) -> list[KernelThunk]:
    """Return `first` and the following launches that a `SortStep` may replace; empty if it may not."""
    if not isinstance(first, KernelThunk) or first.sort is None or not machine.may_replace:
        return []
    order, dims = first.sort, first.sort.results[0].dims
    if prod(dims) < _LEAST_ELEMENTS or dims[order.dim] < _LEAST_ROW or not is_known(order):
        return []
    following = islice(others, order.launches - 1)
    launches = [first, *(thunk for thunk in following if isinstance(thunk, KernelThunk) and thunk.arguments == first.arguments)]
    return launches if len(launches) == order.launches else []


class SortStep:
    """Sort by kernels or by numpy."""

    def __init__(self, machine: Machine, launches: Sequence[KernelThunk]) -> None:
        self.thunk = launches[0]
        assert self.thunk.sort is not None, "the launches belong to a sort"
        self.kernels = [KernelStep(machine, thunk) for thunk in launches]
        self.slices = tuple(argument.slice for argument in self.thunk.arguments)
        self.is_replaced = False
        """True if numpy did the last run."""
        self._machine = machine
        self._order = self.thunk.sort
        self._is_tried = False
        self._is_equal = True
        self._operands: list[Array | None] = []
        self._results: list[Array] = []

    def inner(self) -> Iterator[Step]:
        """Yield the launches."""
        yield from self.kernels

    def bind(self) -> None:
        """Look up the arrays."""
        order = self._order
        self._operands = [None if isinstance(spec, CountingOperand) else self._view(spec) for spec in order.operands]
        self._results = [self._view(spec) for spec in order.results]
        # Kernels that flush subnormals may treat them as zeros in comparisons.
        self._is_equal &= not any(".ftz" in self._machine.load(step.thunk.kernel).kernel.ptx for step in self.kernels)

    def _view(self, spec: ArraySpec) -> Array:
        return view(spec, self._machine.read(spec.slice))

    def run(self) -> None:
        """Sort by numpy if its first result equalled the kernels' result, otherwise by the kernels."""
        found = sorted_arrays(self._order, self._operands) if self._is_equal else None
        self.is_replaced = found is not None and self._is_tried
        if not self.is_replaced:
            for step in self.kernels:
                step.run()
        if found is None:
            return
        if not self.is_replaced:
            self._is_tried, self._is_equal = True, self._agree(found)
            return
        for result, rows in zip(self._results, found, strict=True):
            store_rows(result, rows, self._order.dim)

    def _agree(self, found: list[Array]) -> bool:
        """True if the kernels' results have the same bits."""
        for result, rows in zip(self._results, found, strict=True):
            own = np.empty_like(result)
            store_rows(own, rows, self._order.dim)
            if own.tobytes() != np.ascontiguousarray(result).tobytes():
                return False
        return True
