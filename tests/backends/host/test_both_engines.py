"""Instructions and random programs on both engines: `host_kernels` compares what they leave, the tests what it should be."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from host_kernels import apply, kernel, run_text
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

Array = NDArray[Any]
SHARED = ".shared .align 16 .b8 tile[4096];"


def words(seed: int, count: int = 96) -> Array:
    """Random bits, some of them those of edge values."""
    rng = np.random.default_rng(seed)
    random = rng.integers(0, 2**32, count, dtype=np.uint32)
    edges = np.array([0, 1, 2**31, 2**32 - 1, 0x3F800000, 0xFF800000, 0x7FC00001, 0x00000001, 0x807FFFFF, 31, 32], np.uint32)
    random[: edges.size] = edges
    return rng.permutation(random)


# ---- instructions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("types", ["s32.s32", "u32.u32", "s32.u32", "u32.s32"])
def test_dot_products_of_bytes(types: str) -> None:
    a, b, c = words(0), words(1), words(2)
    signed = [name[0] == "s" for name in types.split(".")]
    bytes_a, bytes_b = (
        x.view(np.int8 if is_signed else np.uint8).reshape(-1, 4).astype(np.int64)
        for x, is_signed in zip((a, b), signed, strict=True)
    )
    halves = a.view(np.int16 if signed[0] else np.uint16).reshape(-1, 2).astype(np.int64)
    got = apply(f"dp4a.{types} %x, %a, %b, %c;", (a, b, c), np.uint32)
    assert (got == ((bytes_a * bytes_b).sum(axis=1) + c).astype(np.uint32)).all()
    for mode, start in (("lo", 0), ("hi", 2)):
        got = apply(f"dp2a.{mode}.{types} %x, %a, %b, %c;", (a, b, c), np.uint32)
        assert (got == ((halves * bytes_b[:, start : start + 2]).sum(axis=1) + c).astype(np.uint32)).all()


@pytest.mark.parametrize(("kind", "dtype"), [("f32", np.float32), ("f64", np.float64)])
def test_vectors_of_floats_are_added_atomically(kind: str, dtype: Any) -> None:
    size = np.dtype(dtype).itemsize
    rng = np.random.default_rng(3)
    values = rng.standard_normal((64, 2)).astype(dtype)
    places = rng.integers(0, 5, 64).astype(np.uint32)
    r = "r" if size == 4 else "d"
    body = f"""
    add.s64 %d1, %p1, %w4; ld.global.u32 %r1, [%d1]; mul.wide.u32 %d2, %r1, {2 * size}; add.s64 %d2, %p2, %d2;
    mul.wide.u32 %d3, %i, {2 * size}; add.s64 %d3, %p0, %d3;
    ld.global.v2.{kind} {{%{r}5, %{r}6}}, [%d3];
    red.global.v2.{kind}.add [%d2], {{%{r}5, %{r}6}};"""
    total = np.zeros((5, 2), dtype)
    run_text(kernel(body, 3), [values, places, total], grid=2)
    want = np.zeros((5, 2), dtype)
    np.add.at(want, places, values)
    assert (total == want).all()


@pytest.mark.parametrize("operation", ["add", "min", "max"])
@pytest.mark.parametrize(("kind", "dtype"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_atomics_on_halves(operation: str, kind: str, dtype: Any) -> None:
    values = np.random.default_rng(4).standard_normal(64).astype(dtype)
    body = f"""
    add.s64 %d1, %p0, %w2; ld.global.b16 %h1, [%d1];
    red.global.{operation}.noftz.{kind} [%p1], %h1;
    mov.b32 %r1, {{%h1, %h1}};
    red.global.{operation}.noftz.{kind}x2 [%p1+4], %r1;"""
    state = np.zeros(4, dtype)
    run_text(kernel(body, 2), [values, state], grid=2)
    want = np.zeros((), dtype)
    for value in values:
        want = {"add": np.add, "min": np.minimum, "max": np.maximum}[operation](want, value).astype(dtype)
    assert (state == np.array([want, 0, want, want]).astype(dtype)).all()


def test_compare_and_swap_of_every_width() -> None:
    for bits, dtype in ((16, np.uint16), (32, np.uint32), (64, np.uint64)):
        register = {16: "h", 32: "r", 64: "d"}[bits]
        body = f"""
        cvt.u{bits}.u32 %{register}5, %i; add.u{bits} %{register}6, %{register}5, 1;
        atom.global.cas.b{bits} %{register}7, [%p0], %{register}5, %{register}6;
        mul.wide.u32 %d1, %i, {bits // 8}; add.s64 %d1, %p1, %d1; st.global.b{bits} [%d1], %{register}7;"""
        state, seen = np.full(4, 3, dtype), np.zeros(32, dtype)
        run_text(kernel(body, 2), [state, seen])
        assert state.tolist() == [32, 3, 3, 3]
        assert seen.tolist() == [3, 3, 3, *range(3, 32)]


def test_who_is_active() -> None:
    body = """
    and.b32 %r1, %i, 3; mov.u32 %r2, 0; setp.lt.u32 %q1, %r1, 3;
    @%q1 bra SOME;
    bra END;
    SOME: activemask.b32 %r2;
    END: activemask.b32 %r3; xor.b32 %r2, %r2, %r3;
    add.s64 %d1, %p0, %w4; st.global.u32 [%d1], %r2;"""
    out = np.zeros(40, np.uint32)
    run_text(kernel(body, 1), [out], block=40)
    some = np.where(np.arange(40) % 4 < 3, 0x77777777, 0).astype(np.uint32)
    assert (out[:32] == some[:32] ^ np.uint32(0xFFFFFFFF)).all()
    assert (out[32:] == some[32:] & np.uint32(0xFF) ^ np.uint32(0xFF)).all()


@pytest.mark.parametrize("value", ["mov.b32 %r1, 7;", "and.b32 %r1, %tid, 0;", "and.b32 %r1, %tid, 3; xor.b32 %r1, %r1, %r1;"])
def test_a_shuffle_of_a_constant(value: str) -> None:
    """Registers with the same value in all threads have no memory between the phases of a kernel."""
    body = f"""
    {value} shfl.sync.down.b32 %r2, %r1, 16, 31, -1;
    add.s64 %d1, %p0, %w4; st.global.u32 [%d1], %r2;"""
    out = np.full(64, 9, np.uint32)
    run_text(kernel(body, 1), [out], block=64)
    assert (out == (7 if "7" in value else 0)).all()


def test_warps_that_take_different_ways_to_a_barrier() -> None:
    """Odd warps shuffle in a loop of their own, some threads have ended, and all meet at the end."""
    body = """
    setp.ge.u32 %q5, %tid, 120;
    @%q5 exit;
    shr.u32 %r1, %tid, 5; and.b32 %r2, %r1, 1; mov.u32 %r3, %tid; mov.u32 %r5, %r1;
    setp.eq.u32 %q1, %r2, 0;
    @%q1 bra MEET;
    LOOP:
    shfl.sync.bfly.b32 %r4, %r3, 1, 31, -1;
    add.u32 %r3, %r3, %r4; sub.u32 %r5, %r5, 1;
    setp.ne.u32 %q2, %r5, 0;
    @%q2 bra LOOP;
    MEET:
    shl.b32 %r6, %tid, 2; mov.u32 %r7, tile; add.u32 %r6, %r6, %r7; st.shared.u32 [%r6], %r3;
    bar.sync 0;
    xor.b32 %r8, %r6, 128; setp.lt.u32 %q3, %tid, 64; ld.shared.u32 %r9, [%r6];
    @%q3 ld.shared.u32 %r9, [%r8];
    add.s64 %d1, %p0, %w4; st.global.u32 [%d1], %r9;"""
    out = np.full(256, 7, np.uint32)
    run_text(kernel(body, 1, SHARED), [out], grid=2, block=128)
    value = np.arange(128)
    pair = value + (value ^ 1)
    want = np.select([(value >= 32) & (value < 64), (value >= 96) & (value < 120)], [pair, pair * 4], value)
    want[:64] = np.concatenate([want[32:64], want[:32]])
    want[120:] = 7
    assert (out.reshape(2, 128) == want).all()


def test_products_of_bf16_near_the_smallest_numbers_are_rounded_once() -> None:
    rng = np.random.default_rng(5)
    exponents = rng.integers(1, 120, 1 << 14)
    others = np.clip(120 - exponents + rng.integers(-10, 12, exponents.size), 0, 254)
    x, y = (
        ((rng.integers(0, 2, e.size) << 15) | (e << 7) | rng.integers(0, 128, e.size)).astype(np.uint16)
        for e in (exponents, others)
    )
    got = apply("mul.rn.bf16 %x, %a, %b;", (x, y), np.uint16)
    exact = x.view(ml_dtypes.bfloat16).astype(np.float64) * y.view(ml_dtypes.bfloat16).astype(np.float64)
    unit = np.maximum(np.frexp(exact)[1] - 8, -133)
    want = np.ldexp(np.rint(np.ldexp(exact, -unit)), unit).astype(np.float32).astype(ml_dtypes.bfloat16)
    assert (np.abs(exact) < 2.0**-126).mean() > 0.5
    assert (got == want.view(np.uint16)).all()


# ---- random programs ------------------------------------------------------------------------------------------------

_BINARY = (
    *(f"{op}.{t}" for op in ("add", "sub", "mul.lo", "mul.hi", "min", "max", "div", "rem") for t in ("s32", "u32")),
    *(f"{op}.b32" for op in ("and", "or", "xor", "shl")),
    *("shr.u32", "shr.s32", "add.f32", "sub.f32", "mul.f32", "div.rn.f32", "min.f32", "max.f32", "add.rz.f32", "mul.rp.f32"),
    *("add.f16x2", "mul.f16x2", "add.bf16x2", "mul.bf16x2", "min.f16x2", "max.bf16x2", "add.sat.s32", "sub.ftz.f32"),
)
_UNARY = (
    *("not.b32", "neg.s32", "abs.s32", "popc.b32", "clz.b32", "brev.b32", "bfind.u32", "neg.f32", "abs.f32", "sqrt.rn.f32"),
    *("ex2.approx.ftz.f32", "lg2.approx.f32", "sin.approx.f32", "cos.approx.f32", "tanh.approx.f32", "rcp.approx.ftz.f32"),
    *("rsqrt.approx.f32", "cvt.rni.s32.f32", "cvt.rzi.u32.f32", "cvt.rn.f32.s32", "cvt.rz.f32.u32", "cvt.sat.f32.f32"),
)
_TERNARY = (
    "fma.rn.f32",
    "fma.rm.f32",
    "mad.lo.s32",
    "sad.u32",
    "prmt.b32",
    "bfe.s32",
    "bfe.u32",
    "fma.rn.bf16x2",
    "fma.rn.f16x2",
)
_SHUFFLES = ("up", "down", "bfly", "idx")
_REGISTERS = st.integers(0, 5).map(lambda number: f"%v{number}")
_SOURCES = st.one_of(_REGISTERS, st.sampled_from(("%i", "%tid", "5", "-3", "0x3F800000")))


def _line(opcode: str, *operands: str) -> str:
    return f"{opcode} {', '.join(operands)};"


@st.composite
def statements(draw: st.DrawFn, depth: int = 0, *, uniform: bool = True) -> list[str]:
    """Draw a few lines. With `uniform` all threads run them, so the lines may have barriers."""
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(("binary", "unary", "ternary", "select", "meet" if uniform else "binary", "if", "loop")))
        target = draw(_REGISTERS)
        if kind == "binary":
            lines.append(_line(draw(st.sampled_from(_BINARY)), target, draw(_REGISTERS), draw(_REGISTERS)))
        elif kind == "unary":
            lines.append(_line(draw(st.sampled_from(_UNARY)), target, draw(_REGISTERS)))
        elif kind == "ternary":
            lines.append(_line(draw(st.sampled_from(_TERNARY)), target, *(draw(_REGISTERS) for _ in range(3))))
        elif kind == "select":
            lines += [f"setp.lt.s32 %q1, {draw(_REGISTERS)}, {draw(_SOURCES)};"]
            lines.append(f"selp.b32 {target}, {draw(_REGISTERS)}, {draw(_SOURCES)}, %q1;")
        elif kind == "meet":
            lines += draw(meetings(target))
        elif depth < 2:
            lines += draw(nested(kind, depth, uniform))
    return lines


@st.composite
def meetings(draw: st.DrawFn, target: str) -> list[str]:
    source = draw(_REGISTERS)
    kind = draw(st.sampled_from(("shfl", "vote", "redux", "exchange")))
    if kind == "shfl":
        distance = draw(st.sampled_from(("1", "16", "3", "%v0")))
        bounds = draw(st.sampled_from(("31", "0", "0x181F", "0x1007")))
        return [f"shfl.sync.{draw(st.sampled_from(_SHUFFLES))}.b32 {target}, {source}, {distance}, {bounds}, -1;"]
    if kind == "vote":
        return [f"setp.gt.s32 %q2, {source}, 0;", f"vote.sync.ballot.b32 {target}, %q2, -1;"]
    if kind == "redux":
        return [f"redux.sync.{draw(st.sampled_from(('add.u32', 'max.s32', 'xor.b32')))} {target}, {source}, -1;"]
    return [
        f"bar.sync 0; st.shared.u32 [%own], {source};",
        f"bar.sync 0; ld.shared.u32 {target}, [%other];",
    ]


@st.composite
def nested(draw: st.DrawFn, kind: str, depth: int, uniform: bool) -> list[str]:
    label = f"L{draw(st.integers(0, 10**9))}"
    register = f"%n{depth}"
    if kind == "loop":
        inner = draw(statements(depth + 1, uniform=uniform))
        count = draw(st.integers(1, 3))
        turn = [f"add.u32 {register}, {register}, 1; setp.lt.u32 %q3, {register}, {count};", f"@%q3 bra {label};"]
        return [f"mov.u32 {register}, 0;", f"{label}:", *inner, *turn]
    inner = draw(statements(depth + 1, uniform=False))
    return [f"setp.ge.s32 %q4, {draw(_REGISTERS)}, {draw(_SOURCES)};", f"@%q4 bra {label};", *inner, f"{label}:"]


@given(st.data(), st.sampled_from((32, 40, 64, 128)))
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example),
)
def test_random_programs(data: st.DataObject, block: int) -> None:
    lines = data.draw(statements())
    labels = [line for line in lines if line.endswith(":")]
    if len(set(labels)) != len(labels):
        return
    loads = "\n".join(f"ld.global.u32 %v{number}, [%at+{4 * number}];" for number in range(6))
    stores = "\n".join(f"st.global.u32 [%to+{4 * number}], %v{number};" for number in range(6))
    body = f"""
    mul.wide.u32 %at, %i, 24; add.s64 %to, %p1, %at; add.s64 %at, %p0, %at;
    mov.u32 %own, tile; mad.lo.u32 %own, %tid, 4, %own; xor.b32 %other, %own, 4;
    {loads}
    {chr(10).join(lines)}
    {stores}"""
    registers = ".reg .b32 %v<6>, %n<3>, %own, %other; .reg .b64 %at, %to;"
    inputs = words(7, 6 * 2 * block)
    run_text(kernel(body, 2, SHARED, registers), [inputs, np.zeros_like(inputs)], grid=2, block=block)
