"""Evaluation of graphs: tuples, calls, loops, branches, freed values, and errors."""

from __future__ import annotations

import gc
import weakref
from itertools import pairwise

import numpy as np
import pytest
from reference_running import Array, array, assert_same, run

import hlo_run
from hlo_run.errors import DeviceError, InternalError, Unsupported
from hlo_run.hlo.graph import HloInstruction
from hlo_run.reference.arguments.fake_arguments import make_fake_arguments
from hlo_run.reference.evaluate import evaluate as evaluate_module
from hlo_run.reference.evaluate.evaluate import EVALUATE, evaluate
from hlo_run.reference.random import RandomEngine
from hlo_run.reference.values import Calls, Value, as_array, merge


def test_fusion_call_and_nested_tuples() -> None:
    text = """HloModule m
    twice { x = f32[3] parameter(0)
      ROOT y = f32[3] add(x, x) }
    both { x = f32[3] parameter(0)
      c = f32[3] call(x), to_apply=twice
      n = f32[3] negate(c)
      t = (f32[3], f32[3]) tuple(c, n)
      ROOT o = ((f32[3], f32[3]), f32[3]) tuple(t, x) }
    ENTRY e { x = f32[3] parameter(0)
      f = ((f32[3], f32[3]), f32[3]) fusion(x), kind=kLoop, calls=both
      t = (f32[3], f32[3]) get-tuple-element(f), index=0
      n = f32[3] get-tuple-element(t), index=1
      b = f32[3] opt-barrier(n)
      ROOT r = (f32[3], (f32[3], f32[3])) tuple(b, t) }"""
    x = array("f32", [1, 2, 3])
    found = run(text, x)
    assert_same(found[0], -2 * x)
    assert_same(found[1][0], 2 * x)


def test_while_counts() -> None:
    text = """HloModule m
    more { p = (s32[], f32[2]) parameter(0)
      i = s32[] get-tuple-element(p), index=0
      n = s32[] constant(10)
      ROOT c = pred[] compare(i, n), direction=LT }
    step { p = (s32[], f32[2]) parameter(0)
      i = s32[] get-tuple-element(p), index=0
      x = f32[2] get-tuple-element(p), index=1
      one = s32[] constant(1)
      j = s32[] add(i, one)
      y = f32[2] add(x, x)
      ROOT t = (s32[], f32[2]) tuple(j, y) }
    ENTRY e { i = s32[] parameter(0)
      x = f32[2] parameter(1)
      t = (s32[], f32[2]) tuple(i, x)
      ROOT w = (s32[], f32[2]) while(t), condition=more, body=step }"""
    count, x = run(text, array("s32", 7), array("f32", [1, -3]))
    assert_same(count, array("s32", 10))
    assert_same(x, array("f32", [8, -24]))


BRANCHES = """HloModule m
a { x = f32[] parameter(0)
  ROOT r = f32[] negate(x) }
b { x = f32[] parameter(0)
  ROOT r = f32[] add(x, x) }
c { x = f32[] parameter(0)
  ROOT r = f32[] multiply(x, x) }
ENTRY e { i = TYPE[] parameter(0)
  x = f32[] parameter(1)
  ROOT r = f32[] conditional(i, OPERANDS), ATTRIBUTES }"""


@pytest.mark.parametrize(("index", "expected"), [(0, -5), (1, 10), (2, 25), (3, 25), (-1, 25)])
def test_an_index_out_of_range_takes_the_last_branch(index: int, expected: float) -> None:
    text = BRANCHES.replace("TYPE", "s32").replace("OPERANDS", "x, x, x").replace("ATTRIBUTES", "branch_computations={a,b,c}")
    assert_same(run(text, array("s32", index), array("f32", 5)), array("f32", expected))


@pytest.mark.parametrize(("choice", "expected"), [(True, -5), (False, 10)])
def test_true_takes_the_true_computation(choice: bool, expected: float) -> None:
    text = BRANCHES.replace("TYPE", "pred").replace("OPERANDS", "x, x")
    text = text.replace("ATTRIBUTES", "true_computation=a, false_computation=b")
    assert_same(run(text, np.array(choice), array("f32", 5)), array("f32", expected))


def test_an_unknown_custom_call_names_the_instruction_and_its_place() -> None:
    text = """HloModule m
ENTRY e {
  s = u64[2] parameter(0)
  ROOT r = u64[2] custom-call(s), custom_call_target="shuffle"
}"""
    module = hlo_run.parse(text, "call.hlo")
    with pytest.raises(Unsupported) as caught:
        evaluate(module, [array("u64", [1, 2])])
    error = caught.value
    assert "'shuffle'" in error.message
    assert str(error.where).startswith("call.hlo:4")
    assert any("%r" in note for note in error.notes)


def test_what_the_root_does_not_need_is_not_evaluated() -> None:
    text = """HloModule m
    ENTRY e {
      s = u64[2] parameter(0)
      dead = u64[2] custom-call(s), custom_call_target="shuffle"
      ROOT r = u64[2] add(s, s)
    }"""
    assert_same(run(text, array("u64", [1, 2])), array("u64", [2, 4]))


def test_arrays_are_freed_after_their_last_use(monkeypatch: pytest.MonkeyPatch) -> None:
    # What is there already is not collected, which would take much longer than what the run makes.
    gc.freeze()
    made: list[weakref.ref[Array]] = []
    alive: list[int] = []
    negate = EVALUATE["negate"]

    def watched(instruction: HloInstruction, operands: list[Value], calls: Calls) -> Value:
        value = as_array(negate(instruction, operands, calls))
        gc.collect()
        alive.append(sum(1 for reference in made if reference() is not None))
        made.append(weakref.ref(value))
        return value

    monkeypatch.setitem(evaluate_module.EVALUATE, "negate", watched)
    names = ["x", *(f"n{k}" for k in range(6))]
    lines = [f"  {new} = f32[100] negate({old})" for old, new in pairwise(names)]
    run("x = f32[100] parameter(0)\n" + "\n".join(lines[:-1]) + "\nROOT" + lines[-1], array("f32", np.arange(100)))
    # Only the operand of the current op is alive, no older value.
    assert alive == [0, 1, 1, 1, 1, 1]


def test_a_wrong_shape_from_an_evaluator_does_not_go_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(evaluate_module.EVALUATE, "negate", lambda _i, _o, _c: np.zeros(3, np.float64))
    with pytest.raises(InternalError, match=r"float64\[3\]"):
        run("x = f32[100] parameter(0)\nROOT n = f32[100] negate(x)", array("f32", np.arange(100)))


def test_the_result_is_contiguous_and_arguments_stay() -> None:
    x = array("f32", np.arange(12).reshape(3, 4))
    before = x.copy()
    found = run("x = f32[3,4] parameter(0)\nROOT t = f32[4,3] transpose(x), dimensions={1,0}", x)
    assert found.flags.c_contiguous
    assert_same(x, before)


def test_one_row_an_opcode() -> None:
    with pytest.raises(AssertionError):
        merge(({"add": EVALUATE["add"]}, {"add": EVALUATE["add"]}))


def _no_memory(*_arguments: object) -> Value:
    raise MemoryError


def test_running_out_of_memory_names_the_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(evaluate_module.EVALUATE, "negate", _no_memory)
    with pytest.raises(DeviceError, match=r"out of memory in the reference for %n, f32\[3\]"):
        run("x = f32[3] parameter(0)\nROOT n = f32[3] negate(x)", array("f32", [1, 2, 3]))
    monkeypatch.setattr(RandomEngine, "words", _no_memory)
    module = hlo_run.parse("HloModule m\nENTRY e {\n  ROOT x = f32[3] parameter(0)\n}")
    with pytest.raises(DeviceError, match="out of memory in the reference for %x"):
        make_fake_arguments(module, 1)
