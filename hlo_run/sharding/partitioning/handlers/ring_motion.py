"""Moves cheap work into the loops of products: the computation of an operand, and reductions of the result.

An operand of which each step takes a slice may be broadcasts, constants and iotas with elementwise work: it is made in the loop.
A result of which each step writes a slice may be only reduced, after elementwise work with such operands: each step reduces its
slice. So the whole arrays are never there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct

from hlo_run.analysis.elementwise import is_elementwise
from hlo_run.hlo.edit import has_side_effect, remove_unused
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.shape import Shape
from hlo_run.records import replace
from hlo_run.sharding.partitioning.rings import Ring
from hlo_run.sharding.partitioning.state import Builder
from hlo_run.walks import reaches, walk

_SMALL: tuple[Opcode, ...] = ("broadcast", "constant", "iota")
_RESULT = 2
# From instructions around a loop to those that stand for them in its body.
_Inside = dict[HloInstruction, HloInstruction]


def move_into_loops(rings: Iterable[Ring]) -> None:
    """Edit the loops and the computation that has them in place, before the computation is part of a module."""
    for ring in rings:
        if ring.slices:
            _sink_operand(ring.loop, 1 - ring.index)
        if ring.writes:
            _move_reductions(ring.loop)


def _builder(computation: HloComputation, origin: HloInstruction) -> Builder:
    return Builder(computation, origin=origin)


def _small_inputs(value: HloInstruction) -> tuple[list[HloInstruction], list[HloInstruction]] | None:
    """Return the instructions that make a value, users first, and what they read; None if others than small ones are needed."""
    found: dict[HloInstruction, None] = {}
    read: dict[HloInstruction, None] = {}
    for instruction in walk([value], lambda i: () if i.opcode in _SMALL else i.operands):
        if instruction.opcode not in _SMALL and not _is_plain(instruction):
            return None
        found[instruction] = None
        if instruction.opcode in _SMALL:
            read.update(dict.fromkeys(instruction.operands))
    return list(found), list(read)


def _is_plain(instruction: HloInstruction) -> bool:
    """True for an elementwise instruction of operands with its dimensions."""
    if not is_elementwise(instruction) or has_side_effect(instruction) or not instruction.operands:
        return False
    return all(operand.shape.dims == instruction.shape.dims for operand in instruction.operands)


def _give(loop: HloInstruction, place: int, values: list[HloInstruction]) -> tuple[HloInstruction, list[HloInstruction]]:
    """Let an element of the loop's state be a tuple of other values; return it and its elements in the body."""
    assert loop.parent is not None, "the loop is in a computation"
    (state,) = loop.operands
    outside, inside = _builder(loop.parent, loop), _builder(loop.while_body, loop.while_body.root)
    given = outside.tuple(values)
    loop.operands = (outside.tuple([*state.operands[:place], given, *state.operands[place + 1 :]]),)
    loop.parent.remove(state)
    loop.shape = loop.operands[0].shape
    for computation in (loop.while_body, loop.while_condition):
        computation.parameters[0].shape = loop.shape
    taken = inside.element(loop.while_body.parameters[0], place)
    return taken, [inside.element(taken, number) for number in range(len(values))]


def _return(loop: HloInstruction, place: int, value: HloInstruction) -> None:
    body = loop.while_body
    old = body.root
    body.root = _builder(body, old).tuple([*old.operands[:place], value, *old.operands[place + 1 :]])
    body.remove(old)


def _sink_operand(loop: HloInstruction, index: int) -> None:
    found = _small_inputs(loop.operands[0].operands[index])
    if found is None:
        return
    body = loop.while_body
    (value, *_), read = found[0], found[1]
    old = [i for i in body.parameters[0].users if i.opcode == "get-tuple-element" and i.tuple_index == index]
    taken, elements = _give(loop, index, read)
    inside = dict(zip(read, elements, strict=True))
    b = _builder(body, body.root)
    for instruction in _operands_first(found[0]):
        inside[instruction] = b.clone(instruction, instruction.shape, [inside[operand] for operand in instruction.operands])
    _return(loop, index, taken)
    for element in old:
        for user in list(element.users):
            user.replace_operand(element, inside[value])
        body.remove(element)


def _operands_first(instructions: Iterable[HloInstruction]) -> list[HloInstruction]:
    left, found = dict.fromkeys(instructions), dict[HloInstruction, None]()

    def visit(instruction: HloInstruction) -> None:
        if instruction in left and instruction not in found:
            for operand in instruction.operands:
                visit(operand)
            found[instruction] = None

    for instruction in left:
        visit(instruction)
    return list(found)


class _Slice(Struct):
    """One slice of the result that the body writes by `update`, and its counterparts of the instructions around the loop."""

    update: HloInstruction
    inside: _Inside

    @property
    def value(self) -> HloInstruction:
        """The slice of the result."""
        return self.update.operands[1]

    @property
    def offsets(self) -> tuple[HloInstruction, ...]:
        """The begin of the slice, a scalar per dimension."""
        return self.update.operands[2:]


class _Users(Struct):
    """The users of a loop's result `whole` without its padding, as far as they move: elementwise work, and reductions."""

    whole: HloInstruction
    work: list[HloInstruction]
    reductions: list[HloInstruction]
    read: list[HloInstruction]


def _move_reductions(loop: HloInstruction) -> None:
    users = _users_to_move(loop)
    if users is None:
        return
    body, computation = loop.while_body, loop.parent
    assert computation is not None, "the loop is in a computation"
    outside, b = _builder(computation, loop), _builder(body, body.root)
    padded = loop.shape.tuple_shapes[_RESULT]
    buffers = [outside.zeros(_reduced(reduction, reduction.shape, padded)) for reduction in users.reductions]
    updates = _updates(body.root.operands[_RESULT])
    _, elements = _give(loop, _RESULT, [*users.read, *buffers])
    given = dict(zip([*users.read, *buffers], elements, strict=True))
    slices = [_Slice(update, {**given, users.whole: update.operands[1]}) for update in updates]
    for instruction in _operands_first(users.work):
        _add_work(b, instruction, padded, slices)
    results = [given[value] for value in users.read]
    for reduction, buffer in zip(users.reductions, buffers, strict=True):
        result = given[buffer]
        for one in slices:
            result = _add_reduction(b, reduction, one, result, padded.dims != users.whole.shape.dims)
        results.append(result)
    _return(loop, _RESULT, b.tuple(results))
    remove_unused([updates[0]])
    taken = outside.element(loop, _RESULT)
    for number, reduction in enumerate(users.reductions, len(users.read)):
        made = outside.element(taken, number)
        if made.shape.dims != reduction.shape.dims:
            made = outside.slice(made, [0] * made.shape.rank, reduction.shape.dims)
        for user in list(reduction.users):
            user.replace_operand(reduction, made)
        if computation.root is reduction:
            computation.root = made


def _updates(value: HloInstruction) -> list[HloInstruction]:
    """Return the updates that make the result, the last one first."""
    found: list[HloInstruction] = []
    while value.opcode == "dynamic-update-slice":
        found.append(value)
        value = value.operands[0]
    return found


def _users_to_move(loop: HloInstruction) -> _Users | None:
    if len(loop.users) != 1 or loop.parent is None:
        return None
    (padded,) = loop.users
    whole = padded.users[0] if len(padded.users) == 1 and padded.users[0].opcode == "slice" else padded
    found: dict[HloInstruction, None] = {}
    reductions: list[HloInstruction] = []
    read: dict[HloInstruction, None] = {}
    waiting = list(whole.users)
    while waiting:
        instruction = waiting.pop()
        if instruction in found or instruction in reductions:
            continue
        if _is_simple_reduction(instruction):
            reductions.append(instruction)
            read[instruction.operands[1]] = None
            continue
        if instruction is loop.parent.root or not instruction.users or not _is_plain(instruction):
            return None
        for operand in instruction.operands:
            if operand is whole or operand in found:
                continue
            inputs = _small_inputs(operand)
            if inputs is None:
                return None
            found.update(dict.fromkeys(inputs[0]))
            read.update(dict.fromkeys(inputs[1]))
        found[instruction] = None
        waiting += instruction.users
    can_move = reductions and not any(reaches(value, reductions, lambda user: user.operands) for value in (*found, *read))
    return _Users(whole, list(found), reductions, list(read)) if can_move else None


def _is_simple_reduction(instruction: HloInstruction) -> bool:
    """True for a sum that begins with 0: it may be made of partial sums, in a buffer of zeros."""
    if instruction.opcode != "reduce" or instruction.shape.is_tuple:
        return False
    init, root = instruction.operands[1], instruction.to_apply.root
    return root.opcode == "add" and len(instruction.to_apply.instructions) == 3 and _is_zero(init)


def _is_zero(value: HloInstruction) -> bool:
    return value.opcode == "constant" and not value.shape.dims and not bool(np.any(value.constant_array))


def _reduced(reduction: HloInstruction, shape: Shape, dims: Shape) -> Shape:
    """Return `shape`, of a reduction's result, for an operand of other dimensions."""
    kept = tuple(size for dim, size in enumerate(dims.dims) if dim not in reduction.dimensions)
    return replace(shape, dims=kept)


def _add_work(b: Builder, instruction: HloInstruction, padded: Shape, slices: list[_Slice]) -> None:
    """Add an instruction for each slice; a small one is added whole, and cut."""
    if instruction.opcode not in _SMALL:
        for one in slices:
            shape = replace(instruction.shape, dims=one.value.shape.dims)
            one.inside[instruction] = b.clone(instruction, shape, [one.inside[operand] for operand in instruction.operands])
        return
    shape = replace(instruction.shape, dims=padded.dims)
    if instruction.opcode == "constant":
        whole = _padded(b, b.clone(instruction, instruction.shape, []), padded.dims)
    else:
        operands = [slices[0].inside[operand] for operand in instruction.operands]
        if operands:
            operands = [_padded(b, operands[0], [padded.dims[dim] for dim in instruction.dimensions])]
        whole = b.clone(instruction, shape, operands)
    for one in slices:
        one.inside[instruction] = b.dynamic_slice(whole, one.offsets, one.value.shape.dims)


def _padded(b: Builder, value: HloInstruction, dims: Sequence[int]) -> HloInstruction:
    if tuple(dims) == value.shape.dims:
        return value
    edges = [(0, wanted - size, 0) for size, wanted in zip(value.shape.dims, dims, strict=True)]
    return b.pad(value, b.constant(0, value.shape.element_type), edges)


def _add_reduction(b: Builder, reduction: HloInstruction, one: _Slice, before: HloInstruction, is_padded: bool) -> HloInstruction:
    """Reduce a slice into a buffer: add to it where a divided dimension is reduced, else write a part of it."""
    value, init = (one.inside[operand] for operand in reduction.operands)
    whole = reduction.operands[0].shape
    divided = [dim for dim in reduction.dimensions if whole.dims[dim] != value.shape.dims[dim]]
    for dim in divided if is_padded else ():
        place = b.add("iota", value.shape.with_element_type("s32"), iota_dimension=dim)
        start = b.filled(one.offsets[dim], place.shape)
        limit = b.filled(b.constant(whole.dims[dim], "s32"), place.shape)
        is_inside = b.compare(b.binary("add", place, start), limit, "LT")
        value = b.select(is_inside, value, b.filled(init, value.shape))
    made = b.clone(reduction, _reduced(reduction, reduction.shape, value.shape), [value, init])
    offsets = [offset for dim, offset in enumerate(one.offsets) if dim not in reduction.dimensions]
    if divided:
        made = b.binary(reduction.to_apply.root.opcode, made, b.dynamic_slice(before, offsets, made.shape.dims))
    if made.shape.dims != before.shape.dims:
        made = b.add("dynamic-update-slice", before.shape, [before, made, *offsets])
    return made
