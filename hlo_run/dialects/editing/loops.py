"""Helpers that several passes share: `scf.for` loops, blocks that define values, and the HLO origin of ops."""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from hlo_run.dialects.origin import HLO_OP
from hlo_run.dialects.types import constant_int


def counted_trips(loop: scf.ForOp) -> int | None:
    """Return the trip count of a loop with lower bound 0, step 1 and a constant upper bound; None for any other loop."""
    if constant_int(loop.lb) != 0 or constant_int(loop.step) != 1:
        return None
    return constant_int(loop.ub)


def yield_of(block: Block) -> scf.YieldOp:
    """Return the terminator of an scf region's only block."""
    last = block.last_op
    assert isinstance(last, scf.YieldOp), "an scf region ends in a yield"
    return last


def is_defined_in(value: SSAValue, block: Block) -> bool:
    """True if the value is an argument of `block`, a result in it, or defined in a region nested in it."""
    owner = value.owner
    place = owner if isinstance(owner, Block) else owner.parent
    while place is not None and place is not block:
        place = place.parent_block()
    return place is block


def hand_on_origin(source: Operation, target: Operation) -> Operation:
    """Copy the attribute with the HLO instruction of origin from `source` to `target`. Returns `target`."""
    origin = source.attributes.get(HLO_OP)
    if origin is not None:
        target.attributes[HLO_OP] = origin
    return target
