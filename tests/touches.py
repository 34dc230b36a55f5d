"""Finds the elements that the threads of an emitted kernel touch, from its entry function's index maps.

No values are computed: an access whose place depends on data has none here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from xdsl.dialects import arith, func, scf, tensor
from xdsl.dialects.builtin import IndexType, IntegerAttr, TensorType
from xdsl.ir import Block, Operation, SSAValue

from hlo_run.codegen.emitters.emit import EmittedKernel
from hlo_run.dialects import xla_gpu
from hlo_run.dialects.gpu import BlockIdOp, ThreadIdOp
from hlo_run.dialects.printer import HLO_OP

Ints: TypeAlias = np.ndarray[Any, np.dtype[Any]]


def _compare(predicate: int, a: Ints, b: Ints) -> Ints:
    """Compare by the number that MLIR gives a predicate; unsigned ones compare indices, which are not negative."""
    match predicate:
        case 0:
            return a == b
        case 1:
            return a != b
        case 2 | 6:
            return a < b
        case 3 | 7:
            return a <= b
        case 4 | 8:
            return a > b
        case _:
            return a >= b


@dataclass
class Touches:
    """Indices, one row per access: `reads` by the HLO instruction whose element is asked for, `writes` by entry argument.

    `shared` has, per access of a tile, the block before the index; `unknown` names what depends on data.
    """

    reads: dict[str, list[Ints]] = field(default_factory=dict[str, "list[Ints]"])
    writes: dict[int, list[Ints]] = field(default_factory=dict[int, "list[Ints]"])
    shared: dict[SSAValue, list[Ints]] = field(default_factory=dict[SSAValue, "list[Ints]"])
    unknown: set[str] = field(default_factory=set[str])


def touches(kernel: EmittedKernel) -> Touches:
    """Return what all threads of the launch touch."""
    functions = {op.sym_name.data: op for op in kernel.module.body.block.ops if isinstance(op, func.FuncOp)}
    walker = _Walker(kernel, functions)
    lanes = _Points(kernel.launch.blocks * kernel.launch.threads_per_block, None, None, {})
    walker.entry(lanes)
    return walker.found


@dataclass
class _Points:
    """Threads, or threads with the steps of the loops around; `origin` says which outer point each comes from."""

    count: int
    outer: _Points | None
    origin: Ints | None
    values: dict[SSAValue, Ints]

    def get(self, value: SSAValue) -> Ints | None:
        found = self.values.get(value)
        if found is None and self.outer is not None:
            above = self.outer.get(value)
            if above is not None:
                found = self.values[value] = above[self.origin]
        return found

    def inside(self, origin: Ints) -> _Points:
        return _Points(len(origin), self, origin, {})

    def lanes(self) -> Ints:
        """Return the thread of the launch that each point belongs to."""
        if self.outer is None or self.origin is None:
            return np.arange(self.count)
        return self.outer.lanes()[self.origin]


class _Walker:
    def __init__(self, kernel: EmittedKernel, functions: dict[str, func.FuncOp]) -> None:
        self.found = Touches()
        self._functions = functions
        self._entry = next(function for function in functions.values() if "xla.entry" in function.attributes)
        self.tensors: dict[SSAValue, int | SSAValue] = {}
        self._launch = kernel.launch
        self._is_in_call = False

    def entry(self, points: _Points) -> None:
        """Walk the entry function for all threads."""
        for number, argument in enumerate(self._entry.body.block.args):
            self.tensors[argument] = number
        self.block(self._entry.body.block, points)

    def block(self, block: Block, points: _Points) -> None:
        for op in block.ops:
            self._op(op, points)

    def _op(self, op: Operation, points: _Points) -> None:
        match op:
            case ThreadIdOp() | BlockIdOp():
                points.values[op.results[0]] = self._id(op, points)
            case arith.ConstantOp():
                if isinstance(op.value, IntegerAttr):
                    points.values[op.result] = np.full(points.count, op.value.value.data)
            case xla_gpu.ApplyIndexingOp():
                self._apply(op, points)
            case arith.CmpiOp() | arith.AndIOp():
                self._binary(op, points)
            case xla_gpu.AllocateSharedOp():
                self.tensors[op.res] = op.res
            case xla_gpu.SyncThreadsOp():
                for operand, result in zip(op.operands, op.results, strict=True):
                    self.tensors[result] = self.tensors[operand]
            case xla_gpu.LoopOp():
                self._loop(op, points)
            case scf.IfOp():
                self._if(op, points)
            case scf.IndexSwitchOp():
                self._switch(op, points)
            case _:
                self._access(op, points)

    def _id(self, op: ThreadIdOp | BlockIdOp, points: _Points) -> Ints:
        lanes, threads = points.lanes(), self._launch.threads_per_block
        is_thread = isinstance(op, ThreadIdOp)
        linear, sizes = (lanes % threads, self._launch.block) if is_thread else (lanes // threads, self._launch.grid)
        axis = "xyz".index(str(op.dimension.data))
        return linear // int(np.prod(sizes[:axis], dtype=np.int64)) % sizes[axis]

    def _apply(self, op: xla_gpu.ApplyIndexingOp, points: _Points) -> None:
        operands = self._all(op.operands, points)
        if operands is None:
            return
        dims = len(op.map.dims)
        for result, value in zip(op.results, op.map.compiled.results(operands[:dims], operands[dims:]), strict=True):
            points.values[result] = np.broadcast_to(value, (points.count,))

    def _binary(self, op: arith.CmpiOp | arith.AndIOp, points: _Points) -> None:
        operands = self._all(op.operands, points)
        if operands is not None:
            a, b = operands
            points.values[op.results[0]] = a & b if isinstance(op, arith.AndIOp) else _compare(op.predicate.value.data, a, b)

    def _all(self, values: Sequence[SSAValue], points: _Points) -> list[Ints] | None:
        found = [points.get(value) for value in values]
        known = [value for value in found if value is not None]
        return known if len(known) == len(found) else None

    # Regions: results stand for the tensors that went in.

    def _loop(self, op: xla_gpu.LoopOp, points: _Points) -> None:
        sizes = [variable.bounds.upper - variable.bounds.lower + 1 for variable in op.map.ranges]
        steps = int(np.prod(sizes, dtype=np.int64))
        inner = points.inside(np.repeat(np.arange(points.count), steps))
        symbols = [np.tile(each.reshape(-1), points.count) for each in np.indices(sizes)] if sizes else []
        symbols = [each + variable.bounds.lower for each, variable in zip(symbols, op.map.ranges, strict=True)]
        dims = self._all(op.dims, inner)
        assert dims is not None, "the dims of a loop are ids"
        bounds = [(v.bounds.lower <= dim) & (dim <= v.bounds.upper) for dim, v in zip(dims, op.map.dims, strict=True)]
        inside: Ints = np.broadcast_to(op.map.compiled.contains(dims, symbols), (inner.count,))
        for bound in bounds:
            inside = inside & bound
        kept = np.nonzero(inside)[0]
        assert inner.origin is not None
        body = points.inside(inner.origin[kept])
        dims, symbols = [dim[kept] for dim in dims], [each[kept] for each in symbols]
        results = op.map.compiled.results(dims, symbols)
        body.values.update(zip(op.induction_variables, symbols, strict=True))
        body.values.update({a: np.broadcast_to(r, (body.count,)) for a, r in zip(op.map_results, results, strict=True)})
        self._hand_on(op.inits, op.iteration_values)
        self._hand_on(op.inits, op.res)
        self.block(op.body.block, body)

    def _if(self, op: scf.IfOp, points: _Points) -> None:
        condition = points.get(op.cond)
        if condition is None:
            self.found.unknown.add(_origin(op))
            condition = np.ones(points.count, bool)
        self.block(op.true_region.block, points.inside(np.nonzero(condition)[0]))
        self._hand_on_yielded(op.true_region.block, op.results)

    def _switch(self, op: scf.IndexSwitchOp, points: _Points) -> None:
        number = points.get(op.arg)
        assert number is not None, "groups are chosen by the block's id"
        cases = [int(case) for case in op.cases.get_values()]
        for case, region in zip(cases, op.case_regions, strict=True):
            self.block(region.block, points.inside(np.nonzero(number == case)[0]))
        self.block(op.default_region.block, points.inside(np.nonzero(~np.isin(number, cases))[0]))
        self._hand_on_yielded(op.default_region.block, op.results)

    def _hand_on_yielded(self, block: Block, results: Sequence[SSAValue]) -> None:
        assert block.last_op is not None
        self._hand_on(block.last_op.operands, results)

    def _hand_on(self, sources: Sequence[SSAValue], results: Sequence[SSAValue]) -> None:
        for source, result in zip(sources, results, strict=True):
            if source in self.tensors:
                self.tensors[result] = self.tensors[source]

    # Accesses.

    def _access(self, op: Operation, points: _Points) -> None:
        match op:
            case tensor.InsertOp():
                self._write(op.dest, op.indices, op.result, points, op)
            case xla_gpu.PredicatedInsertOp():
                condition = points.get(op.condition)
                where = points if condition is None else points.inside(np.nonzero(condition)[0])
                self._write(op.dest, op.indices, op.res, where, op)
            case xla_gpu.AtomicRMWOp():
                self._write(op.tensor, op.indices, op.res, points, op)
            case tensor.ExtractOp():
                if isinstance(self.tensors.get(op.tensor), int):
                    self._read(op.indices, points, op)
            case xla_gpu.PureCallOp():
                indices = [argument for argument in op.arguments if argument.type == IndexType()]
                # A reducer takes values alone.
                if indices or any(isinstance(argument.type, TensorType) for argument in op.arguments):
                    self._read(indices, points, op)
                    # Deeper calls would be walked once per path that leads to them.
                    if not self._is_in_call:
                        self._call(op, points)
            case _:
                pass

    def _call(self, op: xla_gpu.PureCallOp, points: _Points) -> None:
        body = self._functions[op.callee.string_value()].body.block
        inner = points.inside(np.arange(points.count))
        for argument, parameter in zip(op.arguments, body.args, strict=True):
            self._hand_on((argument,), (parameter,))
            value = points.get(argument)
            if value is not None:
                inner.values[parameter] = value
        self._is_in_call = True
        self.block(body, inner)
        self._is_in_call = False

    def _read(self, indices: Sequence[SSAValue], points: _Points, op: Operation) -> None:
        index = self._index(indices, points, op)
        if index is not None:
            self.found.reads.setdefault(_origin(op), []).append(index)

    def _write(self, target: SSAValue, indices: Sequence[SSAValue], result: SSAValue, points: _Points, op: Operation) -> None:
        self.tensors[result] = owner = self.tensors[target]
        index = self._index(indices, points, op)
        if index is None:
            return
        if isinstance(owner, int):
            self.found.writes.setdefault(owner, []).append(index)
            return
        blocks = points.lanes() // self._launch.threads_per_block
        self.found.shared.setdefault(owner, []).append(np.column_stack([blocks, index]))

    def _index(self, indices: Sequence[SSAValue], points: _Points, op: Operation) -> Ints | None:
        found = self._all(indices, points)
        if found is None:
            self.found.unknown.add(_origin(op))
            return None
        return np.column_stack(found) if found else np.zeros((points.count, 0), np.int64)


def _origin(op: Operation) -> str:
    """Return the name of the HLO instruction that an op comes from."""
    attribute: Any = op.attributes.get(HLO_OP)
    return str(attribute.data) if attribute is not None else ""


def fault(accesses: Sequence[Ints], sizes: Sequence[int]) -> str:
    """Return why the accesses do not touch every element of a box exactly once; nothing if they do."""
    index = np.concatenate(accesses) if accesses else np.zeros((0, len(sizes)), np.int64)
    outside = ((index < 0) | (index >= np.array(sizes, np.int64).reshape(1, -1))).any(axis=1)
    if outside.any():
        return f"{index[outside][0].tolist()} is outside of {list(sizes)}"
    linear = np.ravel_multi_index(tuple(index.T), tuple(sizes)) if len(sizes) else np.zeros(len(index), np.int64)
    counts = np.bincount(linear, minlength=int(np.prod(sizes, dtype=np.int64)))
    often = np.nonzero(counts != 1)[0]
    if not len(often):
        return ""
    return f"{len(often)} of {len(counts)} elements are not touched once: element {often[0]} is touched {counts[often[0]]} times"
