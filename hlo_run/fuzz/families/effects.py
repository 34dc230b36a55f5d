"""Steps with effects or inputs besides parameters: custom calls, infeeds, outfeeds, random bits, tokens, devices."""

from __future__ import annotations

from hlo_run.fuzz.program.making import obtain
from hlo_run.fuzz.program.scope import Scope, shape
from hlo_run.fuzz.program.values import TYPES, Range, Value
from hlo_run.hlo.values.braces import braces
from hlo_run.records import replace

FLIP = "hlo_fuzz_flip"
RECORD = "hlo_fuzz_record"
COUNT = "hlo_fuzz_count"
FED = Range(4.0, 0)


def flip(scope: Scope) -> None:
    """Add a custom call without effects, which reverses all dimensions; two arrays give a tuple."""
    value = scope.pick()
    if value is None:
        return
    other = scope.pick()
    if other is None or scope.chance(0.6):
        scope.add(value.type, value.dims, f'custom-call({value.name}), custom_call_target="{FLIP}"', value.range)
        return
    text = f'custom-call({value.name}, {other.name}), custom_call_target="{FLIP}"'
    scope.take_apart(scope.add_tuple([replace(value, name=""), replace(other, name="")], text, "v"))


def record(scope: Scope) -> None:
    """Add a custom call with an effect, whose result may be unused."""
    if not scope.may_have_effects:
        return
    value = scope.pick(lambda v: v.exact)
    if value is None:
        return
    effect = "custom_call_has_side_effect=true"
    if scope.chance(0.3):
        known = Range(1)
        scope.add("f32", (), f'custom-call({value.name}), custom_call_target="{COUNT}", {effect}', known)
        return
    text = f'custom-call({value.name}), custom_call_target="{RECORD}", {effect}'
    scope.add(value.type, value.dims, text, value.range, keep=scope.chance(0.6))


def _token(scope: Scope) -> Value | None:
    """Return the last token of the computation that may use infeed and outfeed, None in other computations."""
    if not scope.may_have_effects or scope.program.feed_owner not in (None, scope):
        return None
    scope.program.feed_owner = scope
    if scope.token is None:
        scope.token = scope.line(Value(scope.program.name("tok"), "token"), "after-all()")
    return scope.token


def infeed(scope: Scope) -> None:
    """Add an infeed of one or two arrays, and its token."""
    token = _token(scope)
    if token is None:
        return
    count = scope.rng.choice((1, 1, 2))
    parts: list[Value] = []
    for _ in range(count):
        t = scope.some_type(lambda name: TYPES[name].bits >= 8 and TYPES[name].kind != "complex")
        dims = scope.some_dims(most_rank=2)
        parts.append(Value("", t, dims, Range(1) if t == "pred" else FED))
    data = Value("", "tuple", parts=tuple(parts)) if count > 1 or scope.chance(0.3) else parts[0]
    fed = scope.add_tuple([data, Value("", "token")], f"infeed({token.name})", "feed")
    scope.take_apart(scope.part(fed, 0, keep=False))
    scope.token = scope.part(fed, 1)


def outfeed(scope: Scope) -> None:
    """Add an outfeed of an exact array."""
    token = _token(scope)
    value = scope.pick(lambda v: v.exact)
    if token is None or value is None:
        return
    layout = braces(range(len(value.dims) - 1, -1, -1))
    text = f"outfeed({value.name}, {token.name}), outfeed_shape={shape(value.type, value.dims)}{layout if value.dims else ''}"
    scope.token = scope.line(Value(scope.program.name("tok"), "token"), text)


def random_bits(scope: Scope) -> None:
    """Add an rng-bit-generator of a random algorithm: its new state and an array of bits."""
    algorithm, words = scope.rng.choice((("rng_three_fry", 2), ("rng_philox", 2), ("rng_philox", 3), ("rng_default", 2)))
    state = obtain(scope, "u64", (words,))
    t = scope.some_type(lambda name: name in ("u8", "u16", "u32", "u64", "s32", "s8"))
    dims = scope.some_dims()
    parts = [Value("", "u64", (words,), Range(TYPES["u64"].highest)), Value("", t, dims, Range(TYPES[t].highest))]
    made = scope.add_tuple(parts, f"rng-bit-generator({state.name}), algorithm={algorithm}", "v")
    scope.take_apart(made)


def device(scope: Scope) -> None:
    """Add a partition-id or replica-id."""
    opcode = scope.rng.choice(("partition-id", "replica-id"))
    scope.add("u32", (), f"{opcode}()", Range(0))


def dependency(scope: Scope) -> None:
    """Add an add-dependency of a value on a token."""
    value = scope.pick()
    if value is None:
        return
    token = scope.line(Value(scope.program.name("tok"), "token"), "after-all()")
    scope.add(value.type, value.dims, f"add-dependency({value.name}, {token.name})", value.range)


def all_reduce(scope: Scope) -> None:
    """Add a collective over the only device."""
    value = scope.pick(lambda v: v.type in ("f32", "s32", "bf16", "f64", "u8"))
    if value is None or not scope.may_have_effects:
        return
    if scope.chance(0.3) and value.dims and all(value.dims):
        text = f"all-gather({value.name}), replica_groups={{}}, dimensions={{{scope.rng.randrange(len(value.dims))}}}"
        scope.add(value.type, value.dims, text, value.range)
        return
    applied = scope.program.scalar_computation(scope.rng.choice(("add", "maximum")), value.type)
    if scope.chance(0.4):
        begun = replace(value, name=scope.program.name("start"), layout="")
        scope.line(begun, f"all-reduce-start({value.name}), replica_groups={{}}, to_apply={applied}")
        scope.add(value.type, value.dims, f"all-reduce-done({begun.name})", value.range)
        return
    scope.add(value.type, value.dims, f"all-reduce({value.name}), replica_groups={{}}, to_apply={applied}", value.range)
