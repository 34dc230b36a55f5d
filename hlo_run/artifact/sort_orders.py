"""The common work of the kernels of a sort, as data: the keys, and the places of the arrays."""

from __future__ import annotations

from msgspec import Struct

from hlo_run.artifact.buffers import ArraySpec


class KeyOp(Struct, frozen=True):
    """One step of computing a key: an HLO opcode on the results of earlier steps, given by their numbers.

    `number` is a parameter's operand of the sort, or the bits of a constant; `direction` is a comparison's.
    """

    opcode: str
    dtype: str
    operands: tuple[int, ...] = ()
    number: int = 0
    direction: str = ""


class SortKey(Struct, frozen=True):
    """The last of `ops` is the key of an element."""

    ops: tuple[KeyOp, ...]
    descending: bool


class CountingOperand(Struct, frozen=True):
    """An operand that is an iota along dimension `dim`."""

    dtype: str
    dims: tuple[int, ...]
    dim: int


class SortOrder(Struct, frozen=True):
    """`launches` kernels sort `operands` along dimension `dim` into `results`, by the first key, equal ones by the next.

    Elements whose keys are all equal may come in any order.
    """

    operands: tuple[ArraySpec | CountingOperand, ...]
    results: tuple[ArraySpec, ...]
    dim: int
    keys: tuple[SortKey, ...]
    launches: int
