"""Split long running reductions into two levels: within blocks of 16 elements, and over the blocks.

    reduce-window(x[1000], zero), window={size=1000 pad=999_0}, to_apply=add
        =>   local = reduce-window(reshape(x)[63,16], zero), window={size=1x16 pad=0_0x15_0}
             before = the exclusive running sums of local's last column
             map(broadcast(before), local), to_apply=add

A window as long as the array has quadratic cost; recursive blocks make it almost linear. Handles inclusive and exclusive
reductions, forward and backward; other dimensions than the last are transposed before and after. The init value must be an
identity of the reducer, as in XLA. Windows over arrays of rank 1 get a second dimension, as by `reduce-window-resizer`.
XLA's `reduce_window_rewriter.cc`.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.simple_reducer import is_symmetric
from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.attribute_values import Window, WindowDim
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.reductions.windows import has_one_dim, with_two_dims
from hlo_run.hlo_passes.subgraphs.expansion import expand
from hlo_run.pass_support.hlo_pass import PassContext


class ReduceWindowRewriter(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "reduce-window-rewriter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        block = ctx.options.xla_reduce_window_rewrite_base_length
        expand(module, ("reduce-window",), partial(_rewritten, block), lambda old: _may_rewrite(old, block), inherits=False)
        # XLA repeats the pass: the sums over blocks are new windows, of rank 1 too.
        expand(module, ("reduce-window",), with_two_dims, has_one_dim, inherits=False)


def _may_rewrite(old: HloInstruction, block: int) -> bool:
    return _scanned_dim(old, block) is not None or has_one_dim(old)


def _rewritten(block: int, b: HloBuilder, old: HloInstruction, *operands: HloValue) -> HloValue:
    if _scanned_dim(old, block) is None:
        return with_two_dims(b, old, *operands)
    x, init = operands
    return _in_blocks(block, b, old, x, init)


def _scanned_dim(old: HloInstruction, block: int) -> int | None:
    """Return the dimension of a running reduction, longer than a block; None if the windows are something else."""
    if len(old.operands) != 2 or old.shape.dynamic_dims:
        return None
    dims, window = old.operands[0].shape.dims, old.window
    wide = [number for number, dim in enumerate(window.dims) if dim != WindowDim()]
    if len(wide) != 1 or dims[wide[0]] <= block:
        return None
    size = dims[wide[0]]
    scans = [_window_dim(size, size - late, is_backward) for is_backward in (False, True) for late in (0, 1)]
    return wide[0] if window.dims[wide[0]] in scans else None


def _window_dim(size: int, padding: int, is_backward: bool) -> WindowDim:
    return WindowDim(size, pad_high=padding) if is_backward else WindowDim(size, pad_low=padding)


def _transposed(b: HloBuilder, x: HloValue, order: list[int]) -> HloValue:
    """Swap dimensions in the layout in which no byte moves; `order` is its own inverse."""
    layout = tuple(order[d] for d in x.shape.minor_to_major)
    shape = Shape.array(x.shape.element_type, tuple(x.shape.dims[d] for d in order), layout)
    return b.instruction("transpose", [x], shape, dimensions=order)


def _like(value: HloValue, x: HloValue) -> HloValue:
    """Give a new value the layout of `x`; if it has one dimension more, that is the major one, as in XLA."""
    shape, rank = value.shape, x.shape.rank
    value.instruction.shape = Shape.array(shape.element_type, shape.dims, (*x.shape.minor_to_major, *range(rank, shape.rank)))
    return value


def _cut(b: HloBuilder, x: HloValue, dim: int, start: int, limit: int) -> HloValue:
    """Return a slice along one dimension, or the value if it is the whole."""
    dims = x.shape.dims
    bounds = [(0, size) for size in dims]
    bounds[dim] = (start, limit)
    return x if bounds[dim] == (0, dims[dim]) else b.slice(x, bounds)


def _in_blocks(block: int, b: HloBuilder, old: HloInstruction, x: HloValue, init: HloValue) -> HloValue:
    dim = _scanned_dim(old, block)
    assert dim is not None, "the pass selects running reductions only"
    window = old.window.dims[dim]
    scan = _Scan(b, init, old.to_apply, window.pad_high > 0, block)
    last = x.shape.rank - 1
    order = [last if d == dim else dim if d == last else d for d in range(last + 1)]
    result = scan.inclusive(x) if dim == last else _transposed(b, scan.padded(_transposed(b, x, order)), order)
    result = _cut(b, result, dim, 0, x.shape.dims[dim])
    if max(window.pad_low, window.pad_high) == window.size:
        edges = [((0, 1) if scan.is_backward else (1, 0)) if d == dim else (0, 0) for d in range(last + 1)]
        result = b.pad(result, init, edges)
    return result


class _Scan(Struct, frozen=True):
    """Running reductions along the last dimension."""

    b: HloBuilder
    init: HloValue
    reducer: HloComputation
    is_backward: bool
    block: int

    def inclusive(self, x: HloValue) -> HloValue:
        """Return the inclusive running reduction; the last dimension must be larger than a block."""
        return _like(_cut(self.b, self.padded(x), -1, 0, x.shape.dims[-1]), x)

    def padded(self, x: HloValue) -> HloValue:
        """Return the inclusive running reduction of whole blocks, the last of which may have values behind the others."""
        b, dims = self.b, x.shape.dims
        size = dims[-1]
        blocks = -(-size // self.block)
        missing = blocks * self.block - size
        if missing:
            x = _like(b.pad(x, self.init, [*((0, 0) for _ in dims[1:]), (0, missing)]), x)
        split = (*dims[:-1], blocks, self.block)
        local = _like(self._window(_like(b.reshape(x, split), x), self.block - 1), x)
        last = 0 if self.is_backward else self.block - 1
        totals = _like(b.reshape(_like(_cut(b, local, -1, last, last + 1), x), split[:-1]), x)
        spread = _like(b.broadcast(self._exclusive(totals), split, range(len(dims))), x)
        # As in XLA. Only a reducer that is not commutative needs the values in their order.
        pair = [local, spread] if self.is_backward or is_symmetric(self.reducer) else [spread, local]
        return _like(b.reshape(_like(b.map(pair, self.reducer), x), x.shape.dims), x)

    def _exclusive(self, x: HloValue) -> HloValue:
        """Return the exclusive running reduction."""
        size = x.shape.dims[-1]
        # Blocks of one element would not make the array shorter.
        if size <= self.block or self.block == 1:
            late = _like(self._window(x, size), x)
        else:
            edge = (0, 1) if self.is_backward else (1, 0)
            late = _like(self.b.pad(self.inclusive(x), self.init, [*((0, 0) for _ in x.shape.dims[1:]), edge]), x)
        return _like(_cut(self.b, late, -1, *((1, size + 1) if self.is_backward else (0, size))), x)

    def _window(self, x: HloValue, padding: int) -> HloValue:
        """Reduce windows as long as the last dimension, with padding before it (after it if backward)."""
        dims = (*(WindowDim() for _ in x.shape.dims[1:]), _window_dim(x.shape.dims[-1], padding, self.is_backward))
        return self.b.reduce_window(x, self.init, Window(dims), self.reducer)
