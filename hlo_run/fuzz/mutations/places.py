"""The places where mutations apply, and the conversion of values to the shape that a place needs."""

from __future__ import annotations

import random

from hlo_run.hlo.edit import Editor, has_side_effect
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.shape import Shape
from hlo_run.records import replace
from hlo_run.walks import walk

# Computations whose form matters: reducers, comparators, conditions of loops, bodies of async operations.
_FIXED = frozenset(("to_apply", "condition", "select", "scatter", "async_wrapped_calls", "called_computations"))
_LEAVES: frozenset[Opcode] = frozenset(("parameter", "constant", "iota"))


def open_computations(module: HloModule) -> list[HloComputation]:
    """Return the computations that mutations may edit: the entry, calls, branches, bodies of loops, and fusions."""
    found: list[HloComputation] = []
    for computation in module.computations:
        if all(_is_open(caller, computation) for caller in computation.callers):
            found.append(computation)
    return found


def _is_open(caller: HloInstruction, computation: HloComputation) -> bool:
    if caller.opcode == "call":
        return True
    if caller.opcode not in ("while", "conditional", "fusion"):
        return False
    return all(computation not in group for name, group in caller.called.items() if name in _FIXED)


def is_plain(shape: Shape) -> bool:
    """True for arrays without dynamic dimensions."""
    return shape.is_array and not any(shape.dynamic_dims)


def plain_values(computation: HloComputation) -> list[HloInstruction]:
    """Return the instructions whose results are arrays, without those with an effect."""
    return [i for i in computation.post_order() if is_plain(i.shape) and not has_side_effect(i)]


def inner_values(module: HloModule) -> list[HloInstruction]:
    """Return the values of all open computations that are computed."""
    return [v for c in open_computations(module) for v in plain_values(c) if v.opcode not in _LEAVES]


def pick_inner(rng: random.Random, module: HloModule) -> HloInstruction | None:
    """Return a random computed value, or None."""
    values = inner_values(module)
    return rng.choice(values) if values else None


def ancestors(value: HloInstruction) -> set[HloInstruction]:
    """Return the instructions that a value depends on, with itself."""
    return set(walk([value], lambda i: i.operands))


def not_after(value: HloInstruction) -> list[HloInstruction]:
    """Return the arrays of a computation that do not depend on `value`."""
    assert value.parent is not None
    return [other for other in plain_values(value.parent) if value not in ancestors(other)]


def change_users(old: HloInstruction, new: HloInstruction, users: list[HloInstruction], is_root: bool) -> None:
    """Let `users` (and the computation's result, with `is_root`) use `new` in place of `old`."""
    assert old.parent is not None
    for user in users:
        user.operands = tuple([new if operand is old else operand for operand in user.operands])
    if is_root:
        old.parent.root = new


def fit(value: HloInstruction, shape: Shape) -> HloInstruction:
    """Convert, reshape, pad and slice a value until it has a shape (with the default layout). Every conversion is defined."""
    editor = Editor(value)
    value = _with_type(editor, value, shape.element_type)
    if value.shape.dims == shape.dims:
        return value
    if value.shape.rank != shape.rank:
        value = editor.reshape(value, (value.shape.element_count,))
        value = _with_sizes(editor, value, (shape.element_count,))
        return editor.reshape(value, shape.dims)
    return _with_sizes(editor, value, shape.dims)


def _with_type(editor: Editor, value: HloInstruction, element_type: str) -> HloInstruction:
    old, new = value.shape.dtype, Shape.array(element_type, ()).dtype
    if value.shape.element_type == element_type:
        return value
    if old.is_complex and not new.is_complex:
        real = "f64" if value.shape.element_type == "c128" else "f32"
        value = editor.add("real", value.shape.with_element_type(real), [value])
        old = value.shape.dtype
    if old.is_float and not (new.is_float or new.is_complex):
        # A conversion of NaN, or of numbers that the integers do not have, is not defined.
        zero = editor.broadcast(editor.constant(0, value.shape.element_type), value.shape.dims)
        value = editor.compare(value, zero, "GT")
    return editor.convert(value, element_type)


def _with_sizes(editor: Editor, value: HloInstruction, dims: tuple[int, ...]) -> HloInstruction:
    smaller = tuple(min(a, b) for a, b in zip(value.shape.dims, dims, strict=True))
    if smaller != value.shape.dims:
        value = editor.slice(value, (0,) * len(dims), smaller)
    if smaller != dims:
        edges = tuple((0, new - old, 0) for old, new in zip(smaller, dims, strict=True))
        value = editor.pad(value, editor.constant(0, value.shape.element_type), edges)
    return value


def adapt(old_shape: Shape, changed: HloInstruction, users: list[HloInstruction], is_root: bool) -> bool:
    """Give the users of an instruction a value of the old shape, after an edit that changed its shape."""
    if not is_plain(changed.shape):
        return False
    if changed.shape.dims == old_shape.dims and changed.shape.element_type == old_shape.element_type:
        return True
    change_users(changed, fit(changed, old_shape), users, is_root)
    return True


def with_layout(shape: Shape, order: tuple[int, ...]) -> Shape:
    """Return an array's shape with this minor-to-major order."""
    return replace(Shape.array(shape.element_type, shape.dims, order), dynamic_dims=shape.dynamic_dims)
