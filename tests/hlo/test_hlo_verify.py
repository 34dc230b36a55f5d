"""Graphs that no text can have: the verifier finds the errors of a broken pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import hlo_run
from hlo_run.errors import ParseError
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.verify.module import verify_module

_TEXT = """HloModule m
f {
  x = f32[2] parameter(0)
  n = f32[2] negate(x)
  ROOT a = f32[2] add(n, x)
}
g {
  x = f32[2] parameter(0)
  ROOT c = f32[2] call(x), to_apply=f
}
ENTRY e {
  p = f32[2] parameter(0)
  q = f32[2] parameter(1)
  s = f32[2] add(p, q)
  t = f32[2] abs(s)
  ROOT r = f32[2] call(t), to_apply=g
}
"""
_SHAPE = Shape.array("f32", (2,))


def _by_name(module: HloModule, name: str) -> HloInstruction:
    return next(instruction for instruction in module.instructions if instruction.name == name)


def _cycle(module: HloModule) -> None:
    _by_name(module, "s").operands = (_by_name(module, "t"), _by_name(module, "q"))


def _control_cycle(module: HloModule) -> None:
    _by_name(module, "s").control_predecessors.append(_by_name(module, "t"))


def _call_cycle(module: HloModule) -> None:
    inner = module.computations[0].add(HloInstruction("again", "call", _SHAPE, [_by_name(module, "n")]))
    inner.called = {"to_apply": (module.computations[1],)}


def _foreign_operand(module: HloModule) -> None:
    _by_name(module, "t").operands = (_by_name(module, "n"),)


def _too_many_operands(module: HloModule) -> None:
    source = _by_name(module, "p")
    _by_name(module, "t").operands = (source, source)


def _missing_attribute(module: HloModule) -> None:
    _by_name(module, "t").opcode = "transpose"


def _unknown_opcode(module: HloModule) -> None:
    _by_name(module, "t").opcode = "frobnicate"  # pyright: ignore[reportAttributeAccessIssue]


def _lost_user(module: HloModule) -> None:
    _by_name(module, "p").users.clear()


def _wrong_numbers(module: HloModule) -> None:
    _by_name(module, "q").attrs["parameter_number"] = 3


def _lost_computation(module: HloModule) -> None:
    module.computations.pop(0)


def _lost_root(module: HloModule) -> None:
    module.entry.instructions.pop()


def _no_entry(module: HloModule) -> None:
    module.entry_computation = HloComputation("other")


def _fusion_and_call(module: HloModule) -> None:
    fusion = HloInstruction("fusion", "fusion", _SHAPE, [_by_name(module, "p")], {"kind": "kLoop"})
    module.entry.add(fusion).called = {"calls": (module.computations[0],)}


_BROKEN: dict[Callable[[HloModule], None], str] = {
    _cycle: "depends on itself",
    _control_cycle: "depends on itself",
    _call_cycle: "calls itself",
    _foreign_operand: "'t' (abs): uses 'n', which is not in its computation",
    _too_many_operands: "expects 1 operands, but has 2 operands",
    _missing_attribute: "attribute dimensions is expected but not seen",
    _unknown_opcode: "Unknown opcode: frobnicate",
    _lost_user: "is not among the users of its operand 'p'",
    _wrong_numbers: "numbered [0, 3]",
    _lost_computation: "which the module lacks",
    _lost_root: "has no root",
    _no_entry: "no entry computation",
    _fusion_and_call: "is also called by",
}


def test_valid_module_passes() -> None:
    verify_module(hlo_run.parse(_TEXT))
    verify_module(hlo_run.parse(_TEXT).clone())


@pytest.mark.parametrize("breaks", _BROKEN, ids=lambda breaks: breaks.__name__.strip("_"))
def test_broken_module_is_refused(breaks: Callable[[HloModule], None]) -> None:
    module = hlo_run.parse(_TEXT)
    breaks(module)
    with pytest.raises(ParseError) as caught:
        verify_module(module)
    assert _BROKEN[breaks] in caught.value.message


def test_long_chain_of_calls_needs_no_recursion() -> None:
    parts = ["HloModule m", "n0 { p = f32[] parameter(0) }"]
    parts += [f"n{i} {{ p = f32[] parameter(0)\n ROOT r = f32[] call(p), to_apply=n{i - 1} }}" for i in range(1, 3000)]
    verify_module(hlo_run.parse("\n".join(parts)))
