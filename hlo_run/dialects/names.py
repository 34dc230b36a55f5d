"""Chooses the names of SSA values in printed IR as MLIR does: the hint, else the op's name, else a number per scope."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct, field
from xdsl.dialects import arith, complex, tensor
from xdsl.dialects.builtin import IndexType, IntegerAttr, IntegerType
from xdsl.ir import Block, Operation, OpResult, Region, SSAValue
from xdsl.traits import IsolatedFromAbove

from hlo_run.dialects import gpu, xla_gpu

_BY_OP: dict[type[Operation], str] = {
    tensor.ExtractOp: "extracted",
    tensor.InsertOp: "inserted",
    tensor.DimOp: "dim",
    complex.ConstantOp: "cst",
    xla_gpu.LoopOp: "xla_loop",
    xla_gpu.PureCallOp: "pure_call",
    xla_gpu.AtomicRMWOp: "atomic_rmw",
    xla_gpu.AllocateSharedOp: "shmem",
    xla_gpu.SyncThreadsOp: "synced_tensor",
}
_NAMED_APART = (xla_gpu.LoopOp, xla_gpu.PureCallOp, xla_gpu.SyncThreadsOp)
_LOOP_INDICES = ("i", "j", "k", "l", "m", "n")


def is_constant_op(op: Operation | Block) -> bool:
    """True if the op's result is named after its constant, even if the result has a hint."""
    return isinstance(op, arith.ConstantOp)


def default_name(value: SSAValue) -> str | None:
    """Return the name that the value's op gives its results; None if they are numbered."""
    owner = value.owner
    if isinstance(owner, Block) or not isinstance(value, OpResult):
        return _argument_name(value)
    match owner:
        case arith.ConstantOp():
            return _constant_name(owner)
        case gpu.ThreadIdOp():
            return f"thread_id_{owner.dimension.data.value}"
        case gpu.BlockIdOp():
            return f"block_id_{owner.dimension.data.value}"
        case gpu.ShuffleOp():
            return ("shuffleResult", "valid")[value.index]
        case _:
            return _BY_OP.get(type(owner))


def _constant_name(op: arith.ConstantOp) -> str:
    value = op.value
    if not isinstance(value, IntegerAttr):
        return "cst"
    number = value.value.data
    match value.type:
        case IndexType():
            return f"c{number}"
        case IntegerType() as type_ if type_.width.data == 1:
            return "true" if number else "false"
        case IntegerType() as type_:
            return f"c{number}_i{type_.width.data}"
        case _:
            return "cst"


def _argument_name(value: SSAValue) -> str | None:
    """Name a block argument of a loop: i, j, .. for range variables, ra, rb, .. for map results, iter for inits."""
    block = value.owner
    parent = block.parent_op() if isinstance(block, Block) else None
    if not isinstance(parent, xla_gpu.LoopOp):
        return None
    index = getattr(value, "index", 0)
    ranges, results = len(parent.map.ranges), len(parent.map.results)
    if index < ranges:
        return _LOOP_INDICES[min(index, len(_LOOP_INDICES) - 1)]
    if index < ranges + results:
        return f"r{chr(ord('a') + (index - ranges) % 26)}"
    return "iter"


def result_groups(op: Operation, *, as_mlir: bool = False) -> Sequence[Sequence[SSAValue]]:
    """Return the results in groups that share a name: `%x:2 = ..` is one group of two.

    With `as_mlir`, results of XLA's operations have names of their own, as in MLIR.
    """
    if isinstance(op, gpu.ShuffleOp) or (as_mlir and isinstance(op, _NAMED_APART)):
        return [[result] for result in op.results]
    return [op.results] if op.results else []


class _Scope(Struct):
    """The names in use and the next free numbers of a region. Each nested region starts with a copy."""

    used: set[str] = field(default_factory=set[str])
    next_suffix: dict[str, int] = field(default_factory=dict[str, int])
    next_number: int = 0
    next_argument: int = 0
    as_mlir: bool = False

    def copy(self) -> _Scope:
        return _Scope(set(self.used), dict(self.next_suffix), self.next_number, self.next_argument, self.as_mlir)

    def number(self) -> str:
        self.next_number += 1
        return str(self.next_number - 1)

    def argument(self) -> str:
        self.next_argument += 1
        return self.unique(f"arg{self.next_argument - 1}")

    def unique(self, name: str) -> str:
        candidate = name
        while candidate in self.used:
            counter = "" if self.as_mlir else name  # MLIR counts the suffixes of all names together
            suffix = self.next_suffix.get(counter, 0)
            self.next_suffix[counter] = suffix + 1
            candidate = f"{name}_{suffix}"
        self.used.add(candidate)
        return candidate


def name_values(op: Operation, *, as_mlir: bool = False) -> dict[SSAValue, str]:
    """Return the printed name of every value in and under `op`, without `%`, with `#i` for one of several results.

    As in MLIR, a region's own values are named before those of nested regions. Sibling regions start from the same
    state, so two loops side by side both have an `%i`. With `as_mlir`, hints do not count: MLIR has none.
    """
    names: dict[SSAValue, str] = {}
    scope = _Scope(as_mlir=as_mlir)
    _name_results(op, scope, names)
    pending = [(region, scope.copy()) for region in op.regions]
    while pending:
        region, scope = pending.pop()
        _name_region(region, scope, names)
        for inner in (inner for block in region.blocks for inner in block.ops if inner.regions):
            isolated = bool(inner.get_traits_of_type(IsolatedFromAbove))
            pending += [(nested, _Scope(as_mlir=as_mlir) if isolated else scope.copy()) for nested in inner.regions]
    return names


def _name_region(region: Region, scope: _Scope, names: dict[SSAValue, str]) -> None:
    for number, block in enumerate(region.blocks):
        for arg in block.args:
            name = (None if scope.as_mlir else arg.name_hint) or default_name(arg)
            if name is not None:
                names[arg] = scope.unique(name)
            else:
                names[arg] = scope.argument() if number == 0 else scope.number()
        _name_all_results(block.ops, scope, names)


def _name_all_results(ops: Iterable[Operation], scope: _Scope, names: dict[SSAValue, str]) -> None:
    for op in ops:
        if op.results:
            _name_results(op, scope, names)


def _name_results(op: Operation, scope: _Scope, names: dict[SSAValue, str]) -> None:
    for group in result_groups(op, as_mlir=scope.as_mlir):
        first = group[0]
        hint = None if scope.as_mlir or is_constant_op(op) else first.name_hint
        wanted = hint or default_name(first)
        name = scope.number() if wanted is None else scope.unique(wanted)
        if len(group) == 1:
            names[first] = name
            continue
        for index, result in enumerate(group):
            names[result] = f"{name}#{index}"
