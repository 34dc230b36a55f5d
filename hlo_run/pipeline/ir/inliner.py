"""Inline functions that are called from one place; leave those that several places share.

    %0 = xla_gpu.pure_call @f(%t, %i) : (tensor<8xf32>, index) -> f32       =>   the body of @f

XLA's rules (its dialect's `isLegalToInline` for GPU). Equal calls are merged first, so a function that is called twice at
the same indices counts once. Then, with "region" for the one that the call stands in (a loop's body counts alone):
a call marked `noinline` stays, a callee marked `no_compute` goes in; otherwise a private function with one use in the
whole module is moved to where it is used, and any other stays out unless the region calls it once and also calls a
function that the callee calls (so that those calls can merge). More than 4000 ops in one block are never made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, UnitAttr
from xdsl.ir import Operation, Region
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from hlo_run.dialects.functions import functions, is_private, referenced_names
from hlo_run.dialects.merging import merge_equal_ops
from hlo_run.dialects.rewriting import inline_block, replace_op
from hlo_run.dialects.xla_gpu import PureCallOp

_MAX_OPS = 4000
_MAX_ROUNDS = 4  # what is inlined may make calls equal, so that more can be inlined


@dataclass(frozen=True)
class Inliner(ModulePass):
    name = "inliner"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        calls = _Calls({function.sym_name.data: function for function in functions(op)})
        for function in calls.by_name.values():
            merge_equal_ops(function.body)
        for function in calls.callees_first():
            for _ in range(_MAX_ROUNDS):
                if not _inline_into(function, calls):
                    break
                merge_equal_ops(function.body)
                calls.changed(function)


def _inline_into(function: func.FuncOp, calls: _Calls) -> bool:
    """Inline what may be inlined, calls that came with it included; True if anything was."""
    pending = _calls_in(function.body)
    done = False
    while pending:
        call = pending.pop(0)
        callee = calls.by_name.get(call.callee.root_reference.data)
        if callee is None or callee is function or not _may_inline(call, callee, calls):
            continue
        is_last = calls.is_only_use(callee)
        body = callee.body if is_last else callee.body.clone()
        pending = _calls_in(body) + pending
        replace_op(call, inline_block(body.block, call, call.arguments))
        if is_last:
            calls.erase(callee)
        calls.changed(function)
        done = True
    return done


def _calls_in(region: Region) -> list[PureCallOp]:
    return [op for op in region.walk() if isinstance(op, PureCallOp)]


def _direct_calls(region: Region) -> Iterator[PureCallOp]:
    """Give the calls in the region's own blocks."""
    return (op for block in region.blocks for op in block.ops if isinstance(op, PureCallOp))


def _may_inline(call: PureCallOp, callee: func.FuncOp, calls: _Calls) -> bool:
    if _is_set(call, "noinline") or len(callee.body.blocks) != 1:
        return False
    if _is_set(callee, "no_compute"):
        return True
    region = call.parent_region()
    assert region is not None, "a call stands in a region"
    is_moved = calls.is_only_use(callee)
    names = [other.callee.root_reference.data for other in _direct_calls(region)]
    if not is_moved and names.count(callee.sym_name.data) > 1:
        return False
    if _op_count(callee.body) + _op_count(region) > _MAX_OPS:
        return False
    if is_moved:
        return True
    others = set(names) - {callee.sym_name.data}
    return any(name in others for name in calls.called_by(callee))


def _is_set(op: Operation, name: str) -> bool:
    """Tell whether a unit attribute is there, or a bool attribute is there and true."""
    attribute = op.attributes.get(name)
    return isinstance(attribute, UnitAttr) or (isinstance(attribute, IntegerAttr) and attribute.value.data != 0)


def _op_count(region: Region) -> int:
    block = region.first_block
    return sum(1 for _ in block.ops) if block is not None else 0


@dataclass
class _Calls:
    """Who calls whom, how often; counted once per function until it changes."""

    by_name: dict[str, func.FuncOp]
    counted: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])

    def called_by(self, function: func.FuncOp) -> Counter[str]:
        name = function.sym_name.data
        if name not in self.counted:
            self.counted[name] = Counter(each for op in function.body.walk() for each in referenced_names(op))
        return self.counted[name]

    def changed(self, function: func.FuncOp) -> None:
        self.counted.pop(function.sym_name.data, None)

    def is_only_use(self, function: func.FuncOp) -> bool:
        """Tell whether a call of the function is its last one, so that the function may go with it."""
        name = function.sym_name.data
        return is_private(function) and sum(self.called_by(other)[name] for other in self.by_name.values()) == 1

    def erase(self, function: func.FuncOp) -> None:
        self.changed(function)
        del self.by_name[function.sym_name.data]
        Rewriter.erase_op(function)

    def callees_first(self) -> list[func.FuncOp]:
        """Return the functions so that each comes after those it calls."""
        order: dict[str, func.FuncOp] = {}
        seen: set[str] = set()

        def visit(name: str) -> None:
            if name in seen or name not in self.by_name:
                return
            seen.add(name)
            for callee in self.called_by(self.by_name[name]):
                visit(callee)
            order[name] = self.by_name[name]

        for name in self.by_name:
            visit(name)
        return list(order.values())
