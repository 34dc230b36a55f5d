"""The stack-frame tables of a module: the origin of its instructions in the user's program.

The text has four tables, which refer to each other by number. As in XLA, only the frames that an instruction names are
kept, callers before callees. They are renumbered by first use, also in `metadata={stack_frame_id=N}`.
"""

from __future__ import annotations

import re
from typing import TypeVar

from msgspec import Struct

from hlo_run.hlo.attributes.lexer import Lexer
from hlo_run.records import replace

_SECTIONS = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_LOCATION_FIELDS = ("file_name_id", "function_name_id", "line", "end_line", "column", "end_column")
_FRAME_FIELDS = ("file_location_id", "parent_frame_id")
_NUMBER = re.compile(r"-?\d+")
_T = TypeVar("_T")


class StackFrame(Struct, frozen=True):
    """A place in the user's program; `parent` is the number of the calling frame, or 0.

    File and function names are the text between their quotes, with escapes.
    """

    file: str
    function: str
    line: int
    end_line: int
    column: int
    end_column: int
    parent: int


class StackFrames:
    """Distinct frames; the first has number 1."""

    def __init__(self) -> None:
        self.frames: list[StackFrame] = []
        self._numbers: dict[StackFrame, int] = {}

    def number(self, frame: StackFrame) -> int:
        """Return the number of an equal frame, which is added if it is new."""
        found = self._numbers.get(frame)
        if found is None:
            self.frames.append(frame)
            found = self._numbers[frame] = len(self.frames)
        return found

    def copy(self) -> StackFrames:
        """Return frames that can grow independently."""
        made = StackFrames()
        made.frames, made._numbers = list(self.frames), dict(self._numbers)
        return made

    def is_prefix(self, outer: int, inner: int) -> bool:
        """Return True if frame `inner` is `outer` or was called from it; 0, no frame, is a prefix of every frame."""
        while outer and inner != outer:
            if not 0 < inner <= len(self.frames):
                return False
            inner = self.frames[inner - 1].parent
        return True

    def concatenate(self, outer: int, inner: int) -> int:
        """Return the number of the frame `inner` with `outer` as the caller of its outermost frame; adds missing frames."""
        chain: list[StackFrame] = []
        while 0 < inner <= len(self.frames):
            chain.append(self.frames[inner - 1])
            inner = chain[-1].parent
        for frame in reversed(chain):
            outer = self.number(replace(frame, parent=outer))
        return outer

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StackFrames) and self.frames == other.frames

    __hash__ = None  # pyright: ignore[reportAssignmentType] - it grows

    def __str__(self) -> str:
        """Return the text of the four tables, each followed by an empty line; names and locations are numbered by first use."""
        files: dict[str, int] = {}
        functions: dict[str, int] = {}
        locations: dict[tuple[int, ...], int] = {}
        frames: list[str] = []
        for number, frame in enumerate(self.frames, 1):
            place = (
                files.setdefault(frame.file, len(files) + 1),
                functions.setdefault(frame.function, len(functions) + 1),
                *(frame.line, frame.end_line, frame.column, frame.end_column),
            )
            location = locations.setdefault(place, len(locations) + 1)
            # The text has the parent plus 1, and 1 for none, as XLA's own numbers begin at 0.
            frames.append(f"{number} {{file_location_id={location} parent_frame_id={frame.parent + 1}}}")
        lines = [
            *("FileNames", *(f'{number} "{name}"' for name, number in files.items()), ""),
            *("FunctionNames", *(f'{number} "{name}"' for name, number in functions.items()), ""),
            *("FileLocations", *(f"{number} {{{_fields(place)}}}" for place, number in locations.items()), ""),
            *("StackFrames", *frames, ""),
        ]
        return "\n".join(lines) + "\n"


def _fields(place: tuple[int, ...]) -> str:
    return " ".join(f"{name}={value}" for name, value in zip(_LOCATION_FIELDS, place, strict=True))


class FrameTables:
    """The tables of the text. `resolve` returns the number of a frame among the used ones."""

    def __init__(self, lexer: Lexer) -> None:
        """Read the tables; the current token is `FileNames`, and afterwards the token of the first computation."""
        self.used = StackFrames()
        self._resolved: dict[int, int] = {}
        self._files: list[str] = []
        self._functions: list[str] = []
        self._locations: list[dict[str, int]] = []
        self._frames: list[dict[str, int]] = []
        for section in _SECTIONS:
            lexer.expect(section, "as the next of the stack-frame tables")
            while lexer.kind == "number" and _NUMBER.fullmatch(lexer.value):
                lexer.advance()
                if section == "FileNames":
                    self._files.append(_string(lexer))
                elif section == "FunctionNames":
                    self._functions.append(_string(lexer))
                elif section == "FileLocations":
                    self._locations.append(_record(lexer, _LOCATION_FIELDS))
                else:
                    self._frames.append(_record(lexer, _FRAME_FIELDS))

    def resolve(self, number: int) -> int:
        """Return the new number of frame `number` of the text; 0 if any part of it is missing."""
        chain: dict[int, None] = {}
        while number not in self._resolved and number not in chain and 0 < number <= len(self._frames):
            chain[number] = None
            parent = self._frames[number - 1]["parent_frame_id"] - 1
            if parent == 0:
                break
            number = parent
        # `number` is now resolved, without a parent, or invalid: outside of the tables or in a cycle.
        known = self._resolved.get(number, 0)
        is_valid = number in self._resolved and known > 0
        for current in reversed(chain):
            is_outermost = self._frames[current - 1]["parent_frame_id"] == 1
            frame = self._frame(current, 0 if is_outermost else known) if is_valid or is_outermost else None
            known = self._resolved[current] = self.used.number(frame) if frame else 0
            is_valid = frame is not None
        return known

    def _frame(self, number: int, parent: int) -> StackFrame | None:
        location = _at(self._locations, self._frames[number - 1]["file_location_id"])
        if location is None:
            return None
        file, function = _at(self._files, location["file_name_id"]), _at(self._functions, location["function_name_id"])
        if file is None or function is None:
            return None
        return StackFrame(file, function, *(location[name] for name in _LOCATION_FIELDS[2:]), parent=parent)


def _at(entries: list[_T], number: int) -> _T | None:
    return entries[number - 1] if 0 < number <= len(entries) else None


def _string(lexer: Lexer) -> str:
    if lexer.kind != "string":
        raise lexer.error(f"expects a string, but sees {lexer.seen()}")
    value = lexer.value[1:-1]
    lexer.advance()
    return value


def _record(lexer: Lexer, names: tuple[str, ...]) -> dict[str, int]:
    """Read `{name=1 other=2}`, with blanks or commas between the fields; every name must occur once."""
    start = lexer.start
    lexer.expect("{", "before the fields of a table's row")
    found: dict[str, int] = {}
    while lexer.value != "}":
        if lexer.kind != "attr":
            raise lexer.error(f"expects attribute name, but sees {lexer.seen()}")
        name = lexer.value
        if name not in names:
            raise lexer.error(f'unexpected sub-attribute "{name}". Allowed attributes: {", ".join(sorted(names))}')
        if name in found:
            raise lexer.error(f"sub-attribute {name} already exists")
        lexer.advance()
        if not _NUMBER.fullmatch(lexer.value) or len(lexer.value) > 19:
            raise lexer.error(f"expects an integer, but sees {lexer.seen()}")
        found[name] = int(lexer.value)
        if not -(2**31) <= found[name] < 2**31:
            raise lexer.error("value out of range for int32_t")
        lexer.advance()
        if lexer.take(",") and lexer.value == "}":
            raise lexer.error("expects attribute name, but sees '}'")
    for name in sorted(names):
        if name not in found:
            raise lexer.error(f"sub-attribute {name} is expected but not seen", start)
    lexer.advance()
    return found
