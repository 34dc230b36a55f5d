"""Asks whether a result depends on some values with the given arguments: it changes them in a copy, and evaluates the copy."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.reference.values import Value

# Floats are scaled and moved, so that zeros change too.
_FACTOR, _OFFSET = 1.25, 0.75


def is_seen(module: HloModule, values: Iterable[HloInstruction], result: Value, run: Callable[[HloModule], Value]) -> bool | None:
    """True if `result`, the result of `module`, changes if the values do; None if none of them can be changed.

    Raises what `run` raises.
    """
    copy = module.clone()
    copies = dict(zip(module.instructions, copy.instructions, strict=True))
    found = False
    for value in values:
        arrays = [copies[value]] if value.shape.is_array else [u for u in copies[value].users if u.opcode == "get-tuple-element"]
        for array in arrays:
            found |= array.shape.is_array and _change(copy, array)
    return None if not found else not _equal(result, run(copy))


def _change(module: HloModule, value: HloInstruction) -> bool:
    """Let all users of a value have another one."""
    editor = Editor(value, derives=False)
    dtype = value.shape.dtype
    if dtype.kind == "pred":
        made = editor.unary("not", value)
    elif dtype.is_integer:
        made = editor.binary("add", value, _number(editor, value, 1))
    elif dtype.is_float and dtype.bits >= 16:
        made = editor.binary("multiply", value, _number(editor, value, _FACTOR))
        made = editor.binary("add", made, _number(editor, value, _OFFSET))
    else:
        return False
    inner = made.operands[0] if made.operands[0] is not value else made
    module.replace_uses(value, made)
    # The new value itself is computed from the old one.
    inner.replace_operand(made, value)
    return True


def _number(editor: Editor, like: HloInstruction, number: float) -> HloInstruction:
    constant = editor.constant(number, like.shape.element_type)
    return editor.add("broadcast", like.shape, [constant], dimensions=())


def _equal(one: Value, two: Value) -> bool:
    if isinstance(one, tuple) or isinstance(two, tuple):
        assert isinstance(one, tuple), "both have the structure of the result"
        assert isinstance(two, tuple), "both have the structure of the result"
        return all(map(_equal, one, two))
    return one.shape == two.shape and bool(np.all((one == two) | ((one != one) & (two != two))))
