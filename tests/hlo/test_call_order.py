"""The order in which a module keeps its computations: callees first in the end, and otherwise by the history of calls."""

from __future__ import annotations

import random

import hlo_run
from hlo_run.analysis.computation_order import computation_post_order
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape

LOOP = """HloModule m
body { p = (s32[]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  ROOT t = (s32[]) tuple(i) }
cond { q = (s32[]) parameter(0)
  ROOT c = pred[] constant(true) }
ENTRY e { s = (s32[]) parameter(0)
  ROOT w = (s32[]) while(s), condition=cond, body=body }
"""


def added(module: HloModule, name: str) -> HloComputation:
    computation = HloComputation(name)
    computation.add(HloInstruction("p", "parameter", Shape.array("s32", ()), (), {"parameter_number": 0}), is_root=True)
    return module.add_computation(computation)


def called(caller: HloComputation, callee: HloComputation) -> HloInstruction:
    shape = Shape.array("s32", ())
    (operand,) = caller.parameters
    return caller.add(HloInstruction("call", "call", shape, [operand], called={"to_apply": (callee,)}))


def names(module: HloModule) -> list[str]:
    return [computation.name for computation in computation_post_order(module)]


def test_a_caller_moves_behind_its_new_callee() -> None:
    module = hlo_run.parse(LOOP)
    assert names(module) == ["body", "cond", "e"]
    body = module.computations[0]
    new = added(module, "new")
    assert names(module) == ["body", "cond", "e", "new"]
    call = HloInstruction("new", "call", body.root.shape, [body.parameters[0]], called={"to_apply": (new,)})
    body.add(call)
    assert names(module) == ["cond", "new", "body", "e"]
    # What was moved stays there, and so does a copy of the module.
    body.remove(call)
    module.remove_computation(new)
    assert names(module) == ["cond", "body", "e"]
    assert names(module.clone()) == ["cond", "body", "e"]


def test_callees_come_first_whatever_is_added() -> None:
    chosen = random.Random(5)
    module = hlo_run.parse("HloModule m\nENTRY e { ROOT p = s32[] parameter(0) }")
    computations = [module.entry, *(added(module, f"c{n}") for n in range(40))]
    chosen.shuffle(computations)
    for _ in range(400):
        one, other = sorted(chosen.sample(range(len(computations)), 2))
        called(computations[one], computations[other])
        if chosen.random() < 0.1:
            computations.append(added(module, "late"))
    places = {name: place for place, name in enumerate(names(module))}
    assert len(places) == len(module.computations)
    for computation in module.computations:
        for instruction in computation.instructions:
            assert all(places[callee.name] < places[computation.name] for callee in instruction.called_computations)
