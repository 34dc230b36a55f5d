"""PTX as LLVM makes it: every spelling is known on every card, and kernels compute what their LLVM IR says."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from host_kernels import launch
from host_survey import Survey, all_kernels, conversion_kernels, float_kernels, integer_kernels, joined_text, module_text
from numpy.typing import NDArray

from hlo_run.backends.host.emulator.program import compile_program
from hlo_run.backends.host.numerics import exact_numerics
from hlo_run.backends.host.ptx.parser import parse_module
from hlo_run.codegen.llvm.emit_ptx import compile_llvm
from hlo_run.target import preset

Array = NDArray[Any]
COUNT = 512
GROUP = 8
NUMPY: dict[str, Any] = {
    "i1": np.uint8,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "half": np.float16,
    "bfloat": ml_dtypes.bfloat16,
    "float": np.float32,
    "double": np.float64,
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


@functools.cache
def ptx_of(kernels: tuple[Survey, ...], target: str, level: int = 3) -> str:
    return compile_llvm(module_text(list(kernels)), preset(target), optimization_level=level).ptx


def varying_kernels() -> list[Survey]:
    """Return the kernels whose PTX may differ from that of other cards: the tests of meaning run all others on two of them."""
    return [kernel for kernel in all_kernels() if re.search(r"f16|v\d", kernel.name)]


def test_every_instruction_is_known() -> None:
    """A kernel whose text is that of another card is known already."""
    kernels = varying_kernels()
    known: set[str] = set()
    for target in ("v100", "a100", "h100", "b200", "rtx6000pro"):
        head, *entries = re.split(r"(?=^\.visible \.entry )", ptx_of(tuple(kernels), target), flags=re.MULTILINE)
        texts = [re.sub(r"^\s*//.*\n", "", entry, flags=re.MULTILINE) for entry in entries]
        assert len(texts) == len(kernels)
        new = [text for text in texts if text not in known]
        known.update(new)
        module = parse_module(head + "".join(new))
        for name, function in module.functions.items():
            if function.is_entry:
                compile_program(module, name)  # raises Unsupported for an unknown instruction
    assert len(known) > len(kernels)


def test_unoptimised_code_is_known() -> None:
    kernels = all_kernels()[::8]
    module = parse_module(ptx_of(tuple(kernels), "h100", 0))
    for kernel in kernels:
        compile_program(module, kernel.name)


# ---- meaning --------------------------------------------------------------------------------------------------------


def inputs_of(kernel: Survey) -> list[Array]:
    """Random and edge values, without operands whose results LLVM leaves undefined."""
    arrays = [random_input(type_name, number) for number, type_name in enumerate(kernel.inputs)]
    if re.match(r"[us](div|rem)_i", kernel.name):
        arrays[1] = np.where((arrays[1] == 0) | (arrays[1] == -1), arrays[1].dtype.type(3), arrays[1])
    if re.match(r"(shl|lshr|ashr)_i\d+$", kernel.name):
        arrays[1] = arrays[1] & arrays[1].dtype.type(63 if kernel.name.endswith("i128") else 8 * arrays[1].itemsize - 1)
    if found := re.match(r"fpto([su])i_\w+_i(\d+)", kernel.name):
        bits = int(found.group(2))
        wide = np.nan_to_num(arrays[0].astype(np.float64), nan=1, posinf=2, neginf=3)
        low, high = (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1) if found.group(1) == "s" else (0.0, 2.0**bits * 0.99)
        arrays[0] = np.nan_to_num(np.clip(wide, low, high * 0.99).astype(arrays[0].dtype).astype(np.float64), posinf=1, neginf=-1)
        arrays[0] = arrays[0].astype(NUMPY[kernel.inputs[0]])
    return arrays


def random_input(type_name: str, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    if type_name == "i1":
        return rng.integers(0, 2, COUNT).astype(np.uint8)
    dtype = np.dtype(NUMPY[type_name])
    wild = rng.integers(0, 256, COUNT * dtype.itemsize, dtype=np.uint8).view(dtype)
    if type_name[0] == "i":
        info = np.iinfo(dtype)
        tame = rng.integers(-20, 20, COUNT).astype(dtype)
        edges = np.array([0, 1, -1, info.max, info.min, info.max - 1, info.min + 1], dtype)
    else:
        tame = (rng.standard_normal(COUNT) * np.exp2(rng.integers(-4, 5, COUNT))).astype(dtype)
        edges = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 0.5, 1.5, 2.5, -0.5]).astype(dtype)
    mixed = np.where(rng.random(COUNT) < 0.6, tame, wild)
    mixed[: edges.size] = edges
    return rng.permutation(mixed) if seed else mixed


def run(kernels: Sequence[Survey], target: str = "h100", together: int = GROUP) -> dict[str, tuple[list[Array], Array]]:
    """Return (inputs, result) of every kernel. Groups of them are one kernel, which takes less time to compile."""
    groups = [kernels[start : start + together] for start in range(0, len(kernels), together)]
    ptx = compile_llvm(joined_text(groups), preset(target)).ptx
    module = parse_module(ptx)
    results: dict[str, tuple[list[Array], Array]] = {}
    for group in groups:
        buffers: list[Array] = []
        for kernel in group:
            arrays = inputs_of(kernel)
            result = np.zeros(COUNT, NUMPY[kernel.output])
            buffers += [*(array.copy() for array in arrays), result]
            results[kernel.name] = arrays, result
        launch(compile_program(module, group[0].name), ptx, buffers, COUNT // 128, 128)
    return results


def assert_same(name: str, got: Array, want: Array) -> None:
    """Equal bit for bit; NaNs are alike."""
    bits = f"u{got.dtype.itemsize}"
    want = want.astype(got.dtype)
    different = got.view(bits) != want.view(bits)
    if got.dtype.kind in "fV":
        different &= ~(np.isnan(got.astype(np.float64)) & np.isnan(want.astype(np.float64)))
    assert not different.any(), (name, got[different][:4], want[different][:4])


def as_ints(array: Array, unsigned: bool) -> list[int]:
    return (array.view(f"u{array.itemsize}") if unsigned else array).tolist()


def divided(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def clamped(value: int, bits: int) -> int:
    return max(-(1 << (bits - 1)), min((1 << (bits - 1)) - 1, value))


def reversed_bits(value: int, bits: int) -> int:
    return int(f"{value:0{bits}b}"[::-1], 2)


# name -> (are operands unsigned, function of the operands and the width)
UNARY: dict[str, tuple[bool, Callable[[int, int], int]]] = {
    "ctpop": (True, lambda a, n: a.bit_count()),
    "bitreverse": (True, reversed_bits),
    "bswap": (True, lambda a, n: int.from_bytes(a.to_bytes(n // 8, "little"), "big")),
    "ctlz": (True, lambda a, n: n - a.bit_length()),
    "cttz": (True, lambda a, n: (a & -a).bit_length() - 1 if a else n),
    "abs": (False, lambda a, n: abs(a)),
}
BINARY: dict[str, tuple[bool, Callable[[int, int, int], int]]] = {
    "add": (True, lambda a, b, n: a + b),
    "sub": (True, lambda a, b, n: a - b),
    "mul": (True, lambda a, b, n: a * b),
    "udiv": (True, lambda a, b, n: a // b),
    "sdiv": (False, lambda a, b, n: divided(a, b)),
    "urem": (True, lambda a, b, n: a % b),
    "srem": (False, lambda a, b, n: a - divided(a, b) * b),
    "shl": (True, lambda a, b, n: a << b),
    "lshr": (True, lambda a, b, n: a >> b),
    "ashr": (False, lambda a, b, n: a >> b),
    "and": (True, lambda a, b, n: a & b),
    "or": (True, lambda a, b, n: a | b),
    "xor": (True, lambda a, b, n: a ^ b),
    "smax": (False, lambda a, b, n: max(a, b)),
    "smin": (False, lambda a, b, n: min(a, b)),
    "umax": (True, lambda a, b, n: max(a, b)),
    "umin": (True, lambda a, b, n: min(a, b)),
    "sadd_sat": (False, lambda a, b, n: clamped(a + b, n)),
    "uadd_sat": (True, lambda a, b, n: min((1 << n) - 1, a + b)),
    "ssub_sat": (False, lambda a, b, n: clamped(a - b, n)),
    "usub_sat": (True, lambda a, b, n: max(0, a - b)),
    "sadd_overflow": (False, lambda a, b, n: clamped(a + b, n) != a + b),
    "uadd_overflow": (True, lambda a, b, n: a + b >= 1 << n),
    "ssub_overflow": (False, lambda a, b, n: clamped(a - b, n) != a - b),
    "usub_overflow": (True, lambda a, b, n: a < b),
    "smul_overflow": (False, lambda a, b, n: clamped(a * b, n) != a * b),
    "umul_overflow": (True, lambda a, b, n: a * b >= 1 << n),
    "mulhi": (False, lambda a, b, n: a * b >> n),
    "umulhi": (True, lambda a, b, n: a * b >> n),
    "icmp_eq": (True, lambda a, b, n: a == b),
    "icmp_ne": (True, lambda a, b, n: a != b),
    **{f"icmp_{sign}lt": (sign == "u", lambda a, b, n: a < b) for sign in "su"},
    **{f"icmp_{sign}le": (sign == "u", lambda a, b, n: a <= b) for sign in "su"},
    **{f"icmp_{sign}gt": (sign == "u", lambda a, b, n: a > b) for sign in "su"},
    **{f"icmp_{sign}ge": (sign == "u", lambda a, b, n: a >= b) for sign in "su"},
}
TERNARY: dict[str, tuple[bool, Callable[[int, int, int, int], int]]] = {
    "select": (True, lambda a, b, c, n: a if c else b),
    "fshl": (True, lambda a, b, c, n: ((a << n | b) << c % n) >> n),
    "fshr": (True, lambda a, b, c, n: (a << n | b) >> c % n),
}
INTEGER_MEANING: dict[str, tuple[bool, Callable[..., int]]] = {**UNARY, **BINARY, **TERNARY}


def i128_result(operation: str, a: int, b: int) -> int:
    """Bits 47 .. 110 of `(a << 31) operation b` on 128 bits, b unsigned."""
    x, y = (a << 31) & (2**128 - 1), b & (2**64 - 1)
    signed = x - 2**128 if x >> 127 else x
    if operation in ("shl", "lshr", "ashr"):
        wide = {"shl": x << (y & 63), "lshr": x >> (y & 63), "ashr": signed >> (y & 63)}[operation]
    else:
        wide = {"add": x + y, "sub": x - y, "mul": x * y}[operation]
    return wide % 2**128 >> 47


@pytest.mark.parametrize("target", ["h100", "v100"])
def test_integer_kernels(target: str) -> None:
    kernels = list(integer_kernels())
    checked = 0
    for name, (arrays, result) in run(kernels, target).items():
        operation, _, suffix = name.rpartition("_")
        width = 8 * arrays[0].itemsize
        if suffix == "i128":
            want = [i128_result(operation, a, b) for a, b in zip(*(array.tolist() for array in arrays), strict=True)]
        elif operation in INTEGER_MEANING:
            is_unsigned, function = INTEGER_MEANING[operation]
            columns = [as_ints(array, is_unsigned) for array in arrays]
            want = [function(*operands, width) for operands in zip(*columns, strict=True)]
        else:
            continue
        bits = 8 * result.itemsize
        got = as_ints(result, True)
        assert got == [int(item) % 2**bits for item in want], name
        checked += 1
    assert checked > 150


def round_half_away(x: Array) -> Array:
    whole = np.trunc(x)
    return np.copysign(whole + np.copysign(np.abs(x - whole) >= 0.5, x), x)


FLOAT_UNARY: dict[str, Callable[[Array], Array]] = {
    "fneg": lambda a: -a,
    "fabs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "rint": np.rint,
    "nearbyint": np.rint,
    "roundeven": np.rint,
    "round": round_half_away,
    "sqrt": np.sqrt,
    "recip": lambda a: 1 / a,
}
FLOAT_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "fadd": lambda a, b: a + b,
    "fsub": lambda a, b: a - b,
    "fmul": lambda a, b: a * b,
    "fdiv": lambda a, b: a / b,
    "copysign": np.copysign,
    "maxnum": np.fmax,
    "minnum": np.fmin,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "fcmp_oeq": lambda a, b: a == b,
    "fcmp_one": lambda a, b: (a < b) | (a > b),
    "fcmp_olt": lambda a, b: a < b,
    "fcmp_ole": lambda a, b: a <= b,
    "fcmp_ogt": lambda a, b: a > b,
    "fcmp_oge": lambda a, b: a >= b,
    "fcmp_ord": lambda a, b: ~np.isnan(a) & ~np.isnan(b),
    "fcmp_ueq": lambda a, b: ~((a < b) | (a > b)),
    "fcmp_une": lambda a, b: a != b,
    "fcmp_ult": lambda a, b: ~(a >= b),
    "fcmp_ule": lambda a, b: ~(a > b),
    "fcmp_ugt": lambda a, b: ~(a <= b),
    "fcmp_uge": lambda a, b: ~(a < b),
    "fcmp_uno": lambda a, b: np.isnan(a) | np.isnan(b),
}
FLOAT_MEANING: dict[str, Callable[..., Array]] = {**FLOAT_UNARY, **FLOAT_BINARY}


def test_float_kernels() -> None:
    checked = 0
    for name, (arrays, result) in run(list(float_kernels())).items():
        operation, _, kind = name.rpartition("_")
        function = FLOAT_MEANING.get(operation)
        if function is None or kind not in ("f16", "bf16", "f32", "f64"):
            continue
        wide = [array.astype(np.float64) if kind in ("f16", "bf16") else array for array in arrays]
        want = function(*wide)
        if operation in ("maximum", "minimum", "maxnum", "minnum"):
            # test_float_instructions checks the sign of a zero, as in min(-0, +0).
            result, want = result + result.dtype.type(0), want + 0.0
        if kind == "bf16" and want.dtype == np.float64:
            want = round_bf16(want)
        assert_same(name, result, want)
        checked += 1
    assert checked > 110


def round_bf16(x: Array) -> Array:
    """Round f64 to bf16 once: f32 with a sticky last bit in between."""
    single = x.astype(np.float32)
    cut = np.where(np.abs(single.astype(np.float64)) > np.abs(x), np.nextafter(single, np.float32(0)), single)
    return (cut.view(np.uint32) | (np.isfinite(x) & (cut.astype(np.float64) != x))).view(np.float32).astype(ml_dtypes.bfloat16)


def test_fused_operations() -> None:
    for name, (arrays, result) in run(
        [kernel for kernel in float_kernels() if re.match("fma_|contracted_", kernel.name)]
    ).items():
        operation, _, kind = name.rpartition("_")
        a, b, c = (array.astype(np.float64) for array in arrays)
        want = exact_numerics.exact_fma(a, b, -c if operation == "contracted" else c, "rn", kind)
        assert_same(name, result, want)


def test_conversions() -> None:
    for name, (arrays, result) in run(list(conversion_kernels())).items():
        (x,) = arrays
        operation, source, _ = name.split("_")
        if name == "sitofp_i1_bf16" or (name.startswith("fpto") and name.endswith("_i1")):
            # LLVM 22 makes +1 of a signed one-bit 1 from sm_90 on; the others are undefined for most values.
            continue
        if source == "i1":
            x = -x.astype(np.int8) if operation == "sitofp" else x
        elif operation in ("uitofp", "zext"):
            x = x.view(f"u{x.itemsize}")
        if result.dtype == ml_dtypes.bfloat16:
            exact = np.array([sticky(item) for item in x.tolist()]) if x.dtype.kind in "iu" else x.astype(np.float64)
            want = round_bf16(exact)
        elif operation == "fptoui":
            want = np.array([int(item) for item in x.astype(np.float64).tolist()], dtype=object).astype(f"u{result.itemsize}")
            want = want.view(result.dtype)
        else:
            want = x.astype(result.dtype)
        assert_same(name, result, want)


def sticky(value: int) -> float:
    """The integer cut to 53 bits, the last one set if anything was cut."""
    excess = max(0, abs(value).bit_length() - 53)
    cut = abs(value) >> excess | bool(abs(value) & ((1 << excess) - 1))
    return float(cut << excess) * (-1 if value < 0 else 1)


def erf(x: Array) -> Array:
    return np.array([math.erf(item) for item in x.tolist()])


# name -> (function, bound in units of the last place as CUDA's manual gives it, rounded up)
MATHS_UNARY: dict[str, tuple[Callable[[Array], Array], float]] = {
    "acos": (np.arccos, 2),
    "acosh": (np.arccosh, 4),
    "asin": (np.arcsin, 2),
    "asinh": (np.arcsinh, 3),
    "atan": (np.arctan, 2),
    "atanh": (np.arctanh, 3),
    "cbrt": (np.cbrt, 1),
    "ceil": (np.ceil, 0),
    "cos": (np.cos, 2),
    "cosh": (np.cosh, 2),
    "erf": (erf, 2),
    "exp": (np.exp, 2),
    "exp2": (np.exp2, 2),
    "expm1": (np.expm1, 1),
    "floor": (np.floor, 0),
    "log": (np.log, 1),
    "log10": (np.log10, 2),
    "log1p": (np.log1p, 1),
    "log2": (np.log2, 1),
    "rint": (np.rint, 0),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 2),
    "sin": (np.sin, 2),
    "sinh": (np.sinh, 3),
    "sqrt": (np.sqrt, 0),
    "tan": (np.tan, 4),
    "tanh": (np.tanh, 2),
    "trunc": (np.trunc, 0),
}
MATHS_BINARY: dict[str, tuple[Callable[[Array, Array], Array], float]] = {
    "atan2": (np.arctan2, 3),
    "copysign": (np.copysign, 0),
    "fmod": (np.fmod, 0),
    "fmin": (np.fmin, 0),
    "fmax": (np.fmax, 0),
    "hypot": (np.hypot, 3),
    "pow": (np.power, 4),
}
MATHS: dict[str, tuple[Callable[..., Array], float]] = {**MATHS_UNARY, **MATHS_BINARY}


def test_libdevice() -> None:
    """libdevice's functions run and stay within their bounds: tables in constant memory, range reduction through local memory."""
    kernels = [kernel for kernel in all_kernels() if kernel.name.startswith("nv_") and "fast" not in kernel.name]
    checked = 0
    for name, (arrays, result) in run(kernels, together=1).items():
        base = name.removeprefix("nv_")
        single = result.dtype == np.float32
        meaning = MATHS.get(base.removesuffix("f") if single else base)
        if meaning is None:
            continue
        function, bound = meaning
        exact = function(*(array.astype(np.float64) for array in arrays))
        want = exact.astype(result.dtype)
        unit = np.maximum(np.abs(np.spacing(want)), np.finfo(result.dtype).smallest_subnormal).astype(np.float64)
        # f64 results are compared with numpy's, which is off by an ulp or so itself.
        error = np.abs(result.astype(np.float64) - exact) / unit
        fine = (error <= bound + (0.51 if single else 1.5)) | (result == want) | (np.isnan(result) & np.isnan(want))
        assert fine.all(), (name, [array[~fine][:3] for array in arrays], result[~fine][:3], want[~fine][:3])
        checked += 1
    assert checked > 55


def test_large_arguments_take_the_slow_path_of_range_reduction() -> None:
    kernels = [kernel for kernel in all_kernels() if kernel.name in ("nv_sinf", "nv_cosf", "nv_sin", "nv_tanf")]
    ptx = ptx_of(tuple(kernels), "h100")
    module = parse_module(ptx)
    assert ".local" in ptx
    for kernel in kernels:
        dtype = NUMPY[kernel.inputs[0]]
        x = np.geomspace(1, 1e38 if dtype == np.float32 else 1e300, COUNT).astype(dtype)
        result = np.zeros_like(x)
        launch(compile_program(module, kernel.name), ptx, [x, result], COUNT // 128, 128)
        function = {"s": np.sin, "c": np.cos, "t": np.tan}[kernel.name[3]]
        want = function(x.astype(np.float64))
        assert np.allclose(result, want, rtol=1e-6 if dtype == np.float32 else 1e-15, atol=1e-7 if dtype == np.float32 else 1e-16)
