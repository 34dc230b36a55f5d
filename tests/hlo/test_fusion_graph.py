"""The graph on which fusion passes decide, and what it writes back."""

from __future__ import annotations

import hlo_run
from hlo_run.hlo.fusion_graph import FusionGraph

COUNT = 100


def test_a_value_with_many_users_can_lose_users_after_two_graphs() -> None:
    steps = "\n".join(f"  n{number} = f32[8] negate(p)\n  t{number} = f32[8] add(p, n{number})" for number in range(COUNT))
    shapes, results = ", ".join(["f32[8]"] * COUNT), ", ".join(f"t{number}" for number in range(COUNT))
    module = hlo_run.parse(
        f"HloModule m\nENTRY e {{\n  p = f32[8] parameter(0)\n{steps}\n  ROOT r = ({shapes}) tuple({results})\n}}"
    )
    (parameter,) = module.entry.parameters
    for _ in range(2):
        graph = FusionGraph(module.entry)
        producers = [node for node in graph if node.opcode == "negate"]
        for producer in producers[:30]:
            (consumer,) = producer.users
            graph.fuse(producer, consumer, "kLoop")
            graph.remove(producer)
        graph.write()
    first, *others = parameter.users
    for user in others[:40]:
        user.operands = (first,)
    assert set(parameter.users) == {user for user in module.entry.instructions if parameter in user.operands}
    assert len(parameter.users) == 2 * COUNT - 100
