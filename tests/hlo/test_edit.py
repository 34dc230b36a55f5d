"""Edits shared by passes, and the index of instructions by opcode."""

from __future__ import annotations

from hlo_run import parse
from hlo_run.hlo.edit import Editor, Leftovers, clone_computation, remove_uncalled, remove_unused, replace_each
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


def test_leftovers_free_their_operands_at_once() -> None:
    module = parse(TEXT)
    unused, a, b = Leftovers(), _named(module, "a"), _named(module, "b")
    unused.add(b)
    assert (b in unused, a in unused, a.users) == (True, True, [])
    assert [user.name for user in _named(module, "p").users] == ["d", "c"]
    unused.add(_named(module, "d"))
    unused.remove()
    assert [i.name for i in module.entry.instructions] == ["p", "s", "c", "d"]


def test_a_replaced_instruction_goes_before_the_next_is_replaced() -> None:
    module = parse(TEXT)
    users: list[list[str]] = []

    def made(old: HloInstruction) -> HloInstruction:
        users.append([user.name for user in _named(module, "p").users])
        return Editor(old).unary("cosine", old.operands[0])

    replace_each(module, [_named(module, "a"), _named(module, "b")], made)
    assert users == [["a", "c", "d"], ["cosine", "c", "d"]]
    assert [i.opcode for i in module.entry.instructions if i.opcode in ("negate", "abs")] == []


def test_a_transpose_to_the_layout_in_which_no_byte_moves() -> None:
    module = parse("HloModule m\nENTRY e { ROOT p = f32[2,3,4]{2,1,0} parameter(0) }")
    parameter = module.entry.root
    view = Editor(parameter).transpose_view(parameter, [2, 0, 1])
    assert str(view.shape) == "f32[4,2,3]{0,2,1}"
    assert Editor(parameter).transpose_view(parameter, [0, 1, 2]) is parameter


def test_an_editor_without_metadata() -> None:
    module = parse('HloModule m\nENTRY e { ROOT p = f32[2] parameter(0), metadata={op_name="x"} }')
    parameter = module.entry.root
    assert Editor(parameter).unary("negate", parameter).metadata is not None
    assert Editor(parameter, derives=False).unary("negate", parameter).metadata is None


def test_unused_instructions_are_visited_first_and_the_root_last() -> None:
    module = parse(TEXT)
    assert [i.name for i in module.entry.visit_order()] == ["p", "a", "b", "s", "c", "d"]
    module.entry.root = _named(module, "b")
    assert [i.name for i in module.entry.visit_order()] == ["s", "p", "c", "d", "a", "b"]


def test_the_post_order_follows_edits() -> None:
    module = parse(TEXT)
    first = module.entry.post_order()
    first.clear()
    assert [i.name for i in module.entry.post_order()] == ["p", "a", "b", "s", "c", "d"]
    _named(module, "d").operands = (_named(module, "b"), _named(module, "p"))
    assert [i.name for i in module.entry.post_order()] == ["s", "p", "c", "a", "b", "d"]
    _named(module, "a").control_predecessors = [_named(module, "c")]
    assert [i.name for i in module.entry.post_order()].index("c") < [i.name for i in module.entry.post_order()].index("a")
    assert [i.name for i in module.in_post_order("negate", "abs")] == ["a", "b"]


def test_what_has_other_dimensions_gets_no_sharding() -> None:
    (x,) = parse(
        "HloModule m\nENTRY e { ROOT x = f32[4,4] parameter(0), sharding={devices=[2,1]<=[2]} }", verified=False
    ).entry.parameters
    editor = Editor(x)
    made = (editor.slice(x, (0, 0), (2, 4)), editor.transpose(x, (1, 0)), editor.reshape(x, (2, 8)))
    assert [instruction.sharding is not None for instruction in made] == [True, False, False]
