"""The parser's results for valid texts."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hlo_run
from hlo_run.errors import ParseError, Unsupported
from hlo_run.hlo.attributes.shape_text import array_shape
from hlo_run.hlo.attributes.stack_frames import StackFrame
from hlo_run.hlo.attributes.table import EntryLayout, FrontendAttributes, OpMetadata
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.text.parser import UNKNOWN_SHAPE, parse_module
from hlo_run.hlo.values.shape import Shape

_SEED = """HloModule m:

gelu {
  %param = bf16[6,512] parameter(0)
  %constant_0 = bf16[] constant(0.5)
  %bcast_0 = bf16[6,512] broadcast(bf16[] %constant_0), dimensions={}
  ROOT %multiply_0 = bf16[6,512] multiply(bf16[6,512] %param, bf16[6,512] %bcast_0)
}

ENTRY main {
  %param = bf16[6,512] parameter(0)
  ROOT fusion = bf16[6,512] fusion(%param), kind=kLoop, calls=gelu
}"""


def _entry(body: str, before: str = "") -> HloModule:
    return hlo_run.parse(f"HloModule m\n{before}\nENTRY e {{\n{body}\n}}\n", "f.hlo")


def _find(module: HloModule, name: str) -> HloInstruction:
    return next(instruction for instruction in module.instructions if instruction.name == name)


def test_seed_module() -> None:
    module = hlo_run.parse(_SEED, "gelu.hlo")
    assert module.name == "m"
    assert [computation.name for computation in module.computations] == ["gelu", "main"]
    assert module.entry.name == "main"
    # Both bodies use `param`; the first in the text keeps the name.
    assert [p.name for c in module.computations for p in c.parameters] == ["param", "param.1"]
    fusion = module.entry.root
    assert (fusion.opcode, fusion.attrs["kind"], fusion.fused_computation.name) == ("fusion", "kLoop", "gelu")
    assert module.computations[0].is_fusion


def test_every_instruction_and_computation_knows_its_place() -> None:
    module = hlo_run.parse(_SEED, "gelu.hlo")
    places = [str(instruction.where) for instruction in module.instructions]
    assert places == [f"gelu.hlo:{line}" for line in ("4:3", "5:3", "6:3", "7:8", "11:3", "12:8")]
    assert [str(computation.where) for computation in module.computations] == ["gelu.hlo:3:1", "gelu.hlo:10:7"]
    where = module.entry.root.where
    assert where is not None
    assert where.source_line == "  ROOT fusion = bf16[6,512] fusion(%param), kind=kLoop, calls=gelu"


@pytest.mark.parametrize("text", ["a { ROOT p = f32[] parameter(0) }", "ENTRY a { p = f32[] parameter(0) }"])
def test_texts_without_header(text: str) -> None:
    module = hlo_run.parse(text)
    assert (module.name, module.has_header) == ("module_a", False)
    assert module.has_entry is text.startswith("ENTRY")
    assert module.entry.root.name == "p"


def test_last_computation_and_last_instruction_are_the_defaults() -> None:
    module = hlo_run.parse("HloModule m\na { p = f32[] parameter(0) }\nb { p = f32[] parameter(0)\n n = f32[] negate(p) }")
    assert module.entry.name == "b"
    assert module.entry.root.opcode == "negate"
    assert (module.has_header, module.has_entry) == (True, False)


def test_header_attributes() -> None:
    text = """HloModule m, is_scheduled=true, input_output_alias={ {}: (0, {}), {1}: (1, {}, must-alias) },
      entry_computation_layout={(f32[2,3]{0,1})->f32[2,3]{0,1}}, replica_count=2, frontend_attributes={b="x,y",a={"k":1}}
    ENTRY e { p = f32[2,3]{0,1} parameter(0) }"""
    module = hlo_run.parse(text, verified=False)
    shape = Shape.array("f32", (2, 3), (0, 1))
    assert module.attrs["entry_computation_layout"] == EntryLayout((shape,), shape)
    assert module.attrs["replica_count"] == 2
    assert str(module.attrs["frontend_attributes"]) == '{a={"k":1},b="x,y"}'
    assert module.attrs["input_output_alias"] == "{ {}: (0, {}, may-alias), {1}: (1, {}, must-alias) }"
    assert module.schedule == {module.entry: module.entry.instructions}


_TABLES = """FileNames
1 "a {.py"
2 "b.py"

FunctionNames
1 "f"
2 "g"

FileLocations
1 {file_name_id=1 function_name_id=2 line=1 end_line=2 column=3 end_column=4}
2 {file_name_id=2 function_name_id=1 line=5 end_line=6 column=7 end_column=8}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}
3 {file_location_id=2 parent_frame_id=0}
"""


def _frames(module: HloModule) -> tuple[StackFrame, ...]:
    assert module.stack_frames is not None
    return tuple(module.stack_frames.frames)


def _frame_id(instruction: HloInstruction) -> int:
    assert instruction.metadata is not None
    return instruction.metadata.stack_frame_id


def _with_frames(*numbers: int) -> HloModule:
    lines = [f"n{i} = f32[] negate(p), metadata={{stack_frame_id={n}}}" for i, n in enumerate(numbers)]
    return hlo_run.parse(f"HloModule m\n\n{_TABLES}\nENTRY e {{\np = f32[] parameter(0)\n" + "\n".join(lines) + "\n}")


def test_stack_frames_are_numbered_by_first_use() -> None:
    module = _with_frames(2, 1)
    found = _frames(module)
    assert [(frame.file, frame.function, frame.line, frame.parent) for frame in found] == [
        ("a {.py", "g", 1, 0),
        ("b.py", "f", 5, 1),
    ]
    assert [_frame_id(i) for i in module.entry.instructions[1:]] == [2, 1]


@pytest.mark.parametrize("number", [0, -1, 3, 4, 99])
def test_frames_that_are_not_there_are_dropped(number: int) -> None:
    module = _with_frames(number)
    assert not _frames(module)
    assert "stack_frame_id" not in module.to_string()
    assert "FileNames" not in module.to_string()


def test_frame_that_calls_itself_is_dropped() -> None:
    text = _TABLES.replace("1 {file_location_id=1 parent_frame_id=1}", "1 {file_location_id=1 parent_frame_id=3}")
    text = text.replace("2 {file_location_id=2 parent_frame_id=2}", "2 {file_location_id=2 parent_frame_id=2}")
    module = hlo_run.parse(f"HloModule m\n{text}ENTRY e {{ p = f32[] parameter(0), metadata={{stack_frame_id=2}} }}")
    assert not _frames(module)


def test_comments_and_blanks_everywhere() -> None:
    module = hlo_run.parse(
        "// c\nHloModule m /* x */\r\nENTRY e /*{*/ {\t// }\n p=f32[] parameter( /*n*/ 0)}".replace("p=", "p =")
    )
    assert module.entry.root.name == "p"


def test_shapes() -> None:
    assert array_shape("f32[2,3]") == Shape.array("f32", (2, 3), (1, 0))
    assert array_shape("s4[8]{0:E(4)}").layout is not None
    assert str(array_shape("s4[8]{0:E(4)}")) == "s4[8]{0:E(4)}"
    assert str(array_shape("f32[]{:S(5)}")) == "f32[]{:S(5)}"
    assert str(array_shape("f32[2,3]{1,0:T(8,128)(2,1)S(1)}")) == "f32[2,3]{1,0:T(8,128)(2,1)S(1)}"
    assert str(array_shape("f32[2,3]{1,0:D(D,C)}")) == "f32[2,3]{1,0}"
    assert array_shape("f32[<=8,2]").dynamic_dims == (True, False)
    assert array_shape("token[]") == Shape("token")
    assert array_shape("opaque_type[]") == Shape("opaque")


def test_brace_after_a_scalar_opens_a_body() -> None:
    assert hlo_run.parse("HloModule m\nENTRY e (p: f32[]) -> f32[] {\n p = f32[] parameter(0)\n}").entry.root.name == "p"


_OMITTED = """
  p = f32[4,3]{0,1} parameter(0)
  i = s32[] constant(1)
  n = negate(p)
  t = transpose(n), dimensions={1,0}
  l = compare(t, t), direction=LT
  s = select(l, t, t)
  k = concatenate(s, s, s), dimensions={0}
  d = dot(p, s), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  b = broadcast(i), dimensions={}
  q = tuple(d, (s32[], pred[3,4]) tuple(i, l))
  g = get-tuple-element(q), index=1
  c = call(p), to_apply={ x = f32[4,3] parameter(0)
    y = abs(x) }
  ROOT r = tuple(k, g, b, c)"""


def test_omitted_shapes_stay_open_until_inference() -> None:
    open_module = parse_module(f"HloModule m\nENTRY e {{{_OMITTED}\n}}")
    assert _find(open_module, "n").shape is UNKNOWN_SHAPE
    module = _entry(_OMITTED)
    shapes = {instruction.name: str(instruction.shape) for instruction in module.entry.instructions}
    assert shapes["n"] == "f32[4,3]{0,1}"
    assert shapes["t"] == "f32[3,4]{1,0}"
    assert shapes["l"] == "pred[3,4]{1,0}"
    assert shapes["k"] == "f32[9,4]{1,0}"
    assert shapes["d"] == "f32[4,4]{1,0}"
    assert shapes["g"] == "(s32[], pred[3,4]{1,0})"
    assert shapes["b"] == "s32[]"
    assert shapes["c"] == "f32[4,3]{1,0}"


def test_nested_instructions_and_bodies() -> None:
    module = _entry("  p = f32[2] parameter(0)\n  ROOT r = f32[2] add(f32[2] negate(p), negate(abs(p)))")
    names = [instruction.name for instruction in module.entry.instructions]
    assert names == ["p", "negate.anon", "abs.anon", "negate.anon.1", "r"]
    module = _entry("  p = f32[] parameter(0)\n  ROOT r = f32[] call(p), to_apply={ a = f32[] parameter(0) }")
    assert [computation.name for computation in module.computations] == ["_", "e"]


def test_compact_tuple_elements_are_shared() -> None:
    module = _entry(
        "  p = (f32[2], (s32[], f32[2])) parameter(0)\n  ROOT r = f32[2] add(%p#0, f32[2] %p#1#1), control-predecessors={%p#0}"
    )
    elements = [i for i in module.entry.instructions if i.opcode == "get-tuple-element"]
    assert [(i.name, i.operands[0].name, i.attrs["index"], str(i.shape)) for i in elements] == [
        ("p_0", "p", 0, "f32[2]{0}"),
        ("p_1", "p", 1, "(s32[], f32[2]{0})"),
        ("p_1_1", "p_1", 1, "f32[2]{0}"),
    ]
    assert module.entry.root.control_predecessors == [elements[0]]


def test_attribute_values() -> None:
    body = """
  p = f32[8,6] parameter(0)
  z = f32[] constant(0)
  s = f32[3,6] slice(p), slice={[1:7:2], [0:6]}
  d = f32[9,8] pad(p, z), padding=-1_2x0_2_0, metadata={op_name="a, b}" source_line=3}
  i = s32[] constant(0)
  y = f32[2,6] dynamic-slice(p, i, i), dynamic_slice_sizes={2,6}, frontend_attributes={z="1",a="{"}
  e = f32[8,6] reduce-precision(p), exponent_bits=5, mantissa_bits=10
  o = s32[4,2] iota(), iota_dimension=1
  ROOT t = (f32[3,6], f32[9,8]) tuple(s, d), sharding={{devices=[2,1]<=[2]}, {replicated}}"""
    module = _entry(body)
    attrs = {instruction.name: instruction.attrs for instruction in module.entry.instructions}
    assert attrs["s"]["slice"] == ((1, 7, 2), (0, 6, 1))
    assert attrs["d"]["padding"] == ((-1, 2, 0), (0, 2, 0))
    assert attrs["d"]["metadata"] == OpMetadata(op_name="a, b}", source_line=3)
    assert attrs["y"]["dynamic_slice_sizes"] == (2, 6)
    assert attrs["y"]["frontend_attributes"] == FrontendAttributes((("a", "{"), ("z", "1")))
    assert (attrs["e"]["exponent_bits"], attrs["e"]["mantissa_bits"]) == (5, 10)
    assert attrs["o"]["iota_dimension"] == 1
    assert str(attrs["t"]["sharding"]) == "{{devices=[2,1]<=[2]}, {replicated}}"


def test_names_with_and_without_percent_are_one() -> None:
    module = _entry("  %p.1 = f32[] parameter(0)\n  ROOT r-2 = f32[] add(p.1, %p.1)")
    assert [instruction.name for instruction in module.entry.instructions] == ["p.1", "r-2"]


def test_conditional_and_while_call_their_computations() -> None:
    before = """
a { x = f32[] parameter(0) }
b { x = f32[] parameter(0)
  ROOT n = f32[] negate(x) }
c { x = f32[] parameter(0)
  ROOT n = pred[] is-finite(x) }"""
    body = """  p = f32[] parameter(0)
  s = s32[] constant(1)
  k = f32[] conditional(s, p, p, p), branch_computations={a, %b, b}
  ROOT w = f32[] while(k), condition=c, body=b"""
    module = _entry(body, before)
    conditional, loop = module.entry.instructions[2:]
    assert [computation.name for computation in conditional.called["branch_computations"]] == ["a", "b", "b"]
    assert {name: group[0].name for name, group in loop.called.items()} == {"condition": "c", "body": "b"}


def test_absurd_sizes_are_refused_without_allocating() -> None:
    with pytest.raises(ParseError, match="does not fit into 64 bits"):
        _entry("  p = f32[1000000,1000000,10000000] parameter(0)")
    with pytest.raises(Unsupported, match="too large to fill"):
        _entry("  p = f32[1000000,100000] constant({...})")
    with pytest.raises(ParseError, match="does not fit into 64 bits") as caught:
        _entry("  p = f32[2] parameter(0)\n  z = f32[] constant(0)\n  q = pad(p, z), padding=0_9000000000000000000")
    assert str(caught.value.where) == "f.hlo:6:3"


def test_deep_chains_are_read_iteratively() -> None:
    lines = ["  n0 = f32[] parameter(0)"] + [f"  n{i} = f32[] negate(n{i - 1})" for i in range(1, 5000)]
    module = _entry("\n".join(lines))
    assert len(module.entry.post_order()) == 5000


def test_import_is_cheap() -> None:
    code = "import sys, hlo_run; sys.exit('numpy' in sys.modules or 'xdsl' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
