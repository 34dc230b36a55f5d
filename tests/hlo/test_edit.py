"""Edits shared by passes, and the index of instructions by opcode."""

from __future__ import annotations

from hlo_run import parse
from hlo_run.hlo.edit import Editor, clone_computation, remove_uncalled, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule

TEXT = """HloModule m
f {
  x = f32[4] parameter(0)
  ROOT y = f32[4] tanh(x)
}
ENTRY e {
  p = f32[4] parameter(0)
  a = f32[4] negate(p)
  b = f32[4] abs(a)
  s = u64[2] rng-get-and-update-state(), delta=1
  c = f32[4] call(p), to_apply=f
  ROOT d = f32[4] add(c, p)
}
"""


def _named(module: HloModule, name: str) -> HloInstruction:
    return next(i for i in module.entry.instructions if i.name == name)


def test_what_only_unused_instructions_use_goes_with_them() -> None:
    module = parse(TEXT)
    remove_unused([_named(module, "b"), _named(module, "s"), _named(module, "p"), _named(module, "d")])
    assert [i.name for i in module.entry.instructions] == ["p", "s", "c", "d"]
    assert [user.name for user in _named(module, "p").users] == ["d", "c"]


def test_computations_go_with_their_callers() -> None:
    module = parse(TEXT)
    call = _named(module, "c")
    module.replace(call, _named(module, "p"))
    remove_unused([call])
    assert len(module.computations) == 2
    remove_uncalled(module)
    assert [c.name for c in module.computations] == ["e"]


def test_clones_are_numbered() -> None:
    module = parse(TEXT)
    names = ["f"]
    computation = clone = module.computations[0]
    for _ in range(3):
        clone = clone_computation(module, computation)
        names.append(clone.name)
    assert names == ["f", "f.clone", "f.clone.1", "f.clone.2"]
    assert clone_computation(module, clone).name == "f.clone.2.clone"
    assert [i.opcode for i in clone.instructions] == ["parameter", "tanh"]
    assert clone.root is clone.instructions[1]


def test_the_index_follows_edits() -> None:
    module = parse(TEXT)
    assert [i.name for i in module.instructions_of("tanh", "abs")] == ["y", "b"]
    made = Editor(_named(module, "d")).unary("abs", _named(module, "p"))
    assert [i.name for i in module.instructions_of("abs")] == ["b", made.name]
    assert module.instructions_of("sort") == []


def test_what_changes_nothing_makes_nothing() -> None:
    module = parse(TEXT)
    value = _named(module, "a")
    editor = Editor(value)
    version = module.version
    assert editor.reshape(value, (4,)) is value
    assert editor.transpose(value, (0,)) is value
    assert editor.convert(value, "f32") is value
    assert editor.bitcast(value, value.shape) is value
    assert editor.concatenate([value], 0) is value
    assert module.version == version
