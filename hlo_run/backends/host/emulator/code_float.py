"""The floating-point instructions as numpy code: one row per opcode and format.

f32 and f64 values are arrays of their type. f16 and bf16 are computed in f32 arrays (`wide_...`) and rounded. Packed pairs are
two of these, and f32x2 is two f32. The operands of a template are `{0}`, `{1}`, `{2}`.
"""

from __future__ import annotations

from collections.abc import Mapping

from hlo_run.backends.host.emulator.code_integer import INTEGER_PART, Emit, is_integer_type
from hlo_run.backends.host.emulator.code_writer import CodeWriter
from hlo_run.backends.host.ptx.instruction_set import Operation
from hlo_run.backends.host.ptx.syntax import Operand

_ROUNDINGS = ("rz", "rm", "rp")

# `fma` of f32 gets operands that are widened to f64.
_FMA: Mapping[str, str] = {
    "f32": "fma_f32({0}, {1}, {2})",
    "f64": "fma_f64({0}, {1}, {2})",
    "f16": "fma_f16({0}, {1}, {2})",
    "bf16": "fma_bf16({0}, {1}, {2})",
}
# opcode -> format -> template
_TEMPLATES: Mapping[str, Mapping[str, str]] = {
    "add": {"f32": "{0} + {1}", "f64": "{0} + {1}", "f16": "to_f16({0} + {1})", "bf16": "to_bf16({0} + {1})"},
    "sub": {"f32": "{0} - {1}", "f64": "{0} - {1}", "f16": "to_f16({0} - {1})", "bf16": "to_bf16({0} - {1})"},
    "mul": {"f32": "{0} * {1}", "f64": "{0} * {1}", "f16": "to_f16({0} * {1})", "bf16": "mul_bf16({0}, {1})"},
    "fma": _FMA,
    "mad": _FMA,
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

# (opcode, format) -> template for rounding modes other than nearest. `{mode}` is quoted.
_DIRECTED: Mapping[tuple[str, str], str] = {
    ("add", "f32"): "add_f32_directed({0}, {1}, {mode})",
    ("sub", "f32"): "add_f32_directed({0}, -{1}, {mode})",
    ("mul", "f32"): "mul_f32_directed({0}, {1}, {mode})",
    ("fma", "f32"): "fma_f32_directed({0}, {1}, {2}, {mode})",
    ("mad", "f32"): "fma_f32_directed({0}, {1}, {2}, {mode})",
    ("add", "f64"): "exact_add({0}, {1}, {mode})",
    ("sub", "f64"): "exact_add({0}, -{1}, {mode})",
    ("mul", "f64"): "exact_mul({0}, {1}, {mode})",
    ("fma", "f64"): "exact_fma({0}, {1}, {2}, {mode})",
    ("mad", "f64"): "exact_fma({0}, {1}, {2}, {mode})",
    ("div", "f32"): "exact_div({0}, {1}, {mode}, 'f32')",
    ("div", "f64"): "exact_div({0}, {1}, {mode})",
    ("rcp", "f32"): "exact_div(np.ones_like({0}), {0}, {mode}, 'f32')",
    ("rcp", "f64"): "exact_div(np.ones_like({0}), {0}, {mode})",
    ("sqrt", "f32"): "exact_sqrt({0}, {mode}, 'f32')",
    ("sqrt", "f64"): "exact_sqrt({0}, {mode})",
}
# Operations that create no NaN or subnormal from other values.
_KEEPS_NAN = frozenset(("neg", "abs"))


def _template(op: Operation, kind: str) -> str:
    """Return the template for one value of format `kind`; raises Unsupported."""
    if mode := op.choice(*_ROUNDINGS):
        template = _DIRECTED.get((op.opcode, kind), "").replace("{mode}", repr(mode))
    elif "NaN" in op.flags:
        template = _TEMPLATES[op.opcode].get(kind, "").replace("imum(", "imum_nan(")
    elif op.opcode == "div" and "approx" in op.flags:
        template = "divide_approx({0}, {1})" if kind == "f32" else ""
    elif op.opcode in ("rcp", "rsqrt") and kind == "f64" and "ftz" in op.flags:
        template = f"{'reciprocal' if op.opcode == 'rcp' else 'rsqrt'}_top_f64({{0}})"
    else:
        template = _TEMPLATES[op.opcode].get(kind, "")
    if not template or ("relu" in op.flags and op.opcode != "fma"):
        raise op.unsupported()
    return template


def _finish(op: Operation, kind: str, expression: str) -> str:
    """Apply `.ftz`, `.sat` and `.relu` to a result."""
    if "ftz" in op.flags and kind != "f64":
        expression = _flushed(kind, expression, narrow=True)
    if "sat" in op.flags:
        expression = f"saturate({expression})"
    if "relu" in op.flags:
        expression = f"relu({expression})"
    return expression


def _flushed(kind: str, expression: str, *, narrow: bool = False) -> str:
    if kind == "f32":
        return f"flush({expression})"
    return f"flush_half({expression}, {kind!r})" if narrow else f"flush_half({expression}, {kind!r}).astype(f4)"


def _inputs(op: Operation, kind: str, names: list[str]) -> list[str]:
    """Flush operands if the instruction has `.ftz`."""
    if "ftz" not in op.flags or kind == "f64":
        return names
    return [_flushed(kind, name) for name in names]


def _emit_float(w: CodeWriter, op: Operation) -> None:
    if len(op.types) == 2:
        _emit_mixed(w, op)
        return
    target, *sources = op.operands
    kind = op.type
    if kind.endswith("x2"):
        _emit_pair(w, op, target, sources)
        return
    template = _template(op, kind)
    form = {"f16": "wide_f16", "bf16": "wide_bf16"}.get(kind, kind)
    widened = kind == "f32" and op.opcode in ("fma", "mad")
    if widened and "ftz" not in op.flags:
        names = [w.read(source, "d32") for source in sources]
    else:
        names = _inputs(op, kind, [w.read(source, form) for source in sources])
        names = [f"{name}.astype(f8)" for name in names] if widened else names
    dirty = kind != "f64"
    if op.opcode in _KEEPS_NAN and kind == "f32":
        known = w.known(sources[0])
        dirty = known is not None and known.dirty
    w.define(target, kind, _finish(op, kind, template.format(*names)), dirty=dirty)


def _emit_pair(w: CodeWriter, op: Operation, target: Operand, sources: list[Operand]) -> None:
    kind = op.type.removesuffix("x2")
    template = _template(op, kind)
    if kind == "f32":
        _emit_f32x2(w, op, template, target, sources)
        return
    halves = [w.read_pair(source, op.type) for source in sources]
    results = [_finish(op, kind, template.format(*_inputs(op, kind, [pair[side] for pair in halves]))) for side in (0, 1)]
    w.define_pair(target, op.type, results[0], results[1])


def _emit_f32x2(w: CodeWriter, op: Operation, template: str, target: Operand, sources: list[Operand]) -> None:
    bits = [w.read(source, "u64") for source in sources]
    results: list[str] = []
    for side in ("low_f32", "high_f32"):
        names = _inputs(op, "f32", [f"{side}({name})" for name in bits])
        names = [f"{name}.astype(f8)" for name in names] if op.opcode == "fma" else names
        results.append(f"bits32({_finish(op, 'f32', template.format(*names))})")
    w.define(target, "u64", f"pack_words({results[0]}, {results[1]})")


def _emit_mixed(w: CodeWriter, op: Operation) -> None:
    """`add.f32.f16` and similar: f16 or bf16 operands, an f32 addend, an f32 result."""
    target, *sources = op.operands
    kind = op.types[1]
    if op.opcode not in ("add", "sub", "fma") or op.types[0] != "f32" or kind not in ("f16", "bf16") or "ftz" in op.flags:
        raise op.unsupported()
    wide = [w.read(source, f"wide_{kind}") for source in sources[:-1]]
    names = [*wide, w.read(sources[-1], "f32")]
    names = [f"{name}.astype(f8)" for name in names] if op.opcode == "fma" else names
    w.define(target, "f32", _finish(op, "f32", _template(op, "f32").format(*names)), dirty=True)


def _integer_or_float(w: CodeWriter, op: Operation) -> None:
    """An opcode that integers and floats share."""
    if is_integer_type(op.type) or op.type in ("s16x2", "u16x2"):
        INTEGER_PART[op.opcode](w, op)
    else:
        _emit_float(w, op)


def _testp(w: CodeWriter, op: Operation) -> None:
    target, a = op.operands
    kind = op.choice("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    w.define(target, "pred", f"test_property({w.read(a, op.type)}, {kind!r})")


def _copysign(w: CodeWriter, op: Operation) -> None:
    target, sign, magnitude = op.operands
    known = w.known(magnitude)
    dirty = known is not None and known.dirty
    # Only the bits of a NaN have the correct sign.
    view = "f4" if op.type == "f32" else "f8"
    sign_name = f"{w.read(sign, 'u32' if op.type == 'f32' else 'u64')}.view({view})"
    w.define(target, op.type, f"np.copysign({w.read(magnitude, op.type)}, {sign_name})", dirty=dirty)


EMITTERS: Mapping[str, Emit] = {
    **dict.fromkeys(("add", "sub", "mul", "mad", "div", "abs", "neg", "min", "max"), _integer_or_float),
    **dict.fromkeys(("fma", "rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2", "tanh"), _emit_float),
    "testp": _testp,
    "copysign": _copysign,
}
