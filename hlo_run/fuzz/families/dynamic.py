"""Steps on arrays of dynamic size, with results that do not depend on the padding."""

from __future__ import annotations

from hlo_run.fuzz.program.making import obtain
from hlo_run.fuzz.program.scope import Scope
from hlo_run.fuzz.program.values import Dims, Range, Value, sum_of
from hlo_run.hlo.values.braces import braces
from hlo_run.records import replace


def _text(value: Value, dim: int) -> str:
    return f"{value.type}[{','.join(f'<={size}' if d == dim else str(size) for d, size in enumerate(value.dims))}]"


def dynamic_size(scope: Scope) -> None:
    """Set a size, apply elementwise ops, then reduce or get the size."""
    value = scope.pick(lambda v: v.exact and v.type in ("f32", "s32", "f64", "s64") and len(v.dims) > 0 and 0 not in v.dims)
    if value is None:
        return
    dim = scope.rng.randrange(len(value.dims))
    size = _size(scope, value.dims[dim])
    shape = _text(value, dim)
    name = scope.program.name("d")
    scope.lines.append(f"{name} = {shape} set-dimension-size({value.name}, {size.name}), dimensions={{{dim}}}")
    for _ in range(scope.rng.randint(0, 2)):
        made = scope.program.name("d")
        opcode = scope.rng.choice(("negate({0})", "maximum({0}, {0})", "abs({0})"))
        scope.lines.append(f"{made} = {shape} {opcode.format(name)}")
        name = made
    if scope.chance(0.25):
        scope.add("s32", (), f"get-dimension-size({name}), dimensions={{{dim}}}", Range(value.dims[dim]))
        return
    dims = _reduced(scope, value.dims, dim)
    kept: Dims = tuple(s for d, s in enumerate(value.dims) if d not in dims)
    opcode = scope.rng.choice(("add", "maximum", "minimum"))
    start = scope.number(value.type, 0 if opcode == "add" else scope.rng.choice((0, 1)))
    count = value.count // max(1, Value("", value.type, kept).count)
    known = sum_of(value.range, count + 1, value.type) if opcode == "add" else value.range
    known = Range(value.element.highest) if value.element.is_integer else replace(known, bound=max(known.bound, 1))
    applied = scope.program.scalar_computation(opcode, value.type)
    text = f"reduce({name}, {start.name}), dimensions={braces(dims)}, to_apply={applied}"
    scope.add(value.type, kept, text, known)


def _size(scope: Scope, bound: int) -> Value:
    """Return a scalar in [0, bound]."""
    if scope.chance(0.5):
        return scope.number("s32", scope.rng.randint(0, bound))
    value = obtain(scope, "s32", ())
    low, high = scope.number("s32", 0), scope.number("s32", bound)
    return scope.add("s32", (), f"clamp({low.name}, {value.name}, {high.name})", Range(bound), keep=False)


def _reduced(scope: Scope, dims: Dims, dim: int) -> list[int]:
    others = [d for d in range(len(dims)) if d != dim]
    return sorted([dim, *scope.rng.sample(others, scope.rng.randint(0, len(others)))])
