"""The fusion passes on random graphs of fusions: the result is valid and computes the same values."""

from __future__ import annotations

import random

import numpy as np
import pytest

import hlo_run
from hlo_run.hlo_passes.fusion.multi_output_fusion import MultiOutputFusion
from hlo_run.hlo_passes.fusion.priority_fusion import PriorityFusion
from hlo_run.ops.verify import verify
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import HloPass, PassContext
from hlo_run.reference.arguments.fake_arguments import make_fake_arguments
from hlo_run.target import preset

ADD = "add {\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  ROOT s = f32[] add(x, y)\n}\n"
ALL, ROWS = "f32[16,64]", "f32[16]"
UNARY, BINARY = ("negate", "abs", "tanh", "cosine"), ("add", "subtract", "maximum")


def random_module(seed: int) -> str:
    """Return a module of fusions with one result and with several; some hand an operand on, or do not read it."""
    rng = random.Random(seed)
    values = [(f"p{number}", ALL) for number in range(3)]
    lines = [f"{name} = {ALL} parameter({number})" for number, (name, _) in enumerate(values)]
    bodies = [ADD]
    for number in range(rng.randrange(4, 10)):
        operands = rng.sample(values, rng.randrange(1, 4))
        body, results, kind = _body(rng, [shape for _, shape in operands])
        bodies.append(f"f{number} {{\n  " + "\n  ".join(body) + "\n}\n")
        shape = results[0] if len(results) == 1 else f"({', '.join(results)})"
        called = ", ".join(name for name, _ in operands)
        lines.append(f"v{number} = {shape} fusion({called}), kind={kind}, calls=f{number}")
        if len(results) == 1:
            values.append((f"v{number}", shape))
            continue
        for index, part in enumerate(results):
            lines.append(f"v{number}_{index} = {part} get-tuple-element(v{number}), index={index}")
            values.append((f"v{number}_{index}", part))
    returned = rng.sample(values, rng.randrange(1, len(values)))
    shapes, names = ", ".join(shape for _, shape in returned), ", ".join(name for name, _ in returned)
    lines.append(f"ROOT t = ({shapes}) tuple({names})")
    return "HloModule random\n" + "".join(bodies) + "ENTRY e {\n  " + "\n  ".join(lines) + "\n}\n"


def _body(rng: random.Random, shapes: list[str]) -> tuple[list[str], list[str], str]:
    """Return the lines of a fusion's computation, the shapes of its results, and its kind."""
    lines = [f"a{n} = {shape} parameter({n})" for n, shape in enumerate(shapes)]
    ways = [n for n in range(len(shapes)) if rng.random() < 0.9] or [0]
    last = ""
    for n in ways:
        wide = f"a{n}"
        if shapes[n] == ROWS:
            wide = f"b{n}"
            lines.append(f"{wide} = {ALL} broadcast(a{n}), dimensions={{0}}")
        lines.append(f"w{n} = {ALL} {rng.choice(UNARY)}({wide})")
        lines.append(f"m{n} = {ALL} {rng.choice(BINARY)}(w{n}, {last or wide})")
        last = f"m{n}"
    how = rng.random()
    if how < 0.05:
        return (
            [f"ROOT a0 = {shapes[0]} parameter(0)", *(line for line in lines if " parameter(" in line and "a0 =" not in line)],
            [shapes[0]],
            "kLoop",
        )
    if how < 0.3:
        first = rng.choice(["a0", f"w{ways[0]}"])
        shape = shapes[0] if first == "a0" else ALL
        if shape == ALL:
            return [*lines, f"ROOT t = ({ALL}, {ALL}) tuple({first}, {last})"], [ALL, ALL], "kLoop"
    if how < 0.55:
        zero, total = "z = f32[] constant(0)", f"ROOT r = {ROWS} reduce({last}, z), dimensions={{1}}, to_apply=add"
        return [*lines, zero, total], [ROWS], "kInput"
    return [*lines[:-1], "ROOT " + lines[-1]], [ALL], "kLoop"


@pytest.mark.parametrize("seed", range(24))
def test_what_is_fused_computes_the_same(seed: int) -> None:
    text = random_module(seed)
    module = hlo_run.parse(text)
    arguments = make_fake_arguments(module, seed)
    expected = hlo_run.evaluate(module, *arguments)
    made: list[HloPass] = [MultiOutputFusion()] if seed % 2 else [PriorityFusion(), MultiOutputFusion()]
    for each in made:
        each.apply(PassContext(preset("h100"), Options()), module)
        verify(module)
        for one, other in zip(hlo_run.evaluate(module, *arguments), expected, strict=True):
            np.testing.assert_array_equal(one, other)
