"""Uniform paths of blocks through a phase: branches on the number of the block are decided before the loop over its threads."""

from __future__ import annotations

from collections.abc import Callable

import host_kernels
import numpy as np
import pytest
from host_kernels import HEAD, run_text

from hlo_run.backends.host.jit.body import Body
from hlo_run.backends.host.jit.engine import JitEngine
from hlo_run.backends.host.jit.plan import LaunchShape, Plan, RegionSpec
from hlo_run.backends.host.jit.uniform_paths import UniformPaths, find_uniform_paths
from hlo_run.backends.host.ptx.control_flow import build_graph
from hlo_run.backends.host.ptx.parser import parse_module

BLOCKS, THREADS = 24, 64


def text_of(condition: str, branches: int = 1) -> str:
    """A kernel that adds a number, chosen by `condition`, to the thread's number. `condition` sets %q1 from the block %r9."""
    parts = "\n".join(
        f"""
    {condition.replace("%q1", f"%q{10 + number}")}
    @%q{10 + number} bra $other{number};
    mad.lo.s32 %r3, %r3, 3, {number + 1};
    bra $joined{number};
$other{number}:
    mad.lo.s32 %r3, %r3, 5, {number + 2};
    xor.b32 %r3, %r3, %r1;
$joined{number}:"""
        for number in range(branches)
    )
    return f"""{HEAD}
.visible .entry k(.param .u64 k_param_0)
{{
    .reg .pred %q<40>;
    .reg .b32 %r<12>;
    .reg .b64 %d<5>;
    ld.param.u64 %d1, [k_param_0];
    cvta.to.global.u64 %d1, %d1;
    mov.u32 %r1, %tid.x;
    mov.u32 %r9, %ctaid.x;
    mad.lo.s32 %r4, %r9, {THREADS}, %r1;
    mov.b32 %r3, %r4;
{parts}
    mul.wide.u32 %d2, %r4, 4;
    add.s64 %d3, %d1, %d2;
    st.global.b32 [%d3], %r3;
    ret;
}}
"""


def paths_of(text: str, blocks: int = BLOCKS) -> UniformPaths | None:
    size = 4 * blocks * THREADS
    region = RegionSpec(1, 8, 0, size, 0, size, writable=True)
    graph = build_graph(parse_module(text, "k.ptx"), "k")
    plan = Plan(graph, LaunchShape((blocks, 1, 1), (THREADS, 1, 1), (region,), (1 << 40,), 0))
    return find_uniform_paths(plan, plan.phases[0])


CASES: list[tuple[str, Callable[[int], object]]] = [
    ("setp.eq.b32 %q1, %r9, 0;", lambda n: n == 0),
    ("setp.gt.s32 %q1, %r9, 7;", lambda n: n > 7),
    ("shr.u32 %r5, %r9, 3;\n and.b32 %r6, %r5, 1;\n setp.ne.b32 %q1, %r6, 0;", lambda n: n >> 3 & 1),
    ("bfe.u32 %r5, %r9, 1, 2;\n setp.lt.u32 %q1, %r5, 2;", lambda n: (n >> 1 & 3) < 2),
    ("add.s32 %r5, %r9, -3;\n setp.lt.s32 %q1, %r5, 0;", lambda n: n < 3),
    ("add.s32 %r5, %r9, -3;\n setp.lt.u32 %q1, %r5, 4;", lambda n: 3 <= n < 7),
    (
        "setp.ne.b32 %q2, %r9, 4;\n setp.gt.u32 %q3, %r9, 2;\n and.pred %q1, %q2, %q3;",
        lambda n: n != 4 and n > 2,
    ),
    ("setp.eq.b32 %q2, %r9, 4;\n not.pred %q1, %q2;", lambda n: n != 4),
]


@pytest.mark.parametrize(("condition", "expected"), CASES)
def test_blocks_are_told_apart_by_their_number(condition: str, expected: Callable[[int], object]) -> None:
    paths = paths_of(text_of(condition))
    assert paths is not None
    assert len(paths.taken) == 2
    wanted = [bool(expected(number)) for number in range(BLOCKS)]
    # Way numbers are in no promised order, but the blocks of one go together.
    assert [path == paths.of_block[wanted.index(True)] for path in paths.of_block] == wanted


@pytest.mark.parametrize(
    "condition",
    [
        "setp.eq.b32 %q1, %r1, 0;",  # the thread
        "add.s32 %r5, %r9, %r1;\n setp.gt.s32 %q1, %r5, 9;",
        "setp.lt.u32 %q1, %r9, 1000;",  # all blocks alike
    ],
)
def test_other_branches_make_no_ways(condition: str) -> None:
    assert paths_of(text_of(condition)) is None


def numbered(condition: str, branches: int, step: int) -> str:
    text = text_of(condition, branches)
    for number in range(branches):
        text = text.replace("NUMBER", str(step * number), 1)
    return text


def _is_way(body: Body) -> bool:
    return bool(vars(body)["_ending"])


def test_too_many_ways_are_none() -> None:
    few, many = (paths_of(numbered("setp.eq.b32 %q1, %r9, NUMBER;", branches, 1)) for branches in (10, 20))
    assert few is not None
    assert many is None


@pytest.mark.parametrize("branches", [1, 7, 12])
@pytest.mark.parametrize("with_ways", [False, True])
def test_both_engines_leave_the_same(branches: int, with_ways: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`run_text` compares them. Paths are written where the whole phase makes no vectors, which is pretended."""
    if with_ways:
        monkeypatch.setattr(Body, "pays_as_vectors", property(_is_way))
    monkeypatch.setattr(host_kernels, "JIT", JitEngine())
    text = numbered("setp.gt.s32 %q1, %r9, NUMBER;", branches, 2)
    found = np.zeros(BLOCKS * THREADS, np.int32)
    run_text(text, [found], grid=BLOCKS, block=THREADS)
    expected = np.arange(BLOCKS * THREADS, dtype=np.int32)
    threads, blocks = expected % THREADS, expected // THREADS
    for number in range(branches):
        other = (expected * 5 + number + 2) ^ threads
        expected = np.where(blocks > 2 * number, other, expected * 3 + number + 1).astype(np.int32)
    np.testing.assert_array_equal(found, expected)
