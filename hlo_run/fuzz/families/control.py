"""Steps that call computations with more steps: loops, branches, calls, fusions, async pairs."""

from __future__ import annotations

from hlo_run.fuzz.program.making import fitted, obtain, state_range
from hlo_run.fuzz.program.scope import Scope, without_layouts
from hlo_run.fuzz.program.values import TYPES, Range, Value, join
from hlo_run.records import replace

_MOST_DEPTH = 3
_TRIPS = (0, 1, 1, 2, 3, 3, 4, 5)


def _some_values(scope: Scope, most: int, least: int = 1) -> list[Value]:
    """Return up to `most` random values, usually without duplicates."""
    found = [v for v in (scope.pick() for _ in range(scope.rng.randint(least, most))) if v is not None]
    return found if scope.chance(0.1) else list({v.name: v for v in found}.values())


def call(scope: Scope) -> None:
    """Add a call of a computation with random steps."""
    operands = _some_values(scope, 3)
    if scope.depth >= _MOST_DEPTH or not operands:
        return
    body = scope.inner()
    for number, operand in enumerate(operands):
        body.parameter(number, operand)
    scope.program.fill(body, 0, 4)
    root = _root(body, 0.4)
    if root is None:
        return
    name = body.close(root, "called")
    _apply(scope, root, f"call({_names(operands)}), to_apply={name}")


def _names(values: list[Value]) -> str:
    return ", ".join(v.name for v in values)


def _root(body: Scope, tuple_chance: float) -> Value | None:
    """Return a value for the root; with probability `tuple_chance`, a tuple of several values."""
    value = body.pick()
    if value is None or not body.chance(tuple_chance):
        return value
    return body.add_tuple(_some_values(body, 3) or [value])


def _apply(scope: Scope, root: Value, text: str, most_taken: float = 0.9) -> None:
    """Add an instruction with the shape and ranges of `root`, and take most of its elements apart."""
    result = replace(without_layouts(root), name=scope.program.name())
    scope.line(result, text)
    if not result.is_tuple:
        scope.keep(result)
        return
    for index in range(len(result.parts)):
        if scope.chance(most_taken):
            scope.take_apart(scope.part(result, index, keep=False))


# Fusions.


def fusion(scope: Scope) -> None:
    """Add a fusion of a random kind; its body may be only a parameter, contain a fusion, and have several results."""
    operands = list({v.name: v for v in _some_values(scope, 4)}.values())
    if scope.depth >= _MOST_DEPTH or not operands:
        return
    body = scope.inner(inside_fusion=True)
    for number, operand in enumerate(operands):
        body.parameter(number, operand)
    if not scope.chance(0.08):
        scope.program.fill(body, 1, 5)
    root = body.pick()
    if root is None:
        return
    if scope.chance(0.3):
        others = [v for v in body.values if v.dims == root.dims]
        root = body.add_tuple([root, *body.rng.sample(others, min(len(others), body.rng.choice((1, 2))))])
    kind = scope.rng.choice(("kLoop", "kLoop", "kInput", "kOutput"))
    used = body.renumber_parameters(root)
    name = body.close(root, "fused")
    _apply(scope, root, f"fusion({_names([operands[n] for n in used])}), kind={kind}, calls={name}")


# Async pairs.


def async_pair(scope: Scope) -> None:
    """Add an async-start of one step and its async-done, sometimes with other steps between them."""
    operands = _some_values(scope, 2)
    # An async computation must stay one instruction, so exclude types that passes would convert.
    if scope.depth or not operands or any(v.type not in ("f32", "f64", "s32", "s64", "u32", "pred") for v in operands):
        return
    body = scope.inner(may_have_effects=False)
    for number, operand in enumerate(operands):
        body.parameter(number, operand)
    values = body.values[: len(operands)]
    made = [f for f in (_one_step(body, values[0]),) if f is not None]
    if not made:
        return
    name = body.close(made[0], "async")
    taken = ", ".join(without_layouts(v).shape for v in operands)
    result = without_layouts(made[0])
    start = scope.program.name("start")
    scope.lines.append(f"{start} = (({taken}), {result.shape}, u32[]) async-start({_names(operands)}), calls={name}")
    if scope.chance(0.5):
        scope.program.fill(scope, 1, 2)
    done = replace(result, name=scope.program.name())
    scope.keep(scope.line(done, f"async-done({start})"))


def _one_step(body: Scope, value: Value) -> Value | None:
    """Add one instruction that reads `value`; return None if its type is unsuitable."""
    if value.element.kind == "pred":
        return body.add("pred", value.dims, f"not({value.name})", Range(1), keep=False)
    return (
        body.add(value.type, value.dims, f"maximum({value.name}, {value.name})", value.range, keep=False)
        if (value.element.is_number)
        else None
    )


# Branches.


def conditional(scope: Scope) -> None:
    """Add a conditional on a pred or on an index; each branch has its own operand, and all have the same result shape."""
    if scope.depth >= _MOST_DEPTH:
        return
    results = _some_values(scope, 2)
    if not results:
        return
    by_pred = scope.chance(0.4)
    count = 2 if by_pred else scope.rng.choice((1, 2, 2, 3, 4))
    as_tuple = len(results) > 1 or scope.chance(0.3)
    names: list[str] = []
    operands: list[str] = []
    outcomes: list[list[Value]] = []
    for _ in range(count):
        branch = scope.inner()
        operand = _operand(scope)
        branch.parameter(0, operand)
        operands.append(operand.name)
        scope.program.fill(branch, 0, 3)
        parts = [obtain(branch, v.type, v.dims, exact=False, reuse=0.9) for v in results]
        outcomes.append(parts)
        root = branch.add_tuple(parts) if as_tuple else parts[0]
        names.append(branch.close(root, "branch"))
    ranges = [join(*(o[k].range for o in outcomes)) for k in range(len(results))]
    merged = [Value("", v.type, v.dims, r) for v, r in zip(results, ranges, strict=True)]
    root = Value("", "tuple", parts=tuple(merged)) if as_tuple else merged[0]
    index = obtain(scope, "pred" if by_pred else "s32", ())
    if by_pred:
        text = f"true_computation={names[0]}, false_computation={names[1]}"
    else:
        text = f"branch_computations={{{', '.join(names)}}}"
    _apply(scope, root, f"conditional({index.name}, {', '.join(operands)}), {text}")


def _operand(scope: Scope) -> Value:
    """Return the operand of a branch: an array, or a tuple, which may be empty or nested."""
    values = _some_values(scope, 3, least=0)
    if len(values) == 1 and scope.chance(0.7):
        return values[0]
    packed = scope.add_tuple(values)
    return scope.add_tuple([packed, values[0]]) if values and scope.chance(0.15) else packed


# Loops.


def loop(scope: Scope) -> None:
    """Add a while loop with a counter in its state, in the forms that front ends write."""
    if scope.depth >= _MOST_DEPTH:
        return
    if scope.chance(0.12):
        return _loop_without_tuple(scope)
    carried = _some_values(scope, 4, least=0)
    counter_type = scope.rng.choice(("s32", "s32", "s32", "s64", "u32", "s8", "u8"))
    trips, step, begin = scope.rng.choice(_TRIPS), scope.rng.choice((1, 1, 1, 2, 3)), scope.rng.choice((0, 0, 0, 1, 5))
    counts_down = scope.chance(0.15) and TYPES[counter_type].kind == "signed"
    last = begin + trips * step
    first, limit, direction = (begin, last, "LT") if not counts_down else (last, begin, "GT")
    counter = scope.number(counter_type, first)
    place = scope.rng.choice((0, 0, len(carried), scope.rng.randint(0, len(carried))))
    has_limit = scope.chance(0.3)
    parts = [replace(without_layouts(v), range=state_range(v)) for v in carried]
    parts.insert(place, replace(counter, range=Range(max(first, limit))))
    if has_limit:
        parts.append(scope.number(counter_type, limit))
    is_nested = len(parts) > 2 and scope.chance(0.15)
    start = _pack(scope, parts, is_nested)
    body, test = scope.inner(), scope.inner(may_have_effects=False)
    new, old = _body_state(body, parts, is_nested)
    scope.program.fill(body, 0, 4)
    one = body.number(counter_type, -step if counts_down else step)
    count = body.line(replace(old[place], name=body.program.name("n")), f"add({old[place].name}, {one.name})")
    for number, (part, before) in enumerate(zip(parts, old, strict=True)):
        if number != place and not (has_limit and number == len(parts) - 1):
            new[number] = _next(body, part, before)
    new[place] = count
    body_name = body.close(_pack(body, new, is_nested), "body")
    _, tested = _body_state(test, parts, is_nested)
    bound = tested[-1] if has_limit else test.number(counter_type, limit)
    _test(test, tested[place], bound, direction, parts, tested)
    condition = test.close(Value(test.lines[-1].split(" = ")[0], "pred"), "condition")
    result = replace(start, name=scope.program.name("w"))
    text = f"while({start.name}), condition={condition}, body={body_name}{_hint(scope, trips)}"
    scope.line(result, text)
    scope.take_apart(result) if scope.chance(0.8) else scope.take_apart(scope.part(result, 0, keep=False))


def _pack(scope: Scope, parts: list[Value], is_nested: bool) -> Value:
    if not is_nested:
        return scope.add_tuple(parts)
    return scope.add_tuple([scope.add_tuple(parts[:2]), *parts[2:]])


def _body_state(body: Scope, parts: list[Value], is_nested: bool) -> tuple[list[Value], list[Value]]:
    """Return two lists of the state's elements; the caller changes the first one."""
    shape = [replace(p, name="") for p in parts]
    nested = [Value("", "tuple", parts=tuple(shape[:2])), *shape[2:]] if is_nested else shape
    state = replace(Value(body.program.name("state"), "tuple"), parts=tuple(nested))
    body.line(state, "parameter(0)")
    leaves = body.take_apart(state)
    return list(leaves), leaves


def _next(body: Scope, part: Value, before: Value) -> Value:
    """Return the value after an iteration for the state element `before`."""
    alike = [v for v in body.values if (v.type, v.dims) == (part.type, part.dims)]
    if not alike or body.chance(0.2):
        return before
    found = fitted(body, body.rng.choice(alike[-4:]), part.range)
    return found or before


def _test(test: Scope, count: Value, limit: Value, direction: str, parts: list[Value], state: list[Value]) -> None:
    """Add the root of a condition: a comparison in either operand order, sometimes and-ed with a pred of the state."""
    preds = [v for v, p in zip(state, parts, strict=True) if p.type == "pred" and p.dims == ()]
    turned = {"LT": "GT", "GT": "LT"}[direction]
    if test.chance(0.25):
        text = f"compare({limit.name}, {count.name}), direction={turned}"
    elif test.chance(0.15):
        text = f"compare({count.name}, {limit.name}), direction={direction}"
        compared = test.line(Value(test.program.name("k"), "pred"), text)
        text = f"and({compared.name}, {test.rng.choice(preds).name})" if preds else f"copy({compared.name})"
    else:
        text = f"compare({count.name}, {limit.name}), direction={direction}"
    test.line(Value(test.program.name("k"), "pred"), text)


def _hint(scope: Scope, trips: int) -> str:
    """Return the text of a trip count annotation: none, the right one, or a wrong one as another compiler may leave."""
    if scope.chance(0.75):
        return ""
    count = trips if scope.chance(0.5) else scope.rng.choice((0, 1, 7, 99))
    return f', backend_config={{"known_trip_count":{{"n":"{count}"}}}}'


def _loop_without_tuple(scope: Scope) -> None:
    """A loop whose state is one array: it never runs, or runs while a scalar is below a limit."""
    value = scope.pick(lambda v: v.type != "pred" or v.dims != ())
    if value is None:
        return
    counts = scope.chance(0.5)
    value = scope.number("s32", scope.rng.randint(0, 3)) if counts else value
    value = replace(without_layouts(value), range=state_range(value))
    body, test = scope.inner(), scope.inner(may_have_effects=False)
    state = body.parameter(0, value)
    tested = test.parameter(0, value)
    if counts:
        scope.program.fill(body, 0, 2)
        one = body.number("s32", 1)
        root = body.line(replace(state, name=body.program.name("n")), f"add({state.name}, {one.name})")
        limit = test.number("s32", scope.rng.choice((0, 2, 5)))
        test.line(Value("k", "pred"), f"compare({tested.name}, {limit.name}), direction=LT")
    else:
        if body.chance(0.5):
            text = f"{body.rng.choice(('convert', 'copy'))}({state.name})"
            root = body.line(replace(state, name=body.program.name()), text)
        else:
            scope.program.fill(body, 0, 3)
            root = _next(body, value, state)
        test.line(Value("k", "pred"), "constant(false)")
    condition = test.close(Value("k", "pred"), "condition")
    result = replace(value, name=scope.program.name("w"), range=state_range(value))
    scope.line(result, f"while({value.name}), condition={condition}, body={body.close(root, 'body')}")
    scope.keep(result)
