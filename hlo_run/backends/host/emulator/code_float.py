"""The floating-point instructions as numpy code: one template per operation and format.

f32 and f64 values are arrays of their type. f16 and bf16 are computed in f32 arrays (`wide_...`) and rounded. Packed pairs are
two of these, and f32x2 is two f32. The operands of a template are `{0}`, `{1}`, `{2}`.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from hlo_run.backends.host.emulator.code_integer import Emit
from hlo_run.backends.host.emulator.code_writer import CodeWriter
from hlo_run.backends.host.ptx import specs
from hlo_run.backends.host.ptx.instruction_set import Operation, row
from hlo_run.backends.host.ptx.syntax import Operand

# operation -> format -> template
_TEMPLATES: Mapping[str, Mapping[str, str]] = {
    "add": {"f32": "{0} + {1}", "f64": "{0} + {1}", "f16": "to_f16({0} + {1})", "bf16": "to_bf16({0} + {1})"},
    "sub": {"f32": "{0} - {1}", "f64": "{0} - {1}", "f16": "to_f16({0} - {1})", "bf16": "to_bf16({0} - {1})"},
    "mul": {"f32": "{0} * {1}", "f64": "{0} * {1}", "f16": "to_f16({0} * {1})", "bf16": "mul_bf16({0}, {1})"},
    # `fma` of f32 gets operands that are widened to f64.
    "fma": {
        "f32": "fma_f32({0}, {1}, {2})",
        "f64": "fma_f64({0}, {1}, {2})",
        "f16": "fma_f16({0}, {1}, {2})",
        "bf16": "fma_bf16({0}, {1}, {2})",
    },
    "min": {
        "f32": "minimum({0}, {1})",
        "f64": "minimum({0}, {1})",
        "f16": "to_f16(minimum({0}, {1}))",
        "bf16": "to_bf16(minimum({0}, {1}))",
    },
    "max": {
        "f32": "maximum({0}, {1})",
        "f64": "maximum({0}, {1})",
        "f16": "to_f16(maximum({0}, {1}))",
        "bf16": "to_bf16(maximum({0}, {1}))",
    },
    "neg": {"f32": "-{0}", "f64": "-{0}", "f16": "to_f16(-{0})", "bf16": "to_bf16(-{0})"},
    "abs": {"f32": "np.abs({0})", "f64": "np.abs({0})", "f16": "to_f16(np.abs({0}))", "bf16": "to_bf16(np.abs({0}))"},
    "div": {"f32": "{0} / {1}", "f64": "{0} / {1}"},
    "rcp": {"f32": "1 / {0}", "f64": "1 / {0}"},
    "sqrt": {"f32": "np.sqrt({0})", "f64": "np.sqrt({0})"},
    "rsqrt": {"f32": "rsqrt_f32({0})", "f64": "rsqrt({0})"},
    "sin": {"f32": "sin_approx({0})"},
    "cos": {"f32": "cos_approx({0})"},
    "lg2": {"f32": "log2_approx({0})"},
    "ex2": {
        "f32": "exp2_approx({0})",
        "f16": "to_f16(exp2_approx({0}))",
        "bf16": "to_bf16(exp2_approx({0}))",
    },
    "tanh": {
        "f32": "tanh_approx({0})",
        "f16": "to_f16(tanh_approx({0}))",
        "bf16": "to_bf16(tanh_approx({0}))",
    },
}

# (operation, format) -> template for rounding modes other than nearest. `{mode}` is quoted.
_DIRECTED: Mapping[tuple[str, str], str] = {
    ("add", "f32"): "add_f32_directed({0}, {1}, {mode})",
    ("sub", "f32"): "add_f32_directed({0}, -{1}, {mode})",
    ("mul", "f32"): "mul_f32_directed({0}, {1}, {mode})",
    ("fma", "f32"): "fma_f32_directed({0}, {1}, {2}, {mode})",
    ("add", "f64"): "exact_add({0}, {1}, {mode})",
    ("sub", "f64"): "exact_add({0}, -{1}, {mode})",
    ("mul", "f64"): "exact_mul({0}, {1}, {mode})",
    ("fma", "f64"): "exact_fma({0}, {1}, {2}, {mode})",
    ("div", "f32"): "exact_div({0}, {1}, {mode}, 'f32')",
    ("div", "f64"): "exact_div({0}, {1}, {mode})",
    ("rcp", "f32"): "exact_div(np.ones_like({0}), {0}, {mode}, 'f32')",
    ("rcp", "f64"): "exact_div(np.ones_like({0}), {0}, {mode})",
    ("sqrt", "f32"): "exact_sqrt({0}, {mode}, 'f32')",
    ("sqrt", "f64"): "exact_sqrt({0}, {mode})",
}
# Operations that create no NaN or subnormal from other values.
_KEEPS_NAN = frozenset(("neg", "abs"))


# (operation, format) -> template of the quick forms.
_QUICK: Mapping[tuple[str, str], str] = {
    ("div", "f32"): "divide_approx({0}, {1})",
    ("rcp", "f64"): "reciprocal_top_f64({0})",
    ("rsqrt", "f64"): "rsqrt_top_f64({0})",
}


def _template(spec: specs.FloatArithmetic) -> str:
    """Return the template for one value."""
    key = spec.operation, spec.format
    if spec.rounding:
        return _DIRECTED[key].replace("{mode}", repr(spec.rounding))
    if spec.is_quick:
        return _QUICK[key]
    template = _TEMPLATES[spec.operation][spec.format]
    return template.replace("imum(", "imum_nan(") if spec.keeps_nan else template


def _finish(spec: specs.FloatArithmetic, expression: str) -> str:
    """Apply `.ftz`, `.sat` and `.relu` to a result."""
    if spec.flushes:
        expression = _flushed(spec.format, expression, narrow=True)
    if spec.saturates:
        expression = f"saturate({expression})"
    if spec.relu:
        expression = f"relu({expression})"
    return expression


def _flushed(kind: str, expression: str, *, narrow: bool = False) -> str:
    if kind == "f32":
        return f"flush({expression})"
    return f"flush_half({expression}, {kind!r})" if narrow else f"flush_half({expression}, {kind!r}).astype(f4)"


def _inputs(spec: specs.FloatArithmetic, names: list[str]) -> list[str]:
    """Flush operands if the instruction has `.ftz`."""
    return [_flushed(spec.format, name) for name in names] if spec.flushes else names


def _float(w: CodeWriter, op: Operation, spec: specs.FloatArithmetic) -> None:
    target, *sources = op.operands
    kind, template = spec.format, _template(spec)
    if spec.wide_from:
        _mixed(w, spec, template, target, sources)
        return
    if spec.lanes == 2:
        write_pair = _f32x2 if kind == "f32" else _pair
        write_pair(w, spec, template, target, sources)
        return
    form = {"f16": "wide_f16", "bf16": "wide_bf16"}.get(kind, kind)
    widened = kind == "f32" and spec.operation == "fma"
    if widened and not spec.flushes:
        names = [w.read(source, "d32") for source in sources]
    else:
        names = _inputs(spec, [w.read(source, form) for source in sources])
        names = [f"{name}.astype(f8)" for name in names] if widened else names
    dirty = kind != "f64"
    if spec.operation in _KEEPS_NAN and kind == "f32":
        known = w.known(sources[0])
        dirty = known is not None and known.dirty
    w.define(target, kind, _finish(spec, template.format(*names)), dirty=dirty)


def _pair(w: CodeWriter, spec: specs.FloatArithmetic, template: str, target: Operand, sources: list[Operand]) -> None:
    packed = f"{spec.format}x2"
    halves = [w.read_pair(source, packed) for source in sources]
    results = [_finish(spec, template.format(*_inputs(spec, [pair[side] for pair in halves]))) for side in (0, 1)]
    w.define_pair(target, packed, results[0], results[1])


def _f32x2(w: CodeWriter, spec: specs.FloatArithmetic, template: str, target: Operand, sources: list[Operand]) -> None:
    bits = [w.read(source, "u64") for source in sources]
    results: list[str] = []
    for side in ("low_f32", "high_f32"):
        names = _inputs(spec, [f"{side}({name})" for name in bits])
        names = [f"{name}.astype(f8)" for name in names] if spec.operation == "fma" else names
        results.append(f"bits32({_finish(spec, template.format(*names))})")
    w.define(target, "u64", f"pack_words({results[0]}, {results[1]})")


def _mixed(w: CodeWriter, spec: specs.FloatArithmetic, template: str, target: Operand, sources: list[Operand]) -> None:
    """`add.f32.f16` and similar: f16 or bf16 operands, an f32 addend, an f32 result."""
    wide = [w.read(source, f"wide_{spec.wide_from}") for source in sources[:-1]]
    names = [*wide, w.read(sources[-1], "f32")]
    names = [f"{name}.astype(f8)" for name in names] if spec.operation == "fma" else names
    w.define(target, "f32", _finish(spec, template.format(*names)), dirty=True)


def _test_property(w: CodeWriter, op: Operation, spec: specs.TestProperty) -> None:
    target, a = op.operands
    w.define(target, "pred", f"test_property({w.read(a, spec.format)}, {spec.property!r})")


def _copy_sign(w: CodeWriter, op: Operation, spec: specs.CopySign) -> None:
    target, sign, magnitude = op.operands
    known = w.known(magnitude)
    dirty = known is not None and known.dirty
    # Only the bits of a NaN have the correct sign.
    bits, view = ("u32", "f4") if spec.format == "f32" else ("u64", "f8")
    sign_name = f"{w.read(sign, bits)}.view({view})"
    w.define(target, spec.format, f"np.copysign({w.read(magnitude, spec.format)}, {sign_name})", dirty=dirty)


EMITTERS: Mapping[type[Struct], Emit] = dict(
    (row(specs.FloatArithmetic, _float), row(specs.TestProperty, _test_property), row(specs.CopySign, _copy_sign))
)
