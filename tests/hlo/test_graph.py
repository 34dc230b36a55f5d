"""Operands and use lists stay consistent, also for an instruction with very many operands."""

from __future__ import annotations

import pytest

import hlo_run


@pytest.mark.parametrize("size", [3, 500])
def test_operands_that_are_replaced_one_by_one(size: int) -> None:
    lines = [f"  p{i} = f32[2] parameter({i})\n  n{i} = f32[2] negate(p{i})" for i in range(size)]
    operands = ["p0", "p1", "p0", *(f"p{i}" for i in range(2, size))]
    shapes = ", ".join(["f32[2]"] * len(operands))
    text = f"  ROOT r = ({shapes}) tuple({', '.join(operands)})"
    module = hlo_run.parse("\n".join(["HloModule m", "ENTRY e {", *lines, text, "}"]))
    root = module.entry.root
    parameters = module.entry.parameters
    negated = {p: next(user for user in p.users if user is not root) for p in parameters}
    for number, parameter in enumerate(parameters):
        root.replace_operand(parameter, negated[parameter])
        assert root.operands[number + 1 if number > 1 else number] is negated[parameter]
        assert root not in parameter.users
    assert [o.name for o in root.operands] == ["n0", "n1", "n0", *(f"n{i}" for i in range(2, size))]
    root.replace_operand(negated[parameters[1]], negated[parameters[0]])
    assert negated[parameters[0]].users == [root]
    assert negated[parameters[1]].users == []
    root.operands = (parameters[0],)
    assert root.operands == (parameters[0],)
    assert negated[parameters[0]].users == []


def test_post_order_visits_the_last_control_predecessor_first() -> None:
    module = hlo_run.parse("""
HloModule m
ENTRY e {
  p = f32[] parameter(0)
  a = f32[] negate(p)
  b = f32[] abs(p)
  c = f32[] sine(p), control-predecessors={a, b}
  ROOT t = (f32[], f32[], f32[]) tuple(c, a, b)
}""")
    assert [instruction.name for instruction in module.entry.post_order()] == ["p", "b", "a", "c", "t"]


def test_parts_of_a_module_print_as_hlo() -> None:
    module = hlo_run.parse(
        "HloModule m\nENTRY e {\n  p = f32[2] parameter(0)\n  c = f32[2] constant({1,2})\n  ROOT r = add(p, c)\n}"
    )
    assert str(module) == module.to_string()
    assert str(module.entry) in str(module)
    assert [str(instruction) for instruction in module.entry.instructions] == [
        "%p = f32[2]{0} parameter(0)",
        "%c = f32[2]{0} constant({1, 2})",
        "%r = f32[2]{0} add(%p, %c)",
    ]


def test_a_value_of_the_builder_prints_its_instruction() -> None:
    builder = hlo_run.HloBuilder("m")
    x = builder.parameter(0, "f32[4]")
    assert str(x) == repr(x) == "%p0 = f32[4]{0} parameter(0)"
    assert str(builder.constant(2.5)) == "%constant = f32[] constant(2.5)"
