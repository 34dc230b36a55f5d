"""A computation stays settled until it or one of its callees is edited."""

from __future__ import annotations

import hlo_run
from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloComputation, HloModule
from hlo_run.hlo.unchanged import is_unchanged_since, mark_settled
from hlo_run.hlo_passes.simplifiers.algsimp import AlgebraicSimplifier
from hlo_run.hlo_passes.simplifiers.hlo_cse import HloCse
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.target import preset

TEXT = """HloModule m

inner { x = f32[] parameter(0)
  ROOT n = f32[] negate(x) }

sum { a = f32[] parameter(0)
  b = f32[] parameter(1)
  c = f32[] call(b), to_apply=inner
  ROOT s = f32[] subtract(a, c) }

ENTRY e { p = f32[6,7] parameter(0)
  zero = f32[] constant(0)
  t = f32[6,7] tanh(p)
  ROOT r = f32[6] reduce(t, zero), dimensions={1}, to_apply=sum }
"""


def _module() -> tuple[HloModule, HloComputation, HloComputation]:
    module = hlo_run.parse(TEXT)
    inner = next(computation for computation in module.computations if computation.name == "inner")
    return module, module.entry, inner


def test_only_what_was_marked_is_settled() -> None:
    module, entry, inner = _module()
    assert not is_unchanged_since(module, "w", entry)
    mark_settled(module, "w", entry)
    assert is_unchanged_since(module, "w", entry)
    assert not is_unchanged_since(module, "w", inner)
    assert not is_unchanged_since(module, "other", entry)
    assert not is_unchanged_since(module.clone(), "w", entry)


def test_an_edit_of_what_is_called_counts_for_the_callers() -> None:
    module, entry, inner = _module()
    mark_settled(module, "w", entry)
    mark_settled(module, "w", inner)
    Editor(inner.root).unary("cosine", inner.root)
    assert not is_unchanged_since(module, "w", inner)
    assert not is_unchanged_since(module, "w", entry), "it calls sum, which calls inner"


def test_an_edit_of_the_caller_leaves_what_it_calls() -> None:
    module, entry, inner = _module()
    mark_settled(module, "w", entry)
    mark_settled(module, "w", inner)
    (tanh,) = module.instructions_of("tanh")
    tanh.attrs["metadata"] = "x"
    assert not is_unchanged_since(module, "w", entry)
    assert is_unchanged_since(module, "w", inner)
    module.replace(tanh, entry.parameters[0])
    mark_settled(module, "w", entry)
    entry.remove(tanh)
    assert not is_unchanged_since(module, "w", entry)


def test_passes_look_again_after_an_edit() -> None:
    module, entry, _ = _module()
    ctx = PassContext(preset("h100"), Options(), ())
    for _ in range(2):
        AlgebraicSimplifier(repeat=True).apply(ctx, module)
        HloCse().apply(ctx, module)
    (tanh,) = module.instructions_of("tanh")
    editor = Editor(tanh)
    twice = editor.unary("negate", editor.unary("negate", tanh))
    again = editor.unary("tanh", entry.parameters[0])
    entry.root.operands = (editor.binary("add", twice, again), entry.root.operands[1])
    AlgebraicSimplifier(repeat=True).apply(ctx, module)
    assert not module.instructions_of("negate") or all(i.parent is not entry for i in module.instructions_of("negate"))
    HloCse().apply(ctx, module)
    assert len(module.instructions_of("tanh")) == 1
