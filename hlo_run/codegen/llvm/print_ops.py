"""Prints each op of the LLVM dialect as an instruction of LLVM IR text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from msgspec import Struct, field
from xdsl.dialects import llvm
from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Attribute, Block, Operation, SSAValue

from hlo_run.codegen.llvm.print_values import constant_text, intrinsic_suffix, type_text
from hlo_run.dialects import llvm_extra, nvvm
from hlo_run.errors import InternalError

_BARRIER = "llvm.nvvm.barrier.cta.sync.aligned.all"
_ICMP = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
_FCMP = (
    *("false", "oeq", "ogt", "oge", "olt", "ole", "one", "ord"),
    *("ueq", "ugt", "uge", "ult", "ule", "une", "uno", "true"),
)
_FAST_MATH = ("fast", "reassoc", "nnan", "ninf", "nsz", "arcp", "contract", "afn")


class ModuleText(Struct):
    """Declarations of intrinsics and metadata that the functions of a module share, in order of first use."""

    id_sizes: Mapping[type[Operation], int]
    intrinsics: dict[str, str] = field(default_factory=dict[str, str])
    metadata: dict[str, int] = field(default_factory=dict[str, int])

    def node(self, text: str) -> str:
        """Return the reference `!N` of a metadata node."""
        return f"!{self.metadata.setdefault(text, len(self.metadata))}"


class FunctionNames(Struct):
    """The texts of a function's values and blocks as operands; the text of a constant is its value."""

    module: ModuleText
    names: dict[SSAValue, str] = field(default_factory=dict[SSAValue, str])
    labels: dict[Block, str] = field(default_factory=dict[Block, str])

    def typed(self, value: SSAValue) -> str:
        """Return a value with its type, the form of most operands."""
        return f"{type_text(value.type)} {self.names[value]}"

    def label(self, block: Block) -> str:
        """Return the operand of a branch to a block, `label` and its name."""
        return f"label {self.labels[block]}"

    def call_intrinsic(self, name: str, type_: Attribute, arguments: Iterable[str], flags: str = "") -> str:
        """Return a call of an intrinsic, and declare the intrinsic. `arguments` have the form `type value`."""
        texts = list(arguments)
        result = type_text(type_)
        if name not in self.module.intrinsics:
            types = ", ".join(text.rpartition(" ")[0] for text in texts)
            self.module.intrinsics[name] = f"declare {result} @{name}({types})"
        return f"call {flags}{result} @{name}({', '.join(texts)})"


def inline_text(op: Operation) -> str | None:
    """Return the text of a constant as an operand; None for an op that is an instruction."""
    match op:
        case llvm.ConstantOp():
            return constant_text(op.value, op.result.type)
        case llvm.AddressOfOp():
            return f"@{op.global_name.root_reference.data}"
        case llvm_extra.PoisonOp():
            return "poison"
        case llvm.UndefOp():
            return "undef"
        case llvm.ZeroOp():
            return "null" if isinstance(op.res.type, llvm.LLVMPointerType) else "zeroinitializer"
        case _:
            return None


Writer: TypeAlias = Callable[[FunctionNames, Any], str]


def _flags(op: Operation) -> str:
    """Return the fast-math flags of an op, each followed by a space."""
    attribute = op.properties.get("fastmathFlags")
    if not isinstance(attribute, llvm.FastMathAttr) or not attribute.data:
        return ""
    present = {flag.value for flag in attribute.data}
    if len(present) == len(_FAST_MATH) - 1:
        return "fast "
    return "".join(f"{flag} " for flag in _FAST_MATH if flag in present)


def _overflow_flags(op: Operation) -> str:
    attribute = op.properties.get("overflowFlags")
    bits = attribute.value.data if isinstance(attribute, IntegerAttr) else 0
    return ("nuw " if bits & 2 else "") + ("nsw " if bits & 1 else "")


def _binary(keyword: str, flags: Callable[[Operation], str] | None = None) -> Writer:
    def write(text: FunctionNames, op: Any) -> str:
        lhs, rhs = op.operands
        extra = flags(op) if flags is not None else ""
        return f"{keyword} {extra}{text.typed(lhs)}, {text.names[rhs]}"

    return write


def _cast(keyword: str) -> Writer:
    def write(text: FunctionNames, op: Any) -> str:
        return f"{keyword} {text.typed(op.operands[0])} to {type_text(op.results[0].type)}"

    return write


def _intrinsic(name: str, *extra: str) -> Writer:
    """Return the writer of a call of `llvm.NAME.TYPE` with the op's operands, then the immediate arguments `extra`."""

    def write(text: FunctionNames, op: Any) -> str:
        type_ = op.results[0].type
        arguments = [*map(text.typed, op.operands), *extra]
        return text.call_intrinsic(f"llvm.{name}.{intrinsic_suffix(type_)}", type_, arguments, _flags(op))

    return write


def _register(register: str) -> Writer:
    def write(text: FunctionNames, op: Any) -> str:
        interval = text.module.node(f"!{{i32 0, i32 {text.module.id_sizes[type(op)]}}}")
        return f"{text.call_intrinsic(f'llvm.nvvm.read.ptx.sreg.{register}', op.results[0].type, ())}, !range {interval}"

    return write


def _dimension(register: str) -> Writer:
    def write(text: FunctionNames, op: Any) -> str:
        return text.call_intrinsic(f"llvm.nvvm.read.ptx.sreg.{register}", op.results[0].type, ())

    return write


def _barrier(text: FunctionNames, op: nvvm.BarrierOp) -> str:
    return text.call_intrinsic(_BARRIER, llvm.LLVMVoidType(), ("i32 0",))


def _grid_dependency(text: FunctionNames, op: nvvm.GridDependencyOp) -> str:
    action = str(op.kind.data.value).replace("_", ".")
    return text.call_intrinsic(f"llvm.nvvm.griddepcontrol.{action}", llvm.LLVMVoidType(), ())


def _shuffle(text: FunctionNames, op: nvvm.ShuffleSyncOp) -> str:
    name = f"llvm.nvvm.shfl.sync.{op.kind.data.value}.{intrinsic_suffix(op.res.type)}"
    return text.call_intrinsic(name, op.res.type, map(text.typed, op.operands))


def _icmp(text: FunctionNames, op: llvm.ICmpOp) -> str:
    return f"icmp {_ICMP[op.predicate.value.data]} {text.typed(op.lhs)}, {text.names[op.rhs]}"


def _fcmp(text: FunctionNames, op: llvm.FCmpOp) -> str:
    return f"fcmp {_flags(op)}{_FCMP[op.predicate.value.data]} {text.typed(op.lhs)}, {text.names[op.rhs]}"


def _fneg(text: FunctionNames, op: llvm.FNegOp) -> str:
    return f"fneg {_flags(op)}{text.typed(op.operands[0])}"


def _operand_list(keyword: str) -> Writer:
    def write(text: FunctionNames, op: Any) -> str:
        return f"{keyword} {', '.join(map(text.typed, op.operands))}"

    return write


def _insert_element(text: FunctionNames, op: llvm.InsertElementOp) -> str:
    return f"insertelement {text.typed(op.vector)}, {text.typed(op.value)}, {text.typed(op.index)}"


def _shuffle_vector(text: FunctionNames, op: llvm.ShuffleVectorOp) -> str:
    lanes = [f"i32 {lane}" if lane >= 0 else "i32 poison" for lane in op.mask.get_values()]
    return f"shufflevector {text.typed(op.v1)}, {text.typed(op.v2)}, <{len(lanes)} x i32> <{', '.join(lanes)}>"


def _positions(op: llvm.ExtractValueOp | llvm.InsertValueOp) -> str:
    return ", ".join(map(str, op.position.get_values()))


def _extract_value(text: FunctionNames, op: llvm.ExtractValueOp) -> str:
    return f"extractvalue {text.typed(op.operands[0])}, {_positions(op)}"


def _insert_value(text: FunctionNames, op: llvm.InsertValueOp) -> str:
    return f"insertvalue {text.typed(op.operands[0])}, {text.typed(op.operands[1])}, {_positions(op)}"


def _gep(text: FunctionNames, op: llvm_extra.GEPOp) -> str:
    indices = [f"i32 {index}" if isinstance(index, int) else text.typed(index) for index in op.mixed_indices()]
    inbounds = "inbounds " if op.inbounds else ""
    return f"getelementptr {inbounds}{type_text(op.elem_type)}, {text.typed(op.ptr)}, {', '.join(indices)}"


def _load(text: FunctionNames, op: llvm_extra.LoadOp) -> str:
    invariant = f", !invariant.load {text.module.node('!{}')}" if op.invariant is not None else ""
    return f"load {type_text(op.res.type)}, {text.typed(op.ptr)}{_alignment(op.alignment)}{invariant}"


def _store(text: FunctionNames, op: llvm.StoreOp) -> str:
    return f"store {text.typed(op.value)}, {text.typed(op.ptr)}{_alignment(op.alignment)}"


def _alloca(text: FunctionNames, op: llvm.AllocaOp) -> str:
    return f"alloca {type_text(op.elem_type)}, {text.typed(op.size)}{_alignment(op.alignment)}"


def _atomic_rmw(text: FunctionNames, op: llvm_extra.AtomicRMWOp) -> str:
    return f"atomicrmw {op.keyword.removeprefix('_')} {text.typed(op.ptr)}, {text.typed(op.value)} monotonic"


def _compare_exchange(text: FunctionNames, op: llvm_extra.AtomicCmpXchgOp) -> str:
    return f"cmpxchg {text.typed(op.ptr)}, {text.typed(op.cmp)}, {text.typed(op.val)} monotonic monotonic"


def _inline_asm(text: FunctionNames, op: llvm.InlineAsmOp) -> str:
    result = "void" if op.res is None else type_text(op.res.type)
    effects = "sideeffect " if op.has_side_effects is not None else ""
    arguments = ", ".join(map(text.typed, op.operands))
    return f'call {result} asm {effects}"{op.asm_string.data}", "{op.constraints.data}"({arguments})'


def _alignment(attribute: Attribute | None) -> str:
    return f", align {attribute.value.data}" if isinstance(attribute, IntegerAttr) else ""


def _call(text: FunctionNames, op: llvm.CallOp) -> str:
    callee = op.callee
    if callee is None:
        raise InternalError("a call through a pointer has no LLVM IR text")
    result = "void" if op.returned is None else type_text(op.returned.type)
    return f"call {result} @{callee.root_reference.data}({', '.join(map(text.typed, op.args))})"


def _call_intrinsic(text: FunctionNames, op: llvm.CallIntrinsicOp) -> str:
    return text.call_intrinsic(op.intrin.data, op.results[0].type, map(text.typed, op.args))


def _branch(text: FunctionNames, op: llvm.BrOp) -> str:
    return f"br {text.label(op.successor)}"


def _conditional_branch(text: FunctionNames, op: llvm.CondBrOp) -> str:
    return f"br i1 {text.names[op.cond]}, {text.label(op.then_block)}, {text.label(op.else_block)}"


def _switch(text: FunctionNames, op: llvm_extra.SwitchOp) -> str:
    type_ = type_text(op.value.type)
    cases = " ".join(f"{type_} {number}, {text.label(block)}" for number, block in op.cases())
    return f"switch {text.typed(op.value)}, {text.label(op.default_block)} [ {cases} ]"


def _return(text: FunctionNames, op: llvm.ReturnOp) -> str:
    return "ret void" if op.arg is None else f"ret {text.typed(op.arg)}"


WRITERS: dict[type[Operation], Writer] = {
    llvm.AddOp: _binary("add", _overflow_flags),
    llvm.SubOp: _binary("sub", _overflow_flags),
    llvm.MulOp: _binary("mul", _overflow_flags),
    llvm.ShlOp: _binary("shl", _overflow_flags),
    **{
        kind: _binary(keyword)
        for keyword, kind in {
            "udiv": llvm.UDivOp,
            "sdiv": llvm.SDivOp,
            "urem": llvm.URemOp,
            "srem": llvm.SRemOp,
            "and": llvm.AndOp,
            "or": llvm.OrOp,
            "xor": llvm.XOrOp,
            "lshr": llvm.LShrOp,
            "ashr": llvm.AShrOp,
        }.items()
    },
    llvm.FAddOp: _binary("fadd", _flags),
    llvm.FSubOp: _binary("fsub", _flags),
    llvm.FMulOp: _binary("fmul", _flags),
    llvm.FDivOp: _binary("fdiv", _flags),
    llvm.FNegOp: _fneg,
    **{
        kind: _cast(keyword)
        for keyword, kind in {
            "trunc": llvm.TruncOp,
            "zext": llvm.ZExtOp,
            "sext": llvm.SExtOp,
            "fpext": llvm.FPExtOp,
            "fptrunc": llvm.FPTruncOp,
            "sitofp": llvm.SIToFPOp,
            "uitofp": llvm_extra.UIToFPOp,
            "fptosi": llvm_extra.FPToSIOp,
            "fptoui": llvm_extra.FPToUIOp,
            "bitcast": llvm.BitcastOp,
            "addrspacecast": llvm_extra.AddrSpaceCastOp,
            "inttoptr": llvm.IntToPtrOp,
            "ptrtoint": llvm.PtrToIntOp,
        }.items()
    },
    llvm.ICmpOp: _icmp,
    llvm.FCmpOp: _fcmp,
    llvm.SelectOp: _operand_list("select"),
    llvm_extra.ExtractElementOp: _operand_list("extractelement"),
    llvm.InsertElementOp: _insert_element,
    llvm.ShuffleVectorOp: _shuffle_vector,
    llvm.ExtractValueOp: _extract_value,
    llvm.InsertValueOp: _insert_value,
    llvm_extra.GEPOp: _gep,
    llvm_extra.LoadOp: _load,
    llvm.AllocaOp: _alloca,
    llvm.StoreOp: _store,
    llvm_extra.AtomicRMWOp: _atomic_rmw,
    llvm_extra.AtomicCmpXchgOp: _compare_exchange,
    llvm.InlineAsmOp: _inline_asm,
    llvm.CallOp: _call,
    llvm.CallIntrinsicOp: _call_intrinsic,
    llvm.BrOp: _branch,
    llvm.CondBrOp: _conditional_branch,
    llvm_extra.SwitchOp: _switch,
    llvm.ReturnOp: _return,
    llvm_extra.MaximumOp: _intrinsic("maximum"),
    llvm_extra.MinimumOp: _intrinsic("minimum"),
    llvm.VectorFMaxOp: _intrinsic("maxnum"),
    llvm.VectorFMinOp: _intrinsic("minnum"),
    llvm_extra.SMaxOp: _intrinsic("smax"),
    llvm_extra.SMinOp: _intrinsic("smin"),
    llvm_extra.UMaxOp: _intrinsic("umax"),
    llvm_extra.UMinOp: _intrinsic("umin"),
    llvm_extra.CtPopOp: _intrinsic("ctpop"),
    llvm_extra.CountLeadingZerosOp: _intrinsic("ctlz", "i1 false"),
    llvm_extra.AbsOp: _intrinsic("abs", "i1 false"),
    llvm_extra.TruncOp: _intrinsic("trunc"),
    **{kind: _register(f"tid.{axis}") for axis, kind in nvvm.THREAD_ID_OPS.items()},
    **{kind: _register(f"ctaid.{axis}") for axis, kind in nvvm.BLOCK_ID_OPS.items()},
    **{op: _dimension(f"ntid.{axis}") for axis, op in nvvm.BLOCK_DIM_OPS.items()},
    **{op: _dimension(f"nctaid.{axis}") for axis, op in nvvm.GRID_DIM_OPS.items()},
    nvvm.BarrierOp: _barrier,
    nvvm.GridDependencyOp: _grid_dependency,
    nvvm.ShuffleSyncOp: _shuffle,
}
