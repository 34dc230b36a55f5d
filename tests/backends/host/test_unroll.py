"""Short loops written out: which they are, and that a thread does the same without them."""

from __future__ import annotations

import numpy as np
import pytest
from host_kernels import kernel, run_text

from hlo_run.backends.host.ptx.control_flow import Branch, KernelGraph, build_graph
from hlo_run.backends.host.ptx.parser import parse_module
from hlo_run.backends.host.ptx.unroll import unroll

LOOP = """
    mov.b32 %r2, {start};
    mov.b32 %r3, 0;
$loop:
    mul.wide.s32 %d1, %r2, 4;
    add.s64 %d2, %p1, %d1;
    ld.global.b32 %r4, [%d2];
    add.s32 %r3, %r3, %r4;
    xor.b32 %r3, %r3, %i;
    add.s32 %r2, %r2, {step};
    setp.{relation}.s32 %q1, %r2, {end};
    @{sign}%q1 bra $loop;
    add.s32 %r3, %r3, %r2;
    mul.wide.s32 %d1, %i, 4;
    add.s64 %d2, %p0, %d1;
    st.global.b32 [%d2], %r3;
"""


def graph_of(text: str) -> KernelGraph:
    return build_graph(parse_module(text, "k.ptx"), "k")


def loops(graph: KernelGraph) -> int:
    return sum(isinstance(block.terminator, Branch) and block.index in block.successors() for block in graph.blocks)


@pytest.mark.parametrize(
    ("start", "step", "relation", "sign", "end", "left"),
    [
        (0, 1, "ne", "", 8, 0),
        (7, -1, "ge", "", 0, 0),
        (0, 2, "eq", "!", 16, 0),
        (0, 1, "lt", "", 1, 0),
        (0, 1, "lt", "", 64, 0),
        (0, 1, "lt", "", 65, 1),
    ],
)
def test_a_loop_whose_turns_are_known_is_written_out(
    start: int, step: int, relation: str, sign: str, end: int, left: int
) -> None:
    body = LOOP.format(start=start, step=step, relation=relation, sign=sign, end=end)
    text = kernel(body, 2)
    assert loops(unroll(graph_of(text))) == left
    found, items = np.zeros(64, np.int32), np.arange(100, 200, dtype=np.int32)
    run_text(text, [found, items], block=64)  # the emulator's result, which the JIT's has to be
    counter, total = start, np.zeros(64, np.int32)
    while True:
        total = (total + items[counter]) ^ np.arange(64, dtype=np.int32)
        counter += step
        goes_on = {"ne": counter != end, "ge": counter >= end, "eq": counter == end, "lt": counter < end}[relation]
        if goes_on == (sign == "!"):
            break
    np.testing.assert_array_equal(found, total + counter)


def test_a_loop_whose_turns_depend_on_the_thread_stays() -> None:
    body = LOOP.format(start=0, step=1, relation="le", sign="", end="%i")
    graph = graph_of(kernel(body, 2))
    assert unroll(graph) is graph


def test_a_loop_that_goes_on_from_where_it_was_left_stays() -> None:
    """The counter is set before the outer loop alone: 0, 1, 2, 3, then 4, where the inner one ends at once."""
    body = """
    mov.b32 %r1, 0;
    mov.b32 %r2, 0;
    mov.b32 %r3, 0;
$outer:
    add.s32 %r1, %r1, 1;
    and.b32 %r5, %i, 3;
    setp.gt.s32 %q2, %r1, %r5;
    @%q2 bra $leave;
$loop:
    add.s32 %r3, %r3, %r1;
    add.s32 %r2, %r2, 1;
    setp.lt.s32 %q1, %r2, 4;
    @%q1 bra $loop;
    bra $outer;
$leave:
    mul.wide.s32 %d1, %i, 4;
    add.s64 %d2, %p0, %d1;
    st.global.b32 [%d2], %r3;
"""
    text = kernel(body, 1)
    graph = graph_of(text)
    assert loops(graph) == 1
    assert unroll(graph) is graph
    found = np.zeros(64, np.int32)
    run_text(text, [found], block=64)
    inner = np.arange(64) & 3
    expected = [4 + sum(range(2, n + 1)) if n else 0 for n in inner]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("count", "left"), [(3, 0), (30, 30)])
def test_either_all_loops_of_a_kernel_are_written_out_or_none(count: int, left: int) -> None:
    body = LOOP.format(start=0, step=1, relation="lt", sign="", end=64)
    scopes = "".join(f"{{\n.reg .b32 %r2;{body}}}\n".replace("$loop", f"$loop{number}") for number in range(count))
    graph = graph_of(kernel(scopes, 2))
    assert loops(graph) == count
    assert loops(unroll(graph)) == left
