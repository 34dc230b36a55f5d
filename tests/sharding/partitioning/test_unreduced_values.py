"""Programs with unreduced axes have the values of the undivided module on all devices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hlo_run.api import evaluate
from hlo_run.ops.parse import parse
from tests.sharding.partitioning.division import check_values

DIVIDED = Path(__file__).parents[3] / "docs" / "findings" / "divided"

# A parameter and a result that are sums, and a manual computation whose arguments and results are sums.
SUMS = """HloModule sums, num_partitions=8, frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["x"=2, "y"=4]>}}
body {
  p = f32[4,4] parameter(0)
  ROOT t = f32[4,4] add(p, p)
}
ENTRY e {
  g = f32[8,4] parameter(0), frontend_attributes={xla.sdy.sharding="#sdy.sharding<@mesh, [{'x'}, {}], unreduced={'y'}>"}
  x = f32[8,16] parameter(1), frontend_attributes={xla.sdy.sharding="#sdy.sharding<@mesh, [{'x'}, {'y'}]>"}
  w = f32[16,4] parameter(2), frontend_attributes={xla.sdy.sharding="#sdy.sharding<@mesh, [{'y'}, {}]>"}
  d = f32[8,4] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  l = f32[4,4] custom-call(d), custom_call_target="xla.sdy.GlobalToLocalShape", frontend_attributes={
    xla.sdy.in_shardings="#sdy.sharding_per_value<[<@mesh, [{'x'}, {}], unreduced={'y'}>]>",
    xla.sdy.manual_axes="#sdy<manual_axes{'x', 'y'}>"}
  b = f32[4,4] call(l), to_apply=body, frontend_attributes={inlineable="false"}
  m = f32[8,4] custom-call(b), custom_call_target="xla.sdy.LocalToGlobalShape", frontend_attributes={
    xla.sdy.manual_axes="#sdy<manual_axes{'x', 'y'}>",
    xla.sdy.out_shardings="#sdy.sharding_per_value<[<@mesh, [{'x'}, {}], unreduced={'y'}>]>"}
  s = f32[8,4] add(g, m)
  c = f32[8,4] custom-call(s), custom_call_target="Sharding",
    frontend_attributes={xla.sdy.sharding="#sdy.sharding_per_value<[<@mesh, [{'x'}, {}], unreduced={'y'}>]>"}
  whole = f32[8,4] custom-call(c), custom_call_target="Sharding",
    frontend_attributes={xla.sdy.sharding="#sdy.sharding_per_value<[<@mesh, [{'x'}, {}]>]>"}
  sine = f32[8,4] sine(whole)
  r = f32[8,4] custom-call(c), custom_call_target="xla.sdy.FuncResultSharding",
    frontend_attributes={xla.sdy.sharding="#sdy.sharding_per_value<[<@mesh, [{'x'}, {}], unreduced={'y'}>]>"}
  ROOT t = (f32[8,4], f32[8,4]) tuple(r, sine)
}
""".replace("'", '\\"')


@pytest.mark.parametrize("name", ["loop_reads_a_sum", "sum_of_tiles_along_two_axes", "transpose_of_a_part_of_a_sum"])
def test_what_xla_divides_with_wrong_values_is_right(name: str) -> None:
    check_values((DIVIDED / f"{name}.hlo").read_text())


def test_parameters_results_and_manual_computations_are_sums() -> None:
    check_values(SUMS)


def test_the_undivided_module_has_whole_values() -> None:
    g, x, w = (np.arange(size, dtype=np.float32).reshape(-1, width) % 5 for size, width in ((32, 4), (128, 16), (64, 4)))
    for total, sine in evaluate(parse(SUMS), g, x, w):
        np.testing.assert_array_equal(total, g + 2 * (x @ w))
        np.testing.assert_allclose(sine, np.sin(total), rtol=1e-5, atol=1e-6)
