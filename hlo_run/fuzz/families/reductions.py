"""Steps of reductions of one or several arrays, windows, scans and sorts."""

from __future__ import annotations

import math

from hlo_run.fuzz.program.making import obtain
from hlo_run.fuzz.program.scope import Scope
from hlo_run.fuzz.program.values import TYPES, Dims, Range, Value, array_text, join, sum_of
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.braces import braces
from hlo_run.records import replace

_MOST_SUMMED = 2.0**20


_OF_PREDS: tuple[Opcode, ...] = ("and", "or", "xor")
_OF_NUMBERS: tuple[Opcode, ...] = ("add", "add", "maximum", "minimum")
_OF_INTEGERS: tuple[Opcode, ...] = ("and", "or", "xor", "multiply")


def _reducer(scope: Scope, value: Value, count: int) -> tuple[Opcode, float, Range] | None:
    """Return (opcode, init, range of the result) of a reduction of `count` elements; None if the sum may be too large."""
    t = value.element
    if t.kind == "pred":
        opcode = scope.rng.choice(_OF_PREDS)
        return opcode, float(opcode == "and"), Range(1)
    if t.kind == "complex":
        return "add", 0, sum_of(value.range, count, value.type)
    opcode = scope.rng.choice(_OF_NUMBERS)
    if t.is_integer:
        opcode = scope.rng.choice((opcode, *_OF_INTEGERS))
        init = 0 if opcode != "multiply" else 1
        return opcode, init, Range(t.highest)
    if opcode == "add":
        total = sum_of(value.range, count, value.type)
        return (opcode, 0, total) if total.bound <= min(_MOST_SUMMED, t.highest) else None
    return opcode, scope.rng.choice((0, 1, -1)), Range(max(value.range.bound, 1), value.range.grain, value.range.error)


def _reduced(scope: Scope, dims: Dims) -> list[int]:
    return sorted(scope.rng.sample(range(len(dims)), scope.rng.randint(1, min(3, len(dims)))))


def reduce(scope: Scope) -> None:
    """Reduce one array over random dimensions."""
    value = scope.pick(lambda v: len(v.dims) > 0)
    if value is None:
        return
    dims = _reduced(scope, value.dims)
    found = _reducer(scope, value, math.prod(value.dims[d] for d in dims))
    if found is None:
        return
    opcode, init, known = found
    kept = tuple(size for d, size in enumerate(value.dims) if d not in dims)
    start = scope.number(value.type, init)
    applied = scope.program.scalar_computation(opcode, value.type)
    text = f"reduce({value.name}, {start.name}), dimensions={braces(dims)}, to_apply={applied}"
    scope.add(value.type, kept, text, known)


def reduce_several(scope: Scope) -> None:
    """Reduce several arrays of the same shape, each with its own opcode."""
    value = scope.pick(lambda v: len(v.dims) > 0 and v.element.is_number)
    if value is None:
        return
    dims = _reduced(scope, value.dims)
    count = math.prod(value.dims[d] for d in dims)
    # Floats of two types would be mixed precision, which XLA refuses.
    first = value
    others = [v for v in (scope.pick(lambda v: v.dims == first.dims and _goes_with(v, first)) for _ in range(2)) if v]
    parts: list[tuple[Value, Opcode, float, Range]] = []
    for part in [value, *others][: scope.rng.randint(2, 3)]:
        found = _reducer(scope, part, count)
        if found is not None:
            parts.append((part, found[0], _identity(part, found[0]), found[2]))
    if len(parts) < 2:
        return
    n = len(parts)
    lines = [f"{side}{k} = {p[0].type}[] parameter({k + n * (side == 'b')})" for side in "ab" for k, p in enumerate(parts)]
    lines += [f"r{k} = {p[0].type}[] {p[1]}(a{k}, b{k})" for k, p in enumerate(parts)]
    shape = ", ".join(f"{p[0].type}[]" for p in parts)
    lines.append(f"ROOT r = ({shape}) tuple({', '.join(f'r{k}' for k in range(n))})")
    name = scope.program.computation("several_" + "_".join(f"{p[1]}_{p[0].type}" for p in parts), *lines)
    kept = tuple(size for d, size in enumerate(value.dims) if d not in dims)
    starts = [scope.number(p[0].type, p[2]) for p in parts]
    operands = ", ".join([*(p[0].name for p in parts), *(s.name for s in starts)])
    text = f"reduce({operands}), dimensions={braces(dims)}, to_apply={name}"
    made = scope.add_tuple([Value("", p[0].type, kept, p[3]) for p in parts], text, "v")
    for index in range(n):
        if scope.chance(0.8):
            scope.part(made, index)


def _goes_with(value: Value, other: Value) -> bool:
    return value.element.is_number and (value.type == other.type or not (value.element.is_float and other.element.is_float))


def _identity(value: Value, opcode: Opcode) -> float:
    """Return an identity of the opcode: a reduction of several arrays may apply its init any number of times."""
    t = value.element
    if opcode in ("maximum", "minimum"):
        if t.is_integer:
            lowest = -int(t.highest) if t.kind == "signed" else 0
            return lowest if opcode == "maximum" else t.largest
        end = 2.0 ** math.ceil(math.log2(max(value.range.bound, 1)) + (not value.exact))
        return -end if opcode == "maximum" else end
    if opcode == "and":
        return -1 if t.kind == "signed" else t.largest
    return 1 if opcode == "multiply" else 0


def argmax(scope: Scope) -> None:
    """Find the extremum of exact numbers along a dimension, and its first position."""
    value = scope.pick(lambda v: v.exact and len(v.dims) > 0 and v.element.is_number)
    if value is None:
        return
    k, places_type = value.type, scope.rng.choice(("s32", "s32", "s64"))
    direction = scope.rng.choice(("GT", "LT"))
    name = scope.program.computation(
        f"arg_{k}_{places_type}_{direction}",
        f"a = {k}[] parameter(0)",
        f"i = {places_type}[] parameter(1)",
        f"b = {k}[] parameter(2)",
        f"j = {places_type}[] parameter(3)",
        f"above = pred[] compare(a, b), direction={direction}",
        "same = pred[] compare(a, b), direction=EQ",
        "before = pred[] compare(i, j), direction=LT",
        "tie = pred[] and(same, before)",
        "first = pred[] or(above, tie)",
        f"m = {k}[] select(first, a, b)",
        f"n = {places_type}[] select(first, i, j)",
        f"ROOT r = ({k}[], {places_type}[]) tuple(m, n)",
    )
    dim = scope.rng.randrange(len(value.dims))
    kept = tuple(size for d, size in enumerate(value.dims) if d != dim)
    places = scope.add(places_type, value.dims, f"iota(), iota_dimension={dim}", Range(value.dims[dim]), keep=False)
    low = scope.number(k, _identity(value, "maximum" if direction == "GT" else "minimum"))
    # The init's position is after all others, in case the extremum is equal to the init.
    zero = scope.number(places_type, value.dims[dim])
    parts = [Value("", k, kept, value.range), Value("", places_type, kept, Range(value.dims[dim]))]
    text = f"reduce({value.name}, {places.name}, {low.name}, {zero.name}), dimensions={{{dim}}}, to_apply={name}"
    scope.take_apart(scope.add_tuple(parts, text, "v"))


def window(scope: Scope) -> None:
    """Add a reduce-window with strides, padding and dilations."""
    value = scope.pick(lambda v: len(v.dims) > 0)
    if value is None:
        return
    size, stride, low, high, base, spread = ([1] * len(value.dims) for _ in range(6))
    dims: list[int] = []
    for d, extent in enumerate(value.dims):
        low[d] = high[d] = 0
        if scope.chance(0.6):
            size[d], stride[d] = scope.rng.randint(1, 4), scope.rng.choice((1, 1, 2, 3))
            low[d], high[d] = scope.rng.choice(((0, 0), (0, 0), (1, 1), (2, 0), (0, 3), (-1, 1)))
            base[d], spread[d] = scope.rng.choice(((1, 1), (1, 1), (1, 1), (2, 1), (1, 2)))
        padded = (max(extent - 1, 0) * base[d] + (extent > 0)) + low[d] + high[d]
        reach = (size[d] - 1) * spread[d] + 1
        if padded < 0:
            return
        dims.append((padded - reach) // stride[d] + 1 if padded >= reach else 0)
    found = _reducer(scope, value, math.prod(size))
    if found is None or not scope.fits_in(dims):
        return
    opcode, init, known = found
    start = scope.number(value.type, init)
    crosses = {"size": size, "stride": stride, "pad": [f"{a}_{b}" for a, b in zip(low, high, strict=True)]}
    crosses |= {"lhs_dilate": base, "rhs_dilate": spread}
    text = " ".join(f"{word}={'x'.join(map(str, numbers))}" for word, numbers in crosses.items())
    applied = scope.program.scalar_computation(opcode, value.type)
    known = replace(known, bound=max(known.bound, abs(init)))
    scope.add(value.type, tuple(dims), f"reduce-window({value.name}, {start.name}), window={{{text}}}, to_apply={applied}", known)


def cumulative(scope: Scope) -> None:
    """Add a running sum, product or extremum along a dimension, as JAX writes it."""
    value = scope.pick(lambda v: len(v.dims) > 0 and v.element.is_number)
    if value is None:
        return
    dim = scope.rng.randrange(len(value.dims))
    extent = value.dims[dim]
    found = _reducer(scope, value, extent)
    if found is None or extent == 0:
        return
    opcode, init, known = found
    size, edges = ["1"] * len(value.dims), ["0_0"] * len(value.dims)
    size[dim], edges[dim] = str(extent), f"{extent - 1}_0" if scope.chance(0.7) else f"0_{extent - 1}"
    start = scope.number(value.type, init)
    text = f"window={{size={'x'.join(size)} pad={'x'.join(edges)}}}"
    applied = scope.program.scalar_computation(opcode, value.type)
    scope.add(value.type, value.dims, f"reduce-window({value.name}, {start.name}), {text}, to_apply={applied}", known)


def scan(scope: Scope) -> None:
    """Add a scan of one array with one carry: running sums or extrema."""
    value = scope.pick(lambda v: len(v.dims) > 0 and v.exact and v.element.is_number and v.element.bits >= 16)
    if value is None:
        return
    dim = scope.rng.randrange(len(value.dims))
    opcode = scope.rng.choice(("add", "maximum", "minimum"))
    kept = tuple(size for d, size in enumerate(value.dims) if d != dim)
    start = scope.filled(value.type, kept, scope.rng.choice((0, 1)))
    k, row = value.type, array_text(value.type, kept)
    name = scope.program.computation(
        f"scan_{opcode}_{k}_{'_'.join(map(str, kept))}",
        f"a = {row} parameter(0)",
        f"b = {row} parameter(1)",
        f"c = {row} {opcode}(b, a)",
        f"ROOT r = ({row}, {row}) tuple(c, c)",
    )
    count = value.dims[dim] + 1 if opcode == "add" else 1
    known = sum_of(join(value.range, Range(1)), count, k)
    if not known.exact:
        return
    flags = scope.rng.choice(("", ", is_reverse=true", ", is_associative=true"))
    text = f"scan({value.name}, {start.name}), dimensions={{{dim}}}, num_carries=1{flags}, to_apply={name}"
    scope.take_apart(scope.add_tuple([Value("", k, value.dims, known), Value("", k, kept, known)], text, "v"))


def sort(scope: Scope) -> None:
    """Sort exact keys, alone or stably with other arrays."""
    value = scope.pick(lambda v: v.exact and len(v.dims) > 0 and v.element.is_number)
    if value is None:
        return
    others = [v for v in scope.values if v.dims == value.dims and v.element.kind != "complex"]
    carried = scope.rng.sample(others, min(len(others), scope.rng.choice((0, 0, 1, 1, 2, 3))))
    operands = [value, *carried]
    dim = scope.rng.randrange(len(value.dims))
    name = comparator(scope, [v.type for v in operands], scope.rng.choice(("LT", "GT")))
    flags = ", is_stable=true" if carried or scope.chance(0.5) else ""
    text = f"sort({', '.join(v.name for v in operands)}), dimensions={{{dim}}}{flags}, to_apply={name}"
    if len(operands) == 1:
        scope.add(value.type, value.dims, text, value.range)
        return
    scope.take_apart(scope.add_tuple([replace(v, name="") for v in operands], text, "v"))


def comparator(scope: Scope, types: list[str], direction: str, order: str = "") -> str:
    """Return the name of a sort's comparator, which compares the first operands; `types` are the operands' element types."""
    lines = [f"{side}{k} = {t}[] parameter({2 * k + (side == 'b')})" for k, t in enumerate(types) for side in "ab"]
    lines.append(f"ROOT r = pred[] compare(a0, b0), direction={direction}{order and f', order={order}'}")
    return scope.program.computation(f"before_{direction}{order}_{'_'.join(types)}", *lines)


def top(scope: Scope) -> None:
    """Find the largest elements: by the topk opcode, or the custom call with a comparator of two or four parameters."""
    value = scope.pick(lambda v: v.exact and len(v.dims) in (1, 2) and v.type in ("f32", "bf16", "s32") and v.dims[-1] > 0)
    if value is None:
        return
    rows, extent = value.dims[:-1], value.dims[-1]
    k = scope.rng.randint(1, min(extent, 16))
    dims = (*rows, k)
    parts = [Value("", value.type, dims, value.range), Value("", "s32", dims, Range(extent))]
    if scope.chance(0.5):
        made = scope.add_tuple(parts, f"topk({value.name}), k={k}", "v")
        scope.part(made, 0)
        return
    types = [value.type] if scope.chance(0.5) else [value.type, "s32"]
    order = "TOTAL" if value.element.is_float else ""
    name = comparator(scope, types, "GT", order)
    text = f'custom-call({value.name}), custom_call_target="TopK", called_computations={{{name}}}'
    scope.part(scope.add_tuple(parts, text, "v"), 0)


def select_and_scatter(scope: Scope) -> None:
    """Add a select-and-scatter: the gradient of a maximum over windows."""
    value = scope.pick(lambda v: v.exact and len(v.dims) in (1, 2, 3, 4) and v.type in ("f32", "s32", "f64") and 0 not in v.dims)
    if value is None:
        return
    size, stride = [1] * len(value.dims), [1] * len(value.dims)
    for d in scope.rng.sample(range(len(value.dims)), min(2, len(value.dims))):
        size[d] = scope.rng.randint(1, min(3, value.dims[d]))
        stride[d] = scope.rng.randint(1, 3)
    dims = tuple((extent - k) // s + 1 for extent, k, s in zip(value.dims, size, stride, strict=True))
    source = obtain(scope, value.type, dims)
    t = value.type
    chosen = scope.program.computation(
        f"ge_{t}", f"a = {t}[] parameter(0)", f"b = {t}[] parameter(1)", "ROOT r = pred[] compare(a, b), direction=GE"
    )
    init = scope.number(t, 0)
    summed = scope.program.scalar_computation("add", t)
    text = (
        f"select-and-scatter({value.name}, {source.name}, {init.name}),"
        f" window={{size={'x'.join(map(str, size))} stride={'x'.join(map(str, stride))}}}, select={chosen}, scatter={summed}"
    )
    known = sum_of(source.range, math.prod(size), t)
    scope.add(t, value.dims, text, Range(TYPES[t].highest) if TYPES[t].is_integer else known)


def norm(scope: Scope) -> None:
    """Add a softmax over the last dimension, as models have it."""
    value = scope.pick(lambda v: v.type in ("f32", "f64") and len(v.dims) > 0 and v.dims[-1] > 0 and v.range.bound <= 4)
    if value is None:
        return
    t, kept = value.type, value.dims[:-1]
    rows = braces(range(len(kept)))
    low, zero = scope.number(t, -16), scope.number(t, 0)
    shape, row = array_text(t, value.dims), array_text(t, kept)
    most, total = (scope.program.scalar_computation(opcode, t) for opcode in ("maximum", "add"))
    n = [scope.program.name() for _ in range(7)]
    last = f"dimensions={{{len(kept)}}}"
    scope.lines += [
        f"{n[0]} = {row} reduce({value.name}, {low.name}), {last}, to_apply={most}",
        f"{n[1]} = {shape} broadcast({n[0]}), dimensions={rows}",
        f"{n[2]} = {shape} subtract({value.name}, {n[1]})",
        f"{n[3]} = {shape} exponential({n[2]})",
        f"{n[4]} = {row} reduce({n[3]}, {zero.name}), {last}, to_apply={total}",
        f"{n[5]} = {shape} broadcast({n[4]}), dimensions={rows}",
    ]
    error = 8 * value.range.error + 64 * 2.0**-value.element.digits
    scope.add(t, value.dims, f"divide({n[3]}, {n[5]})", Range(1, 0, error))
