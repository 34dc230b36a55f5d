"""Computes the counters of a loop from one counter."""

from __future__ import annotations

from hlo_run.analysis.loop_state import LoopState
from hlo_run.hlo.edit import DETACHED
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.subgraphs.loops.cloning import cloned, renamed_clone, replace_by_form
from hlo_run.hlo_passes.subgraphs.loops.unused import may_narrow


def merge_counters(module: HloModule, state: LoopState, element_type: str) -> HloInstruction | None:
    """Let elements of this type that grow by constants be `start + steps * constant`; return the new loop, or None.

    `steps` is the element that begins at 0 and grows by 1, and a new last element if there is none. Nothing changes if only one
    element grows.
    """
    steps, growing = _growing(state, element_type)
    if len(growing) + (steps is not None) < 2 or not may_narrow(state):
        return None
    loop, values = state.loop, state.init.operands
    adds_steps = steps is None
    number = len(values) if steps is None else steps
    shapes = [value.shape for value in values]
    scalar = Shape.array(element_type, ())
    shape = Shape.make_tuple((*shapes, scalar) if adds_steps else tuple(shapes))

    def old_form(whole: HloInstruction) -> HloInstruction:
        elements: list[HloInstruction] = []
        for n in range(len(shapes)):
            element = DETACHED.get_tuple_element(whole, n)
            if n in growing:
                count, step = DETACHED.get_tuple_element(whole, number), renamed_clone(growing[n])
                element = DETACHED.binary("add", element, DETACHED.binary("multiply", count, step))
            elements.append(element)
        return DETACHED.tuple(elements)

    old = state.condition.parameters[0]
    condition = cloned(state.condition, {old: old_form(DETACHED.parameter(0, shape, old.name))})
    old = state.body.parameters[0]
    between = module.add_computation(cloned(state.body, {old: old_form(DETACHED.parameter(0, shape, old.name))}))
    (parameter,), root = between.parameters, between.root
    again = renamed_clone(root)
    elements = [DETACHED.get_tuple_element(parameter if n in growing else again, n) for n in range(len(shapes))]
    if adds_steps:
        elements.append(DETACHED.binary("add", DETACHED.get_tuple_element(parameter, number), DETACHED.constant(1, element_type)))
    body = cloned(between, {root: DETACHED.tuple(elements)})
    module.remove_computation(between)
    init = state.init
    if adds_steps:
        init = DETACHED.tuple(
            [*(DETACHED.get_tuple_element(init, n) for n in range(len(shapes))), DETACHED.constant(0, element_type)]
        )
    return replace_by_form(module, loop, condition, body, init, old_form)


def _growing(state: LoopState, element_type: str) -> tuple[int | None, dict[int, HloInstruction]]:
    """Return the element that counts iterations, if any, and the others that grow by a constant, each with the constant."""
    (parameter,) = state.body.parameters
    steps: int | None = None
    growing: dict[int, HloInstruction] = {}
    for number, (init, new) in enumerate(zip(state.init.operands, state.body.root.operands, strict=True)):
        if new.opcode != "add" or new.shape.element_type != element_type:
            continue
        for element, constant in (new.operands, new.operands[::-1]):
            reads = element.opcode == "get-tuple-element" and element.operands[0] is parameter and element.tuple_index == number
            if not reads or constant.opcode != "constant" or constant.shape.dims:
                continue
            starts_at_zero = init.opcode == "constant" and not init.constant_array.any()
            if steps is None and constant.constant_array == 1 and starts_at_zero:
                steps = number
            else:
                growing[number] = constant
            break
    return steps, growing
