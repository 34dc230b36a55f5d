"""Finds ranges of index and integer values from constants, `xla.range` attributes, indexing maps and loop bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from xdsl.dialects import arith, func, scf
from xdsl.dialects.builtin import ArrayAttr, IndexType, IntegerAttr
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue

from hlo_run.dialects.editing.functions import argument_attributes
from hlo_run.dialects.types import constant_int, is_array
from hlo_run.dialects.xla_gpu import ApplyIndexingOp, LoopOp
from hlo_run.indexing.interval import Interval

RANGE: Final = "xla.range"


def range_of(value: SSAValue) -> Interval | None:
    """Return a closed interval that contains the value in every run; None if no bounds are known."""
    owner = value.owner
    if isinstance(owner, Block):
        assert isinstance(value, BlockArgument), "a block owns its arguments"
        return _argument_range(value, owner)
    if isinstance(owner, arith.ConstantOp):
        number = constant_int(value)
        return None if number is None else Interval.point(number)
    given = range_attribute(owner.attributes) if len(owner.results) == 1 else None
    if given is None and isinstance(owner, ApplyIndexingOp):
        return owner.map.range_of(owner.map.results[owner.res.index(value)])
    return given


def range_attribute(attributes: Mapping[str, Attribute]) -> Interval | None:
    """Return the closed interval of the `xla.range` attribute; None without the attribute."""
    attribute = attributes.get(RANGE)
    if not is_array(attribute):
        return None
    lower, upper = (bound.value.data for bound in attribute if isinstance(bound, IntegerAttr))
    return Interval(lower, upper)


def set_range(op: Operation, interval: Interval) -> None:
    """Set the attribute `xla.range` of an op with one result."""
    bounds = (IntegerAttr(interval.lower, IndexType()), IntegerAttr(interval.upper, IndexType()))
    op.attributes[RANGE] = ArrayAttr(bounds)


def _argument_range(argument: BlockArgument, block: Block) -> Interval | None:
    match block.parent_op():
        case func.FuncOp() as function if block is function.body.first_block:
            return range_attribute(argument_attributes(function, argument.index))
        case scf.ForOp() as loop if argument.index == 0:
            return _induction_range(loop)
        case LoopOp() as loop:
            used_map, index = loop.map, argument.index - len(loop.map.ranges)
            return used_map.range_of(used_map.results[index]) if 0 <= index < len(used_map.results) else None
        case _:
            return None


def _induction_range(loop: scf.ForOp) -> Interval | None:
    lower, upper = constant_int(loop.lb), constant_int(loop.ub)
    return None if lower is None or upper is None else Interval(lower, max(lower, upper - 1))
