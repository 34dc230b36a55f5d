"""Threads, blocks, divergence, barriers, warps, atomics, calls and local memory, seen through what kernels write."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from host_kernels import HEAD, apply, apply_all, apply_each, kernel, padded, run_text

from hlo_run.backends.host.emulator import emulator
from hlo_run.errors import DeviceError


def test_thread_and_block_coordinates() -> None:
    names = [f"%{base}.{axis}" for base in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"] + ["%laneid", "%warpid"]
    reads = "\n".join(f"mov.u32 %r1, {name};\nst.global.u32 [%d1+{4 * k}], %r1;" for k, name in enumerate(names))
    size = 4 * len(names)
    body = f"""
    mov.u32 %r1, %tid.y; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.z; mov.u32 %r4, %ntid.y;
    mad.lo.u32 %r1, %r3, %r4, %r1; mad.lo.u32 %r1, %r1, %r2, %tid;
    mul.lo.u32 %r5, %r2, %r4; mov.u32 %r6, %ntid.z; mul.lo.u32 %r5, %r5, %r6;
    mad.lo.u32 %r1, %cta, %r5, %r1;
    mul.wide.u32 %d1, %r1, {size}; add.s64 %d1, %p0, %d1;
    {reads}"""
    block = (8, 3, 2)
    out = np.zeros((5 * 48, len(names)), np.uint32)
    run_text(kernel(body, 1), [out], grid=5, block=block)
    for index, row in enumerate(out.tolist()):
        cta, thread = divmod(index, 48)
        tid = [thread % 8, thread // 8 % 3, thread // 24]
        assert row == [*tid, *block, cta, 0, 0, 5, 1, 1, thread % 32, thread // 32]


def test_lane_masks() -> None:
    out = np.zeros((32, 5), np.uint32)
    kinds = ("eq", "lt", "le", "gt", "ge")
    reads = "\n".join(f"mov.u32 %r1, %lanemask_{kind};\nst.global.u32 [%d1+{4 * k}], %r1;" for k, kind in enumerate(kinds))
    run_text(kernel(f"mul.wide.u32 %d1, %i, 20; add.s64 %d1, %p0, %d1;\n{reads}", 1), [out])
    for lane, row in enumerate(out.tolist()):
        below, own = (1 << lane) - 1, 1 << lane
        assert row == [own, below, below | own, 0xFFFFFFFF & ~(below | own), 0xFFFFFFFF & ~below]


@pytest.mark.parametrize("chunk", [32, 96, 16384])
def test_results_do_not_depend_on_the_chunk(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulator, "CHUNK_LANES", chunk)
    # Collatz steps: every lane leaves the loop at its own time.
    body = """
    add.u32 %r1, %i, 1; mov.u32 %r2, 0;
    LOOP:
    setp.eq.u32 %q1, %r1, 1;
    @%q1 bra DONE;
    and.b32 %r3, %r1, 1;
    setp.eq.u32 %q2, %r3, 0;
    @%q2 bra EVEN;
    mad.lo.u32 %r1, %r1, 3, 1;
    bra NEXT;
    EVEN:
    shr.u32 %r1, %r1, 1;
    NEXT:
    add.u32 %r2, %r2, 1;
    bra LOOP;
    DONE:
    add.s64 %d1, %p0, %w4;
    st.global.u32 [%d1], %r2;"""
    out = np.zeros(7 * 40, np.uint32)
    run_text(kernel(body, 1), [out], grid=7, block=40)
    for number, steps in enumerate(out.tolist(), 1):
        count = 0
        while number != 1:
            number = 3 * number + 1 if number & 1 else number // 2
            count += 1
        assert steps == count


def test_guards_on_any_instruction() -> None:
    body = """
    and.b32 %r1, %i, 1; setp.eq.u32 %q1, %r1, 0;
    mov.u32 %r2, 7;
    @%q1 mov.u32 %r2, 9;
    @!%q1 add.u32 %r2, %r2, %i;
    add.s64 %d1, %p0, %w4;
    @%q1 ld.global.u32 %r2, [%d1];
    setp.gt.u32 %q2, %i, 5;
    @%q2 exit;
    st.global.u32 [%d1], %r2;"""
    out = np.arange(100, 132, dtype=np.uint32)
    before = out.copy()
    run_text(kernel(body, 1), [out])
    want = np.where(np.arange(32) % 2 == 0, before, 7 + np.arange(32))
    assert (out[:6] == want[:6]).all()
    assert (out[6:] == before[6:]).all()


def test_jump_tables() -> None:
    body = """
    and.b32 %r1, %i, 3;
    mov.u32 %r2, 0;
    brx.idx %r1, TABLE;
    TABLE: .branchtargets A, B, C, A;
    A: add.u32 %r2, %r2, 1;
    B: add.u32 %r2, %r2, 10;
    bra END;
    C: add.u32 %r2, %r2, 100;
    END:
    add.s64 %d1, %p0, %w4;
    st.global.u32 [%d1], %r2;"""
    out = np.zeros(64, np.uint32)
    run_text(kernel(body, 1), [out], grid=2)
    assert out.tolist() == [11, 10, 100, 11] * 16


SHARED = ".shared .align 16 .b8 tile[4224];"


def test_shared_memory_transposes_a_padded_tile() -> None:
    body = """
    and.b32 %r1, %tid, 31; shr.u32 %r2, %tid, 5;
    mad.lo.u32 %r3, %r2, 33, %r1; shl.b32 %r3, %r3, 2;
    mov.u32 %r4, tile; add.u32 %r5, %r4, %r3;
    add.s64 %d1, %p0, %w4; ld.global.f32 %r6, [%d1];
    st.shared.f32 [%r5], %r6;
    bar.sync 0;
    mad.lo.u32 %r3, %r1, 33, %r2; shl.b32 %r3, %r3, 2;
    add.u32 %r5, %r4, %r3; ld.shared.f32 %r6, [%r5];
    add.s64 %d2, %p1, %w4; st.global.f32 [%d2], %r6;"""
    x = np.random.default_rng(0).standard_normal((3, 32, 32)).astype(np.float32)
    out = np.zeros_like(x)
    run_text(kernel(body, 2, SHARED), [x, out], grid=3, block=1024, checks=("race",))
    assert (out == x.transpose(0, 2, 1)).all()


def test_shared_memory_is_not_zero_and_belongs_to_one_block() -> None:
    body = """
    ld.shared.u32 %r1, [tile+8];
    st.shared.u32 [tile+8], %cta;
    bar.sync 0;
    add.s64 %d1, %p0, %w4; st.global.u32 [%d1], %r1;"""
    out = np.zeros(300, np.uint32)
    run_text(kernel(body, 1, SHARED), [out], grid=300, block=1)
    assert (out == 0xFFC1FFC1).all()


def test_barriers_in_uniform_loops_and_branches() -> None:
    # Blocks 0, 2, .. reduce in shared memory step by step; the others skip all barriers.
    body = """
    and.b32 %r1, %cta, 1; setp.ne.u32 %q1, %r1, 0;
    @%q1 bra STORE;
    shl.b32 %r2, %tid, 2; mov.u32 %r3, tile; add.u32 %r4, %r3, %r2;
    st.shared.u32 [%r4], %i;
    mov.u32 %r5, 32;
    LOOP:
    bar.sync 0;
    setp.ge.u32 %q2, %tid, %r5;
    @%q2 bra SKIP;
    shl.b32 %r6, %r5, 2; add.u32 %r7, %r4, %r6;
    ld.shared.u32 %r8, [%r7]; ld.shared.u32 %r9, [%r4]; add.u32 %r9, %r9, %r8; st.shared.u32 [%r4], %r9;
    SKIP:
    shr.u32 %r5, %r5, 1;
    setp.ne.u32 %q3, %r5, 0;
    @%q3 bra LOOP;
    bar.sync 0;
    ld.shared.u32 %r1, [tile];
    STORE:
    add.s64 %d1, %p0, %w4; st.global.u32 [%d1], %r1;"""
    out = np.zeros(5 * 64, np.uint32)
    run_text(kernel(body, 1, SHARED), [out], grid=5, block=64, checks=("race",))
    sums = np.arange(5 * 64).reshape(5, 64).sum(axis=1)
    assert (out.reshape(5, 64) == np.where(np.arange(5) % 2, 1, sums)[:, None]).all()


def test_threads_that_have_ended_do_not_hold_up_a_barrier() -> None:
    body = """
    setp.ge.u32 %q1, %tid, 40;
    @%q1 exit;
    shl.b32 %r2, %tid, 2; mov.u32 %r3, tile; add.u32 %r4, %r3, %r2;
    st.shared.u32 [%r4], %tid;
    barrier.cta.sync.aligned.all 0;
    mov.u32 %r5, 39; sub.u32 %r5, %r5, %tid; shl.b32 %r5, %r5, 2; add.u32 %r5, %r5, %r3;
    ld.shared.u32 %r6, [%r5];
    add.s64 %d1, %p0, %w4; st.global.u32 [%d1], %r6;"""
    out = np.zeros(128, np.uint32)
    run_text(kernel(body, 1, SHARED), [out], grid=2, block=64)
    assert out.tolist() == ([*range(39, -1, -1)] + [0] * 24) * 2


def test_divergent_barrier_is_a_fault() -> None:
    body = "setp.lt.u32 %q1, %tid, 40;\n@%q1 bra A;\nbra END;\nA: bar.sync 0;\nEND: bar.sync 0;"
    with pytest.raises(DeviceError) as caught:
        run_text(kernel(body, 0), [], grid=2, block=64)
    assert "divergent barrier" in caught.value.message
    assert caught.value.where is not None
    assert "bar.sync" in caught.value.where.source_line
    assert "thread (0, 0, 0) of block (0, 0, 0)" in caught.value.message
    assert "thread (40, 0, 0) of block (0, 0, 0) waits" in caught.value.notes[0]


def test_barrier_reductions() -> None:
    body = """
    and.b32 %r1, %i, 3; setp.eq.u32 %q1, %r1, 1;
    bar.red.popc.u32 %r2, 0, %q1;
    bar.red.or.pred %q2, 0, %q1;
    bar.red.and.pred %q3, 0, %q1;
    selp.u32 %r3, 100, 0, %q2; selp.u32 %r4, 1000, 0, %q3;
    add.u32 %r2, %r2, %r3; add.u32 %r2, %r2, %r4;
    add.s64 %d1, %p0, %w4; st.global.u32 [%d1], %r2;"""
    out = np.zeros(2 * 36, np.uint32)
    run_text(kernel(body, 1), [out], grid=2, block=36)
    assert (out == 109).all()


# ---- warps ----------------------------------------------------------------------------------------------------------


def shuffled(mode: str, distance: int, bounds: int, lane: int) -> tuple[int, bool]:
    """The manual's formula: the lane to read from, and the predicate."""
    distance, segment, clamp = distance & 31, bounds >> 8 & 31, bounds & 31
    highest, lowest = (lane & segment) | (clamp & ~segment), lane & segment
    source = {
        "up": lane - distance,
        "down": lane + distance,
        "bfly": lane ^ distance,
        "idx": lowest | (distance & ~segment & 31),
    }[mode]
    in_range = source >= highest if mode == "up" else source <= highest
    return (source if in_range else lane), in_range


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("bounds", [31, 0, 0x181F, 0x1007, 0x1C03])
def test_shuffles(mode: str, bounds: int) -> None:
    value = np.random.default_rng(1).integers(0, 2**32, 96, dtype=np.uint32)
    distances = (0, 1, 5, 16, 31, 33)
    codes = [f"shfl.sync.{mode}.b32 %x|%y, %a, {distance}, {bounds}, -1;" for distance in distances]
    found = apply_all([(code, np.uint32, np.bool_) for code in codes], (value,))
    for distance, (got, flag) in zip(distances, found, strict=True):
        expected = [shuffled(mode, distance, bounds, lane % 32) for lane in range(96)]
        assert got.tolist() == [int(value[lane // 32 * 32 + source]) for lane, (source, _) in enumerate(expected)]
        assert flag.tolist() == [in_range for _, in_range in expected]


def test_shuffles_by_registers_among_some_lanes() -> None:
    value = np.arange(64, dtype=np.uint32) * 3
    distance = np.random.default_rng(2).integers(0, 16, 64, dtype=np.uint32)
    code = """
    mov.u32 %r1, %laneid; setp.lt.u32 %q1, %r1, 16; mov.u32 %x, 0;
    @%q1 bra HALF;
    bra END;
    HALF: shfl.sync.idx.b32 %x, %a, %b, 31, 0xFFFF;
    END:"""
    got = apply(code, (value, distance), np.uint32)
    want = [value[lane // 32 * 32 + distance[lane]] if lane % 32 < 16 else 0 for lane in range(64)]
    assert got.tolist() == [int(item) for item in want]


def test_shuffle_in_a_block_that_is_no_multiple_of_a_warp() -> None:
    body = """
    shfl.sync.down.b32 %r1, %i, 4, 31, -1;
    add.s64 %d1, %p0, %w4; st.global.u32 [%d1], %r1;"""
    out = np.zeros(80, np.uint32)
    run_text(kernel(body, 1), [out], grid=2, block=40)
    # Lanes that would read beyond their warp or block keep their own value.
    want = [i + 4 if (i % 40 % 32) + 4 <= 31 and i % 40 + 4 < 40 else i for i in range(80)]
    assert out.tolist() == want


def test_divergent_shuffle_is_a_fault() -> None:
    body = """
    setp.lt.u32 %q1, %tid, 7;
    @%q1 bra A;
    bra END;
    A: shfl.sync.down.b32 %r1, %tid, 1, 31, -1;
    END: bar.sync 0;"""
    with pytest.raises(DeviceError, match="divergent warp-wide instruction"):
        run_text(kernel(body, 0), [])


def test_votes_and_matches() -> None:
    value = np.random.default_rng(3).integers(0, 5, 96, dtype=np.uint32)
    value[32:64] = 2
    warps = value.reshape(3, 32)
    equal = "setp.eq.u32 %q1, %a, 2; "
    (ballot, some), (everybody, uniform), alike, (matched, same) = apply_all(
        [
            (f"{equal}vote.sync.ballot.b32 %x, %q1, -1; vote.sync.any.pred %y, %q1, -1;", np.uint32, np.bool_),
            (f"{equal}vote.sync.all.pred %x, %q1, -1; vote.sync.uni.pred %y, %q1, -1;", np.bool_, np.bool_),
            ("match.any.sync.b32 %x, %a, -1;", np.uint32),
            ("match.all.sync.b32 %x|%y, %a, -1;", np.uint32, np.bool_),
        ],
        (value,),
    )
    want = [sum(int(v == 2) << lane for lane, v in enumerate(warp)) for warp in warps]
    assert ballot.reshape(3, 32)[:, 0].tolist() == want
    assert (some.reshape(3, 32) == (warps == 2).any(axis=1)[:, None]).all()
    assert everybody.reshape(3, 32)[:, 0].tolist() == [False, True, False]
    assert uniform.reshape(3, 32)[:, 5].tolist() == [False, True, False]
    for lane, mask in enumerate(alike.tolist()):
        warp = warps[lane // 32]
        assert mask == sum(int(v == warp[lane % 32]) << k for k, v in enumerate(warp))
    assert matched.reshape(3, 32)[:, 0].tolist() == [0, 0xFFFFFFFF, 0]
    assert same.reshape(3, 32)[:, 0].tolist() == [False, True, False]


def test_warp_reductions_and_election() -> None:
    value = np.random.default_rng(4).integers(-1000, 1000, 64).astype(np.int32)
    warps = value.reshape(2, 32)
    names = ("add.s32", "min.s32", "max.s32", "xor.b32", "and.b32", "or.b32")
    found = apply_each([f"redux.sync.{name} %x, %a, -1;" for name in names], (value,), np.int32)
    for name, got in zip(names, found, strict=True):
        assert (got.reshape(2, 32) == COMBINE[name.split(".")[0]].reduce(warps, axis=1)[:, None]).all()
    leader, chosen = apply("elect.sync %x|%y, -1;", (value,), np.uint32, np.bool_)
    assert (leader == 0).all()
    assert np.flatnonzero(chosen).tolist() == [0, 32]
    odd = "and.b32 %r1, %i, 1; setp.eq.u32 %q1, %r1, 1; mov.u32 %x, 0; @%q1 activemask.b32 %x;"
    assert set(apply(odd, (value,), np.uint32).tolist()) == {0, 0xAAAAAAAA}


# ---- atomics --------------------------------------------------------------------------------------------------------


COMBINE = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


@pytest.mark.parametrize(
    ("operation", "kind", "dtype"),
    [
        ("add", "u32", np.uint32),
        ("add", "u64", np.uint64),
        ("add", "f32", np.float32),
        ("add", "f64", np.float64),
        ("min", "s32", np.int32),
        ("max", "u32", np.uint32),
        ("and", "b32", np.uint32),
        ("or", "b64", np.uint64),
        ("xor", "b32", np.uint32),
    ],
)
def test_reductions_into_few_places(operation: str, kind: str, dtype: Any) -> None:
    rng = np.random.default_rng(5)
    values = (rng.integers(0, 200, 320) if np.dtype(dtype).kind != "f" else rng.standard_normal(320)).astype(dtype)
    places = rng.integers(0, 7, 320).astype(np.uint32)
    size = np.dtype(dtype).itemsize
    start = np.full(7, 5, dtype)
    function = COMBINE[operation]
    want = start.copy()
    for place, value in zip(places.tolist(), values, strict=True):
        want[place] = function(want[place], value)
    load = f"""
    add.s64 %d1, %p0, %w{size}; ld.global.b{8 * size} %{"r" if size == 4 else "d"}5, [%d1];
    add.s64 %d2, %p1, %w4; ld.global.u32 %r2, [%d2];
    mul.wide.u32 %d3, %r2, {size}; add.s64 %d3, %p2, %d3;"""
    register = "%r5" if size == 4 else "%d5"
    for text in (
        f"red.global.{operation}.{kind} [%d3], {register};",
        f"atom.global.{operation}.{kind} {register}, [%d3], {register};",
    ):
        got = start.copy()
        run_text(kernel(load + text, 3), [values, places, got], grid=10)
        assert (got == want).all()


def test_atomics_return_what_was_there_in_lane_order() -> None:
    places = np.array([0, 1, 0, 0, 2, 1, 0, 2] * 4, np.uint32)
    body = """
    add.s64 %d1, %p0, %w4; ld.global.u32 %r1, [%d1]; mul.wide.u32 %d2, %r1, 4; add.s64 %d2, %p1, %d2;
    atom.global.add.u32 %r2, [%d2], 1;
    add.s64 %d3, %p2, %w4; st.global.u32 [%d3], %r2;"""
    counters, ranks = np.zeros(3, np.uint32), np.zeros(32, np.uint32)
    run_text(kernel(body, 3), [places, counters, ranks])
    assert counters.tolist() == [16, 8, 8]
    assert ranks.tolist() == [int((places[:lane] == place).sum()) for lane, place in enumerate(places)]


def test_exchange_increment_and_decrement() -> None:
    out, state = np.zeros(32, np.uint32), np.array([5, 1000, 2], np.uint32)
    body = """
    atom.global.exch.b32 %r1, [%p1+4], %i;
    atom.global.inc.u32 %r2, [%p1], 6;
    atom.global.dec.u32 %r3, [%p1+8], 4;
    mad.lo.u32 %r4, %r2, 100, %r1; mad.lo.u32 %r4, %r3, 100000, %r4;
    add.s64 %d1, %p0, %w4; st.global.u32 [%d1], %r4;"""
    run_text(kernel(body, 2), [out, state])
    inc, dec = 5, 2
    for lane, value in enumerate(out.tolist()):
        assert value == (lane - 1 if lane else 1000) + 100 * inc + 100000 * dec
        inc = 0 if inc >= 6 else inc + 1
        dec = 4 if dec == 0 or dec > 4 else dec - 1
    assert state.tolist() == [inc, 31, dec]


def test_compare_and_swap_loop_of_halves() -> None:
    """LLVM's code for an atomic f16 addition: a compare-and-swap loop on the word that holds the half."""
    body = """
    and.b32 %r1, %i, 1; shl.b32 %r1, %r1, 4;
    ld.global.u32 %r2, [%p0];
    LOOP:
    shr.u32 %r3, %r2, %r1; cvt.u16.u32 %h1, %r3;
    add.rn.f16 %h1, %h1, %h2;
    cvt.u32.u16 %r4, %h1; shl.b32 %r4, %r4, %r1;
    mov.u32 %r5, 0xFFFF; shl.b32 %r5, %r5, %r1; not.b32 %r5, %r5; and.b32 %r5, %r5, %r2; or.b32 %r5, %r5, %r4;
    atom.global.cas.b32 %r6, [%p0], %r2, %r5;
    setp.ne.u32 %q1, %r6, %r2;
    mov.u32 %r2, %r6;
    @%q1 bra LOOP;"""
    state = np.array([0.5, 100.0], np.float16)
    run_text(kernel("mov.b16 %h2, 0x3C00;" + body, 1), [state], grid=2)
    assert state.tolist() == [32.5, 132.0]
    packed = np.array([0.5, 100.0], np.float16)
    run_text(kernel("mov.u32 %r1, 0x40003C00; red.global.add.noftz.f16x2 [%p0], %r1;", 1), [packed], grid=2)
    assert packed.tolist() == [64.5, 228.0]


def test_shared_atomics() -> None:
    body = """
    setp.eq.u32 %q1, %tid, 0;
    @%q1 st.shared.u32 [tile], 0;
    bar.sync 0;
    atom.shared.add.u32 %r1, [tile], %tid;
    bar.sync 0;
    ld.shared.u32 %r2, [tile];
    add.s64 %d1, %p0, %w4; st.global.u32 [%d1], %r2;"""
    out = np.zeros(128, np.uint32)
    run_text(kernel(body, 1, SHARED), [out], grid=2, block=64, checks=("race",))
    assert (out == 63 * 32).all()


# ---- memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_vector_accesses(size: int, count: int) -> None:
    if size * count > 32:
        return
    width = max(16, 8 * size)
    registers = [f"%v{k}" for k in range(count)]
    declare = f".reg .b{width} %v<{count}>;"
    names = ", ".join(registers)
    vector = f".v{count}" if count > 1 else ""
    loaded, stored = (f"{{{names}}}", f"{{{', '.join(reversed(registers))}}}") if count > 1 else (names, names)
    body = f"""
    mul.wide.u32 %d1, %i, {size * count}; add.s64 %d2, %p0, %d1; add.s64 %d3, %p1, %d1;
    ld.global{vector}.b{8 * size} {loaded}, [%d2];
    st.global{vector}.b{8 * size} [%d3], {stored};"""
    x = np.random.default_rng(6).integers(0, 256, 64 * size * count, dtype=np.uint8)
    out = np.zeros_like(x)
    run_text(kernel(body, 2, registers=declare), [x, out], grid=2)
    assert (out.reshape(64, count, size) == x.reshape(64, count, size)[:, ::-1]).all()


def test_loads_extend_by_sign_or_zeros() -> None:
    bytes_ = padded(np.array([0, 1, 127, 128, 255], np.uint8))
    body = """
    add.s64 %d1, %p0, %w; ld.global.s8 %r1, [%d1]; ld.global.u8 %h1, [%d1]; ld.global.s8 %h2, [%d1]; ld.global.s8 %d2, [%d1];
    cvt.u32.u16 %r2, %h1; cvt.s32.s16 %r3, %h2; cvt.u32.u64 %r4, %d2;
    shl.b64 %d3, %w, 4; add.s64 %d3, %p1, %d3;
    st.global.v4.u32 [%d3], {%r1, %r2, %r3, %r4};"""
    out = np.zeros((32, 4), np.int32)
    run_text(kernel(body, 2), [bytes_, out])
    signed = bytes_.view(np.int8)
    assert (out == np.stack([signed, bytes_.astype(np.int32), signed, signed], axis=1)).all()


def test_local_memory_belongs_to_one_thread() -> None:
    body = """
    mov.u64 %d1, scratch;
    and.b32 %r1, %i, 3; mul.wide.u32 %d2, %r1, 4; add.s64 %d3, %d1, %d2;
    st.local.u32 [%d3], %i;
    cvta.local.u64 %d4, %d3; ld.u32 %r2, [%d4];
    cvta.to.local.u64 %d5, %d4; ld.local.u32 %r3, [%d5];
    add.u32 %r2, %r2, %r3;
    add.s64 %d6, %p0, %w4; st.global.u32 [%d6], %r2;"""
    out = np.zeros(96, np.uint32)
    run_text(kernel(body, 1, registers=".local .align 4 .b8 scratch[16];"), [out], grid=3)
    assert out.tolist() == [2 * i for i in range(96)]


def test_generic_addresses_reach_shared_and_global_memory_at_once() -> None:
    body = """
    shl.b64 %d1, %w4, 0; mov.u64 %d2, tile; add.s64 %d2, %d2, %d1; cvta.shared.u64 %d3, %d2;
    add.s64 %d4, %p0, %w4;
    st.u32 [%d3], %i;
    and.b32 %r1, %i, 1; setp.eq.u32 %q1, %r1, 0;
    selp.b64 %d5, %d3, %d4, %q1;
    ld.u32 %r2, [%d5];
    isspacep.shared %q2, %d5; selp.u32 %r3, 1000, 0, %q2; add.u32 %r2, %r2, %r3;
    selp.b64 %d6, %p1, %p2, %q1; add.s64 %d6, %d6, %w4;
    st.u32 [%d6], %r2;
    atom.add.u32 %r4, [%d6], 1;"""
    x = np.arange(500, 532, dtype=np.uint32)
    even, odd = np.zeros(32, np.uint32), np.zeros(32, np.uint32)
    run_text(kernel(body, 3, SHARED), [x, even, odd])
    lanes = np.arange(32)
    assert (even == np.where(lanes % 2 == 0, lanes + 1001, 0)).all()
    assert (odd == np.where(lanes % 2 == 1, x + 1, 0)).all()


def test_module_variables() -> None:
    declarations = """
.const .align 4 .u32 squares[4] = {0, 1, 4, 9};
.global .align 8 .u64 tables[1] = {generic(squares)};
.visible .global .align 4 .u32 counter;
"""
    body = """
    and.b32 %r1, %i, 3; mul.wide.u32 %d1, %r1, 4;
    mov.u64 %d2, squares; add.s64 %d2, %d2, %d1; ld.const.u32 %r2, [%d2];
    ld.global.u64 %d3, [tables]; add.s64 %d3, %d3, %d1; ld.u32 %r3, [%d3];
    atom.global.add.u32 %r4, [counter], 1;
    mad.lo.u32 %r2, %r4, 100, %r2; add.u32 %r2, %r2, %r3;
    add.s64 %d4, %p0, %w4; st.global.u32 [%d4], %r2;"""
    out = np.zeros(32, np.uint32)
    run_text(kernel(body, 1, declarations), [out])
    assert out.tolist() == [100 * i + 2 * (i % 4) ** 2 for i in range(32)]
    with pytest.raises(DeviceError, match="forbidden const store"):
        run_text(kernel("mov.u64 %d2, squares; st.u32 [%d2], %i;", 0, declarations), [])


def test_faults_and_limits() -> None:
    with pytest.raises(DeviceError, match=r"executed a trap .*thread \(3, 0, 0\) of block \(1, 0, 0\)"):
        run_text(kernel("setp.eq.u32 %q1, %i, 35;\n@%q1 trap;", 0), [], grid=2)
    text = f"{HEAD}.visible .entry k() .reqntid 64, 1, 1 {{ ret; }}"
    with pytest.raises(DeviceError, match="requires blocks of"):
        run_text(text, [], block=32)
    with pytest.raises(DeviceError, match="at most 32 threads"):
        run_text(text.replace("reqntid 64", "maxntid 32"), [], block=64)
    with pytest.raises(DeviceError, match="has 0 parameters"):
        run_text(text, [np.zeros(4, np.uint8)], block=64)
