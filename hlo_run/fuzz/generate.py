"""Generate random modules from seeds, with the ranges and the exactness of their parameters and results.

A seed also draws preferred sizes, types and step families for its module, so that different mixtures occur.
"""

from __future__ import annotations

import random

from msgspec import Struct

from hlo_run.fuzz.program.scope import Program, Scope
from hlo_run.fuzz.program.values import TYPES, Dims, Range, Value, shape_text
from hlo_run.fuzz.table import BY_NAME, FAMILIES
from hlo_run.records import replace

_SIZES = (1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 31, 32, 33, 64, 65, 128, 130)


class RandomModule(Struct, frozen=True):
    """A generated module: the entry's parameters and its result (arrays or tuples of arrays), with their ranges."""

    seed: int
    text: str
    parameters: tuple[Value, ...]
    result: Value


def random_module(seed: int, most_steps: int = 14) -> RandomModule:
    """Return the module of a seed, the same on every machine; `most_steps` is the maximum number of steps in the entry."""
    rng = random.Random(seed)
    program = _program(rng)
    entry = Scope(program)
    parameters = [_parameter(entry, number) for number in range(rng.choice((1, 2, 2, 3, 3, 4)))]
    program.fill(entry, 1, rng.choice((3, 6, most_steps)))
    root = _result(entry)
    body = "".join(f"  {line}\n" for line in entry.lines)
    aliases = _aliases(rng, parameters, root)
    computations = "".join(f"{text}\n" for text in program.computations)
    text = f"HloModule fuzz_{seed}{aliases}\n\n{computations}ENTRY main {{\n{body}}}\n"
    return RandomModule(seed, text, tuple(parameters), root)


def _program(rng: random.Random) -> Program:
    sizes = [rng.choice(_SIZES) for _ in range(rng.randint(2, 4))]
    if rng.random() < 0.08:
        sizes.append(0)
    families = {family.name: family.weight for family in FAMILIES}
    # A module has some families often and others never: mixtures of few families reach cases that an even mixture does not.
    if rng.random() < 0.7:
        for name in rng.sample(list(families), len(families) // 2):
            families[name] = 0.0
    for name in rng.sample(list(families), rng.choice((0, 1, 2, 4))):
        families[name] = 6.0
    types = {t.name: t.weight for t in TYPES.values()}
    if rng.random() < 0.6:
        chosen = rng.choices(list(types), list(types.values()), k=rng.choice((1, 2, 3)))
        types = {name: types[name] if name in chosen else 0.02 * types[name] for name in types}
    program = Program(rng, tuple(sizes), families, types)
    program.most_elements = rng.choice((256, 1024, 4096, 4096, 20_000))
    program.recency = rng.choice((0.0, 0.5, 0.9))
    program.layout_chance = rng.choice((0.0, 0.0, 0.1, 0.5))
    program.take_step = _take_step
    return program


def _take_step(scope: Scope) -> None:
    families = scope.program.families
    names = [name for name, weight in families.items() if weight and (not scope.inside_fusion or BY_NAME[name].fuses)]
    weights = [families[name] for name in names]
    if scope.depth:  # fewer nested computations in nested computations
        weights = [w * 0.4 if name in _NESTS else w for name, w in zip(names, weights, strict=True)]
    if names and sum(weights):
        BY_NAME[scope.rng.choices(names, weights)[0]].step(scope)


_NESTS = frozenset(("call", "fusion", "async", "conditional", "loop"))


def _parameter(entry: Scope, number: int) -> Value:
    name = entry.program.name("p")
    if entry.chance(0.08):
        parts = tuple(_array("", entry) for _ in range(entry.rng.randint(1, 3)))
        value = Value(name, "tuple", parts=parts)
    else:
        value = _array(name, entry)
    entry.line(value, f"parameter({number})")
    entry.take_apart(value)
    return value


def _array(name: str, entry: Scope) -> Value:
    element_type = entry.some_type()
    dims: Dims = () if entry.chance(0.15) else entry.some_dims()
    value = Value(name, element_type, dims, _argument_range(element_type))
    return replace(value, layout=entry.some_layout(dims, max(0.1, entry.program.layout_chance)))


def _argument_range(element_type: str) -> Range:
    t = TYPES[element_type]
    if t.is_integer or t.kind == "pred":
        return Range(min(t.highest, 8)) if t.bits >= 8 else Range(t.highest)
    return Range(4, 0) if t.digits <= 3 else Range(4, min(t.digits - 3, 3))


def _result(entry: Scope) -> Value:
    """Add the entry's root: an array, or a tuple of several, some of them with another layout."""
    count = entry.rng.choice((1, 2, 3, 5))
    found = entry.values[-1:] + [v for v in (entry.pick() for _ in range(count - 1)) if v is not None]
    shown = list({v.name: v for v in found}.values())
    made = [line.split(" = ")[0] for line in entry.lines]
    if len(shown) == 1 and entry.chance(0.5) and " parameter(" not in entry.lines[made.index(shown[0].name)]:
        place = made.index(shown[0].name)
        entry.lines[place] = f"ROOT {entry.lines[place]}"
        return shown[0]
    parts = tuple(replace(v, layout=entry.some_layout(v.dims, entry.program.layout_chance) or v.layout) for v in shown)
    root = Value("out", "tuple", parts=parts)
    entry.lines.append(f"ROOT out = {shape_text(root)} tuple({', '.join(v.name for v in shown)})")
    return root


def _aliases(rng: random.Random, parameters: list[Value], root: Value) -> str:
    """Return the header's aliases of results with parameters of equal shape and layout."""
    if rng.random() < 0.6:
        return ""
    results = list(enumerate(root.parts)) if root.is_tuple else []
    leaves = [
        (number, place, leaf)
        for number, parameter in enumerate(parameters)
        for place, leaf in (enumerate(parameter.parts) if parameter.is_tuple else [(-1, parameter)])
    ]
    found: list[str] = []
    for number, place, leaf in leaves:
        fitting = [r for r in results if (r[1].type, r[1].dims, r[1].layout) == (leaf.type, leaf.dims, leaf.layout)]
        if fitting and rng.random() < 0.7:
            chosen = rng.choice(fitting)
            results.remove(chosen)
            inside = "{}" if place < 0 else f"{{{place}}}"
            kind = rng.choice(("may-alias", "must-alias"))
            found.append(f"{{{chosen[0]}}}: ({number}, {inside}, {kind})")
    return f", input_output_alias={{ {', '.join(found)} }}" if found else ""
