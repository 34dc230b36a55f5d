"""Faults and checks: bounds, alignment, races, barriers; and the statistics of memory accesses."""

from __future__ import annotations

import numpy as np
import pytest
from host_kernels import kernel, run_text

from hlo_run.backends.host.emulator.memory import Region
from hlo_run.backends.host.emulator.origins import origin
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
    """A 16-bit atomic is emulated by a 32-bit one on its word. A store must not write the whole word."""
    data = np.array([1, 2, 3], np.uint16)
    memory = np.zeros(8, np.uint8)
    memory[:6] = data.view(np.uint8)
    assert (Region("r", "global", memory, 0, 6).word_high, Region("r", "global", memory[:6], 0, 6).word_high) == (8, 6)
    assert Region("r", "global", memory, 0, 0).word_high == 0


def test_loads_may_reach_to_the_end_of_the_last_word() -> None:
    """LLVM loads three 16-bit elements as two words."""
    region = Region("r", "global", np.zeros(16, np.uint8), 0, 6)
    assert [region.bounds("load", size) for size in (2, 8, 16)] == [(0, 8)] * 3
    assert [region.bounds(kind, 8) for kind in ("store", "atomic")] == [(0, 6)] * 2


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


# ---- global memory --------------------------------------------------------------------------------------------------

OWN = "add.s64 %d1, %p0, %w4;"


def test_threads_far_apart_may_not_write_the_same() -> None:
    # More threads than run together: the first writer is remembered.
    body = "and.b32 %r1, %i, 1023; mul.wide.u32 %d1, %r1, 4; add.s64 %d1, %p0, %d1;\n"
    body += "setp.eq.u32 %q1, %i, 40000; @%q1 mov.u64 %d1, %p0;\nsetp.lt.u32 %q2, %i, 5; @%q2 bra ST; @!%q1 bra NO;\n"
    error = fault(body + "ST: st.global.u32 [%d1], %i;\nNO:", [np.zeros(1024, np.uint32)], 157, 256, "", "race")
    assert "race in global memory: store of byte 0 of argument 0 not in order with another thread's write" in error.message
    assert "thread (64, 0, 0) of block (156, 0, 0)" in error.message
    assert "thread (0, 0, 0) of block (0, 0, 0)" in error.notes[0]


def test_reading_in_place_what_another_thread_writes() -> None:
    own = OWN + " ld.global.u32 %r1, [%d1]; add.u32 %r1, %r1, 1; st.global.u32 [%d1], %r1;"
    run_text(kernel(own, 1), [np.zeros(256, np.uint32)], 2, 128, ("race",))
    shifted = OWN + "\nld.global.u32 %r1, [%d1+4]; add.u32 %r1, %r1, 1;\nst.global.u32 [%d1], %r1;"
    error = fault(shifted, [np.zeros(257, np.uint32)], 2, 128, "", "race")
    assert "store of byte 4 of argument 0 not in order with another thread's read" in error.message
    assert "thread (0, 0, 0) of block (0, 0, 0)" in error.notes[0]
    # No thread writes to the second buffer, so all threads may read it.
    reads = OWN + " ld.global.u32 %r1, [%p1]; st.global.u32 [%d1], %r1;"
    run_text(kernel(reads, 2), [np.zeros(256, np.uint32), np.ones(1, np.uint32)], 2, 128, ("race",))


def test_a_barrier_orders_the_accesses_of_its_block() -> None:
    body = (
        OWN
        + """
    st.global.u32 [%d1], %i;
    {barrier}
    xor.b32 %r1, %i, 64; mul.wide.u32 %d2, %r1, 4; add.s64 %d2, %p0, %d2; ld.global.u32 %r2, [%d2];
    bar.sync 0; st.global.u32 [%d1], %r2;"""
    )
    out = np.zeros(256, np.uint32)
    run_text(kernel(body.replace("{barrier}", "bar.sync 0;"), 1), [out], 2, 128, ("race",))
    assert (out == np.arange(256) ^ 64).all()
    error = fault(body.replace("{barrier}", ""), [out], 2, 128, "", "race")
    assert "load of byte 256 of argument 0 not in order with another thread's write" in error.message
    across = body.replace("{barrier}", "bar.sync 0;").replace("%i, 64", "%i, 128")
    assert "load of byte 512" in fault(across, [out], 2, 128, "", "race").message, "a barrier is no order between blocks"


@pytest.mark.parametrize(
    "accesses",
    [
        "red.global.add.u32 [%p0], 1; atom.global.max.u32 %r1, [%p0], 7;",
        "ld.global.u32 %r1, [%p0]; atom.global.cas.b32 %r2, [%p0], %r1, 5;",
        "st.relaxed.gpu.global.u32 [%p0], %i; ld.relaxed.gpu.global.u32 %r1, [%p0];",
        "{ .reg .pred %t; setp.eq.u32 %t, %i, 0; @%t st.global.u32 [%p0], 5; }",
    ],
)
def test_what_threads_may_do_to_one_place(accesses: str) -> None:
    run_text(kernel(accesses, 1), [np.zeros(1, np.uint32)], 2, 64, ("race",))


@pytest.mark.parametrize(
    "accesses",
    [
        "st.global.u32 [%p0], 5;",
        "red.global.add.u32 [%p0], 1; st.global.u32 [%d1], 5;",
        "st.global.u32 [%d1], 5;\nred.global.add.u32 [%p0], 1;",
        "st.global.v2.u32 [%p0+8], {%r1, %r1}; ",
        "st.global.u8 [%p0+3], 1; st.global.u32 [%d1], 1;",
    ],
)
def test_what_threads_may_not_do_to_one_place(accesses: str) -> None:
    body = "mov.u32 %r1, 0;" + OWN + accesses
    assert "race in global memory" in fault(body, [np.zeros(128, np.uint32)], 2, 64, "", "race").message


def test_neighbouring_items_of_any_size_do_not_race() -> None:
    for size, kind, register in ((1, "u8", "%h1"), (2, "u16", "%h1"), (4, "u32", "%r1"), (8, "u64", "%d2")):
        body = f"mov.u16 %h1, 1; mov.u32 %r1, 1; mov.u64 %d2, 1; mul.wide.u32 %d1, %i, {size}; add.s64 %d1, %p0, %d1;"
        body += f"st.global.{kind} [%d1], {register};"
        run_text(kernel(body, 1), [np.zeros(128, f"u{size}")], 2, 64, ("race",))


# ---- uninitialised memory -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("store", "load", "byte"),
    [
        ("st.shared.u32 [%r2], %i;", "ld.shared.u32 %r3, [%r2];", None),
        ("st.shared.u16 [%r2], %h1;", "ld.shared.u32 %r3, [%r2];", 2),
        ("st.shared.u32 [%r2], %i;", "ld.shared.u32 %r3, [%r2+128];", 128),
        ("st.shared.u32 [%r2], %i;", "atom.shared.add.u32 %r3, [tile+256], 1;", 256),
        # Narrow elements share a word: an atomic that sets bits does not read the others, unless it returns the old value.
        ("", "red.shared.and.b32 [tile], -16; red.shared.or.b32 [tile], 3; ld.shared.u32 %r3, [tile];", None),
        ("", "atom.shared.and.b32 %r3, [tile], -16; add.u32 %r4, %r3, %r3; st.shared.u32 [%r2+128], %r4;", 0),
        ("st.shared.v2.u32 [tile+8], {%i, %i};", "ld.shared.v4.u32 {%r3, %r4, %r5, %r6}, [tile];", 0),
        ("st.shared.v2.u32 [tile], {%r1, %r1};", "ld.shared.v4.u32 {%r3, %r4, %r5, %r6}, [tile];", 8),
        ("st.shared.v4.u32 [tile], {%r1, %r1, %r1, %r1};", "ld.shared.v4.u32 {%r3, %r4, %r5, %r6}, [tile];", None),
    ],
)
def test_reads_of_shared_memory_before_writes(store: str, load: str, byte: int | None) -> None:
    body = f"mov.u16 %h1, 1; mov.u32 %r1, tile; mad.lo.u32 %r2, %tid, 4, %r1; mov.u32 %r1, 7;\n{store}\nbar.sync 0;\n{load}"
    if byte is None:
        run_text(kernel(body, 0, SHARED), [], 3, 32, ("init",))
        return
    message = fault(body, [], 3, 32, SHARED, "init").message
    assert f"nothing has written byte {byte} of shared memory" in message
    assert "uninitialised shared " + ("atomic" if "atom" in load else "load") in message


def test_every_chunk_of_blocks_begins_with_fresh_memory() -> None:
    body = "mov.u32 %r1, tile; setp.lt.u32 %q1, %cta, 200; @%q1 st.shared.u32 [%r1], 5; ld.shared.u32 %r2, [%r1];"
    run_text(kernel(body, 0, SHARED), [], 200, 256, ("init",))
    assert "thread (0, 0, 0) of block (200, 0, 0)" in fault(body, [], 201, 256, SHARED, "init").message


def test_reads_of_local_memory_before_writes() -> None:
    scratch = "{ .local .align 8 .b8 scratch[16]; st.local.u32 [scratch+8], %i;\nLOAD }"
    run_text(kernel(scratch.replace("LOAD", "ld.local.u32 %r1, [scratch+8];"), 0), [], 1, 64, ("init",))
    error = fault(scratch.replace("LOAD", "ld.local.u64 %d1, [scratch+8];"), [], 1, 64, "", "init")
    assert "uninitialised local load: nothing has written byte 12 of local memory" in error.message


# ---- barriers -------------------------------------------------------------------------------------------------------


def test_a_barrier_is_for_threads_that_live() -> None:
    body = "setp.ge.u32 %q1, %tid, 40; @%q1 exit;\nbar.sync 0;"
    run_text(kernel(body, 0), [], 2, 64)
    error = fault(body, [], 2, 64, "", "barrier")
    assert "not all threads of the block reach the barrier" in error.message
    assert "thread (0, 0, 0) of block (0, 0, 0)" in error.message
    assert error.notes == ("thread (40, 0, 0) of block (0, 0, 0) has ended",)
    run_text(kernel(body.replace("%tid", "%cta").replace("40", "1"), 0), [], 2, 64, ("barrier",))


# ---- where a line comes from ----------------------------------------------------------------------------------------

LOCATED = """.visible .entry k(
{
.loc\t1 1 0
mov.u32 %r1, 1;
.loc\t2 7 0, function_name $L__info_string0, inlined_at 1 3 0
st.global.u32 [%d1], %r1;
ret;
}
.visible .entry other()
{
ret;
}
.file\t1 "k"
.file\t2 "add.3 llvm.store"
"""


def test_origins_of_lines() -> None:
    lines = LOCATED.split("\n")
    assert origin(lines, 6) == "llvm.store (op 7 of the kernel) of HLO instruction 'add.3'"
    assert [origin(lines, line) for line in (0, 2, 4, 11, 99)] == ["", "", "", "", ""]


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


def test_instructions_by_kind_and_active_lanes() -> None:
    body = """
    setp.lt.u32 %q1, %tid, 20;
    @%q1 bra SOME;
    bra END;
    SOME: add.f32 %r1, %r2, %r3; ex2.approx.f32 %r1, %r1; st.shared.u32 [tile], 1;
    END: cvt.rn.f32.u32 %r1, %tid; setp.lt.u32 %q2, %tid, 3; @%q2 add.u32 %r4, %r4, 1;"""
    statistics = run_text(kernel(body, 0, SHARED), [], 2, 64, ("statistics",))
    counts = statistics.thread_instructions
    assert (counts["f32"], counts["special"], counts["shared store"], counts["convert"]) == (40, 40, 40, 2 * 128)
    assert counts["compare"] == 2 * 128
    assert counts["branch"] == 128 + (128 - 40) + 128  # the conditional one, the jump over, the end
    assert (statistics.branches, statistics.divergent) == (4, 2)
    # Four instructions of the beginning, and the guarded one for the threads that it is for.
    assert counts["integer"] == 4 * 128 + 2 * 3
    text = str(statistics)
    assert "4 branches of a warp, 2 divergent" in text
    assert 20 < statistics.active_lanes < 32


def test_branches_that_all_threads_of_a_warp_take_alike_do_not_diverge() -> None:
    body = "setp.lt.u32 %q1, %tid, 32;\n@%q1 bra END;\nadd.u32 %r1, %r1, 1;\nEND: mov.u32 %r2, %r1;"
    statistics = run_text(kernel(body, 0), [], 1, 64, ("statistics",))
    assert (statistics.branches, statistics.divergent, statistics.active_lanes) == (2, 0, 32.0)
