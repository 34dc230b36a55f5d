"""Finds kernels whose changed result changes the result of a kernel that is seen, without evaluating what lies behind that.

The change is followed, with its real values, through the recorded steps: through the two last iterations of a loop that holds
the kernel, and out of the loop. Through a loop behind it, the change of what all iterations read is followed in the first
iteration and in the last, and in between what an iteration only adds to keeps its change; other changes end there. It
counts as seen where the comparison notices it, or where a kernel that is known to be seen changes as much as when it was
altered itself: nearly all elements of its result, and by a similar size. Only kernels that make floats are compared so. A
change of few numbers that is spread over many may cancel later, as a shift in a softmax does, so there only the comparison
counts.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from hlo_run.errors import HloRunError
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.numerics import dynamic
from hlo_run.reference.sensitivity.altered_values import parts_read
from hlo_run.reference.sensitivity.frames import Frame, State, invariant_parts, parts_of, updating_root
from hlo_run.reference.sensitivity.recorded_run import Exit, Notices, RecordedRun, is_same, is_same_as_read
from hlo_run.reference.sensitivity.work import work_of_comparison, work_of_steps
from hlo_run.reference.values import Array, Value, as_array, narrow, quiet, widen

# A kernel's result changes enough if so many of its elements move by at least a small part of their alteration, and all by such
# a part of it on average.
_MOVED, _LEAST_STEP, _MEAN_STEP, _CLIPPED = 0.9, 1 / 64, 0.75, 4.0
_FLOATS = ("float", "complex")
# A loop passes a change on as it is if it differs by at most such a part of its largest element.
_SAME_MOVE = 0.05
# Nanoseconds of a comparison of two changes, and of an element of it.
_PER_ALIKE, _PER_ELEMENT = 5e4, 10.0
# A change is spread if it reaches a result with so many times the elements of the kernel that is altered.
_SPREAD = 4


class _Seen(Exception):
    """The change shows."""


class _TooMuchWork(Exception):
    """The change was followed as long as the budget allows."""


class _Level(Struct, frozen=True):
    """An iteration that holds a kernel: its frame, the iteration after it, and the loop's step in the frame outside."""

    frame: Frame
    after: Frame | None
    loop: int


class Chains:
    """The chains of a recorded run."""

    def __init__(self, run: RecordedRun, notices: Notices) -> None:
        self._run, self._notices = run, notices
        # Those that a change may end at.
        self._seen: set[HloInstruction] = set()
        self.work = 0.0
        self.met_unknown = False
        """True if the last change that did not show reached a kernel that is not known to be seen, and may show once it is."""
        self.ended_at_loops: set[HloInstruction] = set()
        """Kernels whose change, as far as it was followed, ends in the state with which loops begin."""
        self._most = 0.0
        self._source_size = 0
        self._is_spread = self._is_silent = self._is_in_loop = False
        self._is_sure, self._met_loop = True, False
        self._work_of: dict[int, list[float]] = {id(run.frame): run.work}

    @property
    def may_end(self) -> bool:
        """True if a part of the result is floats: no chain ends at a change that shows in integers alone."""
        return any(_is_float(place) for places in self._run.exits.values() for place in places)

    def add(self, kernel: HloInstruction) -> None:
        """Note a kernel that is known to be seen in floats."""
        self._seen.add(kernel)

    def shows(self, kernel: HloInstruction, most: float) -> bool:
        """Alter a kernel alone and follow that for at most `most` nanoseconds of work; true if it shows. Counts in `work`."""
        self._most, self.work, self.met_unknown, self._is_sure, self._met_loop = most, 0.0, False, True, False
        self._source_size, self._is_spread = _elements(kernel), False
        try:
            with quiet():
                self._follow(kernel)
        except _Seen:
            if self._is_sure:
                self._seen.add(kernel)
            return True
        except (_TooMuchWork, HloRunError):
            return False
        if self._met_loop:
            self.ended_at_loops.add(kernel)
        return False

    def _follow(self, kernel: HloInstruction) -> None:
        levels = self._levels(kernel)
        if levels is None:
            return
        self._is_in_loop = bool(levels)
        frame = levels[-1].frame if levels else self._run.frame
        number = frame.number_of[kernel]
        self._is_spread = not _makes_floats(kernel) or any(
            self._spreads(frame.steps[user].instruction) for user in frame.users[number]
        )
        changed = {number: self._run.altered(kernel, frame.base(number))}
        for level in reversed(levels):
            result = self._walk(level.frame, changed)
            if level.after is not None:
                # The kernel itself runs there too.
                own = {number: self._run.altered(kernel, level.after.base(number))} if level is levels[-1] else {}
                result = self._walk(level.after, own, result)
            if result is None:
                return
            changed = {level.loop: result}
        self._walk(self._run.frame, changed)

    def _levels(self, kernel: HloInstruction) -> list[_Level] | None:
        """Return the iterations around a kernel, the outermost first; None if it is not in the bodies of loops alone."""
        levels: list[_Level] = []
        frame = self._run.frame
        while kernel not in frame.number_of:
            around = [number for number in frame.loops if self._run.holds(frame.steps[number].instruction.while_body, kernel)]
            if len(around) != 1:
                return None
            (loop,) = around
            iterations = frame.loops[loop]
            last = self._iteration(frame, loop, iterations.last)
            before = self._iteration(frame, loop, iterations.before_last) if iterations.before_last is not None else None
            levels.append(_Level(before or last, last if before is not None else None, loop))
            frame = before or last
        return levels

    def _iteration(self, frame: Frame, loop: int, state: State) -> Frame:
        found, is_new = self._run.iteration(frame, loop, state)
        if is_new:
            self._spend(sum(self._works(found)))
        return found

    def _works(self, frame: Frame) -> list[float]:
        works = self._work_of.get(id(frame))
        if works is None:
            works = self._work_of[id(frame)] = work_of_steps(frame.steps, self._run.runs)
        return works

    def _spend(self, work: float) -> None:
        if self.work + work > self._most:
            raise _TooMuchWork
        self.work += work

    # ---- one execution of a computation ---------------------------------------------------------------------------

    def _walk(self, frame: Frame, changed: Mapping[int, Value], argument: Value | None = None) -> Value | None:
        """Follow changed values of steps, or a changed parameter; return the new value of the root, or None if it is the same."""
        values, works = frame.values, self._works(frame)
        olds: dict[int, Value | None] = {}
        waiting = sorted({*changed, *(frame.readers if argument is not None else ())})
        known = set(waiting)
        try:
            if argument is not None:
                for slot, _ in frame.parameters:
                    olds[slot], values[slot] = values[slot], argument
            while waiting:
                number = heapq.heappop(waiting)
                step = frame.steps[number]
                old = values[step.slot]
                assert old is not None, "every value was recorded"
                new = changed.get(number)
                if new is None:
                    new = self._evaluated(frame, number, works[number])
                if new is None or is_same_as_read(step.instruction, old, new):
                    continue
                olds[step.slot], values[step.slot] = old, new
                self._look(frame, number, old, new)
                for user in frame.users[number]:
                    if user not in known:
                        known.add(user)
                        heapq.heappush(waiting, user)
            return values[frame.root] if frame.root in olds else None
        finally:
            for slot, value in olds.items():
                values[slot] = value

    def _evaluated(self, frame: Frame, number: int, work: float) -> Value | None:
        """Return the new value of a step; None if it is the same, or a loop may forget the change."""
        step = frame.steps[number]
        if number not in frame.loops:
            self._spend(work)
            return self._run.evaluate(frame, number)
        before, state = frame.loops[number].first.parts, parts_of(step.operands(frame.values)[0])
        changed = {part for part, (one, two) in enumerate(zip(before, state, strict=True)) if not is_same(one, two)}
        read = invariant_parts(step.instruction)
        if changed & read:
            return self._through_loop(frame, number, {part: state[part] for part in changed & read})
        self._met_loop = bool(changed)
        return None

    def _through_loop(self, frame: Frame, number: int, changed: Mapping[int, Value]) -> Value | None:
        """Follow changes of what all iterations of a loop read; return its new result, or None if it is the same."""
        states, shape = frame.loops[number], frame.steps[number].instruction.shape
        first, last = self._iteration(frame, number, states.first), self._iteration(frame, number, states.last)
        result = self._walk(first, {}, _replaced(states.first, changed))
        if first is last:
            return result
        if result is not None:
            moves = {part: move for part, move in _moves(first.result, result, shape).items() if part not in changed}
            changed = {**changed, **self._lasting(last, states.last, moves, shape)}
        return self._walk(last, {}, _replaced(states.last, changed))

    def _lasting(self, last: Frame, state: State, moves: Mapping[int, Array], shape: Shape) -> dict[int, Value]:
        """Return the parts of the state before the last iteration with changes that this iteration passes on as they are."""
        moved = {part: _plus(state.parts[part], move, shape.tuple_shapes[part]) for part, move in moves.items()}
        if not moved:
            return {}
        self._is_silent = True
        try:
            result = self._walk(last, {}, _replaced(state, moved))
        finally:
            self._is_silent = False
        after = _moves(last.result, result, shape) if result is not None else {}
        return {part: value for part, value in moved.items() if part in after and _is_close(after[part], moves[part])}

    def _spreads(self, instruction: HloInstruction) -> bool:
        update = updating_root(instruction)
        size = _size(update.operands[1].shape) if update is not None else _elements(instruction)
        return size > _SPREAD * self._source_size

    def _look(self, frame: Frame, number: int, old: Value, new: Value) -> None:
        """Raise _Seen if a changed value is noticed, or is as good as an altered one."""
        instruction = frame.steps[number].instruction
        if self._is_silent:
            return
        if frame is self._run.frame:
            for place in self._run.exits.get(number, ()):
                self._spend(work_of_comparison(place.instruction.shape))
                if self._notices(place, old, new):
                    # Whether one of several integers changes, an argmax say, depends on luck.
                    self._is_sure = _is_float(place)
                    raise _Seen
        if frame.users[number]:
            self._is_spread |= self._spreads(instruction)
        if self._is_spread and not self._is_in_loop:
            # Only the result counts now, and the way to its nearest part is shorter than all ways.
            raise _TooMuchWork
        if self._is_spread or not self._run.is_kernel(instruction) or not _makes_floats(instruction):
            return
        if instruction not in self._seen:
            self.met_unknown = True
        elif self._is_alike(frame, instruction, old, new):
            raise _Seen

    def _is_alike(self, frame: Frame, kernel: HloInstruction, old: Value, new: Value) -> bool:
        """True if a kernel's result changes as much as if the kernel was altered."""
        self._spend(_PER_ALIKE + _PER_ELEMENT * _elements(kernel))
        change = self._run.altered(kernel, old)
        if not isinstance(old, tuple) or not kernel.shape.is_tuple:
            triples = [(old, new, change, kernel.shape)]
        else:
            assert isinstance(new, tuple), "values of an instruction have one structure"
            assert isinstance(change, tuple), "values of an instruction have one structure"
            shapes = kernel.shape.tuple_shapes
            triples = [(old[part], new[part], change[part], shapes[part]) for part in parts_read(kernel)]
        kept = frame.updated_operand(kernel)
        return all(self._part_is_alike([_flat(part) for part in arrays], shape, kept) for *arrays, shape in triples)

    def _part_is_alike(self, parts: Sequence[Array], shape: Shape, kept: Value | None) -> bool:
        before, after, other = parts
        if not before.size == after.size == other.size:
            return False
        if kept is not None and not isinstance(kept, tuple):
            # An update in place: only what this run of the kernel wrote.
            written = before != _flat(kept)
            written |= before != after
            before, after, other = before[written], after[written], other[written]
        return before.size > 0 and _moves_alike(*(_floats(array, shape) for array in (before, after, other)))


def _is_float(place: Exit) -> bool:
    shape = place.instruction.shape
    return shape.is_array and shape.dtype.kind in _FLOATS


def _flat(value: Value) -> Array:
    return np.ascontiguousarray(dynamic.leave(as_array(value))).reshape(-1)


def _floats(array: Array, shape: Shape) -> Array:
    return widen(array, shape.dtype) if shape.dtype.kind == "float" else array


def _moves_alike(before: Array, after: Array, other: Array) -> bool:
    would, did = np.abs(other - before), np.abs(after - before)
    if not np.isfinite(did).all():
        return False
    moving = would > 0
    if not moving.any():
        return False
    would, did = would[moving], did[moving]
    enough = np.mean(did >= would * _LEAST_STEP) >= _MOVED
    return bool(enough and np.mean(np.minimum(did / would, _CLIPPED) ** 2) >= _MEAN_STEP**2)


def _replaced(state: State, changed: Mapping[int, Value]) -> Value:
    return tuple(changed.get(part, value) for part, value in enumerate(state.parts))


def _moves(before: Value, after: Value, shape: Shape) -> dict[int, Array]:
    """Return by how much the arrays of floats in two tuples differ, by the number of their part."""
    found: dict[int, Array] = {}
    for part, (one, two, leaf) in enumerate(zip(parts_of(before), parts_of(after), shape.tuple_shapes, strict=True)):
        if one is two or not leaf.is_array or leaf.dtype.kind not in _FLOATS:
            continue
        old, new = (_floats(dynamic.leave(as_array(value)), leaf) for value in (one, two))
        if old.shape == new.shape and (move := np.asarray(new - old)).any():
            found[part] = move
    return found


def _plus(value: Value, move: Array, shape: Shape) -> Value:
    moved = _floats(dynamic.leave(as_array(value)), shape) + move
    return dynamic.enter(narrow(moved, shape.dtype) if shape.dtype.kind == "float" else moved, shape)


def _is_close(one: Array, two: Array) -> bool:
    return bool(np.max(np.abs(one - two)) <= _SAME_MOVE * np.max(np.abs(two)))


def _makes_floats(kernel: HloInstruction) -> bool:
    shape = kernel.shape
    parts = [shape.tuple_shapes[part] for part in parts_read(kernel)] if shape.is_tuple else [shape]
    return all(part.is_array and part.dtype.kind in _FLOATS for part in parts)


def _elements(kernel: HloInstruction) -> int:
    """Return the number of elements of a kernel's result, of the part with fewest if it has several."""
    shape = kernel.shape
    if not shape.is_tuple:
        return _size(shape)
    return min((_size(shape.tuple_shapes[part]) for part in parts_read(kernel)), default=0)


def _size(shape: Shape) -> int:
    return sum(leaf.element_count for _, leaf in shape.leaves() if leaf.is_array)
