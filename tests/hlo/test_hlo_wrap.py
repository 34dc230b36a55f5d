"""Bare fusion computations become modules with an entry."""

from __future__ import annotations

import hlo_run
from hlo_run.hlo.printer import SHORT_PARSABLE, module_to_string
from hlo_run.hlo.verify.module import verify_module
from hlo_run.hlo.wrap import wrap_bare_module
from hlo_run.ops.infer import infer_module

_BARE = """add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}
fusion {
  second = f32[] parameter(1)
  param_0 = f32[3,4]{0,1} parameter(0)
  reduce = f32[3] reduce(param_0, second), dimensions={1}, to_apply=add
  log = f32[3,4]{0,1} log(param_0)
  ROOT ROOT_LINE
}
"""
_ARRAY = _BARE.replace("ROOT_LINE", "out = f32[3,4] exponential(log)").replace(
    "  reduce = f32[3] reduce(param_0, second), dimensions={1}, to_apply=add\n", ""
)
_NESTED = _BARE.replace("ROOT_LINE", "out = ((f32[3], f32[3,4]), f32[]) tuple(tuple(reduce, log), second)")


def _entry_text(text: str) -> str:
    module = wrap_bare_module(hlo_run.parse(text))
    infer_module(module)
    verify_module(module)
    printed = module_to_string(module, SHORT_PARSABLE)
    return printed[printed.index("ENTRY") :].strip()


def test_array_result() -> None:
    assert (
        _entry_text(_ARRAY)
        == """ENTRY generated_main {
  param_0.1 = f32[3,4]{0,1} parameter(0)
  second.1 = f32[] parameter(1)
  ROOT fusion.generated = f32[3,4]{1,0} fusion(param_0.1, second.1), kind=kLoop, calls=fusion
}"""
    )


def test_nested_tuples_are_flattened() -> None:
    lines = _entry_text(_NESTED).splitlines()[3:-1]
    assert lines == [
        "  fusion.generated = ((f32[3]{0}, f32[3,4]{1,0}), f32[]) fusion(param_0.1, second.1), kind=kLoop, calls=fusion",
        "  gte.0 = (f32[3]{0}, f32[3,4]{1,0}) get-tuple-element(fusion.generated), index=0",
        "  gte.0.0 = f32[3]{0} get-tuple-element(gte.0), index=0",
        "  gte.0.1 = f32[3,4]{1,0} get-tuple-element(gte.0), index=1",
        "  gte.1 = f32[] get-tuple-element(fusion.generated), index=1",
        "  ROOT tuple.generated = (f32[3]{0}, f32[3,4]{1,0}, f32[]) tuple(gte.0.0, gte.0.1, gte.1)",
    ]


def test_wrapping_twice_changes_nothing() -> None:
    module = wrap_bare_module(hlo_run.parse(_ARRAY))
    once = module_to_string(module)
    assert module_to_string(wrap_bare_module(module)) == once


def test_wrapped_instructions_point_into_the_text() -> None:
    module = wrap_bare_module(hlo_run.parse(_ARRAY, "bare.hlo"))
    assert str(module.entry.root.where) == "bare.hlo:6:1"
    assert [str(parameter.where) for parameter in module.entry.parameters] == ["bare.hlo:8:3", "bare.hlo:7:3"]


def test_modules_with_header_entry_or_fusion_stay() -> None:
    fused = (
        "f {\n  p = f32[] parameter(0)\n}\nlast {\n  p = f32[] parameter(0)\n  ROOT r = f32[] fusion(p), kind=kLoop, calls=f\n}"
    )
    for text in ("HloModule m\n" + _ARRAY, fused, "ENTRY fusion { p = f32[] parameter(0) }"):
        parsed = hlo_run.parse(text)
        version = parsed.version
        assert wrap_bare_module(parsed) is parsed
        assert parsed.version == version
        assert parsed.entry.name in ("fusion", "last")
