"""The sharding rule of an instruction: which dimensions of its operands and results are divided together.

    dot(f32[8,16], f32[16,32]) -> f32[8,32]     =>     ([i, k], [k, j]) -> ([i, j])  {i=8, j=32, k=16}

A dimension has factors from major to minor. A dimension that no other one corresponds to has a factor of its own, of size 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

from msgspec import Struct

# The factors of each dimension of an array, from major to minor.
Mapping = tuple[tuple[int, ...], ...]
Dim = int | None


class Kind(Enum):
    """The meaning of a division along a factor."""

    PASS = "pass through"
    REDUCTION = "reduction"
    REPLICATE = "needs replication"
    PERMUTE = "permutation"


class Rule(Struct, frozen=True):
    """Mappings of the operands and results to factors, the factors' sizes, and the kinds of all factors that are not `PASS`.

    Shardings do not move along `blocked` factors.
    """

    operands: tuple[Mapping, ...]
    results: tuple[Mapping, ...]
    sizes: tuple[int, ...]
    kinds: tuple[Kind, ...]
    blocked: frozenset[int] = frozenset()

    def passes(self, factor: int) -> bool:
        """True if the operands' and results' parts along this factor correspond one to one."""
        return self.kinds[factor] is Kind.PASS


class RuleBuilder:
    """Collects the factors of a rule for arrays of these ranks."""

    def __init__(self, operand_ranks: Sequence[int], result_ranks: Sequence[int]) -> None:
        self._operands: list[list[list[int]]] = [[[] for _ in range(rank)] for rank in operand_ranks]
        self._results: list[list[list[int]]] = [[[] for _ in range(rank)] for rank in result_ranks]
        self._sizes: list[int] = []
        self._kinds: list[Kind] = []
        self._blocked: set[int] = set()

    def factor(
        self,
        operand_dims: Sequence[Dim],
        result_dims: Sequence[Dim],
        size: int,
        kind: Kind = Kind.PASS,
        is_blocked: bool = False,
    ) -> None:
        """Add a factor of one dimension of each operand and result; None for an operand or result without it."""
        number = self._reserve(size, kind, is_blocked)
        for arrays, dims in ((self._operands, operand_dims), (self._results, result_dims)):
            for array, dim in zip(arrays, dims, strict=True):
                if dim is not None and not (size == 1 and array[dim]):
                    array[dim].append(number)

    def everywhere(self, dim: int, size: int, kind: Kind = Kind.PASS, is_blocked: bool = False) -> None:
        """Add a factor of the same dimension of all operands and results that are not scalars."""
        number = self._reserve(size, kind, is_blocked)
        for array in (*self._operands, *self._results):
            if array:
                array[dim].append(number)

    def of_operands(self, dim: int, size: int, kind: Kind) -> None:
        """Add a factor of the same dimension of all operands."""
        number = self._reserve(size, kind, is_blocked=False)
        for array in self._operands:
            array[dim].append(number)

    def of_results(self, dim: int, size: int, kind: Kind) -> None:
        """Add a factor of the same dimension of all results."""
        number = self._reserve(size, kind, is_blocked=False)
        for array in self._results:
            array[dim].append(number)

    def pointwise(self, dims: Sequence[int], kind_of: Callable[[int], Kind] = lambda _: Kind.PASS) -> None:
        """Add a factor for each dimension of arrays that have the same extents."""
        for dim, size in enumerate(dims):
            self.everywhere(dim, size, kind_of(dim))

    def pointwise_where_equal(self, before: Sequence[int], after: Sequence[int], kind: Kind, is_blocked: bool = False) -> None:
        """Add a factor for each dimension; factors of dimensions whose extents differ are of this kind."""
        for dim, (one, other) in enumerate(zip(before, after, strict=True)):
            if one == other:
                self.everywhere(dim, one)
            else:
                self.everywhere(dim, one, kind, is_blocked)

    def build(self) -> Rule:
        """Return the rule; dimensions without a factor get one of size 1."""
        operands = tuple(self._finished(array) for array in self._operands)
        results = tuple(self._finished(array) for array in self._results)
        return Rule(operands, results, tuple(self._sizes), tuple(self._kinds), frozenset(self._blocked))

    def _finished(self, array: list[list[int]]) -> Mapping:
        return tuple(tuple(factors) if factors else (self._reserve(1, Kind.PASS, is_blocked=False),) for factors in array)

    def _reserve(self, size: int, kind: Kind, is_blocked: bool) -> int:
        number = len(self._sizes)
        self._sizes.append(size)
        self._kinds.append(kind)
        if is_blocked:
            self._blocked.add(number)
        return number


def pointwise_rule(dims: Sequence[int], operand_count: int, result_count: int) -> Rule:
    """Return the rule of an instruction whose operands and results all have these extents."""
    builder = RuleBuilder([len(dims)] * operand_count, [len(dims)] * result_count)
    builder.pointwise(dims)
    return builder.build()
