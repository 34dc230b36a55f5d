"""Gathers, scatters, and slices and updates at computed indices; some indices are slightly out of bounds."""

from __future__ import annotations

import math

from hlo_run.fuzz.program.making import obtain, scalar_index
from hlo_run.fuzz.program.scope import Scope
from hlo_run.fuzz.program.values import TYPES, Dims, Range, Value, join, plus, sum_of
from hlo_run.hlo.values.braces import braces

_INDEX_TYPES = ("s32", "s32", "s32", "s64", "u32", "s8", "u8", "s16")


def dynamic_slice(scope: Scope) -> None:
    """Add a dynamic-slice at computed starts."""
    value = scope.pick(lambda v: len(v.dims) > 0)
    if value is None:
        return
    sizes = tuple(scope.rng.randint(min(1, size), size) for size in value.dims)
    index = scope.rng.choice(_INDEX_TYPES)
    starts = ", ".join(scalar_index(scope, size, index).name for size in value.dims)
    text = f"dynamic-slice({value.name}, {starts}), dynamic_slice_sizes={braces(sizes)}"
    scope.add(value.type, sizes, text, value.range)


def dynamic_update(scope: Scope) -> None:
    """Add a dynamic-update-slice at computed starts."""
    value = scope.pick(lambda v: len(v.dims) > 0)
    if value is None:
        return
    sizes = tuple(scope.rng.randint(min(1, size), size) for size in value.dims)
    found = scope.pick(lambda v: v.type == value.type and len(v.dims) == len(sizes) and _within(v.dims, value.dims))
    part = found if found is not None and scope.chance(0.6) else obtain(scope, value.type, sizes)
    index = scope.rng.choice(_INDEX_TYPES)
    starts = ", ".join(scalar_index(scope, size, index).name for size in value.dims)
    text = f"dynamic-update-slice({value.name}, {part.name}, {starts})"
    scope.add(value.type, value.dims, text, join(value.range, part.range))


def _within(dims: Dims, outer: Dims) -> bool:
    return all(a <= b for a, b in zip(dims, outer, strict=True))


class _Numbers:
    """Random dimension numbers of a gather or scatter on `operand`.

    `window` are the operand's dimensions in the slices, `taken` the collapsed or inserted ones, `paired` the batching dimensions.
    """

    def __init__(self, scope: Scope, operand: Value) -> None:
        rng, rank = scope.rng, len(operand.dims)
        dims = list(range(rank))
        self.paired: list[int] = [d for d in dims if rng.random() < 0.15]
        free = [d for d in dims if d not in self.paired]
        self.taken = sorted(d for d in free if operand.dims[d] > 0 and rng.random() < 0.5)
        self.window = [d for d in free if d not in self.taken]
        self.map = rng.sample(free, rng.randint(0, len(free)))
        if scope.chance(0.05) and self.paired:
            self.map.append(self.paired[0])
        self.sizes = [
            1 if d in self.taken or d in self.paired else rng.choice((size, rng.randint(min(size, 1), size)))
            for d, size in enumerate(operand.dims)
        ]
        if any(operand.dims[d] == 0 for d in self.paired):
            self.sizes = [0 if d in self.paired and operand.dims[d] == 0 else s for d, s in enumerate(self.sizes)]
        batch = [scope.rng.choice((1, 2, 3, 5, 8, 17)) for _ in range(rng.choice((0, 1, 1, 1, 2)))]
        self.places = sorted(rng.sample(range(len(batch) + len(self.paired)), len(self.paired)))
        self.batch = list(batch)
        for place, dim in zip(self.places, self.paired, strict=True):
            self.batch.insert(place, operand.dims[dim])
        self.vector_dim = rng.choice((len(self.batch), rng.randint(0, len(self.batch))))
        self.has_vector = len(self.map) != 1 or scope.chance(0.5)
        if not self.has_vector:
            self.vector_dim = len(self.batch)
        self.result_rank = len(self.batch) + len(self.window)
        self.offsets = sorted(rng.sample(range(self.result_rank), len(self.window)))
        if scope.chance(0.6):
            self.offsets = list(range(len(self.batch), self.result_rank))
        self.index_dims = tuple(self._with_vector(self.batch, len(self.map)))
        # The batching dimensions of the indices; those after the index vector dimension are shifted by one.
        self.index_places = [p + (self.has_vector and p >= self.vector_dim) for p in self.places]

    def _with_vector(self, batch: list[int], count: int) -> list[int]:
        return [*batch[: self.vector_dim], count, *batch[self.vector_dim :]] if self.has_vector else batch

    def result(self) -> Dims:
        windows, batches = iter([self.sizes[d] for d in self.window]), iter(self.batch)
        return tuple(next(windows) if d in self.offsets else next(batches) for d in range(self.result_rank))


def gather(scope: Scope) -> None:
    """Add a gather with random dimension numbers, sometimes with batching dimensions."""
    value = scope.pick(lambda v: 0 < len(v.dims) <= 4)
    if value is None:
        return
    n = _Numbers(scope, value)
    if not scope.fits_in(n.result()) or not scope.fits_in(n.index_dims):
        return
    indices = obtain(scope, scope.rng.choice(_INDEX_TYPES), n.index_dims)
    paired = ""
    if n.paired:
        paired = f", operand_batching_dims={braces(n.paired)}, start_indices_batching_dims={braces(n.index_places)}"
    text = (
        f"gather({value.name}, {indices.name}), offset_dims={braces(n.offsets)}, collapsed_slice_dims={braces(n.taken)},"
        f" start_index_map={braces(n.map)}{paired}, index_vector_dim={n.vector_dim}, slice_sizes={braces(n.sizes)}"
    )
    scope.add(value.type, n.result(), text, value.range)


def scatter(scope: Scope) -> None:
    """Scatter sums or extrema of exact numbers, or assign one value at all indices."""
    value = scope.pick(lambda v: 0 < len(v.dims) <= 4 and v.exact)
    if value is None:
        return
    n = _Numbers(scope, value)
    if not scope.fits_in(n.result()) or not scope.fits_in(n.index_dims):
        return
    indices = obtain(scope, scope.rng.choice(_INDEX_TYPES), n.index_dims)
    operands = [value]
    if scope.chance(0.15):
        # A scatter of floats of two widths is not valid HLO.
        is_float = value.element.is_float
        other = scope.pick(
            lambda v: v.dims == value.dims and v.exact and (v.type == value.type or not (v.element.is_float and is_float))
        )
        operands += [other] if other is not None else []
    updates: list[Value] = []
    opcodes: list[str] = []
    ranges: list[Range] = []
    for operand in operands:
        t = operand.element
        opcode = scope.rng.choice(("add", "maximum", "assign") if t.is_number else ("assign",))
        same = opcode == "assign"
        update = scope.filled(operand.type, n.result(), 1) if same else obtain(scope, operand.type, n.result())
        known = join(operand.range, update.range)
        if opcode == "add":
            known = plus(operand.range, sum_of(update.range, math.prod(n.batch), operand.type))
            known = Range(t.highest) if t.is_integer else known
            if not known.exact or known.bound * 2.0**known.grain > 2.0**t.digits:
                return
        updates.append(update)
        opcodes.append(opcode)
        ranges.append(known)
    paired = ""
    if n.paired:
        paired = f", input_batching_dims={braces(n.paired)}, scatter_indices_batching_dims={braces(n.index_places)}"
    text = (
        f"scatter({', '.join(v.name for v in [*operands, indices, *updates])}), update_window_dims={braces(n.offsets)},"
        f" inserted_window_dims={braces(n.taken)}, scatter_dims_to_operand_dims={braces(n.map)}{paired},"
        f" index_vector_dim={n.vector_dim}, to_apply={_combiner(scope, operands, opcodes)}"
    )
    if len(operands) == 1:
        scope.add(value.type, value.dims, text, ranges[0])
        return
    parts = [Value("", v.type, v.dims, r) for v, r in zip(operands, ranges, strict=True)]
    scope.take_apart(scope.add_tuple(parts, text, "v"))


def _combiner(scope: Scope, operands: list[Value], opcodes: list[str]) -> str:
    count = len(operands)
    name = "combine_" + "_".join(f"{o}_{v.type}" for o, v in zip(opcodes, operands, strict=True))
    lines = [f"{side}{k} = {v.type}[] parameter({k + count * (side == 'b')})" for side in "ab" for k, v in enumerate(operands)]
    results: list[str] = []
    for k, (opcode, operand) in enumerate(zip(opcodes, operands, strict=True)):
        if opcode == "assign":
            results.append(f"b{k}")
            continue
        lines.append(f"r{k} = {operand.type}[] {opcode}(a{k}, b{k})")
        results.append(f"r{k}")
    if count == 1:
        if results[0] == "b0":
            lines[-1] = "ROOT " + lines[-1]
        else:
            lines[-1] = "ROOT " + lines[-1]
    else:
        shape = ", ".join(f"{v.type}[]" for v in operands)
        lines.append(f"ROOT r = ({shape}) tuple({', '.join(results)})")
    return scope.program.computation(name, *lines)


def lookup(scope: Scope) -> None:
    """Gather rows of a table by indices, as an embedding does."""
    value = scope.pick(lambda v: len(v.dims) >= 1 and v.dims[0] > 0)
    if value is None:
        return
    count = scope.rng.choice((1, 3, 17, 40))
    rest = value.dims[1:]
    if not scope.fits_in((count, *rest)):
        return
    index_type = scope.rng.choice(_INDEX_TYPES)
    places = obtain(scope, index_type, (count,))
    limit = scope.filled(index_type, (count,), min(value.dims[0], TYPES[index_type].largest))
    inside = scope.add(index_type, (count,), f"remainder({places.name}, {limit.name})", Range(value.dims[0]), keep=False)
    offsets = braces(range(1, len(rest) + 1))
    text = (
        f"gather({value.name}, {inside.name}), offset_dims={offsets}, collapsed_slice_dims={{0}}, start_index_map={{0}},"
        f" index_vector_dim=1, slice_sizes={braces((1, *rest))}"
    )
    scope.add(value.type, (count, *rest), text, value.range)
