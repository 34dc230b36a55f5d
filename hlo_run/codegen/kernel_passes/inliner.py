"""Inline reducers and functions with one call; leave most functions with several calls.

    %0 = xla_gpu.pure_call @f(%t, %i) : (tensor<8xf32>, index) -> f32       =>   the body of @f

The pass merges equal calls first, so a function that is called twice at the same indices counts once. It then applies the
first of these rules, which are XLA's (`isLegalToInline` of its GPU dialect). "Region" is the innermost region of the call.

- A call marked `noinline`, or of a function with several blocks, is not inlined.
- A `func.call` (the reducer of a loop) and a callee marked `no_compute` are inlined.
- A callee that the region calls more than once is not inlined, unless it has only one use in the whole module.
- A call is not inlined if the block would have more than 4000 ops.
- A private function with one use in the whole module is inlined and erased.
- Another function is inlined if the region also calls a function that the callee calls, so that those calls can merge.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from msgspec import Struct, field
from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, UnitAttr
from xdsl.ir import Operation, Region
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from hlo_run.dialects.editing.functions import functions, is_private, referenced_names
from hlo_run.dialects.editing.merging import merge_equal_ops
from hlo_run.dialects.editing.rewriting import inline_block, replace_op, unlimited
from hlo_run.dialects.xla_gpu import PureCallOp

_MAX_OPS = 4000
_MAX_ROUNDS = 4  # inlining may make calls equal, so that more calls can be inlined


@dataclass(frozen=True)
class Inliner(ModulePass):
    """Inlines reducers and functions with one call, by the rules of XLA's inliner.

    `take` returns False if no more calls may be merged or inlined.
    """

    name = "inliner"
    take: Callable[[], bool] = unlimited

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Merge equal calls, then inline in every function, callees before callers."""
        for function in functions(op):
            merge_equal_ops(function.body, self.take)
        calls = _Calls({function.sym_name.data: function for function in functions(op)})
        for function in calls.callees_first():
            for _ in range(_MAX_ROUNDS):
                if not _inline_into(function, calls, self.take):
                    break
                merge_equal_ops(function.body, self.take)
                calls.count(function)


def _inline_into(function: func.FuncOp, calls: _Calls, take: Callable[[], bool]) -> bool:
    """Inline the calls in a function, and the calls in inlined bodies. Returns True if the function changed."""
    pending = deque(_calls_in(function.body))
    blocks = _Blocks()
    done = False
    while pending:
        call = pending.popleft()
        callee = calls.by_name.get(call.callee.root_reference.data)
        if callee is None or callee is function or not _may_inline(call, callee, calls, blocks) or not take():
            continue
        is_last = calls.is_only_use(callee)
        body = callee.body if is_last else callee.body.clone()
        pending.extendleft(reversed(_calls_in(body)))
        blocks.inlined(call, callee)
        replace_op(call, inline_block(body.block, call, call.arguments))
        calls.inlined(function, callee, is_moved=is_last)
        done = True
    return done


def _calls_in(region: Region) -> list[PureCallOp | func.CallOp]:
    return [op for op in region.walk() if isinstance(op, PureCallOp | func.CallOp)]


def _region_of(call: Operation) -> Region:
    region = call.parent_region()
    assert region is not None, "a call is in a region"
    return region


def _may_inline(call: PureCallOp | func.CallOp, callee: func.FuncOp, calls: _Calls, blocks: _Blocks) -> bool:
    if _is_set(call, "noinline") or len(callee.body.blocks) != 1:
        return False
    if isinstance(call, func.CallOp) or _is_set(callee, "no_compute"):
        return True
    region, name = _region_of(call), callee.sym_name.data
    is_moved = calls.is_only_use(callee)
    names = blocks.calls(region)
    if not is_moved and names[name] > 1:
        return False
    if blocks.op_count(callee.body) + blocks.op_count(region) > _MAX_OPS:
        return False
    return is_moved or any(other != name and names[other] for other in calls.called_by(callee))


def _is_set(op: Operation, name: str) -> bool:
    """True if the op has the attribute `name` as a unit attribute or as a nonzero integer."""
    attribute = op.attributes.get(name)
    return isinstance(attribute, UnitAttr) or (isinstance(attribute, IntegerAttr) and attribute.value.data != 0)


class _Blocks:
    """The numbers of ops and calls directly in each region. Counted once, and updated while bodies are inlined."""

    def __init__(self) -> None:
        self._op_counts: dict[Region, int] = {}
        self._calls: dict[Region, Counter[str]] = {}

    def op_count(self, region: Region) -> int:
        if region not in self._op_counts:
            block = region.first_block
            self._op_counts[region] = sum(1 for _ in block.ops) if block is not None else 0
        return self._op_counts[region]

    def calls(self, region: Region) -> Counter[str]:
        if region not in self._calls:
            direct = (op for block in region.blocks for op in block.ops if isinstance(op, PureCallOp))
            self._calls[region] = Counter(op.callee.root_reference.data for op in direct)
        return self._calls[region]

    def inlined(self, call: PureCallOp | func.CallOp, callee: func.FuncOp) -> None:
        """Update the counts for a call that is about to be replaced by the callee's body."""
        region = _region_of(call)
        # The call and the return are erased.
        self._op_counts[region] = self.op_count(region) + self.op_count(callee.body) - 2
        calls = self.calls(region)
        calls.update(self.calls(callee.body))
        if isinstance(call, PureCallOp):
            calls[callee.sym_name.data] -= 1


class _Calls(Struct):
    """The call graph: uses per caller and callee, and in total. Updated while bodies are inlined."""

    by_name: dict[str, func.FuncOp]
    counted: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    total: Counter[str] = field(default_factory=Counter[str])

    def __post_init__(self) -> None:
        for function in self.by_name.values():
            self.count(function)

    def called_by(self, function: func.FuncOp) -> list[str]:
        """Return the names of the functions that a function refers to, each once."""
        return [name for name, count in self.counted[function.sym_name.data].items() if count]

    def count(self, function: func.FuncOp) -> None:
        """Count the references in a function, for the first time or after a change."""
        name = function.sym_name.data
        self.total.subtract(self.counted.get(name, Counter()))
        self.counted[name] = Counter(each for op in function.body.walk() for each in referenced_names(op))
        self.total.update(self.counted[name])

    def inlined(self, function: func.FuncOp, callee: func.FuncOp, is_moved: bool) -> None:
        """Update the counts after a call in `function` was replaced by the callee's body or a copy. Erases a moved callee."""
        name = callee.sym_name.data
        mine, theirs = self.counted[function.sym_name.data], self.counted[name]
        mine.update(theirs)
        mine[name] -= 1
        self.total[name] -= 1
        if is_moved:
            del self.by_name[name], self.counted[name]
            Rewriter.erase_op(callee)
        else:
            self.total.update(theirs)

    def is_only_use(self, function: func.FuncOp) -> bool:
        """True if the private function has one use, so that its body can be moved to the call."""
        return is_private(function) and self.total[function.sym_name.data] == 1

    def callees_first(self) -> list[func.FuncOp]:
        """Return the functions, each after the functions that it calls."""
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
