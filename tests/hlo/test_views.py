"""Views of instructions: what several attributes say together."""

from __future__ import annotations

from hlo_run import parse
from hlo_run.hlo.values.attribute_values import WindowDim
from hlo_run.hlo.views.convolutions import Convolution, SpatialDim

TEXT = """HloModule m
ENTRY e {
  a = f32[2,9,7,4] parameter(0)
  b = f32[3,2,2,6] parameter(1)
  ROOT c = f32[2,7,6,6] convolution(a, b), window={size=3x2}, dim_labels=b01f_01io->b01f, feature_group_count=2
}
"""


def test_a_convolution() -> None:
    view = Convolution.of(parse(TEXT).entry.root)
    assert (view.feature_groups, view.batch_groups, view.has_groups) == (2, 1, True)
    assert str(view.labels) == "b01f_01io->b01f"
    assert view.spatial == [SpatialDim(WindowDim(3), 1, 0, 1), SpatialDim(WindowDim(2), 2, 1, 2)]
