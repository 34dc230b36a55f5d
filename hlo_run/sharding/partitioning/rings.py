"""Loops of products whose operand, or sum, goes round a ring of devices: the conditions, and the loops that were made."""

from __future__ import annotations

from msgspec import Struct, field

from hlo_run.hlo.graph import HloInstruction


class RingOptions(Struct, frozen=True):
    """The conditions under which a product becomes a loop.

    It does if the array that would be gathered, or added up, has `most_bytes`; with `most_operand_bytes`, if both operands of
    the undivided product together have so many. `unrolls`: one iteration does two steps of an even number of devices.
    """

    most_bytes: int
    most_operand_bytes: int | None = None
    unrolls: bool = True


class Ring(Struct, frozen=True):
    """A loop that was made. Operand `index` moves, or gives the shape of the moving sum; the other one stays.

    `slices`: an iteration uses a slice of the operand that stays. `writes`: it writes a slice of the result.
    """

    loop: HloInstruction
    index: int
    slices: bool
    writes: bool
    gathers: bool


class Rings(Struct):
    """The options, and the loops of one computation."""

    options: RingOptions | None = None
    made: list[Ring] = field(default_factory=list[Ring])
