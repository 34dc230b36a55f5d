"""Generate random small modules of one op or few, and compare the numpy reference with real XLA:CPU on them.

    python3 scripts/venv.py python scripts/fuzz_reference.py --xla "PYTHON RUN_CPU.py" [--count N] [--seed N] [--only REGEX]

Ranks go from 0 to 8, dimensions from 0 to 6, over all element types that XLA:CPU takes for an op. Modules that XLA:CPU refuses
are counted, not judged. It prints each module that differs, with the difference, then a count per kind. The exit code is 1 if
any module differs.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from xla_cpu import XlaCpu, XlaError

import hlo_run
from hlo_run.errors import HloRunError
from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.compare.agreement import disagreements
from hlo_run.reference.evaluate.evaluate import Reference

INTS = "s4 u4 s8 u8 s16 u16 s32 u32 s64 u64".split()
WIDE_FLOATS = "bf16 f16 f32 f64".split()
FLOATS = [*WIDE_FLOATS, *"f8e5m2 f8e4m3fn f8e4m3 f8e3m4 f8e4m3b11fnuz f8e5m2fnuz f8e4m3fnuz f4e2m1fn f8e8m0fnu".split()]
COMPLEX = ["c64", "c128"]
Rng = random.Random


def shape(dtype: str, dims: list[int]) -> str:
    return f"{dtype}[{','.join(map(str, dims))}]"


def some_dims(r: Rng, least: int = 0, most: int = 8, zeros: bool = True) -> list[int]:
    """Return random dimensions: mostly few dimensions with few elements."""
    rank = r.choice([least, r.randint(least, min(most, max(least, 3))), r.randint(least, most)])
    top = 6 if rank < 4 else 3
    return [0 if zeros and r.random() < 0.03 else r.randint(1, top) for _ in range(rank)]


def entry(*lines: str, before: str = "") -> str:
    return "HloModule m\n" + before + "ENTRY e {\n" + "\n".join("  " + line for line in lines) + "\n}\n"


def parameters(*shapes: str) -> list[str]:
    return [f"p{n} = {text} parameter({n})" for n, text in enumerate(shapes)]


def computation(name: str, *lines: str) -> str:
    return name + " {\n" + "\n".join("  " + line for line in lines) + "\n}\n"


def scalar_computation(name: str, dtype: str, opcode: str) -> str:
    x, y = (f"{name} = {dtype}[] parameter({n})" for n, name in enumerate("xy"))
    return computation(name, x, y, f"ROOT z = {dtype}[] {opcode}(x, y)")


def unary(r: Rng) -> str:
    floats = """abs negate sign floor ceil round-nearest-afz round-nearest-even exponential exponential-minus-one log log-plus-one
        sine cosine tan sqrt rsqrt cbrt erf tanh logistic""".split()
    tables = [(floats, FLOATS), ("abs negate sign".split(), ["s4", "s8", "s16", "s32", "s64"])]
    tables += [("not popcnt count-leading-zeros negate".split(), INTS), (["not"], ["pred"])]
    tables += [("abs negate sign exponential log sine cosine tan sqrt rsqrt tanh logistic".split(), COMPLEX)]
    opcodes, types = r.choice(tables)
    opcode, dtype, dims = r.choice(opcodes), r.choice(types), some_dims(r)
    result = {"c64": "f32", "c128": "f64"}.get(dtype, dtype) if opcode == "abs" else dtype
    return entry(*parameters(shape(dtype, dims)), f"ROOT r = {shape(result, dims)} {opcode}(p0)")


def binary(r: Rng) -> str:
    tables = [
        ("add subtract multiply divide remainder power maximum minimum atan2".split(), FLOATS),
        ("add subtract multiply divide remainder power maximum minimum and or xor".split(), INTS),
        ("shift-left shift-right-arithmetic shift-right-logical".split(), INTS),
        ("and or xor add multiply maximum minimum".split(), ["pred"]),
        ("add subtract multiply divide power".split(), COMPLEX),
    ]
    opcodes, types = r.choice(tables)
    text = shape(r.choice(types), some_dims(r))
    return entry(*parameters(text, text), f"ROOT r = {text} {r.choice(opcodes)}(p0, p1)")


def compare(r: Rng) -> str:
    dtype, dims = r.choice([*INTS, *FLOATS, "pred"]), some_dims(r)
    text = shape(dtype, dims)
    kind = ", type=TOTALORDER" if dtype in WIDE_FLOATS and r.random() < 0.4 else ""
    direction = r.choice("EQ NE GE GT LE LT".split())
    return entry(*parameters(text, text), f"ROOT r = {shape('pred', dims)} compare(p0, p1), direction={direction}{kind}")


def choose(r: Rng) -> str:
    text, dims = "", some_dims(r)
    text = shape(r.choice([*INTS, *FLOATS]), dims)
    if r.random() < 0.5:
        return entry(*parameters(text, text, text), f"ROOT r = {text} clamp(p0, p1, p2)")
    return entry(*parameters(shape("pred", dims), text, text), f"ROOT r = {text} select(p0, p1, p2)")


def convert(r: Rng) -> str:
    types = [*INTS, *FLOATS, "pred", *COMPLEX]
    source, target, dims = r.choice(types), r.choice(types), some_dims(r)
    return entry(*parameters(shape(source, dims)), f"ROOT r = {shape(target, dims)} convert(p0)")


def precision(r: Rng) -> str:
    text = shape(r.choice(WIDE_FLOATS), some_dims(r))
    bits = f"exponent_bits={r.randint(2, 8)}, mantissa_bits={r.randint(1, 10)}"
    return entry(*parameters(text), f"ROOT r = {text} reduce-precision(p0), {bits}")


def bitcast_convert(r: Rng) -> str:
    pairs = [
        ("f32", "s32"),
        ("f32", "u8"),
        ("f16", "bf16"),
        ("u8", "f32"),
        ("f64", "u32"),
        ("s16", "f64"),
        ("s8", "s4"),
        ("u4", "u16"),
    ]
    source, target = r.choice(pairs)
    bits = {t: int(re.sub(r"\D", "", t)) for t in (source, target)}
    dims = some_dims(r, most=5)
    before, after = list(dims), list(dims)
    if bits[source] > bits[target]:
        after.append(bits[source] // bits[target])
    elif bits[source] < bits[target]:
        before.append(bits[target] // bits[source])
    return entry(*parameters(shape(source, before)), f"ROOT r = {shape(target, after)} bitcast-convert(p0)")


def moves(r: Rng) -> str:
    dtype, dims = r.choice([*INTS, *FLOATS, "pred", *COMPLEX]), some_dims(r, least=1)
    rank = len(dims)
    order = r.sample(range(rank), rank)
    match r.choice("transpose reverse slice broadcast reshape concatenate pad iota dynamic-slice dynamic-update-slice".split()):
        case "transpose":
            result, text = [dims[d] for d in order], f"transpose(p0), dimensions={{{','.join(map(str, order))}}}"
        case "reverse":
            some = r.sample(range(rank), r.randint(1, rank))
            result, text = dims, f"reverse(p0), dimensions={{{','.join(map(str, some))}}}"
        case "slice":
            cuts = [(a := r.randint(0, d), r.randint(a, d), r.randint(1, 3)) for d in dims]
            result = [-(-(b - a) // s) for a, b, s in cuts]
            text = "slice(p0), slice={" + ", ".join(f"[{a}:{b}:{s}]" for a, b, s in cuts) + "}"
        case "broadcast":
            result, places = list(dims), sorted(r.sample(range(rank + 2), rank)) if rank < 7 else list(range(rank))
            result = [r.randint(1, 3) for _ in range(max(places) + 1)]
            for place, size in zip(places, dims, strict=True):
                result[place] = size
            text = f"broadcast(p0), dimensions={{{','.join(map(str, places))}}}"
        case "reshape":
            result, text = [1, int(np.prod(dims)), 1], "reshape(p0)"
        case "concatenate":
            dim, other = r.randrange(rank), list(dims)
            other[dim] = r.randint(0, 3)
            result = [size + (other[dim] if d == dim else 0) for d, size in enumerate(dims)]
            lines = parameters(shape(dtype, dims), shape(dtype, other))
            return entry(*lines, f"ROOT r = {shape(dtype, result)} concatenate(p0, p1), dimensions={{{dim}}}")
        case "pad":
            edges = [(r.randint(-1, 3), r.randint(-1, 3), r.randint(0, 2)) for _ in dims]
            result = [max(0, low + d + max(d - 1, 0) * inner + high) for d, (low, high, inner) in zip(dims, edges, strict=True)]
            if any(low + d + max(d - 1, 0) * inner + high < 0 for d, (low, high, inner) in zip(dims, edges, strict=True)):
                edges, result = [(0, 0, 0)] * rank, dims
            padding = "x".join(f"{a}_{b}_{c}" for a, b, c in edges)
            return entry(
                *parameters(shape(dtype, dims), f"{dtype}[]"), f"ROOT r = {shape(dtype, result)} pad(p0, p1), padding={padding}"
            )
        case "iota":
            return entry(
                f"ROOT r = {shape(dtype if dtype != 'pred' else 's32', dims)} iota(), iota_dimension={r.randrange(rank)}"
            )
        case "dynamic-slice":
            sizes, index = [r.randint(0, d) for d in dims], r.choice(["s32", "u32", "s64", "s8"])
            starts = ", ".join(f"p{n + 1}" for n in range(rank))
            line = (
                f"ROOT r = {shape(dtype, sizes)} dynamic-slice(p0, {starts}), dynamic_slice_sizes={{{','.join(map(str, sizes))}}}"
            )
            return entry(*parameters(shape(dtype, dims), *[f"{index}[]"] * rank), line)
        case _:
            sizes, index = [r.randint(0, d) for d in dims], r.choice(["s32", "u32", "s64", "s8"])
            starts = ", ".join(f"p{n + 2}" for n in range(rank))
            line = f"ROOT r = {shape(dtype, dims)} dynamic-update-slice(p0, p1, {starts})"
            return entry(*parameters(shape(dtype, dims), shape(dtype, sizes), *[f"{index}[]"] * rank), line)
    return entry(*parameters(shape(dtype, dims)), f"ROOT r = {shape(dtype, result)} {text}")


def _reducer(r: Rng) -> tuple[str, str]:
    tables = [
        ("add multiply maximum minimum".split(), WIDE_FLOATS),
        ("add multiply maximum minimum and or xor".split(), INTS[2:]),
    ]
    tables += [("and or xor".split(), ["pred"]), (["add", "multiply"], COMPLEX)]
    opcodes, types = r.choice(tables)
    return r.choice(opcodes), r.choice(types)


def _identity(opcode: str, dtype: str) -> str:
    """Return the literal of a reduction's identity. XLA may apply any other init value once, often or never."""
    unsigned, bits = dtype[0] == "u", int(re.sub(r"\D", "", dtype) or 0)
    if dtype == "pred":
        return "true" if opcode == "and" else "false"
    if dtype[0] == "c":
        return "(1,0)" if opcode == "multiply" else "(0,0)"
    if opcode in ("maximum", "minimum") and dtype in FLOATS:
        return "-inf" if opcode == "maximum" else "inf"
    highest = (1 << bits) - 1 if unsigned else (1 << (bits - 1)) - 1
    lowest = 0 if unsigned else -highest - 1
    ones = highest if unsigned else -1
    return str({"multiply": 1, "maximum": lowest, "minimum": highest, "and": ones}.get(opcode, 0))


def reduce(r: Rng) -> str:
    (opcode, dtype), dims = _reducer(r), some_dims(r, least=1)
    over = sorted(r.sample(range(len(dims)), r.randint(0, len(dims))))
    result = shape(dtype, [size for d, size in enumerate(dims) if d not in over])
    text = f"ROOT r = {result} reduce(p0, c), dimensions={{{','.join(map(str, over))}}}, to_apply=f"
    lines = [*parameters(shape(dtype, dims)), f"c = {dtype}[] constant({_identity(opcode, dtype)})"]
    return entry(*lines, text, before=scalar_computation("f", dtype, opcode))


def _windows(r: Rng, dims: list[int], dilated: bool) -> tuple[str, list[int]]:
    words: dict[str, list[str]] = {"size": [], "stride": [], "pad": [], "lhs_dilate": [], "rhs_dilate": []}
    result: list[int] = []
    for size in dims:
        window, stride = r.randint(1, max(1, min(size, 4))), r.randint(1, 3)
        low, high = r.randint(-1, window), r.randint(-1, window)
        base, gap = (r.choice([1, 1, 2, 3]), r.choice([1, 1, 2])) if dilated else (1, 1)
        padded, reach = low + high + (0 if size == 0 else (size - 1) * base + 1), (window - 1) * gap + 1
        if padded < 0:
            low = high = 0
            padded = 0 if size == 0 else (size - 1) * base + 1
        result.append(0 if padded < reach else (padded - reach) // stride + 1)
        for name, word in zip(words, (window, stride, f"{low}_{high}", base, gap), strict=True):
            words[name].append(str(word))
    return "{" + " ".join(f"{name}={'x'.join(values)}" for name, values in words.items()) + "}", result


def reduce_window(r: Rng) -> str:
    (opcode, dtype), dims = _reducer(r), some_dims(r, least=1, most=5)
    window, result = _windows(r, dims, dilated=True)
    text = f"ROOT r = {shape(dtype, result)} reduce-window(p0, c), window={window}, to_apply=f"
    lines = [*parameters(shape(dtype, dims)), f"c = {dtype}[] constant({_identity(opcode, dtype)})"]
    return entry(*lines, text, before=scalar_computation("f", dtype, opcode))


def select_and_scatter(r: Rng) -> str:
    dtype, dims = r.choice([*WIDE_FLOATS, "s32"]), some_dims(r, least=1, most=4, zeros=False)
    words, result = [], []
    for size in dims:
        window, stride, low, high = r.randint(1, size), r.randint(1, 3), r.randint(0, 1), r.randint(0, 1)
        words.append((window, stride, f"{low}_{high}"))
        result.append((low + size + high - window) // stride + 1)
    window = " ".join(f"{n}={'x'.join(str(w[k]) for w in words)}" for k, n in enumerate(("size", "stride", "pad")))
    pick = (
        f"g {{\n  x = {dtype}[] parameter(0)\n  y = {dtype}[] parameter(1)\n  ROOT z = pred[] compare(x, y), direction=GE\n}}\n"
    )
    text = f"ROOT r = {shape(dtype, dims)} select-and-scatter(p0, p1, c), window={{{window}}}, select=g, scatter=f"
    lines = [*parameters(shape(dtype, dims), shape(dtype, result)), f"c = {dtype}[] constant(0)", text]
    return entry(*lines, before=scalar_computation("f", dtype, "add") + pick)


def sort(r: Rng) -> str:
    dtype, other, dims = r.choice([*INTS[2:], *WIDE_FLOATS]), r.choice(["f32", "s32", "u8"]), some_dims(r, least=1, most=4)
    dim, direction = r.randrange(len(dims)), r.choice(["LT", "GT"])
    kind = ", type=TOTALORDER" if dtype in WIDE_FLOATS and r.random() < 0.5 else ""
    compared = "a, b" if r.random() < 0.8 else "b, a"
    key = f"ROOT z = pred[] compare({compared}), direction={direction}{kind}"
    if r.random() < 0.3 and not kind:
        # Not a comparison of the elements themselves.
        squares = f"m = {dtype}[] multiply(a, a)\n  n = {dtype}[] multiply(b, b)"
        key = f"{squares}\n  ROOT z = pred[] compare(m, n), direction={direction}"
    both = r.random() < 0.6
    more = f"  c = {other}[] parameter(2)\n  d = {other}[] parameter(3)\n" if both else ""
    comparator = f"f {{\n  a = {dtype}[] parameter(0)\n  b = {dtype}[] parameter(1)\n{more}  {key}\n}}\n"
    first, second = shape(dtype, dims), shape(other, dims)
    tail = f"dimensions={{{dim}}}, is_stable=true, to_apply=f"
    if both:
        return entry(*parameters(first, second), f"ROOT r = ({first}, {second}) sort(p0, p1), {tail}", before=comparator)
    return entry(*parameters(first), f"ROOT r = {first} sort(p0), {tail}", before=comparator)


def _windowed(r: Rng) -> dict[str, Any]:
    """Return random dimension numbers in the form shared by gather and scatter."""
    dims = some_dims(r, least=1, most=5, zeros=False)
    rank = len(dims)
    batching = sorted(r.sample(range(rank), r.choice([0, 0, min(1, rank - 1)])))
    indexed = [d for d in r.sample(range(rank), r.randint(1, rank)) if d not in batching] or [
        d for d in range(rank) if d not in batching
    ][:1]
    collapsed = sorted(d for d in indexed if r.random() < 0.6)
    sizes = [1 if d in collapsed or d in batching else r.randint(1, dims[d]) for d in range(rank)]
    window = [sizes[d] for d in range(rank) if d not in collapsed and d not in batching]
    batch = [r.randint(1, 4) for _ in range(r.randint(0, 2))]
    places = [r.randint(0, len(batch)) for _ in batching]
    for place, dim in zip(places, batching, strict=True):
        batch.insert(place, dims[dim])
    vector_dim = r.randint(0, len(batch))
    indices = [*batch[:vector_dim], len(indexed), *batch[vector_dim:]]
    index_batching = [place + (place >= vector_dim) for place in places]
    if len(indexed) == 1 and r.random() < 0.3:
        indices, vector_dim, index_batching = list(batch), len(batch), places
    total = len(batch) + len(window)
    offset = sorted(r.sample(range(total), len(window)))
    merged, rest, inner = [], iter(batch), iter(window)
    merged = [next(inner) if d in offset else next(rest) for d in range(total)]
    return {
        "dims": dims, "batching": batching, "indexed": indexed, "collapsed": collapsed, "sizes": sizes, "indices": indices,
        "vector_dim": vector_dim, "index_batching": index_batching, "offset": offset, "merged": merged,
    }  # fmt: skip


def _set(values: list[int]) -> str:
    return "{" + ",".join(map(str, values)) + "}"


def gather(r: Rng) -> str:
    w, dtype, index = _windowed(r), r.choice([*INTS, *WIDE_FLOATS, "pred", "c64"]), r.choice(["s32", "u32", "s64", "u8", "s8"])
    names = f"offset_dims={_set(w['offset'])}, collapsed_slice_dims={_set(w['collapsed'])}, start_index_map={_set(w['indexed'])}"
    if w["batching"]:
        names += f", operand_batching_dims={_set(w['batching'])}, start_indices_batching_dims={_set(w['index_batching'])}"
    names += f", index_vector_dim={w['vector_dim']}, slice_sizes={_set(w['sizes'])}"
    return entry(
        *parameters(shape(dtype, w["dims"]), shape(index, w["indices"])),
        f"ROOT r = {shape(dtype, w['merged'])} gather(p0, p1), {names}",
    )


def scatter(r: Rng) -> str:
    w, index = _windowed(r), r.choice(["s32", "u32", "s64", "s8"])
    opcode, dtype = _reducer(r)
    names = f"update_window_dims={_set(w['offset'])}, inserted_window_dims={_set(w['collapsed'])}"
    names += f", scatter_dims_to_operand_dims={_set(w['indexed'])}"
    if w["batching"]:
        names += f", input_batching_dims={_set(w['batching'])}, scatter_indices_batching_dims={_set(w['index_batching'])}"
    names += f", index_vector_dim={w['vector_dim']}, to_apply=f"
    before = scalar_computation("f", dtype, opcode)
    if r.random() < 0.2:
        before = f"f {{\n  x = {dtype}[] parameter(0)\n  ROOT y = {dtype}[] parameter(1)\n}}\n"
    whole = shape(dtype, w["dims"])
    lines = parameters(whole, shape(index, w["indices"]), shape(dtype, w["merged"]))
    return entry(*lines, f"ROOT r = {whole} scatter(p0, p1, p2), {names}", before=before)


def dot(r: Rng) -> str:
    dtype = r.choice(["f32", "f64", "bf16", "f16", "s8", "s32", "u8", "s64", "c64", "c128", "pred", "f8e5m2", "f8e4m3fn", "s4"])
    result = {
        "s8": r.choice(["s8", "s32"]),
        "u8": "s32",
        "bf16": r.choice(["bf16", "f32"]),
        "f8e5m2": "f32",
        "f8e4m3fn": "f32",
        "s4": "s32",
    }
    batch, depth = [some_dims(r, most=2) for _ in range(2)]
    rows, columns = [some_dims(r, most=2) for _ in range(2)]
    sides, names = [], ""
    for side, free in (("lhs", rows), ("rhs", columns)):
        dims = [
            *(("b", k) for k in range(len(batch))),
            *(("c", k) for k in range(len(depth))),
            *(("f", k) for k in range(len(free))),
        ]
        r.shuffle(dims)
        # Free dimensions keep their order.
        order = iter(range(len(free)))
        dims = [(kind, next(order)) if kind == "f" else (kind, k) for kind, k in dims]
        size = {"b": batch, "c": depth, "f": free}
        sides.append(shape(dtype, [size[kind][k] for kind, k in dims]))
        for kind, name, sizes in (("b", "batch", batch), ("c", "contracting", depth)):
            if sizes:
                names += f", {side}_{name}_dims={_set([dims.index((kind, k)) for k in range(len(sizes))])}"
    out = shape(result.get(dtype, dtype), [*batch, *rows, *columns])
    return entry(*parameters(*sides), f"ROOT r = {out} dot(p0, p1){names}")


def convolution(r: Rng) -> str:
    dtype, rank = r.choice(["f32", "f64", "bf16", "f16", "s32", "c64"]), r.randint(0, 3)
    groups, batch_groups = r.choice([(1, 1), (1, 1), (2, 1), (3, 1), (1, 2)])
    inner, outer, batch = r.randint(1, 3), r.randint(1, 3) * groups * batch_groups, r.randint(1, 3) * batch_groups
    sizes = [r.randint(1, 7) for _ in range(rank)]
    window, result = _windows(r, sizes, dilated=True)
    kernel = [int(k) for k in (re.search(r"size=([\dx]+)", window) or [0, ""])[1].split("x") if k] if rank else []
    if rank and r.random() < 0.3:
        window = window[:-1] + " rhs_reversal=" + "x".join(r.choice("01") for _ in range(rank)) + "}"

    def labels(names: str, sizes: dict[str, int]) -> tuple[str, list[int]]:
        order = [*names, *map(str, range(rank))]
        r.shuffle(order)
        return "".join(order), [sizes[name] for name in order]

    numbered = [{str(k): size for k, size in enumerate(some)} for some in (sizes, kernel, result)]
    left, left_dims = labels("bf", {"b": batch, "f": inner * groups, **numbered[0]})
    right, right_dims = labels("io", {"i": inner, "o": outer, **numbered[1]})
    out, out_dims = labels("bf", {"b": batch // batch_groups, "f": outer, **numbered[2]})
    attributes = f"dim_labels={left}_{right}->{out}, feature_group_count={groups}, batch_group_count={batch_groups}"
    attributes = (f"window={window}, " if rank else "") + attributes
    lines = parameters(shape(dtype, left_dims), shape(dtype, right_dims))
    return entry(*lines, f"ROOT r = {shape(dtype, out_dims)} convolution(p0, p1), {attributes}")


def fft(r: Rng) -> str:
    kind, wide, axes = r.choice(["FFT", "IFFT", "RFFT", "IRFFT"]), r.random() < 0.3, r.randint(1, 3)
    real, complex_ = ("f64", "c128") if wide else ("f32", "c64")
    outer, lengths = some_dims(r, most=2, zeros=False), [r.randint(1, 9) for _ in range(axes)]
    whole, half = [*outer, *lengths], [*outer, *lengths[:-1], lengths[-1] // 2 + 1]
    types = {"FFT": (complex_, complex_), "IFFT": (complex_, complex_), "RFFT": (real, complex_), "IRFFT": (complex_, real)}[kind]
    dims = (half if kind == "IRFFT" else whole), (half if kind == "RFFT" else whole)
    text = f"ROOT r = {shape(types[1], dims[1])} fft(p0), fft_type={kind}, fft_length={_set(lengths)}"
    return entry(*parameters(shape(types[0], dims[0])), text)


def triangular(r: Rng) -> str:
    dtype, outer, n, m = (
        r.choice(["f32", "f64", "c64", "c128"]),
        some_dims(r, most=2, zeros=False),
        r.randint(1, 6),
        r.randint(1, 4),
    )
    left = r.random() < 0.5
    right = shape(dtype, [*outer, n, m] if left else [*outer, m, n])
    forms = r.choice(["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"])
    flags = f"left_side={str(left).lower()}, lower={r.choice(['true', 'false'])}, unit_diagonal={r.choice(['true', 'false'])}"
    text = f"ROOT r = {right} triangular-solve(s, p1), {flags}, transpose_a={forms}"
    # A large diagonal bounds the solution.
    square = shape(dtype, [*outer, n, n])
    k = len(outer)
    diagonal = [
        f"i = {shape('s32', [*outer, n, n])} iota(), iota_dimension={k}",
        f"j = {shape('s32', [*outer, n, n])} iota(), iota_dimension={k + 1}",
    ]
    diagonal += [
        f"d = {shape('pred', [*outer, n, n])} compare(i, j), direction=EQ",
        f"c = {dtype}[] constant({'(4,1)' if dtype[0] == 'c' else 4})",
    ]
    diagonal += [f"b = {square} broadcast(c), dimensions={{}}", f"s = {square} select(d, b, p0)"]
    return entry(*parameters(square, right), *diagonal, text)


def random_bits(r: Rng) -> str:
    algorithm, words = r.choice([("rng_three_fry", 2), ("rng_philox", 2), ("rng_philox", 3), ("rng_default", 3)])
    bits = shape(r.choice(["u8", "u16", "u32", "u64", "s32", "s8"]), some_dims(r, most=4))
    return entry(*parameters(f"u64[{words}]"), f"ROOT r = (u64[{words}], {bits}) rng-bit-generator(p0), algorithm={algorithm}")


def mapped(r: Rng) -> str:
    dtype, dims = r.choice(["f32", "s32", "f64"]), some_dims(r)
    text = shape(dtype, dims)
    body = computation(
        "f",
        f"x = {dtype}[] parameter(0)",
        f"y = {dtype}[] parameter(1)",
        f"s = {dtype}[] subtract(x, y)",
        f"q = {dtype}[] multiply(s, x)",
        "c = pred[] compare(s, q), direction=LT",
        f"ROOT z = {dtype}[] select(c, q, y)",
    )
    over = _set(list(range(len(dims))))
    return entry(*parameters(text, text), f"ROOT r = {text} map(p0, p1), dimensions={over}, to_apply=f", before=body)


def argmax(r: Rng) -> str:
    dtype, dims = r.choice([*WIDE_FLOATS, "s32", "u8"]), some_dims(r, least=1, most=4, zeros=False)
    dim = r.randrange(len(dims))
    left = [size for d, size in enumerate(dims) if d != dim]
    body = computation(
        "f",
        f"a = {dtype}[] parameter(0)",
        "i = s32[] parameter(1)",
        f"b = {dtype}[] parameter(2)",
        "j = s32[] parameter(3)",
        "g = pred[] compare(a, b), direction=GT",
        "e = pred[] compare(a, b), direction=EQ",
        "l = pred[] compare(i, j), direction=LT",
        "t = pred[] and(e, l)",
        "k = pred[] or(g, t)",
        f"v = {dtype}[] select(k, a, b)",
        "n = s32[] select(k, i, j)",
        f"ROOT z = ({dtype}[], s32[]) tuple(v, n)",
    )
    lines = [*parameters(shape(dtype, dims)), f"o = {shape('s32', dims)} iota(), iota_dimension={dim}"]
    lines += [f"m = {dtype}[] constant({_identity('maximum', dtype)})", "z = s32[] constant(0)"]
    out = f"({shape(dtype, left)}, {shape('s32', left)})"
    return entry(*lines, f"ROOT r = {out} reduce(p0, o, m, z), dimensions={{{dim}}}, to_apply=f", before=body)


def normalise(r: Rng) -> str:
    dims = some_dims(r, least=2, most=5, zeros=False)
    feature = r.randrange(len(dims))
    whole, each = shape("f32", dims), shape("f32", [dims[feature]])
    tail = f"epsilon=0.01, feature_index={feature}"
    match r.choice("tig"):
        case "t":
            return entry(
                *parameters(whole, each, each), f"ROOT r = ({whole}, {each}, {each}) batch-norm-training(p0, p1, p2), {tail}"
            )
        case "i":
            lines = [*parameters(whole, each, each, each, each), f"v = {each} multiply(p4, p4)"]
            return entry(*lines, f"ROOT r = {whole} batch-norm-inference(p0, p1, p2, p3, v), {tail}")
        case _:
            lines = [*parameters(whole, each, each, each, whole), f"v = {each} multiply(p3, p3)"]
            return entry(*lines, f"ROOT r = ({whole}, {each}, {each}) batch-norm-grad(p0, p1, p2, v, p4), {tail}")


KINDS: dict[str, Callable[[Rng], str]] = {
    "unary": unary, "binary": binary, "compare": compare, "choose": choose, "convert": convert, "precision": precision,
    "bitcast-convert": bitcast_convert, "moves": moves, "reduce": reduce, "reduce-window": reduce_window,
    "select-and-scatter": select_and_scatter, "sort": sort, "gather": gather, "scatter": scatter, "dot": dot,
    "convolution": convolution, "fft": fft, "triangular": triangular, "rng-bits": random_bits, "map": mapped,
    "argmax": argmax, "batch-norm": normalise,
}  # fmt: skip


# Kinds whose arguments may be infinite or NaN. In other kinds XLA:CPU may multiply padding by them, or not.
_SPECIAL = frozenset("unary binary compare choose convert precision bitcast-convert moves sort gather map".split())


def argument(rng: np.random.Generator, shape: Shape, special: bool) -> Any:
    """Return normal floats, with some special values if `special`, and integers of all sizes, many of them small."""
    dtype, dims = shape.dtype, shape.dims
    if dtype.kind == "pred":
        return rng.integers(0, 2, dims).astype(np.bool_)
    if dtype.is_integer:
        low, high = (-(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1) if dtype.is_signed else (0, (1 << dtype.bits) - 1)
        whole = rng.integers(low, high, dims, np.int64 if low else np.uint64, endpoint=True)
        small = rng.integers(max(low, -3), min(high, 6), dims, endpoint=True)
        kind = np.int64 if low else np.uint64
        return np.asarray(np.where(rng.random(dims) < 0.3, whole, small.astype(kind))).astype(dtype.numpy)
    array: Any = np.asarray(rng.standard_normal(dims) * rng.choice([0.5, 1, 10]))
    if special and rng.random() < 0.3:
        specials = rng.choice([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, -2.5], dims)
        array = np.where(rng.random(dims) < 0.15, specials, array)
    if dtype.is_complex:
        array = array + 1j * rng.standard_normal(dims)
    return np.asarray(np.abs(array) if dtype.name == "f8e8m0fnu" else array).astype(dtype.numpy)


def main() -> int:
    """Generate and judge modules. Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xla", required=True, help='how to run real XLA:CPU: "PYTHON RUN_CPU.py"')
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="only kinds whose name matches this regular expression")
    options = parser.parse_args()
    kinds = [kind for kind in KINDS if re.search(options.only, kind)]
    counts: Counter[tuple[str, str]] = Counter()
    with XlaCpu(options.xla) as xla:
        for number in range(options.count):
            kind = kinds[number % len(kinds)]
            r = random.Random(f"{options.seed}/{number}")
            text = KINDS[kind](r)
            status, detail = judge(text, xla, np.random.default_rng([options.seed, number]), kind in _SPECIAL)
            counts[kind, status] += 1
            if status not in ("agrees", "xla"):
                print(f"--- {number} {kind}: {status}: {detail}\n{text}", flush=True)
            elif status == "xla":
                print(f"{number} {kind}: {detail[:150]}", file=sys.stderr, flush=True)
    print(f"{'kind':<20}" + "".join(f"{status:>10}" for status in ("agrees", "xla", "differs", "error")))
    for kind in kinds:
        print(f"{kind:<20}" + "".join(f"{counts[kind, status]:>10}" for status in ("agrees", "xla", "differs", "error")))
    return int(any(counts[kind, status] for kind in kinds for status in ("differs", "error")))


def judge(text: str, xla: XlaCpu, rng: np.random.Generator, special: bool) -> tuple[str, str]:
    """Return the status (agrees; differs; error, if ours fails; xla, if XLA refuses) and a detail."""
    try:
        module = hlo_run.parse(text)
        values = [argument(rng, parameter.shape, special) for parameter in module.entry.parameters]
        actual = Reference(module).run([values])[0]
    except HloRunError as error:
        return "error", error.message
    try:
        found = xla.run(text, values).results
    except XlaError as error:
        return "xla", " ".join(str(error).split())
    shape = module.entry.root.shape
    typed = [array.view(leaf.dtype.numpy) for array, (_, leaf) in zip(found, shape.leaves(), strict=True)]
    expected = tuple(typed) if shape.is_tuple else typed[0]
    for index, comparison in disagreements(expected, actual, shape):
        return "differs", f"result {list(index)} {comparison.shape}: {comparison.summary()}"
    return "agrees", ""


if __name__ == "__main__":
    raise SystemExit(main())
