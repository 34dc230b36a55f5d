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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from msgspec import Struct, field
from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, UnitAttr
from xdsl.ir import Operation, Region
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from hlo_run.dialects.editing.functions import functions, is_private, referenced_names
from hlo_run.dialects.editing.merging import AttributeNumbers, merge_equal_ops
from hlo_run.dialects.editing.rewriting import copy_block, inline_block, replace_op, unlimited
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
        numbers = AttributeNumbers()
        for function in functions(op):
            merge_equal_ops(function.body, self.take, numbers)
        calls = _Calls({function.sym_name.data: function for function in functions(op)})
        for function in calls.callees_first():
            for _ in range(_MAX_ROUNDS):
                if not _inline_into(function, calls, self.take):
                    break
                merge_equal_ops(function.body, self.take, numbers)
                calls.count(function)


def _inline_into(function: func.FuncOp, calls: _Calls, take: Callable[[], bool]) -> bool:
    """Inline the calls in a function, and the calls in inlined bodies. Returns True if the function changed."""
    pending = deque(calls.among(_ops_in(function.body), function))
    blocks = _Blocks()
    calls.sizes.pop(function.body, None)
    done = False
    while pending:
        call = pending.popleft()
        callee = calls.by_name.get(call.callee.root_reference.data)
        if callee is None or callee is function or not _may_inline(call, callee, calls, blocks) or not take():
            continue
        is_last = calls.is_only_use(callee)
        blocks.inlined(call, calls.size_of(callee))
        if is_last:
            ops = list(callee.body.block.ops)[:-1]
            values = inline_block(callee.body.block, call, call.arguments)
        else:
            ops, values = copy_block(callee.body.block, call, call.arguments)
        pending.extendleft(reversed(calls.among(ops, callee)))
        replace_op(call, values)
        calls.inlined(function, callee, is_moved=is_last)
        done = True
    return done


def _ops_in(region: Region) -> Iterator[Operation]:
    return (op for block in region.blocks for op in block.ops)


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
    names = blocks.of(region).calls
    if not is_moved and names[name] > 1:
        return False
    if calls.size_of(callee).ops + blocks.of(region).ops > _MAX_OPS:
        return False
    return is_moved or any(other != name and names[other] for other in calls.called_by(callee))


def _is_set(op: Operation, name: str) -> bool:
    """True if the op has the attribute `name` as a unit attribute or as a nonzero integer."""
    attribute = op.attributes.get(name)
    return isinstance(attribute, UnitAttr) or (isinstance(attribute, IntegerAttr) and attribute.value.data != 0)


class _Size(Struct):
    """The number of ops directly in a region, and the number of its calls by name."""

    ops: int
    calls: Counter[str]

    @staticmethod
    def of(region: Region) -> _Size:
        """Count. Only the ops of the first block count, but the calls of all blocks."""
        block = region.first_block
        direct = (op for op in _ops_in(region) if type(op) is PureCallOp)
        return _Size(
            sum(1 for _ in block.ops) if block is not None else 0,
            Counter(op.callee.root_reference.data for op in direct),
        )


class _Blocks:
    """The sizes of regions of one function. Counted once, and updated while bodies are inlined."""

    def __init__(self) -> None:
        self._sizes: dict[Region, _Size] = {}

    def of(self, region: Region) -> _Size:
        if region not in self._sizes:
            self._sizes[region] = _Size.of(region)
        return self._sizes[region]

    def inlined(self, call: PureCallOp | func.CallOp, body: _Size) -> None:
        """Update the counts for a call that is about to be replaced by the callee's body."""
        size = self.of(_region_of(call))
        # The call and the return are erased.
        size.ops += body.ops - 2
        size.calls.update(body.calls)
        if isinstance(call, PureCallOp):
            size.calls[call.callee.root_reference.data] -= 1


class _Calls(Struct):
    """The call graph: uses per caller and callee, and in total. Updated while bodies are inlined.

    `sizes` has those of the bodies of callees, until they change.
    """

    by_name: dict[str, func.FuncOp]
    counted: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    total: Counter[str] = field(default_factory=Counter[str])
    sizes: dict[Region, _Size] = field(default_factory=dict[Region, _Size])

    def __post_init__(self) -> None:
        for function in self.by_name.values():
            self.count(function)

    def called_by(self, function: func.FuncOp) -> list[str]:
        """Return the names of the functions that a function refers to, each once."""
        return [name for name, count in self.counted[function.sym_name.data].items() if count]

    def among(self, ops: Iterable[Operation], function: func.FuncOp) -> list[PureCallOp | func.CallOp]:
        """Return the calls among `ops`, which are the function's or copies of them, and in their regions."""
        if not self.called_by(function):
            return []
        every = (inner for op in ops for inner in (op.walk() if op.regions else (op,)))
        return [op for op in every if type(op) is PureCallOp or type(op) is func.CallOp]

    def size_of(self, function: func.FuncOp) -> _Size:
        """Return the size of the body of a callee, which is not edited."""
        if function.body not in self.sizes:
            self.sizes[function.body] = _Size.of(function.body)
        return self.sizes[function.body]

    def count(self, function: func.FuncOp) -> None:
        """Count the references in a function, for the first time or after a change that added none."""
        name = function.sym_name.data
        if name in self.counted and not self.called_by(function):
            return
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
