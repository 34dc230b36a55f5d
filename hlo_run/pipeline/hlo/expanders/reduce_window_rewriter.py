"""Make running sums of many elements in two levels: within blocks of 16, and over the blocks.

    reduce-window(x[1000], zero), window={size=1000 pad=999_0}, to_apply=add
        =>   local = reduce-window(reshape(x)[63,16], zero), window={size=1x16 pad=0_0x15_0}
             before = the running sums of the last column, one block late
             map(broadcast(before), local), to_apply=add

A window as long as the array costs the square of it, and blocks of blocks make it next to linear. Likewise backwards. The
initial value must not change what it is combined with, as XLA asks too. XLA's `reduce_window_rewriter.cc`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.hlo.attribute_values import Window, WindowDim
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.pipeline.expansion import expand
from hlo_run.pipeline.passes import PassContext

_BLOCK = 16


@dataclass(frozen=True)
class ReduceWindowRewriter:
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "reduce-window-rewriter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        expand(module, ("reduce-window",), _in_blocks, lambda old: _scanned_dim(old) is not None)


def _scanned_dim(old: HloInstruction) -> int | None:
    """Return the dimension along which everything up to an element is reduced, if that is what the windows do."""
    if len(old.operands) != 2 or old.shape.dynamic_dims:
        return None
    dims, window = old.operands[0].shape.dims, old.attrs.get("window")
    if not isinstance(window, Window):
        return None
    wide = [number for number, dim in enumerate(window.dims) if dim != WindowDim()]
    if len(wide) != 1 or dims[wide[0]] <= _BLOCK:
        return None
    size = dims[wide[0]]
    scans = (WindowDim(size, pad_low=size - 1), WindowDim(size, pad_high=size - 1))
    return wide[0] if window.dims[wide[0]] in scans else None


def _in_blocks(b: HloBuilder, old: HloInstruction, x: HloValue, init: HloValue) -> HloValue:
    dim = _scanned_dim(old)
    assert dim is not None, "the pass asked for it"
    is_backward = old.attrs["window"].dims[dim].pad_high > 0
    return _Scan(b, init, old.called["to_apply"][0], dim, is_backward).inclusive(x)


@dataclass(frozen=True)
class _Scan:
    """Running reductions along a dimension, which stays the same while blocks of blocks are made."""

    b: HloBuilder
    init: HloValue
    reducer: HloComputation
    dim: int
    is_backward: bool

    def inclusive(self, x: HloValue) -> HloValue:
        """Return for each element the reduction of all up to it."""
        dims = x.shape.dims
        size = dims[self.dim]
        if size <= _BLOCK:
            return self._window(x, self.dim)
        b, blocks = self.b, -(-size // _BLOCK)
        missing = blocks * _BLOCK - size
        if missing:
            edges = [(0, 0)] * len(dims)
            edges[self.dim] = (missing, 0) if self.is_backward else (0, missing)
            x = b.pad(x, self.init, edges)
        split = (*dims[: self.dim], blocks, _BLOCK, *dims[self.dim + 1 :])
        local = self._window(b.reshape(x, split), self.dim + 1)
        last = 0 if self.is_backward else _BLOCK - 1
        totals = self._cut(local, self.dim + 1, last, last + 1)
        shape = (*dims[: self.dim], blocks, *dims[self.dim + 1 :])
        before = self._exclusive(b.reshape(totals, shape))
        spread = b.broadcast(before, split, [d for d in range(len(split)) if d != self.dim + 1])
        pair = [local, spread] if self.is_backward else [spread, local]
        flat = b.reshape(b.map(pair, self.reducer), x.shape.dims)
        if not missing:
            return flat
        start = missing if self.is_backward else 0
        return self._cut(flat, self.dim, start, start + size)

    def _exclusive(self, x: HloValue) -> HloValue:
        """Return for each element the reduction of all before it."""
        edges = [(0, 0)] * x.shape.rank
        edges[self.dim] = (-1, 1) if self.is_backward else (1, -1)
        return self.b.pad(self.inclusive(x), self.init, edges)

    def _window(self, x: HloValue, dim: int) -> HloValue:
        size = x.shape.dims[dim]
        wide = WindowDim(size, pad_high=size - 1) if self.is_backward else WindowDim(size, pad_low=size - 1)
        dims = [wide if number == dim else WindowDim() for number in range(x.shape.rank)]
        return self.b.reduce_window(x, self.init, Window(tuple(dims)), self.reducer)

    def _cut(self, x: HloValue, dim: int, start: int, limit: int) -> HloValue:
        ranges: Sequence[tuple[int, int]] = [
            (start, limit) if number == dim else (0, size) for number, size in enumerate(x.shape.dims)
        ]
        return self.b.slice(x, ranges)
