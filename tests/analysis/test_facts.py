"""Facts about a module are found once for each version of it."""

from hlo_run.analysis.facts import element_types, fact
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.ops.parse import parse

_TEXT = """
ENTRY e {
  p = (bf16[2], s8[3]) parameter(0)
  x = bf16[2] get-tuple-element(p), index=0
  ROOT c = f32[2] convert(x)
}
"""


def test_a_fact_is_found_again_after_an_edit() -> None:
    asked: list[int] = []

    def count(module: HloModule) -> int:
        asked.append(module.version)
        return sum(1 for _ in module.instructions)

    module = parse(_TEXT)
    assert fact(module, count) == fact(module, count) == 3
    assert len(asked) == 1
    module.entry.root.attrs["backend_config"] = ""
    assert fact(module, count) == 3
    assert len(asked) == 2


def test_element_types_are_those_of_arrays_and_of_tuples_parts() -> None:
    module = parse(_TEXT)
    assert element_types(module) == {"bf16", "s8", "f32"}
    module.entry.root.shape = Shape.array("f64", (2,))
    assert element_types(module) == {"bf16", "s8", "f64"}
