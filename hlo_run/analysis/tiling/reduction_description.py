"""Describes a reduce for the reduction emitter as a normalised row or column reduction.

    f32[7,64,100,128], layout {3,2,1,0}, dimensions={2,3}   is a row reduction of [1, 448, 12800]
    f32[7,64,100,128], layout {3,2,1,0}, dimensions={2}     is a column reduction of [448, 100, 128]

A row reduction [a, b, c] reduces a and c, a column reduction [a, b, c] reduces b. Dimensions are in physical order, slowest
first. Mirrors XLA's `GetReductionKindAndContiguousComponents` and `IsRealReductionHero`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct

from hlo_run.analysis.decision import Decision, no
from hlo_run.arrays import Array
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.shape import Shape

WARP_SIZE = 32
# Each thread starts with the init value, so it must be idempotent: -inf + -inf is -inf, but 1 + 1 is 2.
_COMBINED_WITH_ITSELF: dict[Opcode, Callable[[Array], Array]] = {
    "add": lambda init: init + init,
    "multiply": lambda init: init * init,
    "xor": lambda init: init ^ init,
}
# What `init_may_repeat` found for the opcode of a reducer and the type and bytes of an init value.
_MAY_REPEAT: dict[tuple[Opcode, object, bytes], bool] = {}
# The largest sizes at which one block computes an output.
MAX_ROW_SIZE = 1024 * 16
MAX_ROW_BATCHES = 8
MAX_COLUMN_SIZE = 32 * 128
# Below these numbers of rows and columns a loop is as fast as a column reduction.
_COLUMN_IS_ELEMENTAL = ((32, math.inf), (64, 32), (128, 8), (256, 3))


class ReductionDescription(Struct, frozen=True):
    """A reduce as [a, b, c]: of rows (reduces a and c, keeps b) or of columns (reduces b, keeps a and c)."""

    instruction: HloInstruction
    is_row: bool
    dims: tuple[int, int, int]

    @property
    def input_shape(self) -> Shape:
        """The shape of the reduced arrays."""
        return self.instruction.operands[0].shape

    @property
    def kept_dims(self) -> tuple[int, ...]:
        """The sizes of the kept dimensions in physical order, slowest first."""
        a, b, c = self.dims
        return (b,) if self.is_row else (a, c)

    @property
    def kept_shape(self) -> Shape:
        """The input's shape without the reduced dimensions, in the input's layout. It has the logical index of the result."""
        source, reduced = self.input_shape, set(self.instruction.dimensions)
        kept = [dim for dim in range(source.rank) if dim not in reduced]
        order = tuple(kept.index(dim) for dim in source.minor_to_major if dim not in reduced)
        return Shape.array(source.element_type, tuple(source.dims[dim] for dim in kept), order)

    @property
    def is_elemental(self) -> str:
        """The reason why a loop is as fast; empty if it is not."""
        _, b, c = self.dims
        if 0 in self.dims:
            return "it reduces nothing"
        if self.is_row:
            return f"rows of {c} elements fill no warp" if c < WARP_SIZE and WARP_SIZE % c else ""
        is_short = any(b < rows and c < columns for rows, columns in _COLUMN_IS_ELEMENTAL)
        return f"{c} columns of {b} elements need no shared memory" if is_short else ""

    @property
    def fits_block(self) -> bool:
        """True if one block computes an output alone, so that blocks do not race (XLA's `ReductionIsRaceFree`)."""
        a, b, c = self.dims
        return c <= MAX_ROW_SIZE and a <= MAX_ROW_BATCHES if self.is_row else b <= MAX_COLUMN_SIZE

    def equivalent(self, other: ReductionDescription) -> bool:
        """True if one set of threads can compute both."""
        return (self.is_row, self.dims) == (other.is_row, other.dims)

    def __str__(self) -> str:
        return f"{'row' if self.is_row else 'column'} reduction of {list(self.dims)}"


def judge_reduction(instruction: HloInstruction, in_one_block: bool = True) -> ReductionDescription | Decision:
    """Return the description of a `reduce`, or the reason why the loop emitter is as good.

    With `in_one_block` False, the reduce may need several blocks per output.
    XLA tests whether one block computes an output only for a reduce that is not a root; an earlier pass ensures it for roots.
    Here roots are tested too, since a module may not have run that pass.
    """
    found = describe_reduction(instruction)
    if isinstance(found, Decision):
        return found
    a, b, c = found.dims
    if not _lie_alike(instruction.operands[: len(instruction.operands) // 2]):
        return no("its inputs lie in different orders")
    if not init_may_repeat(instruction):
        return no("its init value counts, and threads would each start with it")
    if reason := found.is_elemental:
        return no(reason)
    if found.fits_block or not in_one_block:
        return found
    if found.is_row:
        return no(f"{a} rows of {c} elements are too many for one block")
    return no(f"columns of {b} elements are too long for one block")


def _lie_alike(inputs: Sequence[HloInstruction]) -> bool:
    return len({value.shape.minor_to_major for value in inputs}) == 1


def init_may_repeat(instruction: HloInstruction) -> bool:
    """False for a constant init value that changes the result each time it is added. XLA does not test this and miscompiles."""
    init, reducer = instruction.operands[-1], instruction.to_apply.root
    combine = _COMBINED_WITH_ITSELF.get(reducer.opcode)
    if len(instruction.operands) != 2 or init.opcode != "constant" or combine is None:
        return True
    if any(operand.opcode != "parameter" for operand in reducer.operands):
        return True
    value = init.constant_array
    key = reducer.opcode, value.dtype, value.tobytes()
    known = _MAY_REPEAT.get(key)
    if known is None:
        with np.errstate(all="ignore"):
            twice = combine(value)
        known = _MAY_REPEAT[key] = bool(twice == value) or bool(value != value)  # a NaN stays one
    return known


def describe_reduction(instruction: HloInstruction) -> ReductionDescription | Decision:
    """Return the description of a `reduce`, or why it has none (XLA's `GetReductionKindAndContiguousComponents`)."""
    source = instruction.operands[0].shape
    reduced = set(instruction.dimensions)
    order = list(reversed(source.minor_to_major))
    sizes = [source.dims[dim] for dim in order]
    goes = [dim in reduced for dim in order]
    if all(goes):
        return ReductionDescription(instruction, True, (1, 1, math.prod(sizes)))
    major, kept, minor = _split(sizes, [not flag for flag in goes])
    if kept is not None:
        if kept == 1:
            return ReductionDescription(instruction, True, (1, 1, major * minor))
        if minor == 1:
            return ReductionDescription(instruction, False, (1, major, kept))
        return ReductionDescription(instruction, True, (major, kept, minor))
    major, middle, minor = _split(sizes, goes)
    if middle is None:
        return no("neither the dimensions that it reduces nor those that it keeps are neighbours")
    if minor == 1:
        return ReductionDescription(instruction, True, (1, major, middle))
    return ReductionDescription(instruction, False, (major, middle, minor))


def _split(sizes: Sequence[int], chosen: Sequence[bool]) -> tuple[int, int | None, int]:
    """Return the sizes before, of and after the chosen dimensions; None in the middle if they are not adjacent."""
    numbers = [number for number, flag in enumerate(chosen) if flag]
    if not numbers:
        return math.prod(sizes), 1, 1
    first, last = numbers[0], numbers[-1]
    middle = math.prod(sizes[first : last + 1]) if len(numbers) == last + 1 - first else None
    return math.prod(sizes[:first]), middle, math.prod(sizes[last + 1 :])


def find_reduction(roots: Sequence[HloInstruction], heroes: Sequence[HloInstruction]) -> ReductionDescription | Decision:
    """Return the reduction that determines the kernel, or the reason why the fusion has none.

    All heroes that are worth it must be equivalent. Every other root must have as many elements as the first one reads.
    """
    judged = {hero: judge_reduction(hero) for hero in heroes if hero.opcode == "reduce"}
    found = [answer for answer in judged.values() if isinstance(answer, ReductionDescription)]
    if not found:
        refusals = [f"{hero.name}: {answer.reason}" for hero, answer in judged.items() if isinstance(answer, Decision)]
        return no("; ".join(refusals) or "no hero is a reduce")
    first = found[0]
    for other in found[1:]:
        if not first.equivalent(other):
            return no(f"{first.instruction.name} is a {first}, {other.instruction.name} a {other}")
    for root, hero in zip(roots, heroes, strict=True):
        if isinstance(judged.get(hero), ReductionDescription):
            continue
        if root.shape.is_tuple or root.shape.element_count != first.input_shape.element_count:
            return no(f"side output {root.name} does not have as many elements as {first.instruction.name} reads")
    return first
