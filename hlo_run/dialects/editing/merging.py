"""Common subexpression elimination: merges pure ops that compute the same."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from xdsl.dialects import arith
from xdsl.ir import Attribute, Operation, Region
from xdsl.rewriter import Rewriter

from hlo_run.dialects.editing.effects import is_pure
from hlo_run.dialects.editing.folding import COMMUTATIVE
from hlo_run.dialects.editing.rewriting import is_dead, is_unused, replace_op, unlimited
from hlo_run.dialects.origin import HLO_OP

_COMMUTATIVE = frozenset((*COMMUTATIVE, arith.AddfOp, arith.MulfOp, arith.MaximumfOp, arith.MinimumfOp))


class AttributeNumbers:
    """Numbers attributes: equal ones have the same number.

    Most ops share the objects of their attributes, above all copies of one op. So an object is hashed and compared once, which
    takes longer than the rest of an op's key.
    """

    def __init__(self) -> None:
        self._by_value: dict[Attribute, int] = {}
        # With the attribute, so that no other object gets its id.
        self._by_id: dict[int, tuple[int, Attribute]] = {}

    def of(self, attribute: Attribute) -> int:
        """Return the number of an attribute."""
        known = self._by_id.get(id(attribute))
        if known is None:
            number = self._by_value.setdefault(attribute, len(self._by_value))
            known = self._by_id[id(attribute)] = number, attribute
        return known[0]


def merge_equal_ops(region: Region, take: Callable[[], bool] = unlimited, numbers: AttributeNumbers | None = None) -> None:
    """Replace each pure op by an equal op that is earlier in its block or in an enclosing block; drop dead ops.

    In a region of several blocks, only ops of the first block replace ops of other blocks: it dominates all others. `take`
    allows a replacement. Pass the same `numbers` for several regions to save time.
    """
    _merge(region, {}, take, numbers or AttributeNumbers())


def _merge(region: Region, known: dict[Hashable, Operation], take: Callable[[], bool], numbers: AttributeNumbers) -> None:
    """Merge in a region. `known` holds the ops visible in the whole region; it is restored before returning."""
    in_first: list[Hashable] = []
    for number, block in enumerate(region.blocks):
        added = [] if number else in_first
        op = block.first_op
        while op is not None:
            following = op.next_op
            if op.regions:
                if is_dead(op):
                    Rewriter.erase_op(op)
                else:
                    for nested in op.regions:
                        _merge(nested, known, take, numbers)
            elif is_pure(op):
                if is_unused(op):
                    Rewriter.erase_op(op)
                else:
                    key = _key(op, numbers)
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


def _key(op: Operation, numbers: AttributeNumbers) -> Hashable:
    """Return a key that is equal for two ops iff they compute the same."""
    kind = type(op)
    operands = list(map(id, op.operands))
    if len(operands) > 1 and kind in _COMMUTATIVE:
        operands.sort()
    # One flat tuple hashes fast. The names of attributes are strings, so the parts cannot be confused.
    key: list[object] = [kind, op.name, *operands, None]
    number = numbers.of
    key += [number(result.type) for result in op.results]
    for name, attribute in _sorted(op.properties):
        key += (name, number(attribute))
    key.append(None)
    if op.attributes:
        for name, attribute in _sorted(op.attributes):
            if name != HLO_OP:
                key += (name, number(attribute))
    return tuple(key)


def _sorted(attributes: dict[str, Attribute]) -> Iterable[tuple[str, Attribute]]:
    return sorted(attributes.items(), key=_first) if len(attributes) > 1 else attributes.items()


def _first(pair: tuple[str, object]) -> str:
    return pair[0]
