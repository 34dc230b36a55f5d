"""Integer expressions over dimensions and symbols, hash-consed: equal expressions are one object."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final


class Kind(Enum):
    """The kind of an expression. The values order the addends of a printed sum: products first, constants last."""

    ADD = 0
    MUL = 1
    MOD = 2
    FLOORDIV = 3
    CEILDIV = 4
    MAX = 5
    MIN = 6
    DIM = 7
    SYMBOL = 8
    CONSTANT = 9

    # Enum's own hash runs Python code, and every substitution looks up tables by kind.
    __hash__ = object.__hash__


# Reading a member off an Enum class costs a call; the constructors below run by the million.
ADD: Final = Kind.ADD
MUL: Final = Kind.MUL
MOD: Final = Kind.MOD
FLOORDIV: Final = Kind.FLOORDIV
CEILDIV: Final = Kind.CEILDIV
MAX: Final = Kind.MAX
MIN: Final = Kind.MIN
DIM: Final = Kind.DIM
SYMBOL: Final = Kind.SYMBOL
CONSTANT: Final = Kind.CONSTANT


class Expr:
    """An expression node. Only the constructors of this module make nodes, so equality is identity.

    Binary nodes have `left` and `right`; both are the node itself on a leaf. `value` is the number of a constant, or
    the index of a dimension or symbol. `sort_key` orders expressions by kind, then children, independent of the order
    of creation. `dims_mask` and `symbols_mask` have bit i set if dimension or symbol i occurs.
    `floordiv` rounds to minus infinity. `mod` is never negative for a positive right side.
    """

    __slots__ = ("dims_mask", "kind", "left", "right", "sort_key", "symbols_mask", "value")

    kind: Kind
    left: Expr
    right: Expr
    value: int
    sort_key: tuple[object, ...]
    dims_mask: int
    symbols_mask: int

    def __add__(self, other: Expr | int) -> Expr:
        return add(self, as_expr(other))

    def __radd__(self, other: int) -> Expr:
        return add(self, constant(other))

    def __sub__(self, other: Expr | int) -> Expr:
        return add(self, multiply(as_expr(other), constant(-1)))

    def __rsub__(self, other: int) -> Expr:
        return add(multiply(self, constant(-1)), constant(other))

    def __mul__(self, other: Expr | int) -> Expr:
        return multiply(self, as_expr(other))

    def __rmul__(self, other: int) -> Expr:
        return multiply(self, constant(other))

    def __floordiv__(self, other: Expr | int) -> Expr:
        return floor_div(self, as_expr(other))

    def __mod__(self, other: Expr | int) -> Expr:
        return modulo(self, as_expr(other))

    def __neg__(self) -> Expr:
        return multiply(self, constant(-1))

    @property
    def is_constant(self) -> bool:
        """True for a number."""
        return self.kind is CONSTANT

    @property
    def is_variable(self) -> bool:
        """True for a plain dimension or symbol."""
        return self.kind is DIM or self.kind is SYMBOL

    @property
    def is_binary(self) -> bool:
        """True for a node with two children; false for dimensions, symbols and constants."""
        return self.left is not self

    def uses_dim(self, index: int) -> bool:
        """True if dimension `index` occurs in the expression."""
        return bool(self.dims_mask >> index & 1)

    def uses_symbol(self, index: int) -> bool:
        """True if symbol `index` occurs in the expression."""
        return bool(self.symbols_mask >> index & 1)

    def to_string(self, dim_names: Callable[[int], str], symbol_names: Callable[[int], str]) -> str:
        """Return the affine text (`d0 floordiv 4`, `a - b`), with the given names of dimensions and symbols."""
        kind = self.kind
        if kind is CONSTANT:
            return str(self.value)
        if kind is DIM or kind is SYMBOL:
            return (dim_names if kind is DIM else symbol_names)(self.value)
        left = self.left.to_string(dim_names, symbol_names)
        if kind is ADD:
            return left + self.right._addend(dim_names, symbol_names)
        right = self.right.to_string(dim_names, symbol_names)
        if kind is MIN or kind is MAX:
            return f"{kind.name.lower()}({left}, {right})"
        left = f"({left})" if self.left.kind in _NEEDS_PARENTHESES else left
        right = f"({right})" if self.right.kind in _NEEDS_PARENTHESES else right
        if kind is MUL and self.right is _MINUS_ONE:
            return f"-{left}"
        return f"{left} {_OPERATOR[kind]} {right}"

    def _addend(self, dim_names: Callable[[int], str], symbol_names: Callable[[int], str]) -> str:
        """Return the text of a right side of a sum with its sign: ` + x`, ` - x`, ` - x * 3`."""
        if self.kind is CONSTANT and self.value < 0:
            return f" - {-self.value}"
        if self.kind is MUL and self.right.kind is CONSTANT and self.right.value < 0:
            positive = _intern(_MULS, MUL, self.left, constant(-self.right.value)) if self.right is not _MINUS_ONE else self.left
            text = positive.to_string(dim_names, symbol_names)
            return f" - ({text})" if positive is self.left and positive.kind in _NEEDS_PARENTHESES else f" - {text}"
        text = self.to_string(dim_names, symbol_names)
        return f" + ({text})" if self.kind is ADD else f" + {text}"

    def __repr__(self) -> str:
        return self.to_string("d{}".format, "s{}".format)

    def __reduce__(self) -> tuple[Callable[..., Expr], tuple[object, ...]]:
        if self.is_binary:
            return _make, (self.kind, self.left, self.right)
        return _LEAF[self.kind], (self.value,)


_CONSTANTS: dict[int, Expr] = {}
_DIMS: dict[int, Expr] = {}
_SYMBOLS: dict[int, Expr] = {}
_BINARY: dict[Kind, dict[tuple[Expr, Expr], Expr]] = {kind: {} for kind in (ADD, MUL, MOD, FLOORDIV, CEILDIV, MAX, MIN)}
_ADDS, _MULS, _MODS, _FLOORDIVS = _BINARY[ADD], _BINARY[MUL], _BINARY[MOD], _BINARY[FLOORDIV]


def _leaf(kind: Kind, value: int, dims_mask: int, symbols_mask: int) -> Expr:
    node = Expr()
    node.kind, node.value, node.sort_key = kind, value, (kind.value, value)
    node.left = node.right = node
    node.dims_mask, node.symbols_mask = dims_mask, symbols_mask
    return node


def _intern(table: dict[tuple[Expr, Expr], Expr], kind: Kind, left: Expr, right: Expr) -> Expr:
    """Return the unique node `kind(left, right)`, without folding."""
    key = (left, right)
    node = table.get(key)
    if node is None:
        node = Expr()
        node.kind, node.left, node.right, node.value = kind, left, right, 0
        node.sort_key = (kind.value, left.sort_key, right.sort_key)
        node.dims_mask = left.dims_mask | right.dims_mask
        node.symbols_mask = left.symbols_mask | right.symbols_mask
        node = table.setdefault(key, node)
    return node


def constant(value: int) -> Expr:
    """Return the constant `value`."""
    node = _CONSTANTS.get(value)
    return node if node is not None else _CONSTANTS.setdefault(value, _leaf(CONSTANT, value, 0, 0))


def dim(index: int) -> Expr:
    """Return dimension number `index`."""
    node = _DIMS.get(index)
    return node if node is not None else _DIMS.setdefault(index, _leaf(DIM, index, 1 << index, 0))


def symbol(index: int) -> Expr:
    """Return symbol number `index`. Range variables have the first numbers, runtime variables the next ones."""
    node = _SYMBOLS.get(index)
    return node if node is not None else _SYMBOLS.setdefault(index, _leaf(SYMBOL, index, 0, 1 << index))


ZERO: Final = constant(0)
ONE: Final = constant(1)
_MINUS_ONE: Final = constant(-1)
_NEEDS_PARENTHESES: Final = frozenset({ADD, MUL, MOD, FLOORDIV, CEILDIV})
_OPERATOR: Final = {MUL: "*", MOD: "mod", FLOORDIV: "floordiv", CEILDIV: "ceildiv"}


def as_expr(value: Expr | int) -> Expr:
    """Return `value` itself, or the constant of an int."""
    return constant(value) if isinstance(value, int) else value


def add(left: Expr, right: Expr) -> Expr:
    """Return left + right; constants go to the right and fold."""
    if left.kind is CONSTANT:
        left, right = right, left
    if right.kind is CONSTANT:
        if right.value == 0:
            return left
        if left.kind is CONSTANT:
            return constant(left.value + right.value)
        if left.kind is ADD and left.right.kind is CONSTANT:
            return add(left.left, constant(left.right.value + right.value))
    return _intern(_ADDS, ADD, left, right)


def multiply(left: Expr, right: Expr) -> Expr:
    """Return left * right; constants go to the right and fold."""
    if left.kind is CONSTANT:
        left, right = right, left
    if right.kind is CONSTANT:
        factor = right.value
        if factor == 1:
            return left
        if factor == 0:
            return ZERO
        if left.kind is CONSTANT:
            return constant(left.value * factor)
        if left.kind is MUL and left.right.kind is CONSTANT:
            return multiply(left.left, constant(left.right.value * factor))
    return _intern(_MULS, MUL, left, right)


def modulo(left: Expr, right: Expr) -> Expr:
    """Return left mod right, which is in [0, right - 1]; the right side must be positive."""
    if right.kind is CONSTANT:
        if right.value == 1:
            return ZERO
        if left.kind is CONSTANT and right.value > 0:
            return constant(left.value % right.value)
    return _intern(_MODS, MOD, left, right)


def floor_div(left: Expr, right: Expr) -> Expr:
    """Return left / right rounded to minus infinity."""
    if right.kind is CONSTANT:
        if right.value == 1:
            return left
        if left.kind is CONSTANT and right.value != 0:
            return constant(left.value // right.value)
    return _intern(_FLOORDIVS, FLOORDIV, left, right)


def ceil_div(left: Expr | int, right: Expr | int) -> Expr:
    """Return left / right rounded to plus infinity."""
    left, right = as_expr(left), as_expr(right)
    if right.kind is CONSTANT:
        if right.value == 1:
            return left
        if left.kind is CONSTANT and right.value != 0:
            return constant(-(-left.value // right.value))
    return _intern(_BINARY[CEILDIV], CEILDIV, left, right)


def minimum(left: Expr | int, right: Expr | int) -> Expr:
    """Return the smaller of both."""
    return _min_max(MIN, as_expr(left), as_expr(right))


def maximum(left: Expr | int, right: Expr | int) -> Expr:
    """Return the larger of both."""
    return _min_max(MAX, as_expr(left), as_expr(right))


def _min_max(kind: Kind, left: Expr, right: Expr) -> Expr:
    if left is right:
        return left
    if left.kind is CONSTANT:
        left, right = right, left
    if left.kind is CONSTANT:
        return constant(min(left.value, right.value) if kind is MIN else max(left.value, right.value))
    return _intern(_BINARY[kind], kind, left, right)


def _make_minimum(left: Expr, right: Expr) -> Expr:
    return _min_max(MIN, left, right)


def _make_maximum(left: Expr, right: Expr) -> Expr:
    return _min_max(MAX, left, right)


MAKE: Final[dict[Kind, Callable[[Expr, Expr], Expr]]] = {
    ADD: add,
    MUL: multiply,
    MOD: modulo,
    FLOORDIV: floor_div,
    CEILDIV: ceil_div,
    MIN: _make_minimum,
    MAX: _make_maximum,
}
_LEAF: Final[dict[Kind, Callable[[int], Expr]]] = {CONSTANT: constant, DIM: dim, SYMBOL: symbol}


def _make(kind: Kind, left: Expr, right: Expr) -> Expr:
    return MAKE[kind](left, right)


def add_all(terms: Iterable[Expr]) -> Expr:
    """Return the sum of `terms`, left to right; 0 for no terms."""
    total = ZERO
    for term in terms:
        total = add(total, term)
    return total
