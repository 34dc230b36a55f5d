"""Common subexpression elimination: merges pure ops that compute the same."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from xdsl.dialects import arith
from xdsl.ir import Attribute, Operation, Region
from xdsl.rewriter import Rewriter

from hlo_run.dialects.editing.effects import is_pure
from hlo_run.dialects.editing.folding import COMMUTATIVE
from hlo_run.dialects.editing.rewriting import is_dead, replace_op, unlimited
from hlo_run.dialects.printer import HLO_OP

_COMMUTATIVE = frozenset((*COMMUTATIVE, arith.AddfOp, arith.MulfOp, arith.MaximumfOp, arith.MinimumfOp))


def merge_equal_ops(region: Region, take: Callable[[], bool] = unlimited) -> None:
    """Replace each pure op by an equal op that is earlier in its block or in an enclosing block; drop dead ops.

    In a region of several blocks, only ops of the first block replace ops of other blocks: it dominates all others. `take`
    allows a replacement.
    """
    _merge(region, {}, take)


def _merge(region: Region, known: dict[Hashable, Operation], take: Callable[[], bool]) -> None:
    """Merge in a region. `known` holds the ops visible in the whole region; it is restored before returning."""
    in_first: list[Hashable] = []
    for number, block in enumerate(region.blocks):
        added = [] if number else in_first
        op = block.first_op
        while op is not None:
            following = op.next_op
            if is_dead(op):
                Rewriter.erase_op(op)
            elif op.regions:
                for nested in op.regions:
                    _merge(nested, known, take)
            elif op.results and is_pure(op):
                key = _key(op)
                first = known.setdefault(key, op)
                if first is op:
                    added.append(key)
                elif take():
                    replace_op(op, first.results)
            op = following
        if number:
            _forget(known, added)
    _forget(known, in_first)


def _forget(known: dict[Hashable, Operation], keys: list[Hashable]) -> None:
    for key in keys:
        del known[key]


def _key(op: Operation) -> Hashable:
    """Return a key that is equal for two ops iff they compute the same."""
    operands = [id(value) for value in op.operands]
    if type(op) in _COMMUTATIVE:
        operands.sort()
    attributes = op.attributes
    if attributes:
        attributes = {name: attribute for name, attribute in attributes.items() if name != HLO_OP}
    return (type(op), op.name, tuple(operands), _sorted(op.properties), _sorted(attributes), tuple(op.result_types))


def _sorted(attributes: dict[str, Attribute]) -> tuple[tuple[str, Attribute], ...]:
    return tuple(sorted(attributes.items(), key=_first) if len(attributes) > 1 else attributes.items())


def _first(pair: tuple[str, object]) -> str:
    return pair[0]
