"""Reads the gpu dialect's text as earlier MLIR spells it, and turns it into the ops of today.

    module @k attributes {gpu.kernel_module} {                gpu.module @k {
      func @f(%x: f32) attributes {nvvm.kernel = true} {        gpu.func @f(%x: f32) kernel {
        %i = "gpu.thread_id"() {dimension = "x"} ..       =>      %i = gpu.thread_id x
        %y = addf %x, %x : f32                                    %y = arith.addf %x, %x : f32
        return                                                    gpu.return

A name is looked up here only if no dialect has it. A pointer to numbers, `!llvm<"float*">`, becomes a memref of any size in
global memory, `memref<?xf32, 1>`: in the first specification a kernel loads from its pointer as from such a memref. The reader
also keeps the place in the text of each operation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from xdsl.context import Context
from xdsl.dialects import arith, func, memref
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    AnyFloat,
    DenseArrayBase,
    FunctionType,
    IndexType,
    IntegerAttr,
    IntegerType,
    MemRefType,
    ModuleOp,
    StringAttr,
    SymbolRefAttr,
    UnitAttr,
    UnregisteredOp,
    f16,
    f32,
    f64,
    i32,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.parser import Parser
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import IsTerminator, SymbolOpInterface
from xdsl.utils.lexer import Span

from hlo_run.dialects import gpu
from hlo_run.dialects.gpu_kernel import GpuFuncOp, GpuModuleOp, ReturnOp
from hlo_run.dialects.gpu_launch import (
    AllReduceOp,
    LaunchFuncOp,
    LaunchOp,
    ReduceOperation,
    ReduceOperationAttr,
    capture,
    implied_terminator,
)

_RENAMED = {
    **{name: f"arith.{name}" for name in "constant addi subi muli addf subf mulf divf remf negf cmpi cmpf select".split()},
    **{name: f"arith.{name}" for name in "index_cast sitofp uitofp fptosi fptoui trunci bitcast".split()},
    "and": "arith.andi",
    "or": "arith.ori",
    "xor": "arith.xori",
    "shift_left": "arith.shli",
    "shift_right_signed": "arith.shrsi",
    "shift_right_unsigned": "arith.shrui",
    **dict.fromkeys(("divis", "divi_signed", "signed_divi"), "arith.divsi"),
    **dict.fromkeys(("diviu", "divi_unsigned", "unsigned_divi"), "arith.divui"),
    **dict.fromkeys(("remis", "remi_signed", "signed_remi"), "arith.remsi"),
    **dict.fromkeys(("remiu", "remi_unsigned", "unsigned_remi"), "arith.remui"),
    "sexti": "arith.extsi",
    "zexti": "arith.extui",
    "fpext": "arith.extf",
    "fptrunc": "arith.truncf",
    **dict.fromkeys(("maxf", "arith.maxf"), "arith.maximumf"),
    **dict.fromkeys(("minf", "arith.minf"), "arith.minimumf"),
    **{name: f"memref.{name}" for name in "load store alloc alloca dealloc copy".split()},
    "dim": "memref.dim",
    "memref_cast": "memref.cast",
    "atomic_rmw": "memref.atomic_rmw",
    "func": "func.func",
    "return": "func.return",
    "call": "func.call",
    "br": "cf.br",
    "cond_br": "cf.cond_br",
    **{f"loop.{name}": f"scf.{name}" for name in ("for", "if", "yield")},
    **{name: f"math.{name}" for name in "exp exp2 log log2 log10 log1p sqrt rsqrt sin cos tanh atan atan2".split()},
    "absf": "math.absf",
    "ceilf": "math.ceil",
    "floorf": "math.floor",
    "powf": "math.powf",
    "copysign": "math.copysign",
}
# A comment, `/* .. */`, which MLIR does not have but its documents do; a type; and what looks like one of them and is none.
_EARLIER = re.compile(r'//[^\n]*|(?P<comment>/\*.*?\*/)|!llvm<"(?P<name>[^"\n]*)">|"(?:[^"\\\n]|\\.)*"', re.DOTALL)
_LLVM_SCALARS: dict[str, AnyFloat] = {"float": f32, "double": f64, "half": f16}
_POINTER = re.compile(r"!_p_(\w+)")  # how pointers to numbers are called here
_GLOBAL = IntegerAttr(1, i64)
_DIM = "memref.dim"
_INTEGER_REDUCTIONS = {"min": ReduceOperation.MINSI, "max": ReduceOperation.MAXSI}
_FLOAT_REDUCTIONS = {"min": ReduceOperation.MINIMUMF, "max": ReduceOperation.MAXIMUMF}
_KERNEL_MARKS = ("gpu.kernel", "nvvm.kernel")
_MAIN = "main"


class GpuReader(Parser):
    """Parses a module of the gpu dialect. `places` has the position in the text of each operation."""

    def __init__(self, context: Context, text: str, file: str) -> None:
        today = _EARLIER.sub(_todays, text)
        super().__init__(context, today, file)
        for name in _POINTER.findall(today):
            element = _scalar(name)
            if element is not None:
                self.attribute_aliases.setdefault(f"!_p_{name}", MemRefType(element, [DYNAMIC_INDEX], memory_space=_GLOBAL))
        self.places: dict[Operation, int] = {}
        self._around: list[set[str]] = []
        self._begin = 0

    def parse_operation(self) -> Operation:
        """Parse an operation and keep its place."""
        begin, depth = self._current_token.span.start, len(self._around)
        self._begin = begin
        op = super().parse_operation()
        del self._around[depth:]
        self.places[op] = begin
        return op

    def _get_op_by_name(self, name: str) -> type[Operation]:
        found = self.ctx.get_optional_op(name, dialect_stack=self._parser_state.dialect_stack)
        if found is None:
            short = name.removeprefix("std.")
            found = self.ctx.get_optional_op(_RENAMED.get(short, short)) if short in _RENAMED else None
        if found is None and "." not in name:
            found = UnregisteredOp.with_name(name)  # an operation that stands for any, as in the listings
        if found is None:
            self.raise_error(f"Operation {name} is not registered", self._begin)
        if issubclass(found, LaunchOp):
            self._around.append({*self.ssa_values})
        return _EarlierDim if found.name == _DIM else found

    def _register_ssa_definition(self, name: str, values: Sequence[SSAValue], span: Span) -> None:
        # The body of a launch was a function of its own once, whose names may be those of values around it.
        if self._around and name in self._around[-1]:
            self._around[-1].discard(name)
            self.ssa_values.pop(name, None)
        super()._register_ssa_definition(name, values, span)

    def _parse_generic_operation(self, op_type: type[Operation]) -> Operation:
        if not issubclass(op_type, LaunchOp):
            return super()._parse_generic_operation(op_type)
        values = self.parse_op_args_list()
        properties = self.parse_optional_properties_dict()
        regions = self.parse_region_list()
        attributes = self.parse_optional_attr_dict()
        self.parse_punctuation(":")
        at = self.pos
        type_ = self.parse_function_type()
        if not regions:
            regions = [self.parse_region()]  # earlier MLIR has the body behind the type
        for name in ("operandSegmentSizes", "workgroup_attributions"):
            if name in attributes:
                properties[name] = attributes.pop(name)
        operands = self.resolve_operands(values, type_.inputs.data, at)
        return op_type.create(
            operands=operands, result_types=type_.outputs.data, properties=properties, attributes=attributes, regions=regions
        )


def _todays(found: re.Match[str]) -> str:
    """Return spaces for a comment, and today's type for a type, as long as before so that what follows keeps its column."""
    if found["comment"] is not None:
        return re.sub(r"[^\n]", " ", found[0])
    if found["name"] is None:
        return found[0]
    name = found["name"].strip()
    scalar = _scalar(name.removesuffix("*").strip())
    if name.endswith("*"):
        new = "!llvm.ptr" if scalar is None else f"!_p_{name.removesuffix('*').strip()}"
    else:
        new = found[0] if scalar is None else str(scalar)
    return new.ljust(len(found[0]))


def _scalar(name: str) -> AnyFloat | IntegerType | None:
    """Return a type of numbers by the name that LLVM gives it; None for another type."""
    width = re.fullmatch(r"i(\d+)", name)
    return IntegerType(int(width[1])) if width is not None else _LLVM_SCALARS.get(name)


class _EarlierDim(memref.DimOp):
    """Parses `%m, 0 : memref<..>` too, the number of the dimension in the text. `modernise` makes a constant of it."""

    def __new__(cls, *_: object, **__: object) -> memref.DimOp:  # pyright: ignore[reportInconsistentConstructor] - gives the base
        return object.__new__(memref.DimOp)

    @classmethod
    def parse(cls, parser: Parser) -> memref.DimOp:
        source = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        number = parser.parse_optional_integer(allow_boolean=False, allow_negative=False)
        index = [] if number is not None else [parser.parse_operand(IndexType())]
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        operands = [parser.resolve_operand(source, parser.parse_type()), *index]
        op = memref.DimOp.create(operands=operands, result_types=[IndexType()], attributes=attributes)
        if number is not None:
            op.attributes["index"] = IntegerAttr(number, IndexType())
        return op


def modernise(module: ModuleOp, places: dict[Operation, int]) -> None:
    """Replace the ops of earlier MLIR in a module before verification. New operations get the places of the old ones."""
    work = _Modern(places)
    for op in [*module.walk()]:
        work.visit(op)
    _put_into_main(module, places)


class _Modern:
    def __init__(self, places: dict[Operation, int]) -> None:
        self._places = places

    def visit(self, op: Operation) -> None:
        """Change an operation in place, or replace it."""
        match op:
            case gpu.IdOp():
                dimension = op.properties.get("dimension")
                if isinstance(dimension, StringAttr) and dimension.data in [*gpu.Dimension]:
                    op.properties["dimension"] = gpu.DimensionAttr(gpu.Dimension(dimension.data))
            case AllReduceOp():
                self._reduction(op)
            case LaunchOp() if "operandSegmentSizes" not in op.properties:
                self._launch(op)
            case LaunchFuncOp() if "operandSegmentSizes" not in op.properties:
                self._launch_func(op)
            case memref.GlobalOp():
                op.properties.setdefault("sym_visibility", StringAttr("public"))
                op.properties.setdefault("initial_value", UnitAttr())
            case memref.DimOp() if len(op.operands) == 1:
                self._dim(op)
            case ModuleOp() if "gpu.kernel_module" in op.attributes:
                self._kernel_module(op)
            case GpuModuleOp():
                self._kernels(op.body.block)
            case _:
                _fill_defaults(op)

    def _replace(self, op: Operation, *new: Operation) -> None:
        for each in new:
            self._places[each] = self._places.get(op, 0)
        Rewriter.replace_op(op, new)

    def _reduction(self, op: AllReduceOp) -> None:
        kind = op.properties.get("op")
        if not isinstance(kind, StringAttr):
            return
        table = _INTEGER_REDUCTIONS if isinstance(op.operands[0].type, IntegerType | IndexType) else _FLOAT_REDUCTIONS
        if (found := table.get(kind.data)) is None and kind.data in [*ReduceOperation]:
            found = ReduceOperation(kind.data)
        if found is not None:
            op.properties["op"] = ReduceOperationAttr(found)

    def _launch(self, op: LaunchOp) -> None:
        sizes, values = [*op.operands[:6]], [*op.operands[6:]]
        region = op.detach_region(op.regions[0])
        implied_terminator(region)
        if region.blocks and len(region.blocks[0].args) >= len(values):
            capture(region, values)
        new = LaunchOp.create(
            operands=sizes,
            properties={"operandSegmentSizes": _segments(len(sizes), (0, 0, 0, 0))},
            attributes=op.attributes,
            regions=[region],
        )
        self._replace(op, new)

    def _launch_func(self, op: LaunchFuncOp) -> None:
        sizes, values = op.operands[:6], op.operands[6:]
        op.properties["operandSegmentSizes"] = _segments(len(sizes), (0, 0, 0, 0, len(values), 0))
        holder, kernel = op.attributes.pop("kernel_module", None), op.properties.get("kernel")
        if isinstance(holder, SymbolRefAttr) and isinstance(kernel, StringAttr | SymbolRefAttr):
            name = kernel.data if isinstance(kernel, StringAttr) else kernel.root_reference.data
            op.properties["kernel"] = SymbolRefAttr(holder.root_reference.data, [name])

    def _dim(self, op: memref.DimOp) -> None:
        index = op.attributes.pop("index", IntegerAttr(0, IndexType()))
        constant = arith.ConstantOp(IntegerAttr(index.value.data if isinstance(index, IntegerAttr) else 0, IndexType()))
        Rewriter.insert_op(constant, InsertPoint.before(op))
        self._replace(op, memref.DimOp.create(operands=[op.operands[0], constant.result], result_types=[IndexType()]))

    def _kernel_module(self, op: ModuleOp) -> None:
        name = op.sym_name.data if op.sym_name is not None else ""
        inner = [*op.body.block.ops] if op.body.blocks else []
        for each in inner:
            each.detach()
        new = GpuModuleOp(name, inner)
        new.attributes |= {key: value for key, value in op.attributes.items() if key != "gpu.kernel_module"}
        self._replace(op, new)
        self._kernels(new.body.block)

    def _kernels(self, block: Block) -> None:
        """Make a gpu.func of every function that is marked as a kernel."""
        for each in [*block.ops]:
            if isinstance(each, GpuFuncOp):
                for mark in _KERNEL_MARKS:
                    if each.attributes.pop(mark, None) is not None:
                        each.properties["kernel"] = UnitAttr()
            elif isinstance(each, func.FuncOp) and any(mark in each.attributes for mark in _KERNEL_MARKS):
                self._kernel(each)

    def _kernel(self, op: func.FuncOp) -> None:
        body = op.detach_region(op.body)
        for block in body.blocks:
            last = block.last_op
            if isinstance(last, func.ReturnOp):
                self._replace(last, ReturnOp.create(operands=last.operands))
            elif last is None or not last.has_trait(IsTerminator, value_if_unregistered=False):
                block.add_op(ReturnOp.create())
        type_ = op.properties["function_type"]
        assert isinstance(type_, FunctionType), "a function has a type"
        new = GpuFuncOp(op.sym_name.data, type_, body)
        for key, value in op.attributes.items():
            if key in ("gpu.known_block_size", "gpu.known_grid_size"):
                new.properties[key.removeprefix("gpu.")] = value
            elif key not in _KERNEL_MARKS:
                new.attributes[key] = value
        self._replace(op, new)


def _segments(sizes: int, rest: Sequence[int]) -> Attribute:
    return DenseArrayBase.from_list(i32, [0, *([1] * sizes), *([0] * (6 - sizes)), *rest])


def _fill_defaults(op: Operation) -> None:
    """Add the flags that earlier MLIR does not write in generic form."""
    if op.name in ("arith.addi", "arith.subi", "arith.muli", "arith.shli"):
        op.properties.setdefault("overflowFlags", arith.IntegerOverflowAttr("none"))
    elif op.name.startswith("arith.") and op.name.endswith("f") and op.name not in ("arith.extf", "arith.truncf"):
        op.properties.setdefault("fastmath", arith.FastMathFlagsAttr("none"))


def _put_into_main(module: ModuleOp, places: dict[Operation, int]) -> None:
    """Put operations outside of functions, as in the listings, into a function."""
    loose = [op for op in module.body.block.ops if not op.has_trait(SymbolOpInterface) and not isinstance(op, ModuleOp)]
    if not loose:
        return
    for op in loose:
        op.detach()
    block = Block(loose)
    if block.last_op is None or not block.last_op.has_trait(IsTerminator, value_if_unregistered=False):
        block.add_op(func.ReturnOp())
    main = func.FuncOp(_MAIN, ([], []), Region(block))
    places[main] = places.get(loose[0], 0)
    module.body.block.add_op(main)
