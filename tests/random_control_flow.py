"""Random modules, as text, of loops, branches, in-place updates and aliases, for tests of buffers and copies."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

_SIZES = (4, 4, 4, 8, 64)
# Fusion bodies by kind: what they take is all of one size; `update` takes the start index last.
_BODIES = {
    "negate": "p = f32[{n}] parameter(0)\n  ROOT r = f32[{n}] negate(p)",
    "reverse": "p = f32[{n}] parameter(0)\n  ROOT r = f32[{n}] reverse(p), dimensions={{0}}",
    "add": "p = f32[{n}] parameter(0)\n  q = f32[{n}] parameter(1)\n  ROOT r = f32[{n}] add(p, q)",
    "update": "p = f32[{n}] parameter(0)\n  q = f32[{n}] parameter(1)\n  u = f32[1] slice(q), slice={{[0:1]}}\n"
    "  i = s32[] constant(1)\n  ROOT r = f32[{n}] dynamic-update-slice(p, u, i)",
    "both": "p = f32[{n}] parameter(0)\n  q = f32[{n}] parameter(1)\n  a = f32[{n}] add(p, q)\n  s = f32[{n}] subtract(p, q)\n"
    "  ROOT r = (f32[{n}], f32[{n}]) tuple(a, s)",
}


@dataclass
class _Module:
    rng: random.Random
    computations: list[str] = field(default_factory=list[str])
    count: int = 0

    def name(self, word: str) -> str:
        self.count += 1
        return f"{word}_{self.count}"

    def fused(self, kind: str, size: int) -> str:
        """Add the body of a fusion and return its name."""
        name = self.name(f"fused_{kind}")
        body = _BODIES[kind].format(n=size)
        for word in "pquiasr":
            body = body.replace(f"{word} = ", f"{name}{word} = ").replace(f"({word})", f"({name}{word})")
            body = body.replace(f"({word}, ", f"({name}{word}, ").replace(f", {word})", f", {name}{word})")
            body = body.replace(f", {word}, ", f", {name}{word}, ")
        self.computations.append(f"{name} {{\n  {body}\n}}")
        return name


@dataclass
class _Computation:
    """The lines of a computation, and the arrays in it: (name, size)."""

    module: _Module
    lines: list[str] = field(default_factory=list[str])
    arrays: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])

    def line(self, word: str, text: str) -> str:
        name = self.module.name(word)
        self.lines.append(f"{name} = {text}")
        return name

    def pick(self, size: int | None = None) -> tuple[str, int]:
        """Return an array, of that size if it is given; makes one if there is none."""
        found = [a for a in self.arrays if size is None or a[1] == size]
        if found:
            return self.module.rng.choice(found)
        assert size is not None, "there is an array"
        value = self.line("c", f"f32[{size}] constant({{{', '.join(map(str, range(size)))}}})")
        self.arrays.append((value, size))
        return value, size

    def add(self, depth: int) -> None:
        """Add an instruction or a few, nested ones where `depth` is left."""
        rng = self.module.rng
        roll = rng.random()
        if depth and roll < 0.15:
            self._loop(depth - 1)
        elif depth and roll < 0.25:
            self._branch(depth - 1)
        elif roll < 0.3:
            value, size = self.pick()
            self.arrays.append((self.line("copied", f"f32[{size}] copy({value})"), size))
        elif roll < 0.35:
            value, size = self.pick()
            self.arrays.append((self.line("cast", f"f32[{size}] bitcast({value})"), size))
        else:
            self._fusion(rng.choice(list(_BODIES)))

    def _fusion(self, kind: str) -> None:
        value, size = self.pick()
        operands = [value] if kind in ("negate", "reverse") else [value, self.pick(size)[0]]
        fused = self.module.fused(kind, size)
        shape = f"(f32[{size}], f32[{size}])" if kind == "both" else f"f32[{size}]"
        made = self.line("v", f"{shape} fusion({', '.join(operands)}), kind=kLoop, calls={fused}")
        if kind == "both":
            for part in range(2):
                self.arrays.append((self.line("g", f"f32[{size}] get-tuple-element({made}), index={part}"), size))
        else:
            self.arrays.append((made, size))

    def _state(self, count: int) -> tuple[str, str, list[int]]:
        """Return a tuple of arrays, its shape and the sizes."""
        parts = [self.pick() for _ in range(count)]
        shape = "(" + ", ".join(f"f32[{size}]" for _, size in parts) + ")"
        made = self.line("t", f"{shape} tuple({', '.join(name for name, _ in parts)})")
        return made, shape, [size for _, size in parts]

    def _nested(self, shape: str, sizes: list[int], depth: int, result_sizes: list[int]) -> str:
        """Add a computation from a tuple to a tuple and return its name."""
        inner = _Computation(self.module)
        state = inner.line("s", f"{shape} parameter(0)")
        for part, size in enumerate(sizes):
            inner.arrays.append((inner.line("g", f"f32[{size}] get-tuple-element({state}), index={part}"), size))
        for _ in range(self.module.rng.randint(0, 4)):
            inner.add(depth)
        parts = [inner.pick(size)[0] for size in result_sizes]
        inner.finish(parts, result_sizes)
        return inner.emit(self.module.name("nested"))

    def finish(self, parts: list[str], sizes: list[int]) -> None:
        shape = "(" + ", ".join(f"f32[{size}]" for size in sizes) + ")"
        self.lines.append(f"ROOT {self.module.name('r')} = {shape} tuple({', '.join(parts)})")

    def emit(self, name: str) -> str:
        self.module.computations.append(f"{name} {{\n  " + "\n  ".join(self.lines) + "\n}")
        return name

    def _loop(self, depth: int) -> None:
        state, shape, sizes = self._state(self.module.rng.randint(1, 3))
        condition = _Computation(self.module)
        condition.line("s", f"{shape} parameter(0)")
        condition.lines.append(f"ROOT {self.module.name('k')} = pred[] constant(false)")
        test = condition.emit(self.module.name("condition"))
        body = self._nested(shape, sizes, depth, sizes)
        loop = self.line("w", f"{shape} while({state}), condition={test}, body={body}")
        self._take(loop, sizes)

    def _branch(self, depth: int) -> None:
        result = [self.pick()[1] for _ in range(self.module.rng.randint(1, 2))]
        selector = self.line("k", "s32[] constant(1)")
        names: list[str] = []
        operands: list[str] = []
        for _ in range(2):
            state, shape, sizes = self._state(self.module.rng.randint(1, 2))
            operands.append(state)
            names.append(self._nested(shape, sizes, depth, result))
        shape = "(" + ", ".join(f"f32[{size}]" for size in result) + ")"
        made = self.line(
            "b", f"{shape} conditional({selector}, {', '.join(operands)}), branch_computations={{{', '.join(names)}}}"
        )
        self._take(made, result)

    def _take(self, value: str, sizes: list[int]) -> None:
        for part, size in enumerate(sizes):
            self.arrays.append((self.line("g", f"f32[{size}] get-tuple-element({value}), index={part}"), size))


def random_module(rng: random.Random, size: int = 10, depth: int = 2) -> str:
    """Return the text of a module with some `size` instructions in its entry, nested `depth` deep; scheduled or not."""
    module = _Module(rng)
    entry = _Computation(module)
    parameters: list[tuple[str, int]] = []
    for number in range(rng.randint(1, 3)):
        length = rng.choice(_SIZES)
        parameters.append((entry.line("p", f"f32[{length}] parameter({number})"), length))
    entry.arrays += parameters
    for _ in range(size):
        entry.add(depth)
    results = [entry.pick() for _ in range(rng.randint(1, 4))]
    entry.finish([name for name, _ in results], [length for _, length in results])
    header = "HloModule random"
    if rng.random() < 0.5:
        header += ", is_scheduled=true"
    aliases: list[str] = []
    for number, (_, length) in enumerate(parameters):
        free = [
            n for n, (_, other) in enumerate(results) if other == length and not any(a.startswith(f"{{{n}}}") for a in aliases)
        ]
        if free and rng.random() < 0.5:
            aliases.append(f"{{{rng.choice(free)}}}: ({number}, {{}}, may-alias)")
    if aliases:
        header += ", input_output_alias={ " + ", ".join(aliases) + " }"
    body = "\n  ".join(entry.lines)
    return "\n\n".join([header, *module.computations, f"ENTRY entry {{\n  {body}\n}}"])
