"""Edits shared by passes, and the index of instructions by opcode."""

from __future__ import annotations

from pathlib import Path

import hlo_run
from hlo_run import parse
from hlo_run.hlo.edit import (
    DETACHED,
    Editor,
    InstructionMaker,
    Leftovers,
    clone_computation,
    copy_instruction,
    remove_uncalled,
    remove_unused,
    replace_each,
    scalar_reducer,
)
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape

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


def test_a_maker_adds_to_its_computation_with_its_place_and_attributes() -> None:
    module = parse(TEXT)
    where = _named(module, "a").where
    maker = InstructionMaker(HloComputation("made"), where, {"frontend_attributes": "f"})
    start = maker.parameter(0, Shape.array("f32", (7,)), "start")
    part = maker.slice(start, [1], [6], [2])
    cut = maker.dynamic_slice(start, [maker.constant(0, "s32")], [2])
    maker.computation.root = maker.tuple(
        [maker.copy(part), maker.filled(maker.constant(1.0, "f32"), cut.shape), maker.zeros(cut.shape)]
    )
    assert [i.opcode for i in maker.computation.instructions] == (
        "parameter slice constant dynamic-slice copy constant broadcast constant broadcast tuple".split()
    )
    assert (part.shape.dims, cut.shape.dims, part.slice_ranges) == ((3,), (2,), ((1, 6, 2),))
    assert all(i.where == where and i.attrs["frontend_attributes"] == "f" for i in maker.computation.instructions)


def test_a_detached_instruction_is_in_no_computation() -> None:
    whole = DETACHED.tuple([DETACHED.parameter(0, Shape.array("f32", ()))])
    assert DETACHED.element(whole, 0) is whole.operands[0]
    element = DETACHED.get_tuple_element(whole, 0, "e")
    assert (element.name, element.operands, element.parent, element.where) == ("e", (whole,), None, None)


def test_a_scalar_reducer_has_the_given_names() -> None:
    made = scalar_reducer("r", "maximum", Shape.array("f32", ()), ("lhs", "rhs"))
    assert [i.name for i in made.instructions] == ["lhs", "rhs", "maximum"]
    assert made.root.operands == tuple(made.parameters)


def test_a_copy_calls_the_computations_that_are_named() -> None:
    call = _named(parse(TEXT), "c")
    assert copy_instruction(call, call.operands).called == call.called
    other = HloComputation("other")
    assert copy_instruction(call, call.operands, called={"to_apply": (other,)}).called_computations == (other,)


def test_only_the_core_the_parser_and_the_builder_construct_instructions() -> None:
    """Everything else uses a maker, so that shapes, names and attributes of new instructions come from one place."""
    package = Path(hlo_run.__file__).parent
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if " HloInstruction(" in (text := path.read_text(encoding="utf-8").replace("class HloInstruction(", ""))
        or "(HloInstruction(" in text
    }
    assert found == {
        *("hlo/graph.py", "hlo/edit.py", "hlo/fusion_graph.py", "hlo/module_state.py", "builder/core.py"),
        *("hlo/text/instruction_parser.py", "hlo/text/async_parser.py"),
    }
