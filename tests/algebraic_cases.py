"""Helpers of the tests of algebraic rules: a body of HLO, before and after rules, becomes an expression of its root.

A case names its parameters in order (`p=f32[4] q=f32[4]`), the instructions, and the root as an expression afterwards:
operands in parentheses, constants in braces, parameters by name, `*` for a shape that is told apart by dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import hlo_run
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo_passes.simplifiers.algsimp import AlgebraicSimplifier
from hlo_run.ops.verify import COMPILING, verify
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import HloPass, PassContext
from hlo_run.reference.arguments.fake_arguments import make_fake_arguments
from hlo_run.reference.compare.agreement import disagreements
from hlo_run.reference.evaluate.evaluate import evaluate
from hlo_run.target import DEFAULT_TARGET, preset

_REDUCERS = """
sum { a = TYPE[] parameter(0) b = TYPE[] parameter(1) ROOT r = TYPE[] add(a, b) }
largest { a = TYPE[] parameter(0) b = TYPE[] parameter(1) ROOT r = TYPE[] maximum(a, b) }
"""


@dataclass(frozen=True)
class Case:
    """A test: `after` is the root's expression; with `before` equal to it nothing happens."""

    name: str
    parameters: str
    body: str
    after: str


def module_of(case: Case, reducer_type: str = "f32") -> HloModule:
    """Return the module of a case, with reducers `sum` and `largest` where the body calls them."""
    lines = [f"{n} = {t} parameter({k})" for k, (n, t) in enumerate(p.split("=") for p in case.parameters.split())]
    body = "\n".join(f"  {line.strip()}" for line in (*lines, *case.body.split(";")))
    reducers = _REDUCERS.replace("TYPE", reducer_type) if "to_apply" in case.body else ""
    return hlo_run.parse(f"HloModule m\n{reducers}\nENTRY e {{\n{body}\n}}", case.name)


def expression(value: HloInstruction) -> str:
    """Return a value as nested operations."""
    if value.opcode == "parameter":
        return value.name
    if value.opcode == "constant":
        return "{" + ",".join(_number(n) for n in np.asarray(value.attrs["literal"]).reshape(-1)) + "}"
    dims = ",".join(map(str, value.shape.dims))
    shown = f"<{dims}>" if value.opcode in _SHAPED else ""
    if value.opcode in ("convert", "iota"):
        shown = f"<{value.shape.element_type}>"
    direction = f".{value.attrs['direction']}" if "direction" in value.attrs else ""
    return f"{value.opcode}{direction}{shown}({', '.join(map(expression, value.operands))})"


_SHAPED = frozenset(("bitcast", "broadcast", "reshape", "transpose", "slice", "pad", "reduce", "concatenate", "dot"))


def _number(number: object) -> str:
    text = str(number)
    return text.lower() if text in ("True", "False") else f"{float(text):g}"


def apply(module: HloModule, rows: HloPass) -> None:
    rows.apply(PassContext(preset(DEFAULT_TARGET), Options()), module)
    verify(module, COMPILING)


def check(case: Case, rows: HloPass | None = None) -> None:
    """Run a pass (the simplifier) twice: compare the root's expression, the value, and that the second run changes nothing."""
    rows = rows or AlgebraicSimplifier(repeat=True)
    module = module_of(case)
    arguments = make_fake_arguments(module, 1)
    expected, shape = evaluate(module, arguments), module.entry.root.shape
    apply(module, rows)
    assert expression(module.entry.root) == case.after
    assert not disagreements(expected, evaluate(module, arguments), shape)
    version = module.version
    apply(module, rows)
    assert module.version == version, "a second run changes more"
