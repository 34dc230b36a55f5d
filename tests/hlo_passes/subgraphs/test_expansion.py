"""Tests of `expansion.py`: an expanded instruction ceases to use its operands before the next one is expanded."""

from hlo_run import parse
from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo_passes.subgraphs.expansion import expand

_TEXT = """
HloModule m
ENTRY e {
  p = f32[2] parameter(0)
  a = f32[2] negate(p)
  b = f32[2] negate(p)
  c = f32[2] sine(p)
  ROOT t = (f32[2], f32[2], f32[2]) tuple(a, b, c)
}
"""


def _cosine(builder: HloBuilder, old: HloInstruction, value: HloValue) -> HloValue:
    del old
    return builder.cosine(value)


def test_users_are_listed_as_after_one_replacement_at_a_time() -> None:
    module = parse(_TEXT)
    expand(module, ("negate",), _cosine)
    # [a, b, c], [a, b, c, cosine] without a, [cosine, b, c, cosine.1] without b: the last user takes the place of one that goes.
    assert [user.name for user in module.entry.parameters[0].users] == ["cosine", "cosine.1", "c"]
