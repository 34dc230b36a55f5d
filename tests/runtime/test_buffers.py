"""Buffer assignment: XLA's decisions on recorded modules, and no instruction whose operand was overwritten."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hlo_run
from hlo_run.analysis.buffers.concurrent_regions import concurrent_regions
from hlo_run.artifact import BufferSlice
from hlo_run.errors import InternalError
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.backend_config import sorted_config
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.runner import run_hlo_groups
from hlo_run.pipeline.table import BACKEND_PIPELINE, PIPELINE
from hlo_run.records import replace
from hlo_run.runtime.buffer_check import check_buffers
from hlo_run.runtime.buffer_dumps import buffer_texts
from hlo_run.runtime.buffers import assign_buffers
from hlo_run.target import preset
from tests.random_control_flow import random_module

# Written by scripts/record_xla_buffers.py: optimised modules, and XLA's texts about their buffers.
_RECORDED = Path(__file__).parents[1] / "data" / "xla_buffers"
_MODULES = sorted(path.name.removesuffix(".hlo") for path in _RECORDED.glob("*.hlo"))


def _compiled(text: str) -> HloModule:
    module = hlo_run.parse(text)
    run_hlo_groups(BACKEND_PIPELINE, PassContext(preset("h100"), Options()), module)
    return module


def _texts(name: str) -> dict[str, Callable[[], str]]:
    module = hlo_run.parse((_RECORDED / f"{name}.hlo").read_text())
    return buffer_texts(assign_buffers(module), module)


_TITLES = ("buffer-assignment", "memory-usage-report", "live-range", "buffer-assignment-values")
# In one module XLA gives one of several temporaries of equal size a different offset. In the other it puts a temporary of the
# default memory into one of memory space 7 that is free, as it does with memory space 1.
_PLACED_OTHERWISE = {
    *((name, title) for name in ("loop_and_call", "memory_spaces") for title in ("buffer-assignment", "memory-usage-report")),
    ("memory_spaces", "buffer-assignment-values"),
}


def _with_sorted_keys(line: str) -> str:
    head, found, config = line.partition("backend_config=")
    return f"{head}{found}{sorted_config(config) if found else ''}"


@pytest.mark.parametrize(("name", "title"), sorted({(name, title) for name in _MODULES for title in _TITLES} - _PLACED_OTHERWISE))
def test_texts_are_xlas(name: str, title: str) -> None:
    expected = (_RECORDED / f"{name}.{title}.txt").read_text()
    actual = _texts(name)[title]()
    if title == "buffer-assignment-values":
        # The text does not show in which order the users of a value were made, nor the keys of a backend config.
        assert sorted(map(_with_sorted_keys, actual.splitlines())) == sorted(map(_with_sorted_keys, expected.splitlines()))
    else:
        assert actual == expected


def test_temporaries_in_a_space_of_their_own() -> None:
    module = hlo_run.parse((_RECORDED / f"{_MODULES[0]}.hlo").read_text())
    plain, apart = (buffer_texts(assign_buffers(module, separates), module) for separates in (False, True))
    assert (
        apart["buffer-assignment"]().replace(", color 2, page 0, preallocated-temp", ", page 0, preallocated-temp")
        == plain["buffer-assignment"]()
    )
    assert "color 2, page 0, preallocated-temp" in apart["buffer-assignment"]()
    assert "Memory Space: smem (color=2)" in apart["memory-usage-report"]()


def test_temporaries_in_blocks_of_limited_size() -> None:
    module = hlo_run.parse((_RECORDED / f"{_MODULES[0]}.hlo").read_text())
    one, several = (assign_buffers(module, most_bytes=most) for most in (-1, 0))
    assert sum(block.is_temp for block in one.planned) == 1
    assert sum(block.is_temp for block in several.planned) > 1


def _shuffled(module: HloModule, seed: int) -> None:
    """Give every computation another order that its dependencies allow."""
    assert module.schedule is not None
    choose = random.Random(seed)
    for computation, order in module.schedule.items():
        left, placed = list(order), dict[HloInstruction, None]()
        while left:
            ready = [i for i in left if all(o in placed for o in (*i.operands, *i.control_predecessors))]
            placed[chosen := choose.choice(ready)] = None
            left.remove(chosen)
        module.schedule[computation] = list(placed)


@pytest.mark.parametrize("name", _MODULES)
def test_concurrent_thunks_keep_their_operands_in_every_order(name: str) -> None:
    module = hlo_run.parse((_RECORDED / f"{name}.hlo").read_text())
    planned = assign_buffers(module, ordering="dependencies")
    check_buffers(module, assign_buffers(module, ordering="regions"))
    for seed in range(3):
        _shuffled(module, seed)
        check_buffers(module, planned)


_REGIONS = """HloModule m, is_scheduled=true
f1 { a = f32[64] parameter(0)  ROOT r = f32[64] sine(a) }
f2 { b = f32[64] parameter(0)  ROOT s = f32[64] cosine(b) }
ENTRY e {
  p = f32[64] parameter(0)
  f = f32[64] fusion(p), kind=kLoop, calls=f1
  g = f32[64] fusion(f), kind=kLoop, calls=f2
  c = f32[64] custom-call(g), custom_call_target="x"
  h = f32[64] negate(c)
  big = f32[99999,64] broadcast(h), dimensions={1}
  ROOT t = (f32[64], f32[99999,64]) tuple(h, big)
}"""


def test_calls_and_large_values_are_regions_of_their_own() -> None:
    regions = {i.name: number for i, number in concurrent_regions(hlo_run.parse(_REGIONS)).items()}
    assert regions == {"p": 0, "f": 0, "g": 0, "c": 1, "h": 2, "big": 3, "t": 4}


def test_concurrent_thunks_have_no_live_ranges() -> None:
    module = _compiled("HloModule m ENTRY e { p = f32[9] parameter(0) ROOT c = f32[9] sine(p) }")
    text = buffer_texts(assign_buffers(module, ordering="dependencies"), module)["live-range"]()
    assert text == "HloLiveRange (max 0):\n  InstructionSequence:\n  BufferLiveRange:\n  Live ranges at 0 (peak):\n"


@pytest.mark.parametrize(("size", "text"), [(1023, "1023B"), (1700, "1.7KiB"), (35782928, "34.12MiB"), (3 << 30, "3.00GiB")])
def test_sizes_are_cut_to_whole_units_before_they_are_rounded(size: int, text: str) -> None:
    report = _usage_report(f"ENTRY e {{ ROOT p = s8[{size}] parameter(0) }}")
    assert f"{text}(100%)" in report


def _usage_report(text: str) -> str:
    module = _compiled(text)
    return buffer_texts(assign_buffers(module), module)["memory-usage-report"]()


def test_report_of_empty_values() -> None:
    # XLA divides 0 by 0.
    assert "0B(-nan%);         0B;" in _usage_report("ENTRY e { p = f32[0,5] parameter(0) ROOT c = f32[0,5] copy(p) }")


def test_positions_follow_the_order_in_which_instructions_were_made() -> None:
    # multi_output_fusion makes the get-tuple-elements after the tuple.
    text = """ENTRY e { x = f32[64,32] parameter(0) y = f32[64,32] parameter(1) s = f32[64,32] multiply(x, y)
      t = f32[64,32] multiply(s, x) q = f32[64,32] sqrt(t) a = f32[64,32] add(q, s)
      ROOT r = (f32[64,32], f32[64,32]) tuple(t, a) }"""
    module = hlo_run.parse(text)
    run_hlo_groups(PIPELINE, PassContext(preset("h100"), Options()), module)
    values = buffer_texts(assign_buffers(module), module)["buffer-assignment-values"]()
    assert "{0}\n  r.1 {1}\n  get-tuple-element\n" in values


def test_report_leaves_out_small_allocations_after_50() -> None:
    count = 60
    parameters = " ".join(f"p{n} = f32[64] parameter({n})" for n in range(count))
    text = f"ENTRY e {{ {parameters} ROOT t = (f32[64]) tuple(p0) }}"
    # All 60 allocations of equal size: the rest is below a twentieth of the total from the 58th on.
    assert _usage_report(text).count("cumulative_size") == 58


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 14))
def test_random_modules_read_what_they_should(seed: int, size: int) -> None:
    module = _compiled(random_module(random.Random(seed), size))
    check_buffers(module, assign_buffers(module))


_ORDERED_COPY = """
HloModule m
f { p = f32[4] parameter(0)  ROOT r = f32[4] negate(p) }
c { s = (f32[4], f32[4]) parameter(0)  ROOT k = pred[] constant(false) }
b {
  s = (f32[4], f32[4]) parameter(0)
  x = f32[4] get-tuple-element(s), index=0
  y = f32[4] get-tuple-element(s), index=1
  v = f32[4] fusion(x), kind=kLoop, calls=f
  z = f32[4] copy(y)
  ROOT r = (f32[4], f32[4]) tuple(z, v)
}
ENTRY e {
  p = f32[4] parameter(0)
  q = f32[4] parameter(1)
  t = (f32[4], f32[4]) tuple(p, q)
  ROOT w = (f32[4], f32[4]) while(t), condition=c, body=b
}
"""


def test_a_removed_copy_hands_its_order_on() -> None:
    module = _compiled(_ORDERED_COPY)
    check_buffers(module, assign_buffers(module))


_CHAIN = """
HloModule chain, is_scheduled=true
n1 { p1 = f32[64] parameter(0)  ROOT r1 = f32[64] negate(p1) }
n2 { p2 = f32[64] parameter(0)  ROOT r2 = f32[64] reverse(p2), dimensions={0} }
n3 { p3 = f32[64] parameter(0)  q3 = f32[64] parameter(1)  ROOT r3 = f32[64] subtract(p3, q3) }
ENTRY e {
  p = f32[64] parameter(0)
  a = f32[64] fusion(p), kind=kLoop, calls=n1
  b = f32[64] fusion(a), kind=kLoop, calls=n2
  ROOT c = f32[64] fusion(a, b), kind=kLoop, calls=n3
}
"""


def test_check_finds_memory_that_is_used_twice() -> None:
    module = _compiled(_CHAIN)
    buffers = assign_buffers(module)
    check_buffers(module, buffers)
    by_name = {i.name: i for i in module.instructions}
    a, b = buffers.slice(by_name["a"]), buffers.slice(by_name["b"])
    assert a != b
    wrong = replace(buffers, slices=buffers.slices | {(by_name["b"], ()): a})
    with pytest.raises(InternalError, match="%c does not find %a"):
        check_buffers(module, wrong)
    half = BufferSlice(a.allocation, a.offset_bytes + 128, a.size_bytes)
    with pytest.raises(InternalError, match="does not find"):
        check_buffers(module, replace(buffers, slices=buffers.slices | {(by_name["b"], ()): half}))


def test_result_takes_the_place_of_an_operand_only_where_threads_read_what_they_write() -> None:
    module = _compiled(_CHAIN)
    buffers = assign_buffers(module)
    by_name = {i.name: i for i in module.instructions}
    # c reads a and b at its own places, b reads a at others.
    assert buffers.slice(by_name["c"]) == buffers.slice(by_name["a"])
    assert buffers.slice(by_name["b"]) != buffers.slice(by_name["a"])
    assert buffers.slice(by_name["a"]).allocation != buffers.slice(by_name["p"]).allocation


def test_aliased_parameter_says_so() -> None:
    module = _compiled("""
HloModule donated, input_output_alias={ {}: (0, {}, must-alias) }
n1 { p1 = f32[64] parameter(0)  ROOT r1 = f32[64] negate(p1) }
ENTRY e {
  p = f32[64] parameter(0)
  ROOT a = f32[64] fusion(p), kind=kLoop, calls=n1
}
""")
    buffers = assign_buffers(module)
    (allocation,) = buffers.allocations
    assert (allocation.parameter_number, allocation.alias, allocation.is_output) == (0, "must-alias", True)


_PARAMETER_AFTER_ITS_TURN = """
HloModule m, is_scheduled=true, input_output_alias={ {3}: (0, {}, may-alias), {2}: (1, {}, may-alias) }
f { p = f32[4] parameter(0)
  q = f32[4] parameter(1)
  ROOT r = f32[4] add(p, q) }
ENTRY e {
  p = f32[4] parameter(0)
  q = f32[4] parameter(1)
  v = f32[4] fusion(p, q), kind=kLoop, calls=f
  ROOT r = (f32[4], f32[4], f32[4], f32[4]) tuple(p, v, v, v)
}
"""


def test_parameters_are_there_from_the_start_in_any_schedule() -> None:
    module = _compiled(_PARAMETER_AFTER_ITS_TURN)
    check_buffers(module, assign_buffers(module))


_STARTED = """HloModule m, input_output_alias={ {}: (0, {}, must-alias) }
started { a = f32[64] parameter(0) b = f32[64] parameter(1) ROOT r = f32[64] BODY }
ENTRY e {
  p = f32[64] parameter(0)
  n = f32[64] sine(p)
  s = ((f32[64], f32[64]), f32[64], u32[]) async-start(n, p), calls=started
  ROOT d = f32[64] async-done(s)
}
"""


def test_an_operand_that_a_started_computation_does_not_read_may_be_written_over() -> None:
    module = _compiled(_STARTED.replace("BODY", "reverse(a), dimensions={0}"))
    check_buffers(module, assign_buffers(module))
    # The same buffers are wrong for a computation that reads the operand elsewhere than it writes.
    planned = assign_buffers(module)
    started = next(i for i in module.entry.instructions if i.opcode == "async-start").called_computations[0]
    a, b = started.parameters
    assert module.schedule is not None
    module.schedule[started].sort(key=lambda i: i.opcode != "parameter")
    started.root.replace_operand(a, b)
    with pytest.raises(InternalError, match="another value was written"):
        check_buffers(module, planned)


def test_a_started_computation_may_write_its_result_over_its_operand() -> None:
    text = """HloModule m, input_output_alias={ {}: (0, {}, must-alias) }
started { p = f32[64] parameter(0) ROOT n = f32[64] negate(p) }
ENTRY e {
  p = f32[64] parameter(0)
  s = ((f32[64]), f32[64], u32[]) async-start(p), calls=started
  ROOT d = f32[64] async-done(s)
}"""
    module = _compiled(text)
    check_buffers(module, assign_buffers(module))
