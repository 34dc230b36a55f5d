"""Dataflow and alias analysis: the value at each place, numbered as in real XLA, and the values that share a buffer."""

from __future__ import annotations

import pytest

import hlo_run
from hlo_run.analysis.buffers.alias_analysis import analyze_aliases
from hlo_run.analysis.buffers.dataflow import analyze_dataflow
from hlo_run.analysis.buffers.dataflow_values import HloValue
from hlo_run.errors import Unsupported

# The numbers were read from the `buffer-assignment-values.txt` that real XLA:GPU writes for this module.
LOOP = """
HloModule m, is_scheduled=true
add_c { f1a = f32[] parameter(0)  f1b = f32[] parameter(1)  ROOT f1c = f32[] add(f1a, f1b) }
fused2 { f2p = f32[100] parameter(0)  f2q = f32[100] parameter(1)  ROOT f2a = f32[100] add(f2p, f2q) }
fused3 { f3p = f32[100] parameter(0)  f3q = f32[100] parameter(1)  ROOT f3a = f32[100] add(f3p, f3q) }
fused { f4p = f32[100] parameter(0)  f4q = f32[100] parameter(1)  ROOT f4a = f32[100] add(f4p, f4q) }
fr { f5p = f32[100] parameter(0)  f5z = f32[] constant(0)  ROOT f5a = f32[] reduce(f5p, f5z), dimensions={0}, to_apply=add_c }
finc { f6p = s32[] parameter(0)  f6o = s32[] constant(1)  ROOT f6a = s32[] add(f6p, f6o) }
fcmp { f7p = s32[] parameter(0)  f7o = s32[] constant(10)  ROOT f7a = pred[] compare(f7p, f7o), direction=LT }
cond {
  s = (s32[], f32[100], f32[100]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  ROOT go = pred[] fusion(i), kind=kLoop, calls=fcmp
}
body {
  b = (s32[], f32[100], f32[100]) parameter(0)
  j = s32[] get-tuple-element(b), index=0
  x = f32[100] get-tuple-element(b), index=1
  y = f32[100] get-tuple-element(b), index=2
  i2 = s32[] fusion(j), kind=kLoop, calls=finc
  z = f32[100] fusion(x, y), kind=kLoop, calls=fused2
  ROOT t = (s32[], f32[100], f32[100]) tuple(i2, z, y)
}
ENTRY e {
  p = f32[100] parameter(0)
  q = f32[100] parameter(1)
  i0 = s32[] constant(0)
  c = s32[] copy(i0)
  v = f32[100] fusion(p, q), kind=kLoop, calls=fused
  init = (s32[], f32[100], f32[100]) tuple(c, v, p)
  w = (s32[], f32[100], f32[100]) while(init), condition=cond, body=body
  r = f32[100] get-tuple-element(w), index=1
  red = f32[] fusion(r), kind=kInput, calls=fr
  u = f32[100] fusion(r, q), kind=kLoop, calls=fused3
  ROOT o = (f32[], f32[100]) tuple(red, u)
}
"""


def _text(value: HloValue) -> str:
    places = [f"{p.instruction.name}{list(p.shape_index)}" for p in value.positions]
    uses = [f"{u.instruction.name}.{u.operand_number}{list(u.operand_index)}" for u in value.uses]
    return f"{value.id}: {' '.join(places)} | {' '.join(uses)}"


def _names(text: str) -> dict[str, set[str]]:
    """Return the buffers, each as the set of places that its values are defined at."""
    analysis = analyze_aliases(analyze_dataflow(hlo_run.parse(text)))
    places = [{f"{v.instruction.name}{list(v.index)}" for v in buffer.values} for buffer in analysis.buffers]
    return {place: found for found in places for place in found}


def test_values_of_a_loop_are_xlas() -> None:
    texts = {value.id: _text(value) for value in analyze_dataflow(hlo_run.parse(LOOP)).values}
    # 3 to 20 are the values of fusions; 38, 41 and 45 were phis of what the loop hands on unchanged.
    assert list(texts) == [0, 1, 2, *range(21, 38), 39, 40, 42, 43, 44]
    assert texts[27].startswith("27: p[] s[2] b[2] y[] t[2] init[2] w[2] | ")
    assert set(texts[27].split(" | ")[1].split()) == {"v.0[]", "z.1[]", "t.2[]", "w.0[2]"}
    assert texts[34] == "34: s[] | i.0[]"
    assert texts[37] == "37: s[1] | "
    assert texts[39] == "39: b[0] j[] | i2.0[]"
    assert texts[44] == "44: w[1] r[] | red.0[] u.0[]"


def test_state_of_a_loop_is_one_buffer() -> None:
    buffers = _names(LOOP)
    assert buffers["w[1]"] == {"v[]", "s[1]", "b[1]", "z[]", "w[1]"}
    assert buffers["w[0]"] == {"c[]", "s[0]", "b[0]", "i2[]", "w[0]"}
    assert buffers["p[]"] == {"p[]"}


def test_branches_share_with_the_result() -> None:
    buffers = _names("""
f { f8p = f32[4] parameter(0)  ROOT f8n = f32[4] negate(f8p) }
g { f9p = f32[4] parameter(0)  ROOT f9n = f32[4] abs(f9p) }
one { p = f32[4] parameter(0)  ROOT a = f32[4] fusion(p), kind=kLoop, calls=f }
two { p = f32[4] parameter(0)  ROOT b = f32[4] fusion(p), kind=kLoop, calls=g }
ENTRY e {
  s = s32[] parameter(0)
  x = f32[4] parameter(1)
  y = f32[4] parameter(2)
  ROOT c = f32[4] conditional(s, x, y), branch_computations={one, two}
}""")
    assert buffers["c[]"] == {"a[]", "b[]", "c[]"}
    assert buffers["x[]"] == {"x[]"}


def test_in_place_update_and_module_alias_share() -> None:
    buffers = _names("""
HloModule m, input_output_alias={ {1}: (0, {}, may-alias) }
f {
  fp = f32[8] parameter(0)
  fu = f32[2] parameter(1)
  fi = s32[] parameter(2)
  ROOT fd = f32[8] dynamic-update-slice(fp, fu, fi)
}
g { f10p = f32[8] parameter(0)  ROOT f10n = f32[8] negate(f10p) }
ENTRY e {
  p = f32[8] parameter(0)
  u = f32[2] parameter(1)
  i = s32[] parameter(2)
  n = f32[8] fusion(p), kind=kLoop, calls=g
  d = f32[8] fusion(p, u, i), kind=kLoop, calls=f
  ROOT t = (f32[8], f32[8]) tuple(n, d)
}""")
    assert buffers["p[]"] == {"p[]", "d[]"}
    assert buffers["n[]"] == {"n[]"}


def test_swapped_state_is_one_buffer_for_both() -> None:
    buffers = _names("""
cond { s = (f32[], f32[]) parameter(0)  ROOT k = pred[] constant(false) }
body {
  b = (f32[], f32[]) parameter(0)
  x = f32[] get-tuple-element(b), index=0
  y = f32[] get-tuple-element(b), index=1
  ROOT t = (f32[], f32[]) tuple(y, x)
}
ENTRY e {
  p = (f32[], f32[]) parameter(0)
  ROOT w = (f32[], f32[]) while(p), condition=cond, body=body
}""")
    assert {"b[0]", "b[1]", "w[0]", "w[1]"} <= buffers["w[0]"]


def test_call_and_async_hand_on() -> None:
    dataflow = analyze_dataflow(
        hlo_run.parse("""
inner { ip = f32[4] parameter(0)  ROOT n = f32[4] negate(ip) }
ENTRY e {
  p = f32[4] parameter(0)
  c = f32[4] copy(p)
  k = f32[4] call(c), to_apply=inner
  ROOT b = f32[2,2] bitcast(k)
}""")
    )
    entry = {i.name: i for i in dataflow.module.instructions}
    assert dataflow.value(entry["b"]) is dataflow.value(entry["n"])
    assert dataflow.value(dataflow.module.computations[0].parameters[0]) is dataflow.value(entry["c"])


def test_computation_run_twice_is_refused() -> None:
    module = hlo_run.parse("""
f { ip = f32[] parameter(0)  ROOT n = f32[] negate(ip) }
ENTRY e {
  p = f32[] parameter(0)
  a = f32[] call(p), to_apply=f
  ROOT b = f32[] call(a), to_apply=f
}""")
    with pytest.raises(Unsupported, match="runs at two places"):
        analyze_dataflow(module)
