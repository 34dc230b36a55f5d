"""Runs the function of the host before the device does: its numbers are known, and its operations on memory become thunks.

The host may compute with constants and sizes, loop, branch, call, allocate, copy, and launch. It cannot read what is in memory.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from msgspec import Struct, field
from xdsl.dialects import arith, cf, func, memref, scf
from xdsl.dialects.builtin import FloatAttr, IndexType, IntegerAttr, IntegerType, ModuleOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from hlo_run.analysis.tiling.launch_dimensions import LaunchDimensions
from hlo_run.artifact.structure import launch_problem
from hlo_run.codegen.gpu_modules.program import Argument, dtype_name
from hlo_run.dialects import gpu_memory
from hlo_run.dialects.gpu_kernel import GpuFuncOp, GpuModuleOp
from hlo_run.dialects.gpu_launch import LaunchFuncOp
from hlo_run.dialects.types import is_integer, is_memref
from hlo_run.errors import ParseError, Unsupported, Where

_MOST_STEPS = 2_000_000
_MOST_LAUNCHES = 20_000
_DYNAMIC = -(1 << 63)
_BYTES = {"pred": 1, "s8": 1, "s16": 2, "s32": 4, "s64": 8, "f16": 2, "bf16": 2, "f32": 4, "f64": 8}
# What the host's operations take and return: numbers, views and scalars of kernels; and the values of all that is in scope.
Operands: TypeAlias = "list[Any]"
Results: TypeAlias = "Sequence[Any]"
Environment: TypeAlias = "dict[SSAValue, Any]"

_NUMPY: dict[str, Any] = {
    **{"f16": np.float16, "f32": np.float32, "f64": np.float64, "bf16": ml_dtypes.bfloat16},
    **{f"s{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    "pred": np.bool_,
}


class Memory(Struct, frozen=True):
    """A block of memory: of argument `argument`, or (-1) the `number`th block that the host allocates, or a constant's block."""

    argument: int
    number: int
    size_bytes: int
    constant: bytes = b""


class View(Struct, frozen=True):
    """A memref of the host: the place in memory where it begins, sizes, and strides in elements."""

    memory: Memory
    offset_bytes: int
    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def is_packed(self) -> bool:
        """True if the elements follow each other in row-major order."""
        return self.strides == packed_strides(self.dims)

    @property
    def size_bytes(self) -> int:
        """The bytes from the first element to the end of the last."""
        if 0 in self.dims:
            return 0
        last = sum((size - 1) * stride for size, stride in zip(self.dims, self.strides, strict=True))
        return (last + 1) * _BYTES[self.dtype]


class Scalar(Struct, frozen=True):
    """A scalar argument whose value the run gives: the host can only hand it to kernels."""

    argument: int
    dtype: str


class Launch(Struct, frozen=True):
    """A launch of a kernel. Arguments are views, scalars of the run, or numbers with their dtype."""

    op: Operation
    holder: GpuModuleOp | ModuleOp
    kernel: GpuFuncOp
    dimensions: LaunchDimensions
    arguments: tuple[View | Scalar | tuple[str, Any], ...]


class Copy(Struct, frozen=True):
    """A copy between packed views of one size."""

    source: View
    target: View


class Fill(Struct, frozen=True):
    """A fill: all elements of a view get a value of the dtype."""

    target: View
    value: Any


class Trace(Struct):
    """The work of the host, in order, and the memory that holds results: `allocated` in order, and `shown` to other functions."""

    steps: list[Launch | Copy | Fill] = field(default_factory=list[Launch | Copy | Fill])
    allocated: list[View] = field(default_factory=list[View])
    shown: list[View] = field(default_factory=list[View])
    returned: list[View] = field(default_factory=list[View])


def packed_strides(dims: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a row-major array without gaps."""
    return tuple(math.prod(dims[dim + 1 :]) for dim in range(len(dims)))


def item_bytes(dtype: str) -> int:
    """Return the size of an element in memory."""
    return _BYTES[dtype]


def to_bytes(dtype: str, value: Any) -> bytes:
    """Return an element as it is in memory."""
    return np.asarray(value).astype(_NUMPY[dtype]).tobytes()


def argument_values(arguments: Sequence[Argument]) -> list[Any]:
    """Return the arguments of the host's function: views of memory, scalars of the run, or numbers."""
    values: list[Any] = []
    for number, argument in enumerate(arguments):
        if argument.is_memref:
            size = math.prod(argument.dims) * _BYTES[argument.dtype]
            memory = Memory(number, number, size)
            values.append(View(memory, 0, argument.dtype, argument.dims, packed_strides(argument.dims)))
        elif argument.value is None:
            values.append(Scalar(number, argument.dtype))
        else:
            values.append(_NUMPY[argument.dtype](argument.value) if argument.dtype[0] in "fb" else int(argument.value))
    return values


def trace_host(module: ModuleOp, entry: func.FuncOp, arguments: Sequence[Argument], where: Callable[[Operation], Where]) -> Trace:
    """Run the function of the host of an outlined module. `where` gives the places of operations for errors.

    Raises Unsupported for what the host cannot do here, ParseError for sizes that no launch can have.
    """
    tracer = _Tracer(module, where)
    for value in tracer.call(entry, argument_values(arguments)):
        if not isinstance(value, View):
            raise Unsupported(f"@{entry.sym_name.data} returns a number", where(entry), hint="results are memrefs")
        tracer.trace.returned.append(value)
    return tracer.trace


class _Tracer:
    def __init__(self, module: ModuleOp, where: Callable[[Operation], Where]) -> None:
        self._where = where
        self._functions = {op.sym_name.data: op for op in module.body.block.ops if isinstance(op, func.FuncOp)}
        self._kernels = {op.sym_name.data: op for op in module.body.block.ops if isinstance(op, GpuModuleOp)}
        self.trace = Trace()
        self._steps = self._launches = self._depth = 0

    def call(self, function: func.FuncOp, values: Results) -> list[Any]:
        """Run a function and return its results."""
        env: Environment = {}
        block, self._depth = function.body.blocks[0], self._depth + 1
        if self._depth > 100:
            raise Unsupported("functions of the host that call each other so deeply", self._where(function))
        while True:
            last, operands = self._block(block, values, env)
            match last:
                case cf.BranchOp():
                    block, values = last.successor, operands
                case cf.ConditionalBranchOp():
                    count = len(last.then_block.args)
                    block = last.then_block if operands[0] else last.else_block
                    values = operands[1 : 1 + count] if operands[0] else operands[1 + count :]
                case _:
                    self._depth -= 1
                    return operands

    def _block(self, block: Block, values: Results, env: Environment) -> tuple[Operation, list[Any]]:
        """Run a block; return its terminator and the values of its operands."""
        env.update(zip(block.args, values, strict=True))
        for op in block.ops:
            operands = [env[operand] for operand in op.operands]
            if op.next_op is None:
                return op, operands
            self._steps += 1
            if self._steps > _MOST_STEPS:
                raise Unsupported("a host that runs so many operations", self._where(op), hint="--sizes gives smaller sizes")
            env.update(zip(op.results, self._run(op, operands, env), strict=True))
        raise AssertionError("a verified block ends in a terminator")

    def _run(self, op: Operation, values: Operands, env: Environment) -> Results:
        work = _WORK.get(type(op))
        if work is not None:
            return work(self, op, values, env)
        if op.name in _SILENT:
            return [None for _ in op.results]
        function = _SCALARS.get(op.name)
        if function is None:
            raise Unsupported(f"'{op.name}' in a function of the host", self._where(op))
        for value in values:
            if isinstance(value, Scalar):
                hint = "--sizes=NAME=VALUE fixes it before the run; or compute in the kernel"
                raise Unsupported(
                    f"'{op.name}' of an argument that the run gives, in a function of the host", self._where(op), hint
                )
        try:
            with np.errstate(all="ignore"):
                return [_in_type(function(*values), op.results[0].type)]
        except ZeroDivisionError:
            raise ParseError(f"'{op.name}' divides by zero with these sizes", self._where(op)) from None

    # ---- control

    def do_constant(self, op: arith.ConstantOp, values: Operands, env: Environment) -> Results:
        del values, env
        value = op.value
        if isinstance(value, IntegerAttr | FloatAttr):
            return [_in_type(value.value.data, op.result.type)]
        raise Unsupported("a constant of several elements in a function of the host", self._where(op))

    def do_for(self, op: scf.ForOp, values: Operands, env: Environment) -> Results:
        lower, upper, step, *carried = values
        if step <= 0:
            raise ParseError(f"an scf.for with the step {step}", self._where(op))
        for at in range(lower, upper, step):
            carried = self._block(op.body.block, [at, *carried], env)[1]
        return carried

    def do_if(self, op: scf.IfOp, values: Operands, env: Environment) -> Results:
        region = op.true_region if values[0] else op.false_region
        return self._block(region.block, (), env)[1] if region.blocks else ()

    def do_while(self, op: scf.WhileOp, values: Operands, env: Environment) -> Results:
        while True:
            condition, *passed = self._block(op.before_region.block, values, env)[1]
            if not condition:
                return passed
            values = self._block(op.after_region.block, passed, env)[1]

    def do_call(self, op: func.CallOp, values: Operands, env: Environment) -> Results:
        del env
        name = op.callee.string_value()
        function = self._functions.get(name)
        if function is None:
            raise ParseError(f"there is no function @{name}", self._where(op))
        if function.body.blocks:
            return self.call(function, values)
        if op.results:
            raise Unsupported(f"a call of @{name}, which has no body, for its result", self._where(op))
        # A function that prints, as in MLIR's tests: what it prints is a result.
        self.trace.shown += [value for value in values if isinstance(value, View)]
        return ()

    # ---- memory

    def do_alloc(self, op: Any, values: Operands, env: Environment) -> Results:
        del values
        sizes = iter([env[size] for size in op.dynamic_sizes])
        dims = tuple(int(next(sizes)) if size < 0 else size for size in op.memref.type.get_shape())
        dtype = dtype_name(op.memref.type.element_type)
        if not dtype or any(size < 0 for size in dims):
            raise Unsupported(f"memory of type {op.memref.type} with the sizes {dims}", self._where(op))
        memory = Memory(-1, len(self.trace.allocated), math.prod(dims) * _BYTES[dtype])
        view = View(memory, 0, dtype, dims, packed_strides(dims))
        self.trace.allocated.append(view)
        return [view, *[None for _ in op.results[1:]]]

    def do_dim(self, op: memref.DimOp, values: Operands, env: Environment) -> Results:
        del env
        view, number = values
        if not 0 <= number < len(view.dims):
            raise ParseError(f"a memref with {len(view.dims)} dimensions has no dimension {number}", self._where(op))
        return [view.dims[number]]

    def do_cast(self, op: Any, values: Operands, env: Environment) -> Results:
        del env
        type_, (view,) = op.dest.type, values
        if is_memref(type_):
            shape = tuple(type_.get_shape())
            if len(shape) != len(view.dims) or any(0 <= size != has for size, has in zip(shape, view.dims, strict=True)):
                raise ParseError(f"a memref of {'x'.join(map(str, view.dims))} becomes one of {type_}", self._where(op))
        return [view]

    def do_subview(self, op: memref.SubviewOp, values: Operands, env: Environment) -> Results:
        del env
        view: View = values[0]
        rest = iter(values[1:])
        offsets, sizes, steps = (
            [next(rest) if int(number) == _DYNAMIC else int(number) for number in static.get_values()]
            for static in (op.static_offsets, op.static_sizes, op.static_strides)
        )
        offset = sum(at * stride for at, stride in zip(offsets, view.strides, strict=True)) * _BYTES[view.dtype]
        strides = [step * stride for step, stride in zip(steps, view.strides, strict=True)]
        dropped = len(sizes) - len(op.result.type.get_shape())
        kept: list[int] = []
        for dim, size in enumerate(sizes):
            if size == 1 and dropped:
                dropped -= 1
            else:
                kept.append(dim)
        part = View(
            view.memory, view.offset_bytes + offset, view.dtype, tuple(sizes[d] for d in kept), tuple(strides[d] for d in kept)
        )
        if min(offsets, default=0) < 0 or part.offset_bytes + part.size_bytes > view.memory.size_bytes:
            raise ParseError("memref.subview goes beyond its memref with these sizes", self._where(op))
        return [part]

    def do_copy(self, op: Any, values: Operands, env: Environment) -> Results:
        del env
        target, source = values[-2:] if op.name == "gpu.memcpy" else (values[1], values[0])
        if source.dims != target.dims:
            one, two = ("x".join(map(str, view.dims)) for view in (source, target))
            raise ParseError(f"a copy of a memref of {one} to one of {two}", self._where(op))
        if not source.is_packed or not target.is_packed:
            raise Unsupported("a copy of a memref whose elements have gaps", self._where(op))
        self.trace.steps.append(Copy(source, target))
        return [None for _ in op.results]

    def do_memset(self, op: Any, values: Operands, env: Environment) -> Results:
        del env
        target, value = values[-2:]
        self._fill(op, target, value)
        return [None for _ in op.results]

    def do_store(self, op: memref.StoreOp, values: Operands, env: Environment) -> Results:
        del env
        value, view, *index = values
        if any(not 0 <= at < size for at, size in zip(index, view.dims, strict=True)):
            raise ParseError(f"index {index} is out of bounds in a memref of {view.dims}", self._where(op))
        place = sum(at * stride for at, stride in zip(index, view.strides, strict=True)) * _BYTES[view.dtype]
        self._fill(op, View(view.memory, view.offset_bytes + place, view.dtype, (), ()), value)
        return ()

    def _fill(self, op: Operation, target: View, value: Any) -> None:
        if isinstance(value, Scalar):
            raise Unsupported(f"'{op.name}' of an argument that the run gives", self._where(op), hint="--sizes=NAME=VALUE")
        if not target.is_packed:
            raise Unsupported(f"'{op.name}' of a memref whose elements have gaps", self._where(op))
        self.trace.steps.append(Fill(target, value))

    def do_load(self, op: Operation, values: Operands, env: Environment) -> Results:
        del values, env
        hint = "a size or another number comes as an argument, with --sizes"
        raise Unsupported("memref.load in a function of the host, which does not see memory", self._where(op), hint)

    # ---- launches

    def do_launch(self, op: LaunchFuncOp, values: Operands, env: Environment) -> Results:
        del values
        gx, gy, gz, bx, by, bz = (self._size(op, env[size]) for size in (*op.grid, *op.block))
        dimensions = LaunchDimensions((gx, gy, gz), (bx, by, bz))
        if problem := launch_problem(dimensions.grid, dimensions.block):
            raise ParseError(f"the launch has {problem}", self._where(op), hint="--sizes gives other sizes")
        self._launches += 1
        if self._launches > _MOST_LAUNCHES:
            raise Unsupported(f"more than {_MOST_LAUNCHES} launches", self._where(op), hint="--sizes gives smaller sizes")
        holder = self._kernels[op.kernel.root_reference.data]
        name = next(iter(op.kernel.nested_references)).data
        kernel = next(each for each in holder.body.block.ops if isinstance(each, GpuFuncOp) and each.sym_name.data == name)
        arguments: list[View | Scalar | tuple[str, Any]] = []
        for value in op.arguments:
            given = env[value]
            if isinstance(given, View | Scalar):
                arguments.append(given)
            elif dtype := dtype_name(value.type):
                arguments.append((dtype, given))
            else:
                raise Unsupported(f"an argument of a kernel of type {value.type}", self._where(op))
        self.trace.steps.append(Launch(op, holder, kernel, dimensions, tuple(arguments)))
        return [None for _ in op.results]

    def _size(self, op: Operation, value: Any) -> int:
        if not isinstance(value, int):
            raise Unsupported("a launch whose size the run gives", self._where(op), hint="--sizes=NAME=VALUE fixes it")
        return value


def _in_type(value: Any, type_: Attribute) -> Any:
    """Return a number as a value of a type: integers wrap around, floats round."""
    if isinstance(type_, IndexType):
        type_ = IntegerType(64)
    if is_integer(type_):
        bits = type_.width.data
        if bits == 1:
            return int(value) & 1
        return ((int(value) + (1 << (bits - 1))) & ((1 << bits) - 1)) - (1 << (bits - 1))
    return _NUMPY[dtype_name(type_)](value) if dtype_name(type_) else value


def _unsigned(value: int) -> int:
    return value & ((1 << 64) - 1)


def _quotient(one: int, two: int) -> int:
    whole = abs(one) // abs(two)
    return whole if (one < 0) == (two < 0) else -whole


def _remainder(one: int, two: int) -> int:
    return one - two * _quotient(one, two)


def _ceiling(one: int, two: int) -> int:
    return -(-one // two)


def _of_unsigned(function: Callable[[int, int], int]) -> Callable[[int, int], int]:
    def run(one: int, two: int) -> int:
        return function(_unsigned(one), _unsigned(two))

    return run


def _same(value: Any) -> Any:
    return value


def _chosen(condition: int, one: Any, two: Any) -> Any:
    return one if condition else two


def _compare(op: Any, values: list[Any]) -> int:
    one, two = values
    kind = op.predicate.value.data
    if op.name == "arith.cmpf":
        words = ("", "==", ">", ">=", "<", "<=", "!=")
        unordered = one != one or two != two
        ordered = {"==": one == two, ">": one > two, ">=": one >= two, "<": one < two, "<=": one <= two, "!=": one != two}
        if kind in (0, 15):
            return int(kind == 15)
        if kind in (7, 14):
            return int(unordered == (kind == 14))
        return int((bool(ordered[words[kind % 7]]) and not unordered) or (kind > 7 and unordered))
    if kind >= 6:
        one, two, kind = _unsigned(one), _unsigned(two), kind - 4
    return int((one == two, one != two, one < two, one <= two, one > two, one >= two)[kind])


_PLAIN = {
    **{"addi": "add", "subi": "sub", "muli": "mul", "floordivsi": "floordiv", "andi": "and_", "ori": "or_", "xori": "xor"},
    **{"shli": "lshift", "shrsi": "rshift", "addf": "add", "subf": "sub", "mulf": "mul", "divf": "truediv", "negf": "neg"},
}
_UNSIGNED = {"divui": "floordiv", "remui": "mod", "shrui": "rshift"}
_SCALARS: Mapping[str, Callable[..., Any]] = {
    **{f"arith.{name}": getattr(operator, word) for name, word in _PLAIN.items()},
    **{f"arith.{name}": _of_unsigned(getattr(operator, word)) for name, word in _UNSIGNED.items()},
    "arith.divsi": _quotient,
    "arith.remsi": _remainder,
    "arith.ceildivsi": _ceiling,
    "arith.ceildivui": _of_unsigned(_ceiling),
    **dict.fromkeys(("arith.maxsi", "arith.maxui"), max),
    **dict.fromkeys(("arith.minsi", "arith.minui"), min),
    "arith.select": _chosen,
    **dict.fromkeys(("arith.index_cast", "arith.index_castui", "arith.extsi", "arith.extui", "arith.trunci"), _same),
    **dict.fromkeys(("arith.sitofp", "arith.uitofp", "arith.extf", "arith.truncf"), _same),
    **dict.fromkeys(("arith.fptosi", "arith.fptoui"), int),
}
_SILENT = frozenset(
    ("gpu.wait", "gpu.dealloc", "memref.dealloc", "gpu.host_register", "gpu.host_unregister", "memref.assume_alignment")
)
_WORK: dict[type[Operation], Callable[[_Tracer, Any, list[Any], dict[SSAValue, Any]], Sequence[Any]]] = {
    arith.ConstantOp: _Tracer.do_constant,
    arith.CmpiOp: lambda _, op, values, __: [_compare(op, values)],
    arith.CmpfOp: lambda _, op, values, __: [_compare(op, values)],
    scf.ForOp: _Tracer.do_for,
    scf.IfOp: _Tracer.do_if,
    scf.WhileOp: _Tracer.do_while,
    func.CallOp: _Tracer.do_call,
    memref.AllocOp: _Tracer.do_alloc,
    memref.AllocaOp: _Tracer.do_alloc,
    gpu_memory.AllocOp: _Tracer.do_alloc,
    memref.DimOp: _Tracer.do_dim,
    memref.CastOp: _Tracer.do_cast,
    memref.MemorySpaceCastOp: _Tracer.do_cast,
    memref.SubviewOp: _Tracer.do_subview,
    memref.CopyOp: _Tracer.do_copy,
    gpu_memory.MemcpyOp: _Tracer.do_copy,
    gpu_memory.MemsetOp: _Tracer.do_memset,
    memref.StoreOp: _Tracer.do_store,
    memref.LoadOp: _Tracer.do_load,
    LaunchFuncOp: _Tracer.do_launch,
}
