"""Parses indexing maps, in the printer's spelling and in current XLA's (`/`, `floorDiv`, `ceilDiv`)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from hlo_run.errors import ParseError, Where
from hlo_run.indexing.expr import Expr, ceil_div, constant, dim, maximum, minimum, symbol
from hlo_run.indexing.indexing_map import Constraint, IndexingMap
from hlo_run.indexing.interval import Interval
from hlo_run.indexing.variable import Variable

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+)|(?P<name>[A-Za-z][A-Za-z0-9_]*)|(?P<sign>->|[-+*/()\[\]{},:])|(?P<end>$)|(?P<bad>.))", re.S
)
_FLOORDIV = {"/", "floordiv", "floorDiv"}
_CEILDIV = {"ceildiv", "ceilDiv"}
_KEYWORDS = {"domain", "in", "mod", "true", "false", "floordiv", "floorDiv", "ceildiv", "ceilDiv", "min", "max"}
_T = TypeVar("_T")
_CLOSING = {"(": ")", "[": "]", "{": "}"}


def parse_indexing_map(text: str) -> IndexingMap:
    """Parse `(dims)[ranges]{rts} -> (results), domain: ..`. The caller joins adjacent string literals first.

    `KNOWN EMPTY` gives a map without variables and results. Raises `ParseError` with the position in `text`.
    """
    if text.strip() == "KNOWN EMPTY":
        return IndexingMap((), (), (), (), (), True)
    return _Parser(text).parse_map()


class _Parser:
    """A recursive-descent parser of the token list; `self._variables` maps each declared name to its expression."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str, int]] = []
        for match in _TOKEN.finditer(text):
            kind = match.lastgroup
            assert kind is not None, "every alternative of the pattern is named"
            self._tokens.append((kind, match[kind], match.start(kind)))
            if kind in ("end", "bad"):
                break
        self._next = 0
        self._variables: dict[str, Expr] = {}
        self._declared: set[str] = set()

    @property
    def _token(self) -> str:
        return self._tokens[self._next][1]

    def _error(self, message: str) -> ParseError:
        offset = self._tokens[self._next][2]
        before = self._text[:offset]
        line = self._text.splitlines()[before.count("\n")] if self._text else ""
        where = Where("<indexing map>", before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1, line)
        return ParseError(message, where)

    def _take(self) -> str:
        token = self._token
        self._next += 1
        return token

    def _accept(self, token: str) -> bool:
        if self._token != token or self._tokens[self._next][0] == "end":
            return False
        self._next += 1
        return True

    def _expect(self, token: str) -> None:
        if not self._accept(token):
            raise self._error(f"expected '{token}' in an indexing map, found '{self._token or 'its end'}'")

    def parse_map(self) -> IndexingMap:
        dims = self._declarations("(", dim)
        ranges = self._declarations("[", symbol) if self._token == "[" else []
        first_rt = len(ranges)
        rts = self._declarations("{", lambda i: symbol(first_rt + i)) if self._token == "{" else []
        self._expect("->")
        self._expect("(")
        results = self._list(")", self._sum)
        if dims or ranges or rts or self._token == ",":
            self._expect_domain()
        groups = [self._intervals_of(names, prefix) for names, prefix in ((dims, "d"), (ranges, "s"), (rts, "rt"))]
        constraints: list[Constraint] = []
        while self._tokens[self._next][0] != "end":
            constraints.append((self._sum(), self._interval()))
            self._separator()
        bare = IndexingMap(groups[0], groups[1], groups[2], tuple(results))
        return bare.with_constraints(constraints) if constraints else bare

    def _expect_domain(self) -> None:
        self._expect(",")
        self._expect("domain")
        self._expect(":")

    def _declarations(self, opening: str, make: Callable[[int], Expr]) -> list[str]:
        self._expect(opening)
        names = self._list(_CLOSING[opening], self._new_name)
        for number, name in enumerate(names):
            self._variables[name] = make(number)
        return names

    def _new_name(self) -> str:
        if self._tokens[self._next][0] != "name" or self._token in _KEYWORDS:
            raise self._error(f"expected the name of a variable in an indexing map, found '{self._token or 'its end'}'")
        if self._token in self._declared:
            raise self._error(f"variable '{self._token}' is declared twice in an indexing map")
        self._declared.add(self._token)
        return self._take()

    def _list(self, closing: str, item: Callable[[], _T]) -> list[_T]:
        if self._accept(closing):
            return []
        items = [item()]
        while self._accept(","):
            items.append(item())
        self._expect(closing)
        return items

    def _intervals_of(self, names: list[str], prefix: str) -> tuple[Variable, ...]:
        variables: list[Variable] = []
        for number, name in enumerate(names):
            if self._token != name:
                raise self._error(f"expected the interval of variable '{name}', found '{self._token or 'its end'}'")
            self._next += 1
            variables.append(Variable(self._interval(), "" if name == f"{prefix}{number}" else name))
            self._separator()
        return tuple(variables)

    def _separator(self) -> None:
        """Take the comma after an interval; it is optional after the last one."""
        if not self._accept(",") and self._tokens[self._next][0] != "end":
            raise self._error(f"expected ',' between the intervals of an indexing map, found '{self._token}'")

    def _interval(self) -> Interval:
        self._expect("in")
        self._expect("[")
        lower = self._integer()
        self._expect(",")
        upper = self._integer()
        self._expect("]")
        return Interval(lower, upper)

    def _integer(self) -> int:
        sign = -1 if self._accept("-") else 1
        if self._tokens[self._next][0] != "number":
            raise self._error(f"expected an integer in an indexing map, found '{self._token or 'its end'}'")
        return sign * int(self._take())

    def _sum(self) -> Expr:
        value = self._product()
        while self._token in ("+", "-"):
            minus = self._take() == "-"
            right = self._product()
            value = value - right if minus else value + right
        return value

    def _product(self) -> Expr:
        value = self._primary()
        while True:
            if self._accept("*"):
                value = value * self._primary()
            elif self._accept("mod"):
                value = value % self._primary()
            elif self._token in _FLOORDIV:
                self._next += 1
                value = value // self._primary()
            elif self._token in _CEILDIV:
                self._next += 1
                value = ceil_div(value, self._primary())
            else:
                return value

    def _primary(self) -> Expr:
        kind, token, _ = self._tokens[self._next]
        if kind == "number":
            return constant(int(self._take()))
        if self._accept("-"):
            return -self._primary()
        if self._accept("("):
            value = self._sum()
            self._expect(")")
            return value
        if token in ("min", "max"):
            self._next += 1
            self._expect("(")
            left = self._sum()
            self._expect(",")
            right = self._sum()
            self._expect(")")
            return minimum(left, right) if token == "min" else maximum(left, right)
        if token not in self._variables:
            raise self._error(f"expected an expression in an indexing map, found '{token or 'its end'}'")
        self._next += 1
        return self._variables[token]
