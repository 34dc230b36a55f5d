"""Merging of ops that compute the same."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Hashable

from xdsl.dialects import arith
from xdsl.ir import Operation, Region
from xdsl.rewriter import Rewriter

from hlo_run.dialects.effects import is_pure
from hlo_run.dialects.folding import COMMUTATIVE
from hlo_run.dialects.printer import HLO_OP
from hlo_run.dialects.rewriting import is_dead, replace_op

_COMMUTATIVE = (*COMMUTATIVE, arith.AddfOp, arith.MulfOp, arith.MaximumfOp, arith.MinimumfOp)


def merge_equal_ops(region: Region, seen: ChainMap[Hashable, Operation] | None = None) -> None:
    """Let each pure op give way to an equal one before it in its block or around; drop dead ops.

    `seen` are the ops in sight of the whole region. In a region of several blocks only the first is in sight of the others.
    """
    outer = ChainMap[Hashable, Operation]() if seen is None else seen.new_child()
    for number, block in enumerate(region.blocks):
        known = outer if number == 0 else outer.new_child()
        op = block.first_op
        while op is not None:
            following = op.next_op
            if is_dead(op):
                Rewriter.erase_op(op)
            elif op.regions:
                for nested in op.regions:
                    merge_equal_ops(nested, known)
            elif op.results and is_pure(op):
                first = known.setdefault(_key(op), op)
                if first is not op:
                    replace_op(op, first.results)
            op = following


def _key(op: Operation) -> Hashable:
    """Return what two ops share iff they compute the same."""
    operands = [id(value) for value in op.operands]
    if isinstance(op, _COMMUTATIVE):
        operands.sort()
    attributes = {name: attribute for name, attribute in op.attributes.items() if name != HLO_OP}
    return (
        type(op),
        op.name,
        tuple(operands),
        tuple(sorted(op.properties.items(), key=_first)),
        tuple(sorted(attributes.items(), key=_first)),
        tuple(op.result_types),
    )


def _first(pair: tuple[str, object]) -> str:
    return pair[0]
