"""The cost of modules, counted by hand and by XLA."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

import hlo_run
from hlo_run.analysis.cost import module_cost
from hlo_run.analysis.cost.module_cost import cost_analysis
from hlo_run.formats.spelling import FIRST_WITH_ALL, installed_release

_TESTS = Path(__file__).parents[2]
_APPLIED = "add { x = f32[] parameter(0) y = f32[] parameter(1) ROOT s = f32[] add(x, y) }\n"

# (entry, flops, transcendentals, bytes accessed)
CASES = {
    "add": ("a = f32[8]{0} parameter(0) ROOT r = f32[8]{0} add(a, a)", 8, 0, 96),
    "tanh": ("a = f32[8]{0} parameter(0) ROOT r = f32[8]{0} tanh(a)", 0, 8, 64),
    "dot": (
        "a = f32[3,5]{1,0} parameter(0) b = f32[5,7]{1,0} parameter(1) "
        "ROOT r = f32[3,7]{1,0} dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        2 * 3 * 5 * 7,
        0,
        4 * (15 + 35 + 21),
    ),
    "reduce": (
        "a = f32[4,8]{1,0} parameter(0) z = f32[] constant(0) ROOT r = f32[4]{0} reduce(a, z), dimensions={1}, to_apply=add",
        28,
        0,
        4 * (32 + 1 + 4),
    ),
    # Of the 12 products of taps and results, the 2 at the ends are with padding.
    "convolution": (
        "a = f32[1,4,1]{2,1,0} parameter(0) k = f32[3,1,1]{2,1,0} parameter(1) ROOT r = f32[1,4,1]{2,1,0} "
        "convolution(a, k), window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f",
        2 * 10,
        0,
        4 * (4 + 3 + 4),
    ),
    # Results 0, 2 and 4 of taps 0 and 2, and 1 and 3 of tap 1, meet one of the three elements with holes between them.
    "dilated convolution": (
        "a = f32[1,3,1]{2,1,0} parameter(0) k = f32[3,1,1]{2,1,0} parameter(1) ROOT r = f32[1,5,1]{2,1,0} "
        "convolution(a, k), window={size=3 pad=1_1 lhs_dilate=2}, dim_labels=b0f_0io->b0f",
        2 * (2 + 3 + 2),
        0,
        4 * (3 + 3 + 5),
    ),
    "slice": ("a = f32[100]{0} parameter(0) ROOT r = f32[10]{0} slice(a), slice={[5:15]}", 0, 0, 80),
    "tuple": ("a = f32[100]{0} parameter(0) ROOT r = (f32[100]{0}, f32[100]{0}) tuple(a, a)", 0, 0, 16),
}


@pytest.mark.parametrize("name", CASES)
def test_costs_counted_by_hand(name: str) -> None:
    entry, flops, transcendentals, size = CASES[name]
    cost = cost_analysis(hlo_run.parse(f"HloModule m\n{_APPLIED}\nENTRY e {{ {entry} }}", name)).properties
    assert (cost["flops"], cost["transcendentals"], cost["bytes accessed"]) == (flops, transcendentals, size)


def test_a_fusion_reads_parts_and_writes_updates_in_place() -> None:
    text = """HloModule m
    f {
      p = f32[1000]{0} parameter(0)
      u = f32[10]{0} parameter(1)
      i = s32[] parameter(2)
      s = f32[10]{0} slice(p), slice={[0:10]}
      n = f32[10]{0} add(s, u)
      ROOT d = f32[1000]{0} dynamic-update-slice(p, n, i)
    }
    ENTRY e {
      a = f32[1000]{0} parameter(0)
      b = f32[10]{0} parameter(1)
      c = s32[] parameter(2)
      ROOT r = f32[1000]{0} fusion(a, b, c), kind=kLoop, calls=f
    }"""
    module = hlo_run.parse(text, "m")
    cost = cost_analysis(module).instructions[module.entry.root]
    # The slice, the update and the index are read, the update is written.
    assert cost["bytes accessed"] == 40 + 40 + 4 + 40
    assert cost["bytes accessedout{}"] == 40


_FILES = sorted((_TESTS / "data").glob("[j-x]*/*.hlo"))
# In a process of its own: XLA's threads must not be in a process that forks later.
_XLA = """
import json, pathlib, sys
from jaxlib import _hlo, _jax, xla_client
client, costs = xla_client.make_cpu_client(), {}
for file in sys.argv[1:]:
    try:
        module = _hlo.hlo_module_from_text(pathlib.Path(file).read_text())
    except _jax.JaxRuntimeError:
        continue
    costs[file] = _jax.hlo_module_cost_analysis(client, module)
print(json.dumps(costs))
"""


def test_every_property_is_xlas(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA adds in float32, so sums differ in the last digits. Since jaxlib 0.12, XLA:CPU counts 4 bytes for a pointer, not 8."""
    if importlib.util.find_spec("jaxlib") is None:
        pytest.skip("needs hlo-run[xla]")
    if installed_release() >= FIRST_WITH_ALL:
        monkeypatch.setattr(module_cost, "_POINTER_BYTES", 4)
    command = [sys.executable, "-c", _XLA, *map(str, _FILES)]
    costs = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    assert len(costs) > len(_FILES) // 2
    for file, properties in costs.items():
        found = cost_analysis(hlo_run.parse(Path(file).read_text(), file)).properties
        expected = {name: value for name, value in properties.items() if value}
        assert {name: value for name, value in found.items() if value} == pytest.approx(expected, rel=1e-5), file
