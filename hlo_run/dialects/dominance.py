"""Check that the definition of every value dominates its uses, which xDSL's verifier does not."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.irdl.dominance import DominanceInfo
from xdsl.traits import IsolatedFromAbove


def first_undominated_use(module: ModuleOp) -> Operation | None:
    """Return the first operation with an operand that is not defined before it, or not visible to it; None if all are."""
    uses = _Uses()
    return next((op for op in module.walk() for operand in op.operands if not uses.is_valid(operand, op)), None)


class _Uses:
    """Answers whether uses are valid. Keeps the order of operations and the dominators of blocks."""

    def __init__(self) -> None:
        self._places: dict[Block, dict[Operation, int]] = {}
        self._dominators: dict[Region, DominanceInfo] = {}

    def is_valid(self, value: SSAValue, user: Operation) -> bool:
        """Return True if `value` dominates `user`."""
        owner = value.owner
        defined_in = owner if isinstance(owner, Block) else owner.parent
        if defined_in is None or defined_in.parent is None:
            return False
        ancestor = _ancestor(user, defined_in.parent)
        if ancestor is None or ancestor.parent is None:
            return False
        if ancestor.parent is not defined_in:
            return self._of(defined_in.parent).strictly_dominates(defined_in, ancestor.parent)
        if isinstance(owner, Block):
            return True
        places = self._order(defined_in)
        return places[owner] < places[ancestor]

    def _order(self, block: Block) -> dict[Operation, int]:
        if block not in self._places:
            self._places[block] = {op: number for number, op in enumerate(block.ops)}
        return self._places[block]

    def _of(self, region: Region) -> DominanceInfo:
        if region not in self._dominators:
            self._dominators[region] = DominanceInfo(region)
        return self._dominators[region]


def _ancestor(op: Operation, region: Region) -> Operation | None:
    """Return the operation directly in `region` that is or contains `op`; None if `op` cannot see the region's values."""
    current: Operation | None = op
    while current is not None and current.parent is not None and current.parent.parent is not region:
        current = current.parent_op()
        if current is not None and current.has_trait(IsolatedFromAbove):
            return None
    return current if current is not None and current.parent is not None else None
