"""Faults and checks: bounds, alignment, races, barriers; and the statistics of memory accesses."""

from __future__ import annotations

import numpy as np
import pytest
from host_kernels import kernel, run_text

from hlo_run.backends.host.memory import Region
from hlo_run.errors import DeviceError

SHARED = ".shared .align 16 .b8 tile[4352];"


def fault(
    body: str, buffers: list[np.ndarray], grid: int = 1, block: int = 32, declarations: str = "", *checks: str
) -> DeviceError:
    with pytest.raises(DeviceError) as caught:
        run_text(kernel(body, len(buffers), declarations), buffers, grid, block, checks)
    return caught.value


def test_out_of_bounds_names_everything() -> None:
    data = np.zeros(70, np.float32)
    error = fault("add.s64 %d1, %p0, %w4;\nst.global.f32 [%d1+4], 0f3F800000;", [data], grid=3)
    assert "out-of-bounds global store of 4 bytes at offset 280 of argument 0" in error.message
    assert "kernel 'k', PTX line" in error.message
    assert "thread (5, 0, 0) of block (2, 0, 0)" in error.message
    assert error.notes == ("argument 0 has 280 bytes",)
    assert error.where is not None
    assert error.where.source_line.strip() == "st.global.f32 [%d1+4], 0f3F800000;"
    assert "^" in error.render()


@pytest.mark.parametrize("displacement", [-4, 128, 2**31, -(2**31), 2**39 - 64])
@pytest.mark.parametrize(
    "access", ["ld.global.u32 %r1, [%d1];", "st.global.u32 [%d1], %r1;", "atom.global.add.u32 %r1, [%d1], 1;"]
)
def test_no_access_escapes_a_buffer(displacement: int, access: str) -> None:
    # Two buffers: an offset from the first never reaches the second.
    buffers = [np.zeros(32, np.uint32), np.full(64, 7, np.uint32)]
    error = fault(f"mov.u32 %r1, 5; add.s64 %d1, %p0, {displacement};\n{access}", buffers)
    assert "out-of-bounds" in error.message
    assert "argument 0" in error.message
    assert (buffers[1] == 7).all()


@pytest.mark.parametrize("address", [0, 8, 2**63, 2**64 - 8, 0x123456789ABC])
def test_wild_pointers(address: int) -> None:
    error = fault(f"mov.u64 %d1, {address};\nld.global.u64 %d2, [%d1];", [np.zeros(32, np.uint32)])
    assert "of no buffer" in error.message
    assert f"0x{address:x}" in error.message


def test_one_bad_lane_among_good_ones() -> None:
    body = """
    setp.eq.u32 %q1, %i, 77; selp.u64 %d1, 12345678, 0, %q1;
    add.s64 %d1, %d1, %p0; add.s64 %d1, %d1, %w4;
    ld.global.u32 %r1, [%d1];"""
    error = fault(body, [np.zeros(128, np.uint32)], grid=4)
    assert "thread (13, 0, 0) of block (2, 0, 0)" in error.message
    assert f"offset {12345678 + 77 * 4}" in error.message


def test_vectors_may_not_reach_over_the_end() -> None:
    body = "shl.b64 %d1, %w, 4; add.s64 %d1, %p0, %d1;\nld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%d1];"
    assert "load of 16 bytes at offset 496" in fault(body, [np.zeros(127, np.uint32)]).message


def test_words_may_reach_over_the_end_of_packed_data() -> None:
    """A 16-bit atomic is made of 32-bit ones on the word that holds it; a store must not do that."""
    data = np.array([1, 2, 3], np.uint16)
    memory = np.zeros(8, np.uint8)
    memory[:6] = data.view(np.uint8)
    assert (Region("r", "global", memory, 0, 6).word_high, Region("r", "global", memory[:6], 0, 6).word_high) == (8, 6)
    assert Region("r", "global", memory, 0, 0).word_high == 0


def test_misaligned_accesses() -> None:
    for access, size in (
        ("ld.global.u32 %r1, [%d1+2];", 4),
        ("st.global.v2.u32 [%d1+4], {%r1, %r1};", 8),
        ("ld.global.v4.f32 {%r1,%r2,%r3,%r4}, [%d1+8];", 16),
    ):
        error = fault(f"mov.u32 %r1, 1; mov.u64 %d1, %p0;\n{access}", [np.zeros(64, np.uint32)])
        assert "misaligned" in error.message
        assert f"of {size} bytes" in error.message


def test_displacements_may_mend_an_alignment() -> None:
    body = """
    add.s64 %d1, %p0, %w8; add.s64 %d1, %d1, 4; ld.global.u64 %d2, [%d1+-4];
    add.s64 %d3, %p1, %w8; add.s64 %d3, %d3, 4; st.global.u64 [%d3+4], %d2;"""
    data, out = np.arange(34, dtype=np.uint64), np.zeros(34, np.uint64)
    run_text(kernel(body, 2), [data, out])
    assert out.tolist() == [0, *range(32), 0]


def test_shared_memory_bounds() -> None:
    body = "mov.u32 %r1, tile; mad.lo.u32 %r2, %tid, 136, %r1;\nst.shared.u64 [%r2], %w;"
    run_text(kernel(body, 0, SHARED), [])
    error = fault(body.replace("136", "144"), [], 1, 32, SHARED)
    assert "out-of-bounds shared store of 8 bytes" in error.message
    assert "shared memory has 4352 bytes" in error.notes[0]


def test_local_memory_bounds() -> None:
    body = "{ .local .align 4 .b8 scratch[16]; mov.u64 %d1, scratch; add.s64 %d1, %d1, %w;\nst.local.u8 [%d1], %h1; }"
    assert "out-of-bounds local store of 1 bytes at offset 16" in fault("mov.u16 %h1, 1;" + body, []).message


# ---- races ----------------------------------------------------------------------------------------------------------

TRANSPOSE = """
    shl.b32 %r1, %tid, 2; mov.u32 %r2, tile; add.u32 %r3, %r2, %r1;
    st.shared.u32 [%r3], %i;
    {barrier}
    xor.b32 %r4, %r1, {mask}; add.u32 %r4, %r4, %r2;
    ld.shared.u32 %r5, [%r4];
    add.s64 %d1, %p0, %w4; st.global.u32 [%d1], %r5;"""


def run_transpose(barrier: str, mask: int, block: int = 64) -> None:
    body = TRANSPOSE.replace("{barrier}", barrier).replace("{mask}", str(mask))
    out = np.zeros(2 * block, np.uint32)
    run_text(kernel(body, 1, SHARED), [out], 2, block, ("race",))
    assert (out == np.arange(2 * block) ^ (mask // 4)).all()


def test_a_missing_barrier_is_a_race() -> None:
    run_transpose("bar.sync 0;", 128)
    with pytest.raises(DeviceError, match=r"race in shared memory: load of byte 128 without a barrier after a write") as caught:
        run_transpose("", 128)
    assert "PTX line" in caught.value.notes[0]
    assert "thread (32, 0, 0) of block (0, 0, 0)" in caught.value.notes[0]


def test_a_warp_may_order_its_own_accesses() -> None:
    run_transpose("bar.warp.sync -1;", 4)
    with pytest.raises(DeviceError, match="race"):
        run_transpose("bar.warp.sync -1;", 128)
    with pytest.raises(DeviceError, match="race"):
        run_transpose("", 4)


def test_writing_what_others_read_or_wrote() -> None:
    read_then_write = """
    mov.u32 %r2, tile; ld.shared.u32 %r5, [tile+4];
    setp.eq.u32 %q1, %tid, 9;
    @%q1 st.shared.u32 [tile+4], %tid;"""
    assert "store of byte 4 without a barrier after a read" in fault(read_then_write, [], 1, 32, SHARED, "race").message
    assert "several threads" in fault(read_then_write, [], 1, 32, SHARED, "race").notes[0]
    other_writes = "setp.eq.u32 %q1, %tid, 9;\n@%q1 st.shared.u32 [tile+4], 1;\n@!%q1 st.shared.u32 [tile+4], 1;"
    assert "after a write" in fault(other_writes, [], 1, 32, SHARED, "race").message
    together = "st.shared.u32 [tile], %tid;"
    assert "different values" in fault(together, [], 1, 32, SHARED, "race").message
    run_text(kernel("st.shared.u32 [tile], 5;", 0, SHARED), [], 2, 64, ("race",))


def test_without_the_check_races_pass() -> None:
    run_text(kernel("st.shared.u32 [tile], %tid;", 0, SHARED), [], 1, 32)


def test_atomics_race_with_plain_accesses_only() -> None:
    run_text(kernel("atom.shared.add.u32 %r1, [tile], 1; atom.shared.max.u32 %r1, [tile], 1;", 0, SHARED), [], 1, 64, ("race",))
    error = fault("red.shared.add.u32 [tile], 1;\nld.shared.u32 %r1, [tile];", [], 1, 64, SHARED, "race")
    assert "load of byte 0 without a barrier after a write" in error.message


# ---- statistics -----------------------------------------------------------------------------------------------------


def bank_statistics(body: str, block: int = 32) -> tuple[int, int, int]:
    """Return requests, passes and the worst request of the only shared access."""
    statistics = run_text(kernel(body, 0, SHARED), [], 2, block, ("statistics",))
    (item,) = statistics.of("shared")
    assert statistics.bank_conflicts == item.extra
    return item.requests, item.transactions, item.worst


@pytest.mark.parametrize(("stride", "worst"), [(4, 1), (8, 2), (128, 32), (132, 1), (64, 16), (0, 1)])
def test_bank_conflicts(stride: int, worst: int) -> None:
    body = f"and.b32 %r3, %tid, 31; mov.u32 %r1, tile; mad.lo.u32 %r2, %r3, {stride}, %r1; ld.shared.u32 %r4, [%r2];"
    assert bank_statistics(body) == (2, 2 * worst, worst)
    assert bank_statistics(body, 64) == (4, 4 * worst, worst)


def test_bank_conflicts_of_wide_and_narrow_accesses() -> None:
    wide = "mov.u32 %r1, tile; mad.lo.u32 %r2, %tid, 16, %r1; ld.shared.v4.u32 {%r3, %r4, %r5, %r6}, [%r2];"
    assert bank_statistics(wide) == (2, 8, 4)
    assert run_text(kernel(wide, 0, SHARED), [], 2, 32, ("statistics",)).bank_conflicts == 0
    narrow = "mov.u32 %r1, tile; add.u32 %r2, %tid, %r1; ld.shared.u8 %h1, [%r2];"
    assert bank_statistics(narrow) == (2, 2, 1)


@pytest.mark.parametrize(("stride", "sectors"), [(4, 4), (8, 8), (32, 32), (128, 32), (0, 1)])
def test_sectors(stride: int, sectors: int) -> None:
    body = f"mul.wide.u32 %d1, %i, {stride}; add.s64 %d1, %p0, %d1; ld.global.u32 %r1, [%d1];"
    statistics = run_text(kernel(body, 1), [np.zeros(64 * 32, np.uint32)], 2, 32, ("statistics",))
    (item,) = statistics.of("global", "load")
    assert (item.requests, item.transactions, item.worst) == (2, 2 * sectors, sectors)
    assert statistics.wasted_sectors == 2 * (sectors - (1 if stride == 0 else 4))


def test_statistics_know_lines_and_kinds() -> None:
    body = "add.s64 %d1, %p0, %w4;\nld.global.u32 %r1, [%d1];\nst.global.u32 [%d1], %r1;\nred.global.add.u32 [%d1], 1;"
    statistics = run_text(kernel(body, 1), [np.zeros(32, np.uint32)], 1, 32, ("statistics",))
    items = statistics.of("global")
    assert [item.kind for item in items] == ["load", "store", "atomic"]
    assert [item.line - items[0].line for item in items] == [0, 1, 2]
    assert not statistics.of("shared")
