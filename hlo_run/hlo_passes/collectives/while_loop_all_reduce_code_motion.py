"""Reduce a sum that a loop accumulates once after the loop, not in every iteration.

    body: r = f32[8] all-reduce(x), to_apply=add                 body: s = f32[8] add(x, element 1 of the state)
          s = f32[8] add(r, element 1 of the state)         =>   b = element 1 of while(.., zeros)
    b = element 1 of while(.., init)                             b' = f32[8] add(init, f32[8] all-reduce(b))

Between the all-reduce and the sum there may be conversions, reshapes, transposes, broadcasts, slices, selects of the value or
zero by a predicate that the devices of a group share, and products with a scalar that another all-reduce makes. The sum may be
added to a slice of the state that all devices update alike. Nothing else may read that element of the state.

An element of the state into which each iteration writes a slice, the result of an all-reduce of any kind, is reduced after the
loop as a whole, if that is at most `xla_while_loop_all_reduce_dus_code_motion_max_size_bytes` large.

With `xla_gpu_enable_while_loop_reduce_scatter_code_motion` a reduce-scatter that is added to an element of the state, and to
nothing else, is done once, too. The element then has the shape of the reduce-scatter's operand inside the loop. Between
reduce-scatter and sum there may be selects of the value or zero by one predicate for all elements.

XLA's `WhileLoopAllReduceCodeMotion`. XLA also moves an all-reduce of a scatter into the state, where the elements
that the scatter leaves are summed over the devices in every iteration. That changes values, so it is not done here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
from msgspec import Struct

from hlo_run.analysis.replication import Replication
from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.printer import computation_order
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.views.slices import DynamicSlice
from hlo_run.hlo_passes.collectives.communication.channels import free_channels, pins_layouts
from hlo_run.hlo_passes.collectives.communication.loop_slices import WrittenPart, written_part
from hlo_run.hlo_passes.collectives.communication.reductions import kind_of_reducer
from hlo_run.hlo_passes.subgraphs.loops.edits import use_elements
from hlo_run.ops.groups import FLATTENED, REPLICAS, device_counts, group_mode
from hlo_run.pass_support.hlo_pass import PassContext

# Whether a value is the same on the devices of each group of an all-reduce.
_IsSame = Callable[[HloInstruction, HloInstruction], bool]
_VIEWS: tuple[Opcode, ...] = ("bitcast", "convert", "reshape", "transpose")
_TYPES = frozenset("bf16 f16 f32 f64 s8 s16 s32 s64 u8 u16 u32 u64".split())


class _Accumulation(Struct, frozen=True):
    """A sum that becomes element `number` of the state, with the slice of the state that it is added to, if it is one."""

    sum: HloInstruction
    number: int
    read: HloInstruction | None
    update: HloInstruction | None


class WhileLoopAllReduceCodeMotion(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "while-loop-all-reduce-code-motion"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        bodies = dict.fromkeys(loop.while_body for loop in module.instructions_of("while"))
        scatters = ctx.options.xla_gpu_enable_while_loop_reduce_scatter_code_motion
        opcodes = ("all-reduce", "reduce-scatter") if scatters else ("all-reduce",)
        reduces = [r for r in module.instructions_of(*opcodes) if r.parent in bodies]
        if not reduces or pins_layouts(module, *opcodes):
            return
        is_same = _sameness(module)
        for body in computation_order(module):
            if body in bodies:
                _move_slices(module, body, ctx.options.xla_while_loop_all_reduce_dus_code_motion_max_size_bytes)
                _move_out(module, body, is_same, opcodes)


def _sameness(module: HloModule) -> _IsSame:
    counts = (module.replica_count, module.num_partitions)
    found = [
        Replication(module, across_partitions=bool(axis), in_groups=True) if count > 1 else None
        for axis, count in enumerate(counts)
    ]

    def is_same(reduce: HloInstruction, value: HloInstruction) -> bool:
        mode, groups = group_mode(reduce), reduce.replica_groups.groups()
        replicas, partitions = device_counts(reduce)
        if mode == REPLICAS:
            asked = ((found[0], groups),)
        elif mode == FLATTENED and 1 in (replicas, partitions):
            asked = ((found[replicas == 1], groups),)
        else:
            asked = ((found[0], groups if mode != FLATTENED else ()), (found[1], ()))
        return all(analysis is None or analysis.is_same(value, own) for analysis, own in asked)

    return is_same


def _loops(body: HloComputation) -> list[HloInstruction]:
    """Return the loops of a body; an empty list if another instruction calls it, or if a state is not made of elements."""
    loops = [caller for caller in body.callers if caller.opcode == "while" and caller.while_body is body]
    has_others = len(loops) != len(body.callers) or body.root.opcode != "tuple"
    return [] if has_others or any(loop.operands[0].opcode != "tuple" for loop in loops) else loops


def _move_slices(module: HloModule, body: HloComputation, limit_bytes: int) -> None:
    loops = _loops(body)
    reduces = [r for r in body.post_order() if r.opcode == "all-reduce" and r.shape.is_array and kind_of_reducer(r.to_apply)]
    parts = {reduce: part for reduce in reduces if loops and (part := written_part(reduce, loops, limit_bytes))}
    if not parts:
        return
    for loop in loops:
        editor, users, was_root = Editor(loop), list(loop.users), loop.is_root
        new = {part.number: _with_reduced_part(editor, reduce, part) for reduce, part in parts.items()}
        elements = [new[n] if n in new else editor.element(loop, n) for n in range(len(loop.operands[0].operands))]
        use_elements(loop, users, was_root, elements)
    for reduce in parts:
        module.replace_uses(reduce, reduce.operands[0])
        body.remove(reduce)


def _with_reduced_part(editor: Editor, reduce: HloInstruction, part: WrittenPart) -> HloInstruction:
    """Return the element of the finished loop, with the all-reduce of what its iterations wrote."""
    element = editor.element(editor.origin, part.number)
    ends = [start + size for start, size in zip(part.starts, part.sizes, strict=True)]
    is_whole = part.sizes == element.shape.dims
    written = element if is_whole else editor.slice(element, part.starts, ends)
    value = editor.convert(written, reduce.shape.element_type)
    attributes = {name: value for name, value in reduce.attrs.items() if name != "sharding"}
    made = editor.add("all-reduce", value.shape, [value], dict(reduce.called), name=reduce.name, **attributes)
    result = editor.convert(made, element.shape.element_type)
    if is_whole:
        return result
    starts = {start: editor.constant(start, "s64") for start in dict.fromkeys(part.starts)}
    return editor.add("dynamic-update-slice", element.shape, [element, result, *(starts[start] for start in part.starts)])


def _move_out(module: HloModule, body: HloComputation, is_same: _IsSame, opcodes: Sequence[str]) -> None:
    loops = _loops(body)
    if not loops:
        return
    moved: dict[HloInstruction, list[_Accumulation]] = {}
    for reduce in body.post_order():
        if reduce.opcode not in opcodes:
            continue
        if found := _scattered(reduce, body) if reduce.opcode == "reduce-scatter" else _accumulations(reduce, body, is_same):
            read = {a.number for a in found}
            conditions = [user for loop in loops for user in loop.while_condition.parameters[0].users]
            if all(user.opcode == "get-tuple-element" and user.tuple_index not in read for user in conditions):
                moved[reduce] = found
    numbers = [a.number for found in moved.values() for a in found]
    if not moved or len(set(numbers)) < len(numbers):
        return
    for reduce, found in moved.items():
        if reduce.opcode == "reduce-scatter":
            _widen(module, body, loops, reduce, found)
    for loop in loops:
        _reduce_after(module, loop, moved)
    for reduce in moved:
        module.replace_uses(reduce, reduce.operands[0])
        body.remove(reduce)


def _accumulations(reduce: HloInstruction, body: HloComputation, is_same: _IsSame) -> list[_Accumulation] | None:
    """Return the sums in which the result ends, or None if it has another use."""
    if not _is_sum(reduce):
        return None
    found: list[_Accumulation] = []
    waiting = [reduce]
    for value in waiting:  # grows while we walk
        for user in value.users:
            if user.opcode in (*_VIEWS, "slice", "broadcast") or _keeps_or_drops(user, value, reduce, is_same):
                waiting.append(user)
                continue
            if user.opcode == "multiply" and _is_scaled(user, value, reduce, is_same):
                waiting.append(user)
                continue
            accumulation = _accumulation(user, value, body) if user.opcode == "add" else None
            if accumulation is None or not _indices_are_same(accumulation, reduce, is_same):
                return None
            found.append(accumulation)
        if value.is_root:
            return None
    if any(_is_read_elsewhere(accumulation, reduce, body, is_same) for accumulation in found):
        return None
    return found


def _is_sum(reduce: HloInstruction) -> bool:
    has_type = reduce.shape.is_array and reduce.shape.element_type in _TYPES
    return has_type and kind_of_reducer(reduce.to_apply) == "sum"


def _scattered(scatter: HloInstruction, body: HloComputation) -> list[_Accumulation] | None:
    """Return the sums in which the result of a reduce-scatter ends; None if it, or an element of the state, has another use."""
    if not _is_sum(scatter):
        return None
    found: list[_Accumulation] = []
    waiting = [scatter]
    for value in waiting:  # grows while we walk
        for user in value.users:
            if user.opcode == "select" and _has_one_predicate(user, value):
                waiting.append(user)
                continue
            accumulation = _accumulation(user, value, body) if user.opcode == "add" else None
            if accumulation is None or not _is_plain(accumulation, value, body):
                return None
            found.append(accumulation)
        if value.is_root:
            return None
    return found


def _has_one_predicate(select: HloInstruction, value: HloInstruction) -> bool:
    """True for a select of the value or zero by a scalar, or by its broadcast."""
    predicate, one, two = select.operands
    other = two if one is value else one
    scalar = predicate.operands[0] if predicate.opcode == "broadcast" else predicate
    return predicate is not value and one is not two and _is_zero(other) and not scalar.shape.dims


def _is_plain(accumulation: _Accumulation, value: HloInstruction, body: HloComputation) -> bool:
    """True if the sum reads and writes its whole element of the state as it is, and nothing else reads that element."""
    add, state = accumulation.sum, body.parameters[0]
    elements = [user for user in state.users if user.opcode == "get-tuple-element" and user.tuple_index == accumulation.number]
    (buffer,) = (operand for operand in add.operands if operand is not value)
    return (
        all(user.opcode == "get-tuple-element" for user in state.users)
        and elements == [buffer]
        and buffer.users == [add]
        and add.users == [body.root]
    )


def _widen(
    module: HloModule, body: HloComputation, loops: Sequence[HloInstruction], scatter: HloInstruction, found: list[_Accumulation]
) -> None:
    """Give what a reduce-scatter is added to the shape of the reduce-scatter's operand, inside the loops."""
    whole = scatter.operands[0].shape
    for select in _selects(scatter):
        predicate, one, two = select.operands
        scalar = predicate.operands[0] if predicate.opcode == "broadcast" else predicate
        editor = Editor(select)
        zero = editor.constant(np.zeros(whole.dims), whole.element_type)
        values = [zero if _is_zero(value) else value for value in (one, two)]
        select.operands = (editor.broadcast(scalar, whole.dims, ()), *values)
        select.shape = whole
    state = body.parameters[0]
    for accumulation in found:
        accumulation.sum.shape = whole
        for user in state.users:
            if user.tuple_index == accumulation.number:
                user.shape = whole
        shapes = list(state.shape.tuple_shapes)
        shapes[accumulation.number] = whole
        widened = Shape.make_tuple(tuple(shapes))
        for holder in (state, body.root, *(loop.while_condition.parameters[0] for loop in loops)):
            holder.shape = widened
    module.version += 1


def _selects(scatter: HloInstruction) -> list[HloInstruction]:
    """Return the selects between a reduce-scatter and its sums."""
    found = [user for user in scatter.users if user.opcode == "select"]
    for select in found:  # grows while we walk
        found += [user for user in select.users if user.opcode == "select"]
    return found


def _keeps_or_drops(user: HloInstruction, value: HloInstruction, reduce: HloInstruction, is_same: _IsSame) -> bool:
    """True for a select of the value or zero."""
    if user.opcode != "select" or user.operands[0] is value:
        return False
    one, two = user.operands[1:]
    other = two if one is value else one
    return one is not two and _is_zero(other) and is_same(reduce, user.operands[0])


def _is_scaled(product: HloInstruction, value: HloInstruction, reduce: HloInstruction, is_same: _IsSame) -> bool:
    """True for a product with a broadcast scalar that another all-reduce makes, which stays in the loop.

    A scalar all-reduce in such a product is not moved, so that two factors are never moved both.
    """
    one, two = product.operands
    factor = source = two if one is value else one
    opcodes: set[str] = set()
    while source.opcode in ("broadcast", "convert"):
        opcodes.add(source.opcode)
        source = source.operands[0]
    if not reduce.shape.dims or source.opcode != "all-reduce" or source.shape.dims or "broadcast" not in opcodes:
        return False
    return one is not two and is_same(reduce, factor)


def _is_zero(value: HloInstruction) -> bool:
    if value.opcode == "broadcast":
        return _is_zero(value.operands[0])
    return value.opcode == "constant" and not value.shape.dims and not value.constant_array[()]


def _accumulation(add: HloInstruction, value: HloInstruction, body: HloComputation) -> _Accumulation | None:
    one, two = add.operands
    buffer = two if one is value else one
    if one is two:
        return None
    origin, result = _origin(buffer, body), _element_of_result(add, body)
    if origin is None or result is None or origin[0] != result[0]:
        return None
    read, update = origin[1], result[1]
    if (read is None) != (update is None):
        return None
    if read is not None and update is not None and DynamicSlice.of(read).starts != DynamicSlice.of(update).starts:
        return None
    return _Accumulation(add, result[0], read, update)


def _origin(buffer: HloInstruction, body: HloComputation) -> tuple[int, HloInstruction | None] | None:
    """Return the element of the state that a value is, in another form, and the dynamic-slice that reads a part of it."""
    number: int | None = None
    read: HloInstruction | None = None
    while buffer.opcode != "parameter":
        if buffer.opcode == "get-tuple-element" and number is None:
            number = buffer.tuple_index
        elif buffer.opcode == "dynamic-slice" and read is None:
            read = buffer
        elif buffer.opcode not in _VIEWS:
            return None
        buffer = buffer.operands[0]
    return None if number is None or buffer is not body.parameters[0] else (number, read)


def _element_of_result(value: HloInstruction, body: HloComputation) -> tuple[int, HloInstruction | None] | None:
    """Return the element of the body's result that a value becomes, its only use, and the update that writes it."""
    update: HloInstruction | None = None
    while True:
        (user, *others) = value.users or [None]
        if user is None or others or value.is_root:
            return None
        if user is body.root and user.operands.count(value) == 1:
            return user.operands.index(value), update
        if user.opcode == "dynamic-update-slice" and update is None and user.operands[1] is value:
            update = user
        elif user.opcode not in _VIEWS:
            return None
        value = user


def _indices_are_same(accumulation: _Accumulation, reduce: HloInstruction, is_same: _IsSame) -> bool:
    update = accumulation.update
    return update is None or all(is_same(reduce, index) for index in DynamicSlice.of(update).starts)


def _is_read_elsewhere(accumulation: _Accumulation, reduce: HloInstruction, body: HloComputation, is_same: _IsSame) -> bool:
    """True if something else than the sum reads the element of the state."""
    state = body.parameters[0]
    if any(user.opcode != "get-tuple-element" for user in state.users):
        return True
    waiting = [user for user in state.users if user.tuple_index == accumulation.number]
    own = (accumulation.sum, accumulation.read, accumulation.update)
    for value in waiting:  # grows while we walk
        for user in value.users:
            if user.opcode in _VIEWS or _keeps_or_drops(user, value, reduce, is_same):
                waiting.append(user)
            elif user not in own:
                return True
    return False


def _reduce_after(module: HloModule, loop: HloInstruction, moved: dict[HloInstruction, list[_Accumulation]]) -> None:
    """Let a loop begin with zeros, and add the reduced sums to the values that it began with."""
    editor = Editor(loop)
    init = loop.operands[0]
    olds = {a.number: init.operands[a.number] for found in moved.values() for a in found}
    inner = loop.while_body.parameters[0].shape
    zeros = {n: editor.constant(np.zeros(inner.tuple_shapes[n].dims), inner.tuple_shapes[n].element_type) for n in olds}
    users, was_root = list(loop.users), loop.is_root
    loop.operands = (editor.tuple([zeros.get(n, value) for n, value in enumerate(init.operands)]),)
    loop.shape = inner
    elements = {n: editor.element(loop, n) for n in range(len(init.operands))}
    for reduce, found in moved.items():
        for accumulation in found:
            n = accumulation.number
            elements[n] = editor.binary("add", olds[n], _reduced(module, editor, reduce, elements[n]))
    use_elements(loop, users, was_root, [elements[n] for n in range(len(elements))])
    if not init.users and not init.is_root and init.parent is not None:
        init.parent.remove(init)


def _reduced(module: HloModule, editor: Editor, reduce: HloInstruction, total: HloInstruction) -> HloInstruction:
    value = editor.convert(total, reduce.shape.element_type)
    attributes = {name: value for name, value in reduce.attrs.items() if name != "sharding"}
    shape = reduce.shape if reduce.opcode == "reduce-scatter" else value.shape
    made = editor.add_with(reduce.opcode, shape, [value], attributes, dict(reduce.called))
    # XLA gives every such collective a channel. That would make more devices of a group if there are several partitions.
    if made.channel_id is not None or module.num_partitions == 1:
        made.attrs["channel_id"] = next(free_channels(module))
    return editor.convert(made, total.shape.element_type)
