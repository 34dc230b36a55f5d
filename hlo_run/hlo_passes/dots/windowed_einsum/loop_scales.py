"""Move the scales of 8-bit floats into a loop of products, so that each product becomes one of 8-bit floats.

    l = convert(x) * broadcast(s); while(l, ..): dot(l, r)   =>   while(x, .., s): dot(convert(x) * broadcast(s), r)

The tiles that go round the devices are then those of 8 bits.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from hlo_run.hlo.edit import Editor, copy_instruction, remove_unused
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.names import Opcode

_VIEWS: tuple[Opcode, ...] = ("bitcast", "broadcast", "copy", "reshape", "transpose")
# The types of the operands that cuBLASLt multiplies.
_FN, _E5 = "f8e4m3fn", "f8e5m2"
_NUZ, _E5_NUZ = "f8e4m3fnuz", "f8e5m2fnuz"
_PAIRS = {(_FN, _FN), (_FN, _E5), (_E5, _FN), (_NUZ, _NUZ), (_NUZ, _E5_NUZ), (_E5_NUZ, _NUZ)}
_NARROW = {name for pair in _PAIRS for name in pair}
_WIDE = ("bf16", "f16", "f32")


class Scaled(Struct, frozen=True):
    """A value `opcode`(convert(`narrow`), broadcast(`scale`)) of the type `wide`, and its views, first to last."""

    narrow: HloInstruction
    scale: HloInstruction
    opcode: Opcode
    wide: str
    views: tuple[HloInstruction, ...] = ()

    def widened(self, editor: Editor, value: HloInstruction, scale: HloInstruction) -> HloInstruction:
        """Add the scaled value of another narrow one. `scale` is a scalar, or has the dimensions of the value."""
        wide = editor.convert(value, self.wide)
        factor = scale if scale.shape.dims == wide.shape.dims else editor.broadcast(scale, wide.shape.dims)
        return editor.add(self.opcode, wide.shape, [wide, factor])


def scaled(value: HloInstruction) -> Scaled | None:
    """Return the scaling of a value; None if it has none. The scale must be a scalar."""
    views: list[HloInstruction] = []
    while value.opcode in _VIEWS and value.operands[0].shape.dims:
        views.insert(0, value)
        value = value.operands[0]
    if value.opcode not in ("divide", "multiply") or value.shape.element_type not in _WIDE:
        return None
    pairs = (value.operands, value.operands[::-1]) if value.opcode == "multiply" else (value.operands,)
    for wide, factor in pairs:
        if wide.opcode == "convert" and factor.opcode == "broadcast" and not factor.operands[0].shape.dims:
            narrow = wide.operands[0]
            if narrow.shape.element_type in _NARROW:
                return Scaled(narrow, factor.operands[0], value.opcode, value.shape.element_type, tuple(views))
    return None


class _Steps(Struct, frozen=True):
    """The two products of a body, the elements of its state that they multiply, and what moves or cuts these."""

    dots: tuple[HloInstruction, HloInstruction]
    elements: tuple[HloInstruction, HloInstruction]
    exchanges: tuple[HloInstruction, HloInstruction] | None = None
    slices: tuple[HloInstruction, ...] = ()


def move_scales(loop: HloInstruction) -> bool:
    """Edit a loop and its body in place if both operands are scaled; True if they were."""
    (state,) = loop.operands
    if state.opcode != "tuple" or len(state.users) != 1 or loop.is_root:
        return False
    found = [scaled(value) for value in state.operands[:2]]
    steps = _steps(loop.while_body)
    left, right = found
    if left is None or right is None or steps is None:
        return False
    if (left.narrow.shape.element_type, right.narrow.shape.element_type) not in _PAIRS:
        return False
    _move(loop, (left, right), steps)
    return True


def _steps(body: HloComputation) -> _Steps | None:
    root = body.root
    if root.opcode != "tuple" or len(root.operands) < 5:
        return None
    return _gathering(body, root.operands) or _adding(body, root.operands)


def _is_element(value: HloInstruction, body: HloComputation, index: int) -> bool:
    return value.opcode == "get-tuple-element" and value.operands[0] is body.parameters[0] and value.tuple_index == index


def _gathering(body: HloComputation, results: Sequence[HloInstruction]) -> _Steps | None:
    second, right, update = results[:3]
    first = second.operands[0] if second.opcode == "collective-permute" else second
    if second is first or first.opcode != "collective-permute" or not _is_element(right, body, 1):
        return None
    left = first.operands[0]
    before = update.operands[0] if update.opcode == "dynamic-update-slice" and len(update.operands) == 5 else update
    if not _is_element(left, body, 0) or before is update or before.opcode != "dynamic-update-slice":
        return None
    dots = before.operands[1], update.operands[1]
    is_known = all(dot.opcode == "dot" and dot.operands[1] is right for dot in dots) and dots[0].operands[0] is left
    return _Steps(dots, (left, right), (first, second)) if is_known else None


def _adding(body: HloComputation, results: Sequence[HloInstruction]) -> _Steps | None:
    left, right, even, exchange = results[:4]
    if not _is_element(left, body, 0) or not _is_element(right, body, 1) or exchange.opcode != "collective-permute":
        return None
    dots = [_added_dot(value, right) for value in (even, exchange.operands[0])]
    if dots[0] is None or dots[1] is None:
        return None
    return _Steps((dots[0], dots[1]), (left, right), None, tuple(dot.operands[0] for dot in dots if dot is not None))


def _added_dot(value: HloInstruction, right: HloInstruction) -> HloInstruction | None:
    """Return the product of a dynamic slice and `right` that a sum adds."""
    for dot in value.operands if value.opcode == "add" else ():
        if dot.opcode == "dot" and dot.operands[0].opcode == "dynamic-slice" and dot.operands[1] is right:
            return dot
    return None


def _move(loop: HloInstruction, found: tuple[Scaled, Scaled], steps: _Steps) -> None:
    (state,) = loop.operands
    body, count = loop.while_body, len(state.operands)
    outside, inside = Editor(loop), Editor(body.root)
    narrow = [_viewed(one) for one in found]
    loop.operands = (outside.tuple([*narrow, *state.operands[2:], *(one.scale for one in found)]),)
    remove_unused([state])
    loop.shape = loop.operands[0].shape
    for computation in (body, loop.while_condition):
        computation.parameters[0].shape = loop.shape
    parameter, results = body.parameters[0], list(body.root.operands)
    for index, (one, element) in enumerate(zip(found, steps.elements, strict=True)):
        value, scale = inside.element(parameter, index), inside.element(parameter, count + index)
        results = [value if result is element else result for result in results]
        results.append(scale)
        wide = one.widened(inside, value, scale)
        for dot in steps.dots:
            if dot.operands[index] is element:
                dot.operands = tuple([wide if number == index else operand for number, operand in enumerate(dot.operands)])
        for piece in steps.slices:
            if piece.operands[0] is element:
                piece.operands = (wide, *piece.operands[1:])
        if index == 0 and steps.exchanges is not None:
            first = _exchanged(steps.exchanges[0], value)
            results[0] = _exchanged(steps.exchanges[1], first)
            dot = steps.dots[1]
            dot.operands = (one.widened(inside, first, wide.operands[1]), dot.operands[1])
    old = body.root
    body.root = inside.tuple(results)
    remove_unused([old])


def _viewed(one: Scaled) -> HloInstruction:
    """Return the narrow value after the views."""
    value = one.narrow
    for view in one.views:
        shape = view.shape.with_element_type(value.shape.element_type)
        assert view.parent is not None, "the view is in a computation"
        value = view.parent.add(copy_instruction(view, [value], shape))
    return value


def _exchanged(old: HloInstruction, value: HloInstruction) -> HloInstruction:
    assert old.parent is not None, "the exchange is in the body"
    return old.parent.add(copy_instruction(old, [value], value.shape))
