"""Split HLO text into tokens, on demand, with one compiled regular expression.

An array shape with its layout (`f32[2,3]{1,0}`) and a braced list of integers (`{0,1}`) are single tokens. They are
most of a module, and one match is several times faster than a match for each of their parts.
"""

from __future__ import annotations

import re
from bisect import bisect_right

from hlo_run.errors import ParseError, Where
from hlo_run.hlo.values.dtype import DTYPES

# Longest first: an alternation takes the first match, and f8e4m3 is a prefix of f8e4m3fn.
_DTYPE_WORDS = sorted((*DTYPES, "token", "opaque", "opaque_type"), key=len, reverse=True)
_IDENT = r"[A-Za-z_][A-Za-z0-9_.\-]*+"
_COMMENT = r"//[^\n]*+|/\*(?s:.*?)\*/"
# Blanks and comments between two tokens. Possessive, so that the engine does not backtrack into them.
BLANKS = rf"(?:[ \t\r\n]++|{_COMMENT})*+"
# Words of the grammar, which are names only after a `%`.
RESERVED = frozenset(
    (
        *DTYPES,
        *"""token opaque true false inf nan HloModule ENTRY ROOT FileNames FunctionNames FileLocations StackFrames maximal
        replicated manual last_tile_dim_replicate shard_as shard_like unknown unreduced""".split(),
    )
)

_BLANKS = re.compile(BLANKS)
_TOKEN = re.compile(
    rf"""
    {BLANKS}
    (?:
      (?P<shape>(?:{"|".join(_DTYPE_WORDS)}){BLANKS}\[(?:[^\[\]{{}}()/]++|{_COMMENT})*+\]
                (?:{BLANKS}\{{{BLANKS}[\d:\-](?:[^{{}}/]++|{_COMMENT})*+\}})?)
    | (?P<labels>[0-9bf?]{{2,}}_[0-9io?]{{2,}}->[0-9bf?]{{2,}})
    | (?P<attr>{_IDENT})=
    | (?P<colon>{_IDENT}):
    | %(?P<percent>{_IDENT})
    | (?P<ident>{_IDENT})
    | (?P<ints>\{{[ \t\r\n\d,\-]*+\}})
    | (?P<pad>-?\d+_-?\d+(?:_-?\d+)?(?:x-?\d+_-?\d+(?:_-?\d+)?)*+)
    | (?P<number>(?:-?\d+(?:\.\d*)?|-\.\d+)(?:[eE][+\-]?\d+)?|-inf|-nan)
    | (?P<string>"(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+')
    | (?P<punct>->|<=|\.\.\.|[=,:*\#+~\[\]{{}}()?])
    | (?P<eof>\Z)
    | (?P<bad>(?s:.))
    )
    """,
    re.VERBOSE | re.ASCII,
)

_NEXT_ATTRIBUTE = re.compile(rf"[ \t\r\n]*+({_IDENT})=")
# One step through a bracketed text to find its end: a string, a bracket, or a run of other characters.
_BRACKETED = re.compile(r"""("(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+')|([{(\[])|([})\]])|[^"'{}()\[\]]++""", re.DOTALL)
_PLAIN_VALUE = re.compile(r"""[^ \t\r\n,{}()\[\]"'=]*+""")
# Characters that are invalid outside of strings and comments; Python accepts some of them as blanks or digits.
FOREIGN = re.compile(r"[^\t\r\n -~]")
_CLOSING = {"{": "}", "(": ")", "[": "]"}


class Lexer:
    """Has one current token: `kind` (a group name of the token expression), `value` (its text) and `start`.

    `pos` is the position after it. `value` does not include the `=` of an attribute name, the `:` of a name with a colon
    and the `%` of a name. Compare punctuation by `value` alone, as no other token has the same text.
    """

    __slots__ = ("_last_line", "_line_starts", "_match", "file", "kind", "pos", "start", "text", "value")

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.pos = 0
        self.start = 0
        self.kind = "eof"
        self.value = ""
        self._match = _TOKEN.match
        self._line_starts = [0, *(found.end() for found in re.finditer("\n", text))]
        self._last_line = (-1, "")
        self.advance()

    def advance(self) -> None:
        """Move to the next token."""
        found = self._match(self.text, self.pos)
        assert found is not None, "the last alternative takes any character"
        kind, index = found.lastgroup, found.lastindex
        assert kind is not None
        assert index is not None
        self.kind = kind
        self.value = found[index]
        # The start of a name is its `%`.
        self.start = found.start(index) - (kind == "percent")
        self.pos = found.end()

    def sees(self, value: str) -> bool:
        """True if the token is `value`; unlike after a comparison, the type checker does not assume it stays so."""
        return self.value == value

    def take(self, value: str) -> bool:
        """Skip the token if it is `value`; return whether it was."""
        if self.value != value:
            return False
        self.advance()
        return True

    def take_attribute(self) -> bool:
        """Skip a comma, and return whether it was one: a `take(",")` that is faster before an attribute's name."""
        if self.value != ",":
            return False
        found = _NEXT_ATTRIBUTE.match(self.text, self.pos)
        if found is None:
            self.advance()
            return True
        self.kind, self.value = "attr", found[1]
        self.start, self.pos = found.span(1)
        self.pos += 1
        return True

    def expect(self, value: str, context: str) -> None:
        """Skip the token `value`; raise ParseError (`expects '(' after the opcode`) for another token."""
        if self.value != value or self.kind == "string":
            raise self.error(f"expects '{value}' {context}, but sees {self.seen()}")
        self.advance()

    def seen(self) -> str:
        """Return the current token as messages show it."""
        if self.kind == "eof":
            return "the end of the text"
        shown = self.value if len(self.value) <= 60 else self.value[:57] + "..."
        return f"'{shown}'"

    def raw_value(self) -> str:
        """Return the text of the value that begins at `pos`, and move to the token after it.

        A value is a run of words, strings and balanced brackets without a blank or comma outside of brackets, such as
        `{a={b}}`, `"text"` or `[2,2]<=[4]T(1,0)`.
        """
        text, begin = self.text, self.pos
        while begin < len(text) and text[begin] in " \t\r\n":
            begin += 1
        pos = begin
        while True:
            found = _PLAIN_VALUE.match(text, pos)
            assert found is not None
            pos = found.end()
            if pos < len(text) and text[pos] == "=" and text[pos - 1 : pos] == "<":
                pos += 1
            elif pos < len(text) and text[pos] in "{([\"'":
                pos = self.skip_bracketed(pos)
            else:
                break
        if pos == begin:
            self.advance()
            raise self.error(f"expects a value, but sees {self.seen()}")
        self.pos = pos
        self.advance()
        return text[begin:pos]

    def skip_bracketed(self, begin: int) -> int:
        """Return the position after the bracketed text or string at `begin`; raise ParseError if it has no end."""
        text, pos = self.text, begin
        expected: list[str] = []
        while True:
            found = _BRACKETED.match(text, pos)
            if found is None:
                what = "string" if text[begin] in "\"'" else f"'{text[begin]}'"
                raise self.error(f"{what} is never closed", begin, hint="the text may be cut off")
            if found[2]:
                expected.append(_CLOSING[found[2]])
            elif found[3] and expected.pop() != found[3]:
                raise self.error(f"'{found[3]}' closes no bracket", pos)
            pos = found.end()
            if not expected:
                return pos

    @property
    def at_name(self) -> bool:
        """True if the token may be a name: `%x`, `x:`, or a word that is not reserved."""
        kind = self.kind
        return kind in ("percent", "colon") or (kind == "ident" and self.value not in RESERVED)

    def is_followed_by(self, text: str) -> bool:
        """True if `text` follows the current token, after blanks and comments."""
        found = _BLANKS.match(self.text, self.pos)
        assert found is not None
        return self.text.startswith(text, found.end())

    def jump(self, pos: int) -> None:
        """Move to the token at `pos`."""
        self.pos = pos
        self.advance()

    def where(self, start: int | None = None) -> Where:
        """Return the place of the current token, or of the position `start`."""
        position = self.start if start is None else start
        line = bisect_right(self._line_starts, position)
        begin = self._line_starts[line - 1]
        if self._last_line[0] != line:
            # Cached, so that many instructions on one line share one string.
            end = self.text.find("\n", begin)
            source = self.text[begin : len(self.text) if end < 0 else end].rstrip("\r")
            self._last_line = (line, source)
        return Where(self.file, line, position - begin + 1, self._last_line[1])

    def error(self, message: str, start: int | None = None, hint: str = "") -> ParseError:
        """Return an error at the current token, or at the position `start`."""
        if self.kind == "bad" and self.text.startswith("/*", self.start):
            message, hint = "the comment is never closed", "the text may be cut off"
        elif self.kind == "eof" and start is None and not hint:
            hint = "the text may be cut off"
        return ParseError(message, self.where(start), hint)
