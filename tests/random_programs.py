"""Random programs as text: most array ops on shapes that make all kinds of kernels, loops, branches and several results.

Floats stay between -1 and 1 where they may grow, and nothing discontinuous looks at a float that was computed, so that a last bit
stays a last bit. Integers are exact.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

Dims = tuple[int, ...]
_FLOATS = ("f32", "f32", "f32", "f64", "bf16", "f16")
_NARROWER = {"f64": ("f32", "bf16", "f16"), "f32": ("bf16", "f16"), "bf16": ("bf16",), "f16": ("f16",)}
_INTEGERS = ("s32", "s32", "u8", "s64")
_UNARY = ("tanh", "sine", "cosine", "logistic", "negate", "abs")
_INTEGER_BINARY = ("add", "subtract", "multiply", "maximum", "minimum", "and", "or", "xor")
_SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 33, 64, 65, 100, 128, 130)
_MOST_ELEMENTS = 40_000
_KINDS = (
    "unary binary binary binary select broadcast transpose transpose reshape reduce reduce argmax slice pad concatenate reverse"
    " dot gather scatter dynamic_slice update sort window convert integer loop branch call iota cumulative convolution"
).split()


@dataclass
class _Value:
    name: str
    kind: str
    dims: Dims

    @property
    def shape(self) -> str:
        return f"{self.kind}[{','.join(map(str, self.dims))}]"

    @property
    def is_float(self) -> bool:
        return self.kind in _FLOATS


@dataclass
class _Program:
    rng: random.Random
    layouts: bool
    lines: list[str] = field(default_factory=list[str])
    values: list[_Value] = field(default_factory=list[_Value])
    computations: dict[str, str] = field(default_factory=dict[str, str])
    count: int = 0

    def fresh(self, word: str) -> str:
        self.count += 1
        return f"{word}{self.count}"

    def add(self, kind: str, dims: Dims, text: str, keep: bool = True) -> _Value:
        value = _Value(self.fresh("v"), kind, dims)
        self.lines.append(f"  {value.name} = {value.shape} {text}")
        if keep:
            self.values.append(value)
        return value

    def number(self, kind: str, text: str) -> _Value:
        return self.add(kind, (), f"constant({text})", keep=False)

    def pick(self, floats: bool | None = None, least_rank: int = 0) -> _Value:
        found = [v for v in self.values if (floats is None or v.is_float == floats) and len(v.dims) >= least_rank]
        # Rather what was made last: chains, not stars.
        return self.rng.choice(found[-6:] if self.rng.random() < 0.6 else found)

    def like(self, value: _Value) -> _Value:
        found = [v for v in self.values if (v.kind, v.dims) == (value.kind, value.dims)]
        if found and self.rng.random() < 0.7:
            return self.rng.choice(found)
        text = self.rng.choice(("0.5", "-0.25", "1")) if value.is_float else self.rng.choice("123")
        scalar = self.number(value.kind, text)
        return self.add(value.kind, value.dims, f"broadcast({scalar.name}), dimensions={{}}") if value.dims else scalar

    def index(self, size: int) -> _Value:
        """A scalar index, mostly inside."""
        return self.number("s32", str(self.rng.randint(-1, size)))

    def calm(self, value: _Value) -> _Value:
        """Bring what may have grown back between -1 and 1."""
        return self.add(value.kind, value.dims, f"tanh({value.name})") if value.is_float else value

    def scalar_computation(self, op: str, kind: str) -> str:
        name = f"{op}_{kind}"
        self.computations[name] = (
            f"{name} {{\n  a = {kind}[] parameter(0)\n  b = {kind}[] parameter(1)\n  ROOT r = {kind}[] {op}(a, b)\n}}\n"
        )
        return name

    # One method per kind of step.

    def unary(self) -> None:
        value = self.pick(floats=True)
        self.add(value.kind, value.dims, f"{self.rng.choice(_UNARY)}({value.name})")

    def binary(self) -> None:
        value = self.pick(floats=True)
        other = self.like(value)
        op = self.rng.choice(("add", "subtract", "multiply", "maximum", "minimum", "atan2"))
        if op == "atan2":
            one = self.like(value)
            other = self.add(value.kind, value.dims, f"exponential({one.name})", keep=False)
            op = "divide"
        made = self.add(
            value.kind, value.dims, f"{op}({value.name}, {other.name})", keep=op in ("multiply", "maximum", "minimum")
        )
        if op not in ("multiply", "maximum", "minimum"):
            self.calm(made)

    def integer(self) -> None:
        value = self.pick(floats=False)
        self.add(value.kind, value.dims, f"{self.rng.choice(_INTEGER_BINARY)}({value.name}, {self.like(value).name})")

    def select(self) -> None:
        value = self.pick(floats=False)
        pred = self.add("pred", value.dims, f"compare({value.name}, {self.like(value).name}), direction=LT", keep=False)
        fitting = [v for v in self.values if v.dims == value.dims]
        one = self.rng.choice(fitting)
        self.add(one.kind, one.dims, f"select({pred.name}, {one.name}, {self.like(one).name})")

    def convert(self) -> None:
        value = self.pick()
        # A float that was computed must not become an integer, nor one of a type that promises more than it holds.
        kind = self.rng.choice(_NARROWER.get(value.kind, (*_INTEGERS, "f32")))
        made = self.add(kind, value.dims, f"convert({value.name})", keep=value.is_float or kind != "f32")
        if not value.is_float and kind == "f32":
            self.add("f32", value.dims, f"sine({made.name})")

    def broadcast(self) -> None:
        value = self.pick()
        room = _MOST_ELEMENTS // max(1, math.prod(value.dims))
        if len(value.dims) > 3 or room < 2:
            return
        size = self.rng.choice([s for s in _SIZES if s <= room])
        place = self.rng.randint(0, len(value.dims))
        dims = (*value.dims[:place], size, *value.dims[place:])
        kept = [d for d in range(len(dims)) if d != place]
        self.add(value.kind, dims, f"broadcast({value.name}), dimensions={{{','.join(map(str, kept))}}}")

    def transpose(self) -> None:
        value = self.pick(least_rank=2)
        order = list(range(len(value.dims)))
        self.rng.shuffle(order)
        dims = tuple(value.dims[d] for d in order)
        self.add(value.kind, dims, f"transpose({value.name}), dimensions={{{','.join(map(str, order))}}}")

    def reshape(self) -> None:
        value = self.pick(least_rank=1)
        dims = list(value.dims)
        place = self.rng.randrange(len(dims))
        if self.rng.random() < 0.5 and place + 1 < len(dims):
            dims[place : place + 2] = [dims[place] * dims[place + 1]]
        else:
            factor = self.rng.choice([f for f in (1, 2, 3, 4, 8) if dims[place] % f == 0])
            dims[place : place + 1] = [factor, dims[place] // factor]
        if len(dims) <= 5:
            self.add(value.kind, tuple(dims), f"reshape({value.name})")

    def reduce(self) -> None:
        value = self.pick(least_rank=1)
        dims = sorted(self.rng.sample(range(len(value.dims)), self.rng.randint(1, min(2, len(value.dims)))))
        op = self.rng.choice(("add", "maximum", "minimum"))
        kept = tuple(size for d, size in enumerate(value.dims) if d not in dims)
        init = self.number(value.kind, "0" if value.is_float or op == "add" else "1")
        attributes = f"dimensions={{{','.join(map(str, dims))}}}, to_apply={self.scalar_computation(op, value.kind)}"
        made = self.add(value.kind, kept, f"reduce({value.name}, {init.name}), {attributes}", keep=not value.is_float)
        if value.is_float:
            share = self.number(value.kind, str(1 / math.prod(value.dims[d] for d in dims)) if op == "add" else "0.5")
            shares = self.add(value.kind, kept, f"broadcast({share.name}), dimensions={{}}", keep=False) if kept else share
            self.add(value.kind, kept, f"multiply({made.name}, {shares.name})")

    def argmax(self) -> None:
        """Two results of one reduction; integers, so that nothing is nearly equal."""
        value = self.pick(floats=False, least_rank=1)
        name = f"argmax_{value.kind}"
        k = value.kind
        self.computations[name] = (
            f"{name} {{\n  a = {k}[] parameter(0)\n  i = s32[] parameter(1)\n  b = {k}[] parameter(2)\n  j = s32[] parameter(3)\n"
            f"  above = pred[] compare(a, b), direction=GT\n  same = pred[] compare(a, b), direction=EQ\n"
            f"  before = pred[] compare(i, j), direction=LT\n  tie = pred[] and(same, before)\n  first = pred[] or(above, tie)\n"
            f"  m = {k}[] select(first, a, b)\n  n = s32[] select(first, i, j)\n  ROOT r = ({k}[], s32[]) tuple(m, n)\n}}\n"
        )
        dim = self.rng.randrange(len(value.dims))
        kept = tuple(size for d, size in enumerate(value.dims) if d != dim)
        places = self.add("s32", value.dims, f"iota(), iota_dimension={dim}", keep=False)
        low, zero = self.number(k, "0"), self.number("s32", "0")
        pair = self.fresh("v")
        shapes = ",".join(map(str, kept))
        self.lines.append(
            f"  {pair} = ({k}[{shapes}], s32[{shapes}]) reduce({value.name}, {places.name}, {low.name}, {zero.name}),"
            f" dimensions={{{dim}}}, to_apply={name}"
        )
        self.add(k, kept, f"get-tuple-element({pair}), index=0")
        self.add("s32", kept, f"get-tuple-element({pair}), index=1")

    def slice(self) -> None:
        value = self.pick(least_rank=1)
        parts: list[tuple[int, int, int]] = []
        for size in value.dims:
            start = self.rng.randrange(size)
            parts.append((start, self.rng.randint(start + 1, size), self.rng.choice((1, 1, 1, 2, 3))))
        dims = tuple(-(-(limit - start) // stride) for start, limit, stride in parts)
        text = ", ".join(f"[{start}:{limit}:{stride}]" for start, limit, stride in parts)
        self.add(value.kind, dims, f"slice({value.name}), slice={{{text}}}")

    def pad(self) -> None:
        value = self.pick(least_rank=1)
        edges: list[str] = []
        dims: list[int] = []
        for size in value.dims:
            low, high, inside = self.rng.choice(((0, 0, 0), (0, 0, 0), (1, 2, 0), (0, 3, 1), (-1, 2, 0), (3, -1, 2)))
            padded = size + (size - 1) * inside + low + high
            if padded <= 0:
                low, high, inside, padded = 0, 0, 0, size
            edges.append(f"{low}_{high}_{inside}")
            dims.append(padded)
        if math.prod(dims) <= _MOST_ELEMENTS:
            fill = self.number(value.kind, "0.5" if value.is_float else "3")
            self.add(value.kind, tuple(dims), f"pad({value.name}, {fill.name}), padding={'x'.join(edges)}")

    def concatenate(self) -> None:
        value = self.pick(least_rank=1)
        dim = self.rng.randrange(len(value.dims))
        parts = [value, *(self.like(value) for _ in range(self.rng.choice((1, 1, 2))))]
        size = value.dims[dim] * len(parts)
        dims = tuple(size if d == dim else s for d, s in enumerate(value.dims))
        if math.prod(dims) <= _MOST_ELEMENTS:
            self.add(value.kind, dims, f"concatenate({', '.join(p.name for p in parts)}), dimensions={{{dim}}}")

    def reverse(self) -> None:
        value = self.pick(least_rank=1)
        dims = sorted(self.rng.sample(range(len(value.dims)), self.rng.randint(1, len(value.dims))))
        self.add(value.kind, value.dims, f"reverse({value.name}), dimensions={{{','.join(map(str, dims))}}}")

    def iota(self) -> None:
        value = self.pick(least_rank=1)
        self.add("s32", value.dims, f"iota(), iota_dimension={self.rng.randrange(len(value.dims))}")

    def dot(self) -> None:
        value = self.pick(floats=True, least_rank=1)
        dim = self.rng.randrange(len(value.dims))
        size = value.dims[dim]
        columns = self.rng.choice((1, 4, 8, 33))
        rows = math.prod(value.dims) // size
        if rows * columns > _MOST_ELEMENTS or size * columns > _MOST_ELEMENTS:
            return
        places = self.add("s32", (columns, size), f"iota(), iota_dimension={self.rng.randrange(2)}", keep=False)
        numbers = self.add(value.kind, (columns, size), f"convert({places.name})", keep=False)
        weights = self.add(value.kind, (columns, size), f"sine({numbers.name})", keep=False)
        kept = tuple(s for d, s in enumerate(value.dims) if d != dim)
        made = self.add(
            value.kind,
            (*kept, columns),
            f"dot({value.name}, {weights.name}), lhs_contracting_dims={{{dim}}}, rhs_contracting_dims={{1}}",
            keep=False,
        )
        share = self.number(value.kind, str(1 / size))
        shares = self.add(value.kind, made.dims, f"broadcast({share.name}), dimensions={{}}", keep=False)
        self.add(value.kind, made.dims, f"multiply({made.name}, {shares.name})")

    def gather(self) -> None:
        value = self.pick(least_rank=1)
        rows, rest = value.dims[0], value.dims[1:]
        count = self.rng.choice((1, 3, 17, 40))
        if count * math.prod(rest) > _MOST_ELEMENTS:
            return
        indices = self._indices(count, rows)
        sizes = ",".join(map(str, (1, *rest)))
        offsets = ",".join(str(d + 1) for d in range(len(rest)))
        self.add(
            value.kind,
            (count, *rest),
            f"gather({value.name}, {indices.name}), offset_dims={{{offsets}}}, collapsed_slice_dims={{0}}, start_index_map={{0}},"
            f" index_vector_dim=1, slice_sizes={{{sizes}}}",
        )

    def _indices(self, count: int, rows: int) -> _Value:
        places = self.add("s32", (count,), "iota(), iota_dimension=0", keep=False)
        text = self.rng.choice(("3", "5", "-1"))
        factor = self.add("s32", (count,), f"broadcast({self.number('s32', text).name}), dimensions={{}}", keep=False)
        spread = self.add("s32", (count,), f"multiply({places.name}, {factor.name})", keep=False)
        limit = self.add("s32", (count,), f"broadcast({self.number('s32', str(rows)).name}), dimensions={{}}", keep=False)
        return self.add("s32", (count,), f"remainder({spread.name}, {limit.name})")

    def scatter(self) -> None:
        """Sums, whose order does not matter but for the last bits; indices below 0 fall away."""
        value = self.pick(least_rank=1)
        if value.kind in ("bf16", "f16", "u8"):
            return
        rows, rest = value.dims[0], value.dims[1:]
        count = self.rng.choice((1, 5, 12))
        if count * math.prod(rest) > _MOST_ELEMENTS:
            return
        indices = self._indices(count, rows)
        template = _Value("", value.kind, (count, *rest))
        updates = self.like(template)
        windows = ",".join(str(d + 1) for d in range(len(rest)))
        made = self.add(
            value.kind,
            value.dims,
            f"scatter({value.name}, {indices.name}, {updates.name}), update_window_dims={{{windows}}},"
            " inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1,"
            f" to_apply={self.scalar_computation('add', value.kind)}",
            keep=not value.is_float,
        )
        self.calm(made)

    def dynamic_slice(self) -> None:
        value = self.pick(least_rank=1)
        sizes = tuple(self.rng.randint(1, size) for size in value.dims)
        starts = ", ".join(self.index(size).name for size in value.dims)
        self.add(value.kind, sizes, f"dynamic-slice({value.name}, {starts}), dynamic_slice_sizes={{{','.join(map(str, sizes))}}}")

    def update(self) -> None:
        value = self.pick(least_rank=1)
        sizes = tuple(self.rng.randint(1, size) for size in value.dims)
        part = self.like(_Value("", value.kind, sizes))
        starts = ", ".join(self.index(size).name for size in value.dims)
        self.add(value.kind, value.dims, f"dynamic-update-slice({value.name}, {part.name}, {starts})")

    def sort(self) -> None:
        value = self.pick(floats=False, least_rank=1)
        name = f"before_{value.kind}"
        direction = self.rng.choice(("LT", "GT"))
        name += direction
        self.computations[name] = (
            f"{name} {{\n  a = {value.kind}[] parameter(0)\n  b = {value.kind}[] parameter(1)\n"
            f"  ROOT r = pred[] compare(a, b), direction={direction}\n}}\n"
        )
        dim = self.rng.randrange(len(value.dims))
        self.add(value.kind, value.dims, f"sort({value.name}), dimensions={{{dim}}}, to_apply={name}")

    def window(self) -> None:
        value = self.pick(least_rank=1)
        size = [1] * len(value.dims)
        stride = [1] * len(value.dims)
        dim = self.rng.randrange(len(value.dims))
        size[dim] = self.rng.randint(1, min(4, value.dims[dim]))
        stride[dim] = self.rng.choice((1, 2))
        dims = tuple((s - k) // t + 1 for s, k, t in zip(value.dims, size, stride, strict=True))
        init = self.number(value.kind, "0")
        window = f"window={{size={'x'.join(map(str, size))} stride={'x'.join(map(str, stride))}}}"
        op = self.rng.choice(("maximum", "add"))
        made = self.add(
            value.kind,
            dims,
            f"reduce-window({value.name}, {init.name}), {window}, to_apply={self.scalar_computation(op, value.kind)}",
            keep=False,
        )
        self.values.append(made) if not value.is_float else self.calm(made)

    def cumulative(self) -> None:
        """A running sum, as JAX writes it."""
        value = self.pick(floats=False, least_rank=1)
        dim = self.rng.randrange(len(value.dims))
        size = ["1"] * len(value.dims)
        edges = ["0_0"] * len(value.dims)
        size[dim], edges[dim] = str(value.dims[dim]), f"{value.dims[dim] - 1}_0"
        init = self.number(value.kind, "0")
        window = f"window={{size={'x'.join(size)} pad={'x'.join(edges)}}}"
        adds = self.scalar_computation("add", value.kind)
        self.add(value.kind, value.dims, f"reduce-window({value.name}, {init.name}), {window}, to_apply={adds}")

    def convolution(self) -> None:
        found = [v for v in self.values if v.kind == "f32" and len(v.dims) == 3]
        if not found:
            return
        value = self.rng.choice(found)
        batch, features, size = value.dims
        taps = min(3, size)
        if features > 40:
            return
        kernel = self.like(_Value("", "f32", (4, features, taps)))
        made = self.add(
            "f32",
            (batch, 4, size - taps + 1),
            f"convolution({value.name}, {kernel.name}), window={{size={taps}}}, dim_labels=bf0_oi0->bf0",
            keep=False,
        )
        share = self.number("f32", str(1 / (features * taps)))
        shares = self.add("f32", made.dims, f"broadcast({share.name}), dimensions={{}}", keep=False)
        self.add("f32", made.dims, f"multiply({made.name}, {shares.name})")

    def loop(self) -> None:
        value = self.pick(floats=True)
        other = self.like(value)
        name = self.fresh("loop")
        state = f"(s32[], {value.shape}, {other.shape})"
        trips = self.rng.randint(0, 4)
        op = self.rng.choice(("multiply", "maximum", "minimum"))
        self.computations[name] = (
            f"{name}_body {{\n  s = {state} parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n"
            f"  x = {value.shape} get-tuple-element(s), index=1\n  y = {other.shape} get-tuple-element(s), index=2\n"
            f"  one = s32[] constant(1)\n  n = s32[] add(i, one)\n  z = {value.shape} {op}(x, y)\n  t = {value.shape} tanh(z)\n"
            f"  ROOT r = {state} tuple(n, t, {self.rng.choice(('y', 'x'))})\n}}\n"
            f"{name}_condition {{\n  s = {state} parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n"
            f"  n = s32[] constant({trips})\n  ROOT r = pred[] compare(i, n), direction=LT\n}}\n"
        )
        zero = self.number("s32", "0")
        start, end = self.fresh("v"), self.fresh("v")
        self.lines.append(f"  {start} = {state} tuple({zero.name}, {value.name}, {other.name})")
        self.lines.append(f"  {end} = {state} while({start}), condition={name}_condition, body={name}_body")
        self.add(value.kind, value.dims, f"get-tuple-element({end}), index=1")
        self.add(other.kind, other.dims, f"get-tuple-element({end}), index=2")

    def branch(self) -> None:
        value = self.pick(floats=True)
        name = self.fresh("branch")
        ops = self.rng.sample(_UNARY, 3)
        for number, op in enumerate(ops):
            self.computations[f"{name}_{number}"] = (
                f"{name}_{number} {{\n  x = {value.shape} parameter(0)\n  ROOT r = {value.shape} {op}(x)\n}}\n"
            )
        which = self.index(2)
        names = ", ".join(f"{name}_{number}" for number in range(3))
        operands = ", ".join([value.name] * 3)
        self.add(value.kind, value.dims, f"conditional({which.name}, {operands}), branch_computations={{{names}}}")

    def call(self) -> None:
        value = self.pick(floats=True)
        name = self.fresh("called")
        self.computations[name] = (
            f"{name} {{\n  x = {value.shape} parameter(0)\n  y = {value.shape} cosine(x)\n"
            f"  ROOT r = {value.shape} multiply(x, y)\n}}\n"
        )
        self.add(value.kind, value.dims, f"call({value.name}), to_apply={name}")


def random_program(rng: random.Random, steps: int) -> str:
    """Return the text of a module of about `steps` steps with up to six results."""
    program = _Program(rng, layouts=rng.random() < 0.3)
    size = tuple(rng.choice(_SIZES) for _ in range(4))
    shapes: list[tuple[str, Dims]] = [("f32", size[:2]), ("f32", size[1:2]), ("s32", size[:2]), (rng.choice(_FLOATS), size[:3])]
    for number, (kind, dims) in enumerate(shapes):
        while math.prod(dims) > _MOST_ELEMENTS:
            dims = tuple((d + 1) // 2 for d in dims)
        layout = ""
        if program.layouts and len(dims) > 1:
            order = list(range(len(dims)))
            rng.shuffle(order)
            layout = f"{{{','.join(map(str, order))}}}"
        value = _Value(program.fresh("v"), kind, dims)
        program.lines.append(f"  {value.name} = {value.shape}{layout} parameter({number})")
        program.values.append(value)
    # Integers of any size would make indices and converted numbers out of all proportion.
    large = program.values[2]
    program.values[2] = program.add(large.kind, large.dims, f"and({large.name}, {_sevens(program, large)})", keep=False)
    for number in (0, 1, 3):
        program.values[number] = program.add(
            program.values[number].kind, program.values[number].dims, f"tanh({program.values[number].name})", keep=False
        )
    for _ in range(steps):
        getattr(program, rng.choice(_KINDS))()
    shown = list(
        {value.name: value for value in [program.values[-1], *rng.sample(program.values, min(5, len(program.values)))]}.values()
    )
    results = ", ".join(value.shape for value in shown)
    names = ", ".join(value.name for value in shown)
    entry = "\n".join([*program.lines, f"  ROOT out = ({results}) tuple({names})"])
    return f"HloModule random_program\n\n{''.join(program.computations.values())}\nENTRY main {{\n{entry}\n}}\n"


def _sevens(program: _Program, value: _Value) -> str:
    return program.add(
        value.kind, value.dims, f"broadcast({program.number(value.kind, '7').name}), dimensions={{}}", keep=False
    ).name
