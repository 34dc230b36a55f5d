"""Mutations of modules: every result is valid, seeds are reproducible, and the mutations keep what they promise."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import pytest

from hlo_run.fuzz.arguments import draw_arguments
from hlo_run.fuzz.generate import random_module
from hlo_run.fuzz.mutations import mutate, structure, values
from hlo_run.fuzz.mutations.places import fit, open_computations
from hlo_run.fuzz.subjects import Sources
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.ops.parse import parse
from hlo_run.reference.evaluate.evaluate import evaluate

MODULE = """
add_f32 {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b)
}

ENTRY main {
  p = f32[4,6] parameter(0)
  q = f32[4,6] parameter(1)
  s = f32[4,6] add(p, q)
  t = f32[6,4] transpose(s), dimensions={1,0}
  zero = f32[] constant(0)
  r = f32[6] reduce(t, zero), dimensions={1}, to_apply=add_f32
  n = f32[6] negate(r)
  c = s32[6] iota(), iota_dimension=0
  f = f32[6] convert(c)
  ROOT m = f32[6] multiply(n, f)
}
"""
DONOR = """
ENTRY donor {
  x = f32[3,5] parameter(0)
  k = f32[5,2] parameter(1)
  d = f32[3,2] dot(x, k), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  e = f32[3,2] exponential(d)
  ROOT o = f32[2,3] transpose(e), dimensions={1,0}
}
"""
# Mutations that move work into a computation, and keep values.
KEEPERS = {
    "copy": values.copy,
    "call": structure.call,
    "fusion": structure.fusion,
    "layout": values.layout,
}


def _text(text: str = MODULE) -> str:
    return mutate.prepared(parse(text))


@pytest.mark.parametrize("seed", range(25))
def test_results_are_valid(seed: int) -> None:
    given = mutate.prepared(parse(random_module(seed).text)) if seed % 2 else _text()
    text, names = mutate.mutated(random.Random(seed), given, [_text(DONOR)])
    parse(text)
    assert (text != given) == bool(names)


def test_each_mutation_applies_somewhere() -> None:
    donors = [parse(_text(DONOR))]
    mutations = {name: mutation for name, _, mutation in mutate.MUTATIONS}
    mutations["splice"] = partial(structure.splice, donors=donors)
    for name, mutation in mutations.items():
        made = [mutate.apply(random.Random(seed), mutation, _text()) for seed in range(12)]
        assert any(text is not None and text != _text() for text in made), name


def test_a_seed_is_one_module() -> None:
    sources = Sources((("m", _text()), ("d", _text(DONOR))))
    first, again, other = (sources.subject(seed) for seed in (5, 5, 6))
    assert first == again
    assert first.text != other.text
    assert first.made is None
    assert sources.subject(4).made is not None, "one seed in four is the generator's"


@pytest.mark.parametrize("name", KEEPERS)
def test_values_stay(name: str) -> None:
    module = parse(_text())
    arguments = draw_arguments(module, 1, 1)
    expected = evaluate(module, arguments)
    changed = 0
    for seed in range(10):
        text = mutate.apply(random.Random(seed), KEEPERS[name], _text())
        if text is None:
            continue
        changed += 1
        made = parse(text)
        if made.entry.root.shape.is_array:
            assert np.array_equal(evaluate(made, arguments), expected), text
    assert changed


def test_a_loop_sums_what_it_runs() -> None:
    module = parse(_text("ENTRY e {\n  p = f32[2] parameter(0)\n  ROOT n = f32[2] negate(p)\n}"))
    results: set[tuple[float, ...]] = set()
    for seed in range(40):
        text = mutate.apply(random.Random(seed), structure.loop, module.to_string(mutate.PRINTED))
        if text is not None:
            first, second = np.asarray(evaluate(parse(text), [np.array([1, 2], np.float32)]))
            results.add((float(first), float(second)))
    assert results <= {(0.0, 0.0), (-1.0, -2.0), (-2.0, -4.0), (-3.0, -6.0)}
    assert len(results) > 2


@pytest.mark.parametrize("target", ["f32[3,2]", "f32[7]", "s32[4,6]", "pred[]", "c64[2,2,2]", "f8e5m2[5,6]"])
def test_values_fit_any_shape(target: str) -> None:
    name, _, dims = target.partition("[")
    shape = Shape.array(name, tuple(int(size) for size in dims.rstrip("]").split(",") if size))
    module = parse("ENTRY e {\n  p = f32[4,6] parameter(0)\n  ROOT n = f32[4,6] negate(p)\n}")
    module.entry.root = fit(module.entry.root, shape)
    made = parse(module.to_string())
    assert made.entry.root.shape.dims == shape.dims
    assert made.entry.root.shape.element_type == name
    evaluate(made, [np.full((4, 6), np.nan, np.float32)])


def test_reducers_and_conditions_stay_as_they_are() -> None:
    text = """
less { a = f32[] parameter(0) b = f32[] parameter(1) ROOT l = pred[] compare(a, b), direction=LT }
body { s = (s32[]) parameter(0) i = s32[] get-tuple-element(s), index=0 one = s32[] constant(1)
  n = s32[] add(i, one) ROOT t = (s32[]) tuple(n) }
cond { s = (s32[]) parameter(0) i = s32[] get-tuple-element(s), index=0 five = s32[] constant(5)
  ROOT l = pred[] compare(i, five), direction=LT }
ENTRY e { x = f32[4] parameter(0) y = f32[4] sort(x), dimensions={0}, to_apply=less z = s32[] constant(0)
  s = (s32[]) tuple(z) w = (s32[]) while(s), condition=cond, body=body
  ROOT r = (f32[4], (s32[])) tuple(y, w) }
"""
    module: HloModule = parse(text)
    assert [computation.name for computation in open_computations(module)] == ["body", "e"]
