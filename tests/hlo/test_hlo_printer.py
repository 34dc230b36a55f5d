"""The printer's text compared with XLA's, and with itself after parsing and printing again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import hlo_run
from hlo_run.hlo.attributes.table import Window, WindowDim
from hlo_run.hlo.printer import (
    CANONICAL,
    DEFAULT,
    DUMP,
    SHORT_PARSABLE,
    PrintOptions,
    computation_to_string,
    instruction_to_string,
    module_to_string,
)
from hlo_run.hlo.wrap import wrap_bare_module
from hlo_run.records import replace

# `==== name`, the text, `---- default` and `---- short`: what XLA (jaxlib 0.10.2) prints for it.
_DATA = Path(__file__).parent.parent / "data" / "hlo" / "printed_by_xla.txt"
_PARTS = re.compile(r"==== (\S+)\n(.*?)---- default\n(.*?)---- short\n(.*?)(?=\n==== |\Z)", re.DOTALL)
_CASES = {name: (text, default, short) for name, text, default, short in _PARTS.findall(_DATA.read_text() + "\n")}
_FULL = PrintOptions(large_constants=True)


def test_all_cases_are_read() -> None:
    assert len(_CASES) == _DATA.read_text().count("\n---- default\n") > 40


@pytest.mark.parametrize("name", _CASES)
def test_default_is_xla_text(name: str) -> None:
    text, default, _ = _CASES[name]
    assert module_to_string(hlo_run.parse(text), DEFAULT).strip() == default.strip()


@pytest.mark.parametrize("name", _CASES)
def test_short_is_xla_text(name: str) -> None:
    text, _, short = _CASES[name]
    assert module_to_string(hlo_run.parse(text), SHORT_PARSABLE).strip() == short.strip()


@pytest.mark.parametrize("options", [DEFAULT, SHORT_PARSABLE, DUMP, replace(_FULL, operand_shapes=True)])
@pytest.mark.parametrize("name", _CASES)
def test_printed_text_prints_again(name: str, options: PrintOptions) -> None:
    # Without control dependencies the order of the instructions may change.
    full = replace(options, large_constants=True, control_dependencies=True)
    once = module_to_string(hlo_run.parse(_CASES[name][0]), full)
    assert module_to_string(hlo_run.parse(once), full) == once


def test_text_ends_with_two_newlines() -> None:
    text = module_to_string(hlo_run.parse("ENTRY e { ROOT p = f32[] parameter(0) }"))
    assert text.endswith("}\n\n")
    assert not text.endswith("}\n\n\n")


_TUPLE = """HloModule m
ENTRY e {
  p = (f32[2], (s32[], s32[3])) parameter(0)
  a = f32[2] get-tuple-element(p), index=0
  t = (s32[], s32[3]) get-tuple-element(p), index=1
  b = s32[3] get-tuple-element(t), index=1
  n = f32[2] negate(a)
  ROOT r = (f32[2], s32[3]) tuple(n, b)
}
"""


def test_compact_tuple_elements() -> None:
    text = module_to_string(hlo_run.parse(_TUPLE), DUMP)
    assert "%n = f32[2]{0} negate(%p#0)" in text
    assert "tuple(%n, %p#1#1)" in text
    assert "get-tuple-element" not in text


def test_compact_tuple_elements_are_read_back() -> None:
    module = hlo_run.parse(module_to_string(hlo_run.parse(_TUPLE), DUMP))
    inner = module.entry.root.operands[1]
    assert (inner.opcode, inner.name, inner.attrs["index"]) == ("get-tuple-element", "p_1_1", 1)
    assert inner.operands[0].name == "p_1"


def test_root_tuple_element_keeps_its_line() -> None:
    text = "HloModule m\nENTRY e {\n p = (f32[], s32[]) parameter(0)\n ROOT g = s32[] get-tuple-element(p), index=1\n}"
    assert "ROOT %g = s32[] get-tuple-element(%p), index=1" in module_to_string(hlo_run.parse(text), DUMP)


def test_large_constants_are_elided_beyond_ten_elements() -> None:
    text = "HloModule m\nENTRY e {\n a = s32[10] constant({%s})\n ROOT b = s32[11] constant({%s})\n}"
    module = hlo_run.parse(text % (", ".join(map(str, range(10))), ", ".join(map(str, range(11)))))
    first, second = module.entry.instructions
    assert instruction_to_string(first) == "%a = s32[10]{0} constant({0, 1, 2, 3, 4, 5, 6, 7, 8, 9})"
    assert instruction_to_string(second) == "%b = s32[11]{0} constant({...})"
    assert "10})" in instruction_to_string(second, _FULL)


_RICH = """HloModule m
ENTRY e {
  p = f32[4] parameter(0), sharding={replicated}
  q = f32[4] negate(p)
  ROOT n = f32[4] negate(p), backend_config={"a":[1,{"b":"}"}]}, metadata={op_name="x, y=1}"}, control-predecessors={q}
}
"""


def test_order_of_common_attributes() -> None:
    root = hlo_run.parse(_RICH).entry.root
    control, metadata, config = "control-predecessors={%q}", 'metadata={op_name="x, y=1}"}', 'backend_config={"a":[1,{"b":"}"}]}'
    assert instruction_to_string(root) == f"%n = f32[4]{{0}} negate(%p), {control}, {metadata}, {config}"
    assert instruction_to_string(root, SHORT_PARSABLE) == f"n = f32[4]{{0}} negate(p), {config}"
    without = replace(DEFAULT, metadata=False, backend_config=False, control_dependencies=False)
    assert instruction_to_string(root, without) == "%n = f32[4]{0} negate(%p)"


def test_operand_shapes_option() -> None:
    root = hlo_run.parse(_RICH).entry.root
    text = instruction_to_string(root, replace(SHORT_PARSABLE, operand_shapes=True, backend_config=False))
    assert text == "n = f32[4]{0} negate(f32[4]{0} p)"


def test_schedule_decides_the_order() -> None:
    text = """HloModule m, is_scheduled=true
ENTRY e {
  p = f32[] parameter(0)
  late = f32[] negate(p)
  early = f32[] abs(p)
  ROOT r = f32[] add(early, late)
}
"""
    lines = module_to_string(hlo_run.parse(text)).splitlines()
    assert lines[0].startswith("HloModule m, is_scheduled=true, entry_computation_layout=")
    assert [line.split(" = ")[0].split("%")[-1] for line in lines if " = " in line] == ["p", "late", "early", "r"]


def test_window_is_parsed_and_printed() -> None:
    window = "window={size=3x1 stride=2x1 pad=1_0x0_0 lhs_dilate=1x2 rhs_dilate=2x1 rhs_reversal=0x1}"
    text = f"""HloModule m
add {{ a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b) }}
ENTRY e {{
  p = f32[9,5] parameter(0)
  z = f32[] constant(0)
  ROOT w = f32[3,9] reduce-window(p, z), {window}, to_apply=add
}}
"""
    root = hlo_run.parse(text).entry.root
    expected = (WindowDim(3, 2, 1, 0, 1, 2, False), WindowDim(1, 1, 0, 0, 2, 1, True))
    assert root.window == Window(expected)
    assert instruction_to_string(root).endswith(f"reduce-window(%p, %z), {window}, to_apply=%add")


def test_wrapped_module_prints_and_reads_back() -> None:
    text = "f {\n  a = f32[3] parameter(0)\n  b = f32[3] negate(a)\n  ROOT t = (f32[3], (f32[3])) tuple(a, (f32[3]) tuple(b))\n}"
    module = wrap_bare_module(hlo_run.parse(text))
    once = module_to_string(module)
    assert module_to_string(hlo_run.parse(once)) == once


def test_bodies_nested_at_any_depth_print_in_each_other() -> None:
    # Deeper than Python's recursion limit; each body is printed on its own and in all bodies around it.
    text = "n0 { p = f32[] parameter(0) }\n" + "".join(
        f"n{number} {{ p = f32[] parameter(0)\n ROOT c = f32[] call(p), to_apply=n{number - 1} }}\n" for number in range(1, 1500)
    )
    module = hlo_run.parse(text)
    outermost = computation_to_string(module.computations[-1], CANONICAL)
    lines = outermost.splitlines()
    innermost = next(number for number, line in enumerate(lines) if line.strip() == "ROOT tmp_0 = f32[] parameter(0)")
    assert lines[innermost - 1] == "  " * 1499 + "{"
    assert lines[-1] == "}"
