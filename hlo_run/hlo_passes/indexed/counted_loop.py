"""Makes a loop that runs a known number of iterations.

    while_body(i, x, y): (i + 1, step(i, x, y))     while_cond(i, x, y): i < trip count

XLA's `WhileUtil::MakeCountedLoop`, with its instructions in its order, also those without users: names depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hlo_run.hlo.edit import Editor, InstructionMaker
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape

# Adds an iteration to the body, of which it gets the editor: from the counter s32[] and the state to the next state.
Step = Callable[[Editor, HloInstruction, list[HloInstruction]], Sequence[HloInstruction]]


def counted_loop(
    module: HloModule, origin: HloInstruction, trip_count: int, state: Sequence[HloInstruction], step: Step
) -> list[HloInstruction]:
    """Add a loop to the computation of `origin`, whose metadata only the loop itself gets; return its final state.

    `step` must return as many values as `state` has, of the same shapes. The trip count must fit in s32.
    """
    shape = Shape.make_tuple((Shape.array("s32", ()), *(value.shape for value in state)))
    condition, body = _condition(shape, trip_count), _body(shape, step)
    called = {"condition": [module.add_computation(condition)], "body": [module.add_computation(body)]}
    bare = Editor(origin, derives=False)
    init = bare.tuple([bare.constant(0, "s32"), *state])
    loop = Editor(origin).add("while", shape, [init], called)
    return [bare.element(loop, number) for number in range(1, 1 + len(state))]


def _condition(shape: Shape, trip_count: int) -> HloComputation:
    editor = _with_signature("while_cond", shape, Shape.array("pred", ()))
    limit = editor.constant(trip_count, "s32")
    editor.computation.root = editor.compare(editor.element(editor.origin, 0), limit, "LT")
    return editor.computation


def _body(shape: Shape, step: Step) -> HloComputation:
    editor = _with_signature("while_body", shape, shape)
    one = editor.constant(1, "s32")
    counter = editor.element(editor.origin, 0)
    following = editor.binary("add", counter, one)
    elements = [editor.element(editor.origin, number) for number in range(1, len(shape.tuple_shapes))]
    editor.computation.root = editor.tuple([following, *step(editor, counter, elements)])
    return editor.computation


def _with_signature(name: str, shape: Shape, result: Shape) -> Editor:
    """Return the editor of a new computation with a parameter, its origin, and a root of zeros that another one replaces."""
    computation = HloComputation(name)
    editor = Editor(InstructionMaker(computation).parameter(0, shape, "param.0"))
    computation.root = _zeros(editor, result)
    return editor


def _zeros(editor: Editor, shape: Shape) -> HloInstruction:
    if shape.is_tuple:
        return editor.tuple([_zeros(editor, part) for part in shape.tuple_shapes])
    return editor.add("broadcast", shape, [editor.constant(0, shape.element_type)], dimensions=())
