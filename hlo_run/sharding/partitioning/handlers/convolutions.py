"""Handler of convolutions: as products where a spatial dimension is none, else by halos of the input."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.attribute_values import DimLabels, Window, WindowDim
from hlo_run.hlo.values.sharding import SingleSharding
from hlo_run.hlo.views.convolutions import Convolution
from hlo_run.records import replace
from hlo_run.sharding.analysis.dot_dims import DimGroup, ProductDims, product_dims
from hlo_run.sharding.partitioning.collectives import all_reduce, all_reduce_dims, sum_of
from hlo_run.sharding.partitioning.halo import exchange_valid
from hlo_run.sharding.partitioning.handlers.product import Product, tiles_at
from hlo_run.sharding.partitioning.handlers.product_groups import by_batch_dims, partition
from hlo_run.sharding.partitioning.handlers.shapes import padded_in_front
from hlo_run.sharding.partitioning.handlers.visit import Visit
from hlo_run.sharding.partitioning.masks import fill_excess, zero_excess
from hlo_run.sharding.partitioning.offsets import Linear, tile_ordinals
from hlo_run.sharding.partitioning.state import Part
from hlo_run.sharding.partitioning.window import TRIVIAL, windowed
from hlo_run.sharding.values.make import REPLICATED, shard_shape
from hlo_run.sharding.values.moves import reverse
from hlo_run.sharding.values.replicate import keep_dims, transpose


def convolution(v: Visit) -> Part:
    """Handle a convolution."""
    if v.leaf.kind == "maximal":
        return v.by_default()
    dims = product_dims(v.hlo)
    conv = _Convolution(v.hlo, dims, Convolution.of(v.hlo))

    def multiply(lhs: Part, rhs: Part, window: Window | None = None) -> HloInstruction:
        return conv.multiply(v, lhs, rhs, v.hlo.window if window is None else window)

    lhs, rhs = v.parts
    if lhs.hlo is rhs.hlo:
        rhs = rhs.with_value(v.b.copy(rhs.hlo), rhs.sharding)
    product = Product(lhs, rhs, v.hlo.shape, v.leaf, dims, v.partitions, multiply, v.hlo, conv.special)
    return v.made(partition(product))


class _Convolution(Struct, frozen=True):
    hlo: HloInstruction
    dims: ProductDims
    view: Convolution

    @property
    def labels(self) -> DimLabels:
        return self.view.labels

    def multiply(self, v: Visit, lhs: Part, rhs: Part, window: Window) -> HloInstruction:
        """Add the convolution of two parts, with the windows and group counts that fit their sizes."""
        labels, hlo = self.labels, self.hlo
        left, right = lhs.hlo.shape.dims, rhs.hlo.shape.dims
        entries = list(self.view.window.dims)
        for group in self.dims.batch:
            size = left[labels.input.spatial_dims[group.spatial]]
            entries[group.spatial] = _batch_window(entries[group.spatial], size)
        for group in self.dims.contracting:
            if group.spatial >= 0:
                size = left[labels.input.spatial_dims[group.spatial]]
                entries[group.spatial] = replace(entries[group.spatial], size=size)
        for group in self.dims.rhs_free:
            if group.spatial >= 0:
                size = right[labels.kernel.spatial_dims[group.spatial]]
                entries[group.spatial] = replace(entries[group.spatial], size=size, pad_low=size - 1, pad_high=size - 1)
        for group in self.dims.spatial:
            own = window.dims[group.spatial]
            entries[group.spatial] = replace(entries[group.spatial], size=own.size, pad_low=own.pad_low, pad_high=own.pad_high)
        features, batches = self.view.feature_groups, self.view.batch_groups
        if features > 1:
            features = left[labels.input.second_dim] // right[labels.kernel.first_dim]
        if batches > 1:
            batches = left[labels.input.first_dim] // hlo.shape.dims[labels.output.first_dim]
        sizes = [0] * hlo.shape.rank
        sizes[labels.output.first_dim] = left[labels.input.first_dim] // batches
        sizes[labels.output.second_dim] = right[labels.kernel.second_dim]
        for entry, source, target in zip(entries, labels.input.spatial_dims, labels.output.spatial_dims, strict=True):
            padded = 1 + (left[source] - 1) * entry.base_dilation + entry.pad_low + entry.pad_high
            sizes[target] = (padded - (1 + (entry.size - 1) * entry.window_dilation)) // entry.stride + 1
        made = lhs.builder.clone(hlo, replace(hlo.shape, dims=tuple(sizes)), [lhs.hlo, rhs.hlo], "convolution")
        made.attrs["window"] = Window(tuple(entries))
        if not entries:
            del made.attrs["window"]
        for name, count in (("feature_group_count", features), ("batch_group_count", batches)):
            made.attrs.pop(name, None)
            if count > 1:
                made.attrs[name] = count
        return made

    def special(self, p: Product, is_strict: bool) -> HloInstruction | bool | None:
        """Partition true spatial dimensions, and groups. None: go on as for a dot; False: this way is not possible."""
        d = p.dims
        spatial = any(p.tiles(d.spatial, side) > 1 for side in ("lhs", "rhs", "output"))
        others = any(p.tiles(d.batch, side) > 1 for side in ("lhs", "rhs", "output"))
        others |= p.tiles(d.contracting, "lhs") > 1 and p.tiles(d.contracting, "rhs") > 1
        has_groups = self.view.has_groups
        if not has_groups and not (d.spatial and spatial and not others):
            return None
        if self.view.feature_groups > 1 and p.rhs.hlo.shape.dims[self.labels.kernel.first_dim] > 1:
            return False
        found = self._grouped_whole(p) or self._halo_of_input(p) or self._tiled_output(p)
        if found is not None:
            return found
        return self._by_groups(p, is_strict) if has_groups else None

    def _order(self, pairs: Sequence[tuple[int, int]], rank: int) -> list[int]:
        order = [0] * rank
        for place, source in pairs:
            order[place] = source
        return order

    def _kernel_order(self, first: int, second: int) -> list[int]:
        """Return per dimension of the kernel the input's; `first` and `second` are its features in and out."""
        labels = self.labels
        pairs = [(labels.kernel.first_dim, first), (labels.kernel.second_dim, second)]
        pairs += zip(labels.kernel.spatial_dims, labels.input.spatial_dims, strict=True)
        return self._order(pairs, len(labels.kernel.spatial_dims) + 2)

    def _output_order(self, batch: int, feature: int) -> list[int]:
        """Return per dimension of the input the output's place of it, inverted: per dimension of the output the input's."""
        labels = self.labels
        pairs = [(labels.output.first_dim, batch), (labels.output.second_dim, feature)]
        pairs += zip(labels.output.spatial_dims, labels.input.spatial_dims, strict=True)
        return self._order(pairs, len(labels.output.spatial_dims) + 2)

    def _grouped_whole(self, p: Product) -> HloInstruction | None:
        """Divide only the groups of batches or features."""
        labels = self.labels
        lhs, rhs = p.lhs, p.rhs
        if self.view.batch_groups > 1:
            own, other, count = labels.input.first_dim, labels.input.second_dim, self.view.batch_groups
            sizes = lhs.base.dims[own], rhs.base.dims[labels.kernel.second_dim]
            if count % p.partitions or sizes[0] != sizes[1] or count != sizes[0]:
                return None
            order = self._kernel_order(other, own)
            result = self._output_order(other, own)
        elif self.view.feature_groups > 1:
            own, other, count = labels.input.second_dim, labels.input.first_dim, self.view.feature_groups
            sizes = lhs.base.dims[own], rhs.base.dims[labels.kernel.second_dim]
            if count % p.partitions or sizes[0] % count or sizes[1] % count:
                return None
            order = self._kernel_order(other, own)
            result = self._output_order(other, own)
        else:
            return None
        if tiles_at(lhs.leaf, own) == p.partitions:
            rhs = rhs.reshard(transpose(lhs.leaf, order))
        elif tiles_at(rhs.leaf, labels.kernel.second_dim) == p.partitions:
            lhs = lhs.reshard(transpose(rhs.leaf, [order.index(dim) for dim in range(len(order))]))
        else:
            return None
        made = p.multiply(lhs, rhs)
        return Part(made, p.base, transpose(lhs.leaf, result), lhs.state).reshard(p.sharding).hlo

    def _halo_of_input(self, p: Product) -> HloInstruction | None:
        """Divide input and kernel alike: each device adds up its part of the windows of the whole result."""
        lhs, rhs, labels = p.lhs, p.rhs, self.labels
        if lhs.leaf.tiles is None or rhs.leaf.tiles is None:
            return None
        window = self.view.window
        order = self._kernel_order(labels.input.second_dim, labels.input.first_dim)
        back = [order.index(dim) for dim in range(len(order))]
        mirrored = [labels.kernel.spatial_dims[n] for n, dim in enumerate(window.dims) if dim.reversal]
        if mirrored:
            padded = padded_in_front(rhs, tuple(mirrored))
            if padded is None:
                return None
            rhs = rhs.with_value(padded, rhs.sharding)
        wanted_rhs = reverse(transpose(lhs.leaf, order), mirrored)
        wanted_lhs = transpose(reverse(rhs.leaf, mirrored), back)

        def is_bad(left: SingleSharding, right: SingleSharding) -> bool:
            return tiles_at(left, labels.input.first_dim) != 1 or tiles_at(right, labels.kernel.second_dim) != 1

        if lhs.base.size_bytes < rhs.base.size_bytes:
            if is_bad(wanted_lhs, rhs.leaf):
                return None
            lhs = zero_excess(lhs.reshard(wanted_lhs))
        else:
            # The excess in front of a mirrored kernel would be that of other tiles; XLA goes on, with other values.
            if is_bad(lhs.leaf, wanted_rhs) or any(tiles_at(wanted_rhs, d) != tiles_at(rhs.leaf, d) for d in mirrored):
                return None
            lhs = zero_excess(lhs)
            rhs = rhs.reshard(wanted_rhs)
        zero = rhs.builder.constant(0, rhs.base.element_type)
        rhs = fill_excess(rhs, zero, from_left=mirrored)
        if self._divides_groups(lhs, rhs) or any(dim.base_dilation != 1 for dim in window.dims):
            return None
        made = self._with_halos(p, lhs, rhs, window)
        if made is None:
            return None
        state, add = lhs.state, sum_of(lhs.state.module, p.base.element_type)
        if "replicated" in lhs.leaf.subgroups:  # XLA adds up what all devices have, also several times the same
            total = all_reduce_dims(state, made, lhs.leaf, range(lhs.leaf.data_rank), add)
        else:
            total = all_reduce(state, made, add, ())
        return Part(total, p.base, REPLICATED, state).reshard(p.sharding).hlo

    def _divides_groups(self, lhs: Part, rhs: Part) -> bool:
        labels = self.labels
        kernel = tiles_at(rhs.leaf, labels.kernel.second_dim) > 1
        by_feature = self.view.feature_groups > 1 and (tiles_at(lhs.leaf, labels.input.second_dim) > 1 or kernel)
        return by_feature or (self.view.batch_groups > 1 and (tiles_at(lhs.leaf, labels.input.first_dim) > 1 or kernel))

    def _with_halos(self, p: Product, lhs: Part, rhs: Part, window: Window) -> HloInstruction | None:
        b, labels = lhs.builder, self.labels
        ordinals = tile_ordinals(b, lhs.leaf, lhs.state.partition_id)
        entries = list(window.dims)
        value = lhs.hlo
        for number, dim in enumerate(window.dims):
            source, kernel = labels.input.spatial_dims[number], labels.kernel.spatial_dims[number]
            count = tiles_at(lhs.leaf, source)
            if count == 1:
                continue
            left_size = -(-lhs.base.dims[source] // count)
            right_size = -(-rhs.base.dims[kernel] // count)
            reach = dim.window_dilation
            windows = 1 + (dim.pad_low + dim.pad_high + lhs.base.dims[source] - (1 + (dim.size - 1) * reach)) // dim.stride
            left = Linear.of(left_size - right_size * reach, dim.pad_low)
            excess = right_size * reach - left_size
            right = Linear.of(excess, excess + 1 - reach + dim.stride * (windows - 1) - dim.pad_low)
            wanted = dim.stride * (windows - 1) + (right_size - 1) * reach + 1
            entries[number] = replace(dim, pad_low=0, pad_high=0, size=right_size)
            zero = b.constant(0, lhs.base.element_type)
            offset = b.constant(0, "s32")
            # A compact exchange leaves other elements where the padding has zeros; XLA takes those.
            is_padded = dim.pad_low > 0 or dim.pad_high > 0
            found = exchange_valid(
                lhs.state, value, lhs.base, left, right, dim.pad_low, 0, wanted, source, lhs.leaf, offset, zero,
                ordinals[source], masks=False, masks_compact=is_padded,
            )  # fmt: skip
            if found is None:
                return None
            value = found
        return p.multiply(lhs.with_value(value, lhs.sharding), rhs, Window(tuple(entries)))

    def _tiled_output(self, p: Product) -> HloInstruction | None:
        """Divide the result: each device gets the input that its windows reach, and the whole kernel."""
        labels = self.labels
        if p.sharding.tiles is None or tiles_at(p.sharding, labels.output.second_dim) > 1:
            return None
        # With groups of batches, a tile of the result reads batches from all over the input; XLA fails.
        crosses = self.view.batch_groups > 1 and tiles_at(p.sharding, labels.output.first_dim) > 1
        as_dot = [*p.dims.batch, *p.dims.rhs_free]  # spatial dimensions of other roles keep their windows; XLA fails
        crosses |= any(group.spatial >= 0 and tiles_at(p.sharding, group.output) > 1 for group in as_dot)
        if crosses or self._divides_groups(p.lhs, p.rhs):
            return None
        order = self._output_order(labels.input.first_dim, labels.input.second_dim)
        target = transpose(p.sharding, [order.index(dim) for dim in range(len(order))])
        lhs, rhs = p.lhs.reshard(target), p.rhs.replicate()
        entries: list[WindowDim] = [TRIVIAL] * lhs.base.rank
        for source, dim in zip(labels.input.spatial_dims, self.view.window.dims, strict=True):
            entries[source] = dim
        zero = lhs.builder.constant(0, p.base.element_type)
        found = windowed(lhs, Window(tuple(entries)), target, zero)
        if found is None:
            return None
        window = Window(tuple(found.window.dims[source] for source in labels.input.spatial_dims))
        made = p.multiply(lhs.with_value(found.value, lhs.sharding), rhs, window)
        if found.starts is None:
            return made
        # XLA takes the starts in the order of the input's dimensions.
        zero_start = lhs.builder.constant(0, "s32")
        starts = [zero_start] * lhs.base.rank
        for source, place in zip(labels.input.spatial_dims, labels.output.spatial_dims, strict=True):
            starts[place] = found.starts[source]
        return lhs.builder.dynamic_slice(made, starts, shard_shape(p.base, p.sharding).dims)

    def _by_groups(self, p: Product, is_strict: bool) -> HloInstruction | bool:
        """Group devices by the groups of batches or features; False if that is not possible."""
        labels = self.labels
        own = labels.input.first_dim if self.view.batch_groups > 1 else labels.input.second_dim
        count = self.view.batch_groups if self.view.batch_groups > 1 else self.view.feature_groups
        is_equal = p.lhs.base.dims[own] == p.rhs.base.dims[labels.kernel.second_dim]
        if not is_equal and (p.lhs.leaf.kind != "tiled" or count % tiles_at(p.lhs.leaf, own)):
            return False
        shared = DimGroup(own, labels.kernel.second_dim, labels.output.second_dim)
        d = p.dims
        if self.view.batch_groups > 1:
            dims = replace(d, batch=(*d.batch, shared), lhs_free=(), rhs_free=())
        else:
            lhs_free, rhs_free = (DimGroup(lhs=labels.input.first_dim),), (DimGroup(rhs=labels.kernel.first_dim),)
            dims = replace(d, batch=(*d.batch, shared), contracting=(), lhs_free=lhs_free, rhs_free=rhs_free)
        q = replace(p, dims=dims)
        tiles = [q.tiles(dims.batch, side) for side in ("lhs", "rhs", "output")]
        if tiles[2] > 1 and tiles[2] in tiles[:2] and count % tiles[2] == 0:
            found = by_batch_dims(q, is_strict)
            if found is not None:
                return found
        most = max(tiles)
        if is_strict or most <= 1 or count % most:
            return False
        return self._by_group_dims(q, own, tiles.index(most))

    def _by_group_dims(self, q: Product, own: int, side: int) -> HloInstruction:
        """Divide only the groups, as the input, the kernel or the result does."""
        labels = self.labels
        if side == 0:
            lhs = q.lhs.reshard(keep_dims(q.lhs.leaf, [own]))
            q = replace(q, lhs=lhs)
            rhs, result = q.rhs.reshard(_known(q.moved("lhs", "rhs"))), _known(q.moved("lhs", "output"))
        elif side == 1:
            rhs = q.rhs.reshard(keep_dims(q.rhs.leaf, [labels.kernel.second_dim]))
            q = replace(q, rhs=rhs)
            lhs, result = q.lhs.reshard(_known(q.moved("rhs", "lhs"))), _known(q.moved("rhs", "output"))
        else:
            result = keep_dims(q.sharding, [labels.output.second_dim])
            q_target = replace(q, sharding=result)
            lhs = q.lhs.reshard(_known(q_target.moved("output", "lhs")))
            rhs = q.rhs.reshard(_known(q_target.moved("output", "rhs")))
        return Part(q.multiply(lhs, rhs), q.base, result, lhs.state).reshard(q.sharding).hlo


def _batch_window(window: WindowDim, size: int) -> WindowDim:
    """Return the window of a spatial dimension that is a batch dimension, for another size; XLA knows its plainest form only."""
    if size == window.size:
        return window
    less = max(1, size - 1)
    if window.reversal:
        return replace(window, size=size, stride=size, base_dilation=less, pad_low=size - 1, pad_high=size - 1)
    if window.stride == 1 and window.window_dilation > 1:
        return replace(window, size=size, window_dilation=less, base_dilation=size)
    return replace(window, size=size, stride=less, base_dilation=size)


def _known(sharding: SingleSharding | None) -> SingleSharding:
    assert sharding is not None, "the dimensions that vanish are not divided"
    return sharding
