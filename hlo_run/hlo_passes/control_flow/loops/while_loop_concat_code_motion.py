"""Let a loop keep one array instead of several that its body concatenates.

    body: e = concatenate(a, b); f = op(e)             body: f = op(ab)
          a' = add(a, slice(f)), b' = add(b, slice(f))  =>   ab' = add(ab, f)
    w = while(tuple(a, b))                              w = while(tuple(concatenate(a, b))), and slices of its element

What computes the arrays must do the same for each: elementwise instructions, broadcasts, reductions, all-reduces, reshapes
that add or remove dimensions of size 1, and slices that make up a whole value. A value that all of them use is broadcast.

XLA's `WhileLoopConcatCodeMotion`. Like XLA's it runs `simplify-while-loops` in the end, which removes the elements that are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, copy_instruction, has_order, remove_dead
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo_passes.control_flow.loops.joins import Join, Joins, StackedDimension, operand_place
from hlo_run.hlo_passes.control_flow.loops.while_loop_simplifier import WhileLoopSimplifier
from hlo_run.hlo_passes.subgraphs.loops.edits import use_elements
from hlo_run.hlo_passes.subgraphs.tuple_simplification import simplify_tuples
from hlo_run.pass_support.hlo_pass import PassContext

# Attributes of a value that are not those of an array of several.
_OWN = ("origin", "statistics")


class WhileLoopConcatCodeMotion(Struct, frozen=True):
    """The pass; see the module's docstring. A concatenation of fewer than `min_operand_count` operands stays."""

    name: ClassVar[str] = "while-loop-concat-code-motion"

    min_operand_count: int = 2

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place, inner loops before outer ones."""
        changed = [loop for loop in reversed(module.instructions_of("while")) if self._move_out(loop)]
        if changed:
            simplify_tuples(module)
            remove_dead(module)
            WhileLoopSimplifier().apply(ctx, module)
            simplify_tuples(module)
            remove_dead(module)

    def _move_out(self, loop: HloInstruction) -> bool:
        body, condition = loop.while_body, loop.while_condition
        if len(body.callers) > 1 or len(condition.callers) > 1 or body is condition or not _has_elements(body) or has_order(loop):
            return False
        if any(instruction.control_predecessors for instruction in body.instructions):
            return False
        (tested,) = condition.parameters
        if any(user.opcode != "get-tuple-element" for user in tested.users):
            return False
        joins = Joins(body, frozenset(user.tuple_index for user in tested.users))
        concatenates = [i for i in body.post_order() if i.opcode == "concatenate" and len(i.operands) >= self.min_operand_count]
        moved = [concatenate for concatenate in concatenates if joins.add_operands(concatenate)]
        if moved:
            _Rewrite(loop, joins, moved).run()
        return bool(moved)


def _has_elements(body: HloComputation) -> bool:
    """True if the state is a tuple, of which the body reads each element once at most."""
    (state,) = body.parameters
    if body.root.opcode != "tuple" or any(user.opcode != "get-tuple-element" for user in state.users):
        return False
    numbers = [user.tuple_index for user in state.users]
    return len(set(numbers)) == len(numbers)


class _Rewrite:
    """Gives a loop the arrays of its joins. The first element of each becomes the array, the others pass the body unchanged."""

    def __init__(self, loop: HloInstruction, joins: Joins, moved: Sequence[HloInstruction]) -> None:
        self._loop = loop
        self._joins = joins
        self._moved = moved
        self._body = loop.while_body
        self._state = self._body.parameters[0]
        self._inside = Editor(self._state, derives=False)
        self._elements = {user.tuple_index: user for user in self._state.users}
        self._arrays: dict[Join, HloInstruction] = {}
        self._new: dict[HloInstruction, HloInstruction] = {}  # the moved concatenates, by what replaces them
        self._parts: dict[HloInstruction, HloInstruction] = {}

    def run(self) -> None:
        """Edit in place."""
        module = self._body.module
        assert module is not None, "the body is in a module"
        joins = {n: self._joins.known[e] for n, e in self._elements.items() if e in self._joins.known}
        self._change_state({n: join for n, (join, place) in joins.items() if not place})
        known = self._joins.known
        stay = [i for i in self._body.instructions if i not in known and i not in self._moved]
        for value in self._body.post_order():
            if value in self._moved:
                self._new[value] = self._operand(value.operands, StackedDimension(value.dimensions[0], False))
            elif value in known and not known[value][1]:
                self._arrays[known[value][0]] = self._array(known[value][0])
        self._return_arrays(joins)
        for old, new in self._new.items():
            module.replace_uses(old, new)
        for reader in (*stay, *self._arrays.values()):
            for operand in dict.fromkeys(reader.operands):
                if operand in known and reader is not self._body.root:
                    reader.replace_operand(operand, self._part(operand))
        passed = {self._elements[n] for n, (_, place) in joins.items() if place}
        self._body.remove_all({*known, *self._moved} - passed)

    def _change_state(self, firsts: dict[int, Join]) -> None:
        loop, before = self._loop, Editor(self._loop, derives=False)
        init, users, was_root = loop.operands[0], list(loop.users), loop.is_root
        starts = [before.element(init, n) for n in range(len(loop.shape.tuple_shapes))]
        for n, join in firsts.items():
            values = [starts[value.tuple_index] for value in join.values]
            if join.place.is_new:
                values = [before.reshape(value, join.place.dims([value])) for value in values]
            starts[n] = before.concatenate(values, join.place.dimension)
        loop.operands = (before.tuple(starts),)
        for instruction in (loop, self._state, *loop.while_condition.parameters):
            instruction.shape = loop.operands[0].shape
        results = [before.element(loop, n) for n in range(len(starts))]
        for n, join in firsts.items():
            whole = results[n]
            for number, value in enumerate(join.values):
                results[value.tuple_index] = _part_of(before, whole, join, number)
        use_elements(loop, users, was_root, results)

    def _array(self, join: Join) -> HloInstruction:
        """Return the array of a join, whose operands have their arrays."""
        first = join.values[0]
        if first.opcode == "slice":
            return self._new.get(first.operands[0], first.operands[0])
        if first.opcode == "get-tuple-element":
            return self._inside.element(self._state, first.tuple_index)
        if first.opcode == "broadcast":
            return self._broadcast(join)
        places = [operand_place(first, n, join.place) for n in range(len(first.operands))]
        operands = [
            operand
            if place is None or (n and first.opcode == "reduce")
            else self._operand([v.operands[n] for v in join.values], place)
            for n, (operand, place) in enumerate(zip(first.operands, places, strict=True))
        ]
        if first.opcode == "reshape":
            return self._inside.reshape(operands[0], join.shape.dims)
        made = copy_instruction(first, operands, join.shape)
        for name in (*_OWN, *(("sharding",) if join.place.is_new else ())):
            made.attrs.pop(name, None)
        if first.opcode == "reduce" and places[0] is not None and places[0].is_new:
            made.attrs["dimensions"] = tuple(d + (d >= places[0].dimension) for d in first.dimensions)
        return self._body.add(made)

    def _broadcast(self, join: Join) -> HloInstruction:
        first, p, sources = join.values[0], join.place.dimension, [value.operands[0] for value in join.values]
        dimensions, place = first.dimensions, operand_place(first, 0, join.place)
        assert place is not None, "a broadcast has a place for its operand"
        if not place.is_new:
            return self._inside.broadcast(self._operand(sources, place), join.shape.dims, dimensions)
        shifted = [d + (d >= p) for d in dimensions]
        if len(set(sources)) == 1:
            return self._inside.broadcast(sources[0], join.shape.dims, shifted if join.place.is_new else dimensions)
        shifted.insert(place.dimension, p)
        spread = self._inside.broadcast(self._operand(sources, place), StackedDimension(p, True).dims(join.values), shifted)
        return self._inside.reshape(spread, join.shape.dims)

    def _operand(self, values: Sequence[HloInstruction], place: StackedDimension) -> HloInstruction:
        """Return an array of values at a place: the array of their join, or a broadcast of the one value that all are."""
        dims = place.dims(values)
        if values[0] in self._joins.known:
            return self._inside.reshape(self._arrays[self._joins.known[values[0]][0]], dims)
        value = self._new.get(values[0], values[0])
        kept = [d + (d >= place.dimension) for d in range(value.shape.rank)]
        spread = self._inside.broadcast(value, StackedDimension(place.dimension, True).dims(values), kept)
        return self._inside.reshape(spread, dims)

    def _return_arrays(self, joins: dict[int, tuple[Join, int]]) -> None:
        root, returned = self._body.root, list[HloInstruction]()
        for n, value in enumerate(root.operands):
            if n not in joins:
                returned.append(self._part(value) if value in self._joins.known else value)
            elif joins[n][1]:
                returned.append(self._elements[n])
            else:
                join = joins[n][0]
                returned.append(self._operand([root.operands[v.tuple_index] for v in join.values], join.place))
        self._body.root = Editor(root).tuple(returned)
        self._body.remove(root)

    def _part(self, value: HloInstruction) -> HloInstruction:
        """Return one value of an array."""
        if value not in self._parts:
            join, number = self._joins.known[value]
            self._parts[value] = _part_of(self._inside, self._arrays[join], join, number)
        return self._parts[value]


def _part_of(editor: Editor, array: HloInstruction, join: Join, number: int) -> HloInstruction:
    part = editor.slice(array, *join.bounds(number))
    return editor.reshape(part, join.values[number].shape.dims)
