"""Fusion keeps the lists of users that values have."""

from __future__ import annotations

from algebraic_cases import apply

from hlo_run.hlo_passes.fusion.priority_fusion import PriorityFusion
from hlo_run.ops.parse import parse


def test_users_of_a_value_with_many_can_be_removed_after_fusion() -> None:
    # Pairs of several sizes, which do not fuse in the order of the text.
    shapes = [f"f32[{1 + 7 * k % 64},8]" for k in range(120)]
    rows = [
        f"  wide_{k} = {shape} broadcast(p), dimensions={{1}}\n  sine_{k} = {shape} sine(wide_{k})"
        for k, shape in enumerate(shapes)
    ]
    text = "HloModule m\nENTRY e {\n  p = f32[8] parameter(0)\n" + "\n".join(rows)
    text += f"\n  ROOT r = ({', '.join(shapes)}) tuple({', '.join(f'sine_{k}' for k in range(len(shapes)))})\n}}"
    module = parse(text)
    (parameter,) = module.entry.parameters
    # From then on the parameter knows the places of its users.
    first = parameter.users[0]
    first.operands = ()
    first.operands = (parameter,)
    apply(module, PriorityFusion())
    for user in list(parameter.users):
        user.operands = ()
        assert user not in parameter.users
