"""Finds kernels whose changed result changes the result of a kernel that is seen, without evaluating what lies behind that.

The change is followed, with its real values, through the recorded steps: through the two last iterations of a loop that holds the
kernel, out of the loop, and through the first and the last iteration of loops behind it. There a float that is carried along
keeps in the last iteration the change that it had after the first. It counts as seen where the comparison notices it, or
where a kernel that is known to be seen changes as much as when it was altered itself: nearly all elements of its result, and
by a similar size. A change of few numbers that is spread over many may cancel later, as a shift in a softmax does, so there only
the comparison counts.
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
from hlo_run.reference.sensitivity.frames import Frame, State
from hlo_run.reference.sensitivity.recorded_run import Notices, RecordedRun, is_same_as_read
from hlo_run.reference.sensitivity.work import work_of_comparison, work_of_steps
from hlo_run.reference.values import Array, Value, as_array, narrow, quiet, widen

# A kernel's result changes enough if so many of its elements move by at least a small part of their alteration, and all by such
# a part of it on average.
_MOVED, _LEAST_STEP, _MEAN_STEP = 0.9, 1 / 64, 0.4
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
    """The chains of a recorded run; `seen` has the kernels that are known to be seen."""

    def __init__(self, run: RecordedRun, notices: Notices) -> None:
        self._run, self._notices = run, notices
        self.seen: set[HloInstruction] = set()
        self.work = 0.0
        self._most = 0.0
        self._source_size = 0
        self._is_spread = False
        self._work_of: dict[int, list[float]] = {id(run.frame): run.work}

    def shows(self, kernel: HloInstruction, most: float) -> bool:
        """Alter a kernel alone and follow that for at most `most` nanoseconds of work; true if it shows. Counts in `work`."""
        self._most, self.work = most, 0.0
        self._source_size, self._is_spread = _elements(kernel), False
        try:
            with quiet():
                self._follow(kernel)
        except _Seen:
            return True
        except (_TooMuchWork, HloRunError):
            pass
        return False

    def _follow(self, kernel: HloInstruction) -> None:
        levels = self._levels(kernel)
        if levels is None:
            return
        frame = levels[-1].frame if levels else self._run.frame
        number = frame.number_of[kernel]
        self._is_spread = any(self._spreads(frame.steps[user].instruction) for user in frame.users[number])
        changed = {number: self._run.altered(kernel, frame.base(number))}
        for level in reversed(levels):
            result = self._walk(level.frame, changed)
            if level.after is not None and result is not None:
                result = self._walk(level.after, {}, result)
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
        self.work += work
        if self.work > self._most:
            raise _TooMuchWork

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
        """Return the new value of a step; None if it is the same."""
        step = frame.steps[number]
        if number not in frame.loops:
            self._spend(work)
            return self._run.evaluate(frame, number)
        states = frame.loops[number]
        first, last = self._iteration(frame, number, states.first), self._iteration(frame, number, states.last)
        result = self._walk(first, {}, step.operands(frame.values)[0])
        if result is None or first is last:
            return result
        before = first.values[first.root]
        assert before is not None, "every value was recorded"
        return self._walk(last, {}, _moved(states.last.value, before, result, step.instruction.shape))

    def _spreads(self, instruction: HloInstruction) -> bool:
        return _elements(instruction) > _SPREAD * self._source_size

    def _look(self, frame: Frame, number: int, old: Value, new: Value) -> None:
        """Raise _Seen if a changed value is noticed, or is as good as an altered one."""
        instruction = frame.steps[number].instruction
        if frame is self._run.frame:
            for place in self._run.exits.get(number, ()):
                self._spend(work_of_comparison(place.instruction.shape))
                if self._notices(place, old, new):
                    raise _Seen
        if frame.users[number]:
            self._is_spread |= self._spreads(instruction)
        if instruction in self.seen and not self._is_spread and self._is_alike(frame, instruction, old, new):
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
        if not before.size:
            return False
        if shape.dtype.kind in ("float", "complex"):
            return _moves_alike(*(_floats(array, shape) for array in (before, after, other)))
        would_change = int(np.count_nonzero(before != other))
        return would_change > 0 and 2 * int(np.count_nonzero(before != after)) >= would_change


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
    return bool(enough and np.sqrt(np.mean((np.minimum(did, would) / would) ** 2)) >= _MEAN_STEP)


def _moved(value: Value, before: Value, after: Value, shape: Shape) -> Value:
    """Return a loop's state with the floats changed by what they changed in another iteration; the rest stays."""
    if isinstance(value, tuple):
        assert isinstance(before, tuple), "a loop's states have one structure"
        assert isinstance(after, tuple), "a loop's states have one structure"
        parts = zip(value, before, after, shape.tuple_shapes, strict=True)
        return tuple(_moved(*part) for part in parts)
    if before is after or not shape.is_array or shape.dtype.kind not in ("float", "complex"):
        return value
    arrays = [dynamic.leave(as_array(array)) for array in (value, before, after)]
    if len({array.shape for array in arrays}) > 1 or np.array_equal(arrays[1], arrays[2], equal_nan=True):
        return value
    wide = [_floats(array, shape) for array in arrays]
    moved = wide[0] + (wide[2] - wide[1])
    return dynamic.enter(narrow(moved, shape.dtype) if shape.dtype.kind == "float" else moved, shape)


def _elements(kernel: HloInstruction) -> int:
    """Return the number of elements of a kernel's result, of the part with fewest if it has several."""
    shape = kernel.shape
    if not shape.is_tuple:
        return _size(shape)
    return min((_size(shape.tuple_shapes[part]) for part in parts_read(kernel)), default=0)


def _size(shape: Shape) -> int:
    return sum(leaf.element_count for _, leaf in shape.leaves() if leaf.is_array)
