"""Make loops run a fixed number of times, and remove infeeds and outfeeds, so that a module runs alone and ends.

    w = while(t), condition=c, body=b    =>    w = while(tuple(t's elements, 0)), with a counter that c compares with N
    i = (f32[4], token[]) infeed(k)      =>    i = tuple(broadcast(0), k)
    o = token[] outfeed(x, k)            =>    k

Runs before the pipeline, for `--while_execution_count` and `--remove_infeed_outfeed`. A loop whose condition compares with a
positive constant below N runs that many times, as in XLA's `HloControlFlowFlattening`. XLA leaves the data of a removed infeed
undefined, and keeps the operands of a removed outfeed alive by a custom call; here the data is zero, and unused operands go.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, clone_with_fusions, remove_unused
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.pass_support.hlo_pass import PassContext

_COUNTER = Shape.array("s32", ())
# Directions of comparisons in which the second operand limits the first one, and the other way round.
_LIMITED_BY_SECOND, _LIMITED_BY_FIRST = ("LT", "LE", "NE"), ("GT", "GE", "NE")


class ControlFlowFlattening(Struct, frozen=True):
    """The pass; see the module's docstring. `while_execution_count` of 0 leaves loops alone."""

    name: ClassVar[str] = "control-flow-flattening"
    while_execution_count: int = 0
    remove_infeed_outfeed: bool = False

    def apply(self, ctx: PassContext | None, module: HloModule) -> None:
        """Edit in place. A module that changes loses its schedule."""
        del ctx
        version = module.version
        if self.remove_infeed_outfeed:
            for infeed in module.instructions_of("infeed"):
                _remove_infeed(module, infeed)
            for outfeed in module.instructions_of("outfeed"):
                module.replace(outfeed, outfeed.operands[1])
                _remove(outfeed)
        for loop in module.instructions_of("while") if self.while_execution_count else ():
            _flatten(module, loop, self.while_execution_count)
        if module.version != version:
            module.schedule = None
            module.attrs.pop("is_scheduled", None)


def _remove(instruction: HloInstruction) -> None:
    """Remove an instruction without users, even if it has an effect, and its unused operands."""
    computation, operands = instruction.parent, instruction.operands
    assert computation is not None
    for other in computation.instructions:
        if instruction in other.control_predecessors:
            other.control_predecessors = [p for p in other.control_predecessors if p is not instruction]
    instruction.control_predecessors = []
    computation.remove(instruction)
    remove_unused(operands)


def _remove_infeed(module: HloModule, infeed: HloInstruction) -> None:
    add = Editor(infeed)
    data = _zeros(add, infeed.shape.tuple_shapes[0])
    module.replace(infeed, add.tuple((data, infeed.operands[0])))
    _remove(infeed)


def _zeros(add: Editor, shape: Shape) -> HloInstruction:
    if shape.is_tuple:
        return add.tuple([_zeros(add, element) for element in shape.tuple_shapes])
    zero = add.constant(0, shape.element_type)
    return add.add("broadcast", shape, [zero], dimensions=())


def _flatten(module: HloModule, loop: HloInstruction, count: int) -> None:
    """Replace a loop by one whose condition only looks at a counter, the last element of its tuple."""
    condition, body = (_own(module, each) for each in (loop.while_condition, loop.while_body))
    bound = _bound(condition.root, count)
    shape = Shape.make_tuple((*loop.shape.tuple_shapes, _COUNTER))
    add = Editor(loop)
    initial = add.constant(0, "s32")
    flat = add.add(
        "while", shape, [_appended(add, loop.operands[0], initial)], {"condition": [condition], "body": [body]}, loop.name
    )
    flat.control_predecessors = loop.control_predecessors
    for other in add.computation.instructions:
        if loop in other.control_predecessors:
            other.control_predecessors = [flat if p is loop else p for p in other.control_predecessors]
    for name, value in loop.attrs.items():
        # The config has the old trip count, and a sharding is one of the old tuple.
        if name not in ("backend_config", "sharding"):
            flat.attrs[name] = value
    module.replace(loop, _prefix(add, flat))
    loop.called = {}
    loop.control_predecessors = []
    add.computation.remove(loop)

    old_root = condition.root
    counter = _widen(module, condition.parameters[0], shape)
    within = Editor(counter)
    condition.root = within.compare(counter, within.constant(bound, "s32"), "LT")
    remove_unused([old_root])

    counter = _widen(module, body.parameters[0], shape)
    within = Editor(counter)
    old_root = body.root
    body.root = _appended(within, old_root, within.binary("add", counter, within.constant(1, "s32")))
    remove_unused([old_root])


def _own(module: HloModule, computation: HloComputation) -> HloComputation:
    """Return the computation if only one instruction calls it, else a copy."""
    return computation if len(computation.callers) == 1 else clone_with_fusions(module, computation)


def _bound(root: HloInstruction, count: int) -> int:
    direction = root.comparison_direction if root.opcode == "compare" else None
    limits = ((1, _LIMITED_BY_SECOND), (0, _LIMITED_BY_FIRST)) if direction is not None else ()
    for number, directions in limits:
        limit = root.operands[number]
        if direction in directions and limit.opcode == "constant" and limit.shape.is_array and limit.shape.element_count == 1:
            value = int(limit.constant_array.reshape(())) if limit.shape.dtype.is_integer else 0
            return min(value, count) if value > 0 else count
    return count


def _appended(add: Editor, value: HloInstruction, last: HloInstruction) -> HloInstruction:
    """Return a tuple of the elements of the tuple `value` and `last`."""
    return add.tuple([*(add.element(value, number) for number in range(len(value.shape.tuple_shapes))), last])


def _prefix(add: Editor, value: HloInstruction) -> HloInstruction:
    """Return a tuple of all elements of the tuple `value` but the last."""
    return add.tuple([add.element(value, number) for number in range(len(value.shape.tuple_shapes) - 1)])


def _widen(module: HloModule, parameter: HloInstruction, shape: Shape) -> HloInstruction:
    """Give a parameter another element at the end, hide it from users that take the whole tuple, and return the element."""
    whole = [user for user in dict.fromkeys(parameter.users) if user.opcode != "get-tuple-element"]
    parent = parameter.parent
    assert parent is not None
    was_root = parent.root is parameter
    parameter.shape = shape
    add = Editor(parameter)
    if whole or was_root:
        prefix = _prefix(add, parameter)
        for user in whole:
            user.replace_operand(parameter, prefix)
        if was_root:
            parent.root = prefix
    return add.element(parameter, len(shape.tuple_shapes) - 1)
