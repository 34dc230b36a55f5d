"""Play a list of prepared calls in native code: launches, copies, fills, and the jumps of loops and branches.

A list is an array of 64-bit words: instructions of `INSTRUCTION_WORDS` words, then the data that they point to. `Player.move`
updates the pointers after memory has moved. An instruction that native code cannot run returns to the caller. The caller does
its work and lets the player continue behind it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from enum import IntEnum
from typing import TypeAlias

import numpy as np
from msgspec import Struct

from hlo_run.backends.host.jit import llvm
from hlo_run.backends.host.jit.workers import address_of
from hlo_run.containment.board import progress_address

INSTRUCTION_WORDS = 5
PLACE_WORDS = 5
_OWN = -1
_PATIENCE = 200_000_000
"""Approximate thread-instructions to play before control returns to Python: some tenths of a second."""
_BACK_JUMP = 1000


class Op(IntEnum):
    """The operations of a list, each with its operands."""

    END = 0
    KERNEL = 1
    """function, blocks, state, weight"""
    COPY = 2
    """destination, source, bytes"""
    FILL = 3
    """destination, 32-bit value, words"""
    JUMP = 4
    """instruction"""
    UNLESS = 5
    """place of a byte, target instruction if it is 0"""
    SET = 6
    """place of a word, value"""
    REPEAT = 7
    """place of a word to decrement, target instruction unless it becomes 0"""
    SWITCH = 8
    """place of a 32-bit index, number of the following instructions to choose from; out of range takes the last one"""
    CALL = 9
    """play ends here; the caller continues behind it"""
    INCREMENT = 10
    """place of a word to increment"""
    SLICE = 11
    """destination, source, bytes; both are records of `PLACE_WORDS` words: the place of a factor, the address of an array, the
    first offset, what to add to it times the factor, the last offset. Offsets outside of 0 .. the last one become the nearest."""


class Status(IntEnum):
    """The reason why play has ended. PAUSE returns the instruction at which to continue, the others the last one."""

    DONE = 0
    CALL = 1
    FAULT = 2
    PAUSE = 3


class MemoryOffset(Struct, frozen=True):
    """A byte offset in an allocation, or in the list's own data."""

    allocation: int
    offset_bytes: int


Word: TypeAlias = "int | MemoryOffset"


class CallList:
    """Collects instructions and data."""

    def __init__(self) -> None:
        self._code: list[Word] = []
        self._data: list[Word] = []

    @property
    def here(self) -> int:
        """The number of the next instruction."""
        return len(self._code) // INSTRUCTION_WORDS

    def add(self, op: Op, *operands: Word) -> int:
        """Append an instruction and return its number."""
        number = self.here
        self._code += [int(op), *operands, *(0,) * (INSTRUCTION_WORDS - 1 - len(operands))]
        return number

    def set_operand(self, instruction: int, index: int, value: Word) -> None:
        """Change an operand, for example a jump target that was not known before."""
        self._code[instruction * INSTRUCTION_WORDS + 1 + index] = value

    def data(self, words: Sequence[Word]) -> MemoryOffset:
        """Append data and return its place."""
        place = MemoryOffset(_OWN, 8 * len(self._data))
        self._data += words
        return place

    def words(self) -> tuple[list[int], list[tuple[int, int, int]], int]:
        """Return all words, (index, allocation, offset) of the words that are places, and the number of words before the data.

        Places in the list's own data count from its first word.
        """
        before = len(self._code)
        words: list[int] = []
        places: list[tuple[int, int, int]] = []
        for index, word in enumerate((*self._code, *self._data)):
            if isinstance(word, int):
                words.append(word)
                continue
            words.append(0)
            shift = 8 * before if word.allocation == _OWN else 0
            places.append((index, word.allocation, word.offset_bytes + shift))
        return words, places, before


class Player:
    """A list in memory, ready to play."""

    def __init__(self, calls: CallList, fault_place: int) -> None:
        """`fault_place` is the address where kernels write their faults. A fault ends play."""
        words, places, before = calls.words()
        self._data_offset_bytes = 8 * before
        self._words = np.array(words, np.int64)
        self._start = address_of(self._words)
        self._index, self._allocation, self._offset = np.array(places, np.int64).reshape(-1, 3).T
        self._progress = np.zeros(1, np.int64)
        # Patience, the instruction at which play ended, its status, the address of the kernels' fault, the address of the word
        # that gets the number of each kernel's instruction before it runs.
        progress = progress_address() or address_of(self._progress)
        self._control = np.array([_PATIENCE, 0, 0, fault_place, progress], np.int64)
        self._code = player_code()
        self._control_place = address_of(self._control)

    def move(self, bases: Sequence[int]) -> None:
        """Set the addresses of the allocations, by number."""
        table = np.array([*bases, self._start], np.int64)  # the list's own data is allocation -1
        self._words[self._index] = table[self._allocation] + self._offset

    def play(self, first: int) -> tuple[Status, int]:
        """Play from an instruction on. Return the reason for the end and its instruction."""
        self._code.run(self._start, first, self._control_place)
        _, where, status, *_ = self._control.tolist()
        return Status(status), where

    def rest(self) -> None:
        """Reset the patience."""
        self._control[0] = _PATIENCE

    def word(self, place: MemoryOffset) -> int:
        """Return a word of the list's own data."""
        return int(self._words[(self._data_offset_bytes + place.offset_bytes) // 8])

    def set_word(self, place: MemoryOffset, value: int) -> None:
        """Change a word of the list's own data, before play goes on."""
        self._words[(self._data_offset_bytes + place.offset_bytes) // 8] = value

    def own_place(self, place: MemoryOffset) -> int:
        """Return the address of a place in the list's own data."""
        return self._start + self._data_offset_bytes + place.offset_bytes


@functools.cache
def player_code() -> llvm.Loaded:
    """Return the player's function (address of the list, first instruction, control words)."""
    text = _TEXT.replace("ALL_CASES", " ".join(f"i64 {op.value}, label %{op.name.lower()}" for op in Op if op))
    text = text.replace("WORDS", str(INSTRUCTION_WORDS)).replace("BACK_COST", str(_BACK_JUMP))
    for status in Status:
        text = text.replace(f"STATUS_{status.name}", str(status.value))
    digest = llvm.digest_of(text)
    return llvm.Loaded(digest, llvm.cached_objects({digest: text}, {})[digest])


_TEXT = """
declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)

define internal ptr @place(i64 %record) nounwind {
  %at = inttoptr i64 %record to ptr
  %base.at = getelementptr i64, ptr %at, i64 1
  %first.at = getelementptr i64, ptr %at, i64 2
  %step.at = getelementptr i64, ptr %at, i64 3
  %last.at = getelementptr i64, ptr %at, i64 4
  %factor.at = load ptr, ptr %at
  %factor = load i64, ptr %factor.at
  %base = load ptr, ptr %base.at
  %first = load i64, ptr %first.at
  %step = load i64, ptr %step.at
  %last = load i64, ptr %last.at
  %more = mul i64 %factor, %step
  %wanted = add i64 %first, %more
  %is.low = icmp slt i64 %wanted, 0
  %low = select i1 %is.low, i64 0, i64 %wanted
  %is.high = icmp sgt i64 %low, %last
  %offset = select i1 %is.high, i64 %last, i64 %low
  %found = getelementptr i8, ptr %base, i64 %offset
  ret ptr %found
}

define void @run(i64 %list, i64 %first, ptr %control) nounwind {
entry:
  %patience = getelementptr i64, ptr %control, i64 0
  %where = getelementptr i64, ptr %control, i64 1
  %status = getelementptr i64, ptr %control, i64 2
  %faults = getelementptr i64, ptr %control, i64 3
  %fault = load ptr, ptr %faults
  %progress.at = getelementptr i64, ptr %control, i64 4
  %progress = load ptr, ptr %progress.at
  br label %fetch
fetch:
  %number = phi i64 [ %first, %entry ], [ %following, %next ], [ %goal, %go ]
  %following = add i64 %number, 1
  %index = mul i64 %number, WORDS
  %offset = shl i64 %index, 3
  %address = add i64 %list, %offset
  %at = inttoptr i64 %address to ptr
  %op = load i64, ptr %at
  %a.at = getelementptr i64, ptr %at, i64 1
  %b.at = getelementptr i64, ptr %at, i64 2
  %c.at = getelementptr i64, ptr %at, i64 3
  %d.at = getelementptr i64, ptr %at, i64 4
  %a = load i64, ptr %a.at
  %b = load i64, ptr %b.at
  %c = load i64, ptr %c.at
  %a.ptr = inttoptr i64 %a to ptr
  switch i64 %op, label %end [ ALL_CASES ]
next:
  br label %fetch
go:
  %goal = phi i64 [ %b, %unless ], [ %chosen, %switch ], [ %target, %back ]
  br label %fetch
kernel:
  store volatile i64 %number, ptr %progress
  %state = inttoptr i64 %c to ptr
  call void %a.ptr(i64 0, i64 %b, ptr %state)
  %weight = load i64, ptr %d.at
  %before = load i64, ptr %patience
  %after = sub i64 %before, %weight
  store i64 %after, ptr %patience
  %line = load i32, ptr %fault
  %fine = icmp eq i32 %line, 0
  br i1 %fine, label %next, label %failed
copy:
  %source = inttoptr i64 %b to ptr
  call void @llvm.memmove.p0.p0.i64(ptr %a.ptr, ptr %source, i64 %c, i1 false)
  br label %next
fill:
  %value = trunc i64 %b to i32
  br label %filling
filling:
  %word = phi i64 [ 0, %fill ], [ %word.next, %filling ]
  %word.at = getelementptr i32, ptr %a.ptr, i64 %word
  store i32 %value, ptr %word.at, align 4
  %word.next = add i64 %word, 1
  %more = icmp ult i64 %word.next, %c
  br i1 %more, label %filling, label %next
jump:
  br label %back
unless:
  %byte = load i8, ptr %a.ptr
  %is.zero = icmp eq i8 %byte, 0
  br i1 %is.zero, label %go, label %next
set:
  store i64 %b, ptr %a.ptr, align 8
  br label %next
increment:
  %old = load i64, ptr %a.ptr, align 8
  %new = add i64 %old, 1
  store i64 %new, ptr %a.ptr, align 8
  br label %next
slice:
  %from = call ptr @place(i64 %b)
  %to = call ptr @place(i64 %a)
  call void @llvm.memmove.p0.p0.i64(ptr %to, ptr %from, i64 %c, i1 false)
  br label %next
repeat:
  %count = load i64, ptr %a.ptr, align 8
  %left = sub i64 %count, 1
  store i64 %left, ptr %a.ptr, align 8
  %again = icmp sgt i64 %left, 0
  br i1 %again, label %back, label %next
back:
  %target = phi i64 [ %a, %jump ], [ %b, %repeat ]
  %ready = load i64, ptr %patience
  %worn = sub i64 %ready, BACK_COST
  store i64 %worn, ptr %patience
  %is.over = icmp slt i64 %worn, 0
  br i1 %is.over, label %pause, label %go
switch:
  %selector32 = load i32, ptr %a.ptr
  %selector = zext i32 %selector32 to i64
  %last = sub i64 %b, 1
  %inside = icmp ult i64 %selector, %b
  %branch = select i1 %inside, i64 %selector, i64 %last
  %chosen = add i64 %following, %branch
  br label %go
end:
  br label %leave
call:
  br label %leave
failed:
  br label %leave
pause:
  br label %leave
leave:
  %stop = phi i64 [ %number, %end ], [ %number, %call ], [ %number, %failed ], [ %target, %pause ]
  %why = phi i64 [ STATUS_DONE, %end ], [ STATUS_CALL, %call ], [ STATUS_FAULT, %failed ], [ STATUS_PAUSE, %pause ]
  store i64 %stop, ptr %where
  store i64 %why, ptr %status
  ret void
}
"""
