"""The pipelines before fusion keep the results of random modules of patterns that the simplifiers match."""

from __future__ import annotations

import math
import random
from itertools import takewhile

import pytest

import hlo_run
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.runner import run_hlo_groups
from hlo_run.pipeline.table import PIPELINE
from hlo_run.reference.arguments.fake_arguments import make_fake_arguments
from hlo_run.reference.compare.agreement import disagreements
from hlo_run.reference.evaluate.evaluate import evaluate
from hlo_run.target import DEFAULT_TARGET, preset

_BINARY = {
    "f32": ("add", "subtract", "multiply", "divide", "maximum", "minimum"),
    "s32": ("add", "subtract", "multiply", "divide", "maximum", "minimum", "and", "or", "xor", "remainder"),
    "u32": ("add", "subtract", "multiply", "divide", "maximum", "minimum", "and", "or", "xor", "remainder"),
    "pred": ("and", "or", "xor"),
}
_UNARY = {"f32": ("negate", "abs", "tanh", "floor"), "s32": ("negate", "abs", "not"), "u32": ("not",), "pred": ("not",)}
_NUMBERS = {
    "f32": ("0", "1", "2", "-1", "0.5", "3"),
    "s32": ("0", "1", "2", "-1", "8", "7"),
    "u32": ("0", "1", "2", "8", "7"),
    "pred": ("true", "false"),
}
_REDUCERS = "".join(
    f"{op}_{t} {{ a = {t}[] parameter(0) b = {t}[] parameter(1) ROOT r = {t}[] {op}(a, b) }}\n"
    for t in ("f32", "s32", "u32")
    for op in ("add", "maximum")
)


class _Writer:
    """Writes a module instruction by instruction; `values` are (name, type, dims)."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.values: list[tuple[str, str, tuple[int, ...]]] = []

    def add(self, element_type: str, dims: tuple[int, ...], text: str) -> str:
        name = f"v{len(self.lines)}"
        self.lines.append(f"  {name} = {element_type}[{','.join(map(str, dims))}] {text}")
        self.values.append((name, element_type, dims))
        return name

    def constant(self, element_type: str, dims: tuple[int, ...]) -> str:
        scalar = self.add(element_type, (), f"constant({self.random.choice(_NUMBERS[element_type])})")
        return self.add(element_type, dims, f"broadcast({scalar}), dimensions={{}}") if dims else scalar

    def like(self, element_type: str, dims: tuple[int, ...]) -> str:
        """Return a value of that type and shape: one that is there, or a constant."""
        fitting = [name for name, t, d in self.values if (t, d) == (element_type, dims)]
        return self.random.choice(fitting) if fitting and self.random.random() < 0.6 else self.constant(element_type, dims)

    def step(self) -> None:
        name, element_type, dims = self.random.choice(self.values)
        kind = self.random.choice(
            ("binary", "binary", "unary", "compare", "select", "convert", "move", "move", "slice", "reduce", "join")
        )
        getattr(self, f"_{kind}")(name, element_type, dims)

    def _binary(self, name: str, element_type: str, dims: tuple[int, ...]) -> None:
        operands = [name, self.like(element_type, dims)]
        self.random.shuffle(operands)
        self.add(element_type, dims, f"{self.random.choice(_BINARY[element_type])}({', '.join(operands)})")

    def _unary(self, name: str, element_type: str, dims: tuple[int, ...]) -> None:
        self.add(element_type, dims, f"{self.random.choice(_UNARY[element_type])}({name})")

    def _compare(self, name: str, element_type: str, dims: tuple[int, ...]) -> None:
        direction = self.random.choice(("EQ", "NE", "LT", "LE", "GT", "GE"))
        self.add("pred", dims, f"compare({name}, {self.like(element_type, dims)}), direction={direction}")

    def _select(self, name: str, element_type: str, dims: tuple[int, ...]) -> None:
        self.add(element_type, dims, f"select({self.like('pred', dims)}, {name}, {self.like(element_type, dims)})")

    def _convert(self, name: str, element_type: str, dims: tuple[int, ...]) -> None:
        target = self.random.choice([t for t in ("s32", "u32", "pred") if t != element_type or t == "s32"])
        if element_type != "f32":
            self.add(target, dims, f"convert({name})")

    def _move(self, name: str, element_type: str, dims: tuple[int, ...]) -> None:
        order = list(range(len(dims)))
        self.random.shuffle(order)
        if self.random.random() < 0.5:
            self.add(
                element_type, tuple(dims[d] for d in order), f"transpose({name}), dimensions={{{','.join(map(str, order))}}}"
            )
        else:
            self.add(element_type, self.random.choice(((math.prod(dims),), (1, *dims), (*dims, 1))), f"reshape({name})")

    def _slice(self, name: str, element_type: str, dims: tuple[int, ...]) -> None:
        ranges = [(self.random.randrange(size), size) for size in dims]
        ranges = [(start, self.random.randint(start + 1, size)) for start, size in ranges]
        text = ", ".join(f"[{start}:{limit}]" for start, limit in ranges)
        if dims:
            self.add(element_type, tuple(limit - start for start, limit in ranges), f"slice({name}), slice={{{text}}}")

    def _reduce(self, name: str, element_type: str, dims: tuple[int, ...]) -> None:
        if not dims or element_type == "pred":
            return
        reduced = sorted(self.random.sample(range(len(dims)), self.random.randint(1, len(dims))))
        op = self.random.choice(("add", "maximum"))
        lowest = {"f32": "-inf", "s32": str(-(2**31)), "u32": "0"}[element_type]
        init = self.add(element_type, (), f"constant({'0' if op == 'add' else lowest})")
        kept = tuple(size for d, size in enumerate(dims) if d not in reduced)
        numbers = ",".join(map(str, reduced))
        self.add(element_type, kept, f"reduce({name}, {init}), dimensions={{{numbers}}}, to_apply={op}_{element_type}")

    def _join(self, name: str, element_type: str, dims: tuple[int, ...]) -> None:
        if not dims or math.prod(dims) > 100:
            return
        dim = self.random.randrange(len(dims))
        if self.random.random() < 0.5:
            operands = [name, self.like(element_type, dims)]
            joined = tuple(2 * size if d == dim else size for d, size in enumerate(dims))
            self.add(element_type, joined, f"concatenate({', '.join(operands)}), dimensions={{{dim}}}")
        else:
            fill = self.like(element_type, ())
            padded = tuple(size + 3 if d == dim else size for d, size in enumerate(dims))
            edges = "x".join("1_2" if d == dim else "0_0" for d in range(len(dims)))
            self.add(element_type, padded, f"pad({name}, {fill}), padding={edges}")


def _random_module(seed: int) -> str:
    writer = _Writer(seed)
    for number, (element_type, dims) in enumerate(
        (("f32", (3, 4)), ("f32", (4,)), ("s32", (3, 4)), ("u32", (6,)), ("pred", (3, 4)))
    ):
        writer.add(element_type, dims, f"parameter({number})")
    for _ in range(30):
        writer.step()
    shown = writer.values[-14:]
    shapes = ", ".join(f"{t}[{','.join(map(str, dims))}]" for _, t, dims in shown)
    names = ", ".join(name for name, _, _ in shown)
    body = "\n".join(writer.lines)
    return f"HloModule random_{seed}\n{_REDUCERS}\nENTRY e {{\n{body}\n  ROOT t = ({shapes}) tuple({names})\n}}\n"


@pytest.mark.parametrize("seed", range(30))
def test_values_stay(seed: int) -> None:
    module = hlo_run.parse(_random_module(seed))
    arguments = make_fake_arguments(module, seed)
    expected, shape = evaluate(module, arguments), module.entry.root.shape
    groups = tuple(takewhile(lambda group: group.name != "fusion", PIPELINE))
    run_hlo_groups(groups, PassContext(preset(DEFAULT_TARGET), Options(verify="every")), module)
    found = disagreements(expected, evaluate(module, arguments), shape)
    assert not [(index, comparison.summary()) for index, comparison in found]
