"""Steps that reinterpret the bits of one type as another, of any width."""

from __future__ import annotations

from hlo_run.fuzz.program.making import positive
from hlo_run.fuzz.program.scope import Scope
from hlo_run.fuzz.program.values import TYPES, Range, Value


def bitcast_convert(scope: Scope) -> None:
    """Bitcast integers, or positive floats, to integers of any width; dimensions are split or merged accordingly."""
    value = scope.pick(lambda v: v.exact and (v.element.is_integer or v.element.is_float))
    if value is None:
        return
    if value.element.is_float:
        value = positive(scope, value)
        if not value.exact:
            return
    target = scope.some_type(lambda name: TYPES[name].is_integer)
    if scope.chance(0.5):
        target = scope.rng.choice([t.name for t in TYPES.values() if t.is_integer])
    made = _as_bits(scope, value, target)
    if made is not None and scope.chance(0.3):
        _as_float(scope, made)


def _as_bits(scope: Scope, value: Value, target: str) -> Value | None:
    before, after = value.element.bits, TYPES[target].bits
    if before == after:
        dims = value.dims
    elif before > after:
        dims = (*value.dims, before // after)
    elif value.dims and value.dims[-1] == after // before:
        dims = value.dims[:-1]
    elif value.count % (after // before) == 0 and value.count:
        ratio = after // before
        split = scope.add(value.type, (value.count // ratio, ratio), f"reshape({value.name})", value.range, keep=False)
        value, dims = split, (value.count // ratio,)
    else:
        return None
    if not scope.fits_in(dims):
        return None
    return scope.add(target, dims, f"bitcast-convert({value.name})", Range(TYPES[target].highest))


_FLOATS_OF = {16: ("f16", "bf16"), 32: ("f32",), 64: ("f64",)}


def _as_float(scope: Scope, value: Value) -> None:
    """Set sign and exponent of the bits so that they are a float in [1, 2), and bitcast them to it."""
    if value.element.bits not in _FLOATS_OF:
        return
    t = TYPES[scope.rng.choice(_FLOATS_OF[value.element.bits])]
    stored = t.digits - 1
    exponent_bits = t.bits - 1 - stored
    one = (2 ** (exponent_bits - 1) - 1) << stored
    mask = scope.filled_exactly(value.type, value.dims, (1 << stored) - 1)
    low = scope.add(value.type, value.dims, f"and({value.name}, {mask.name})", Range(2.0**stored), keep=False)
    ones = scope.filled_exactly(value.type, value.dims, one)
    bits = scope.add(value.type, value.dims, f"or({low.name}, {ones.name})", Range(value.element.highest), keep=False)
    scope.add(t.name, value.dims, f"bitcast-convert({bits.name})", Range(1.999, min(stored, t.most_grain)))


def pack(scope: Scope) -> None:
    """Extract narrow integers from wider ones by shifts and converts, as the unpacking of quantised weights does."""
    value = scope.pick(lambda v: v.type in ("u8", "s8", "u16"))
    if value is None:
        return
    narrow = scope.rng.choice(("u4", "s4", "u2", "s2"))
    half = scope.filled(value.type, value.dims, TYPES[narrow].bits)
    opcode = scope.rng.choice(("shift-right-logical", "shift-right-arithmetic"))
    moved = scope.add(value.type, value.dims, f"{opcode}({value.name}, {half.name})", Range(value.element.highest), keep=False)
    largest = TYPES[narrow].highest + (TYPES[narrow].kind == "signed")
    part = scope.add(narrow, value.dims, f"convert({moved.name})", Range(largest))
    wraps = TYPES[narrow].kind == "signed" and value.element.kind == "unsigned"
    scope.add(value.type, value.dims, f"convert({part.name})", Range(value.element.highest if wraps else largest))
