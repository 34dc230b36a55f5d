"""Lowers ops other than arithmetic to LLVM: ids, barriers, shuffles, vectors, calls, branches; copies LLVM ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xdsl.dialects import cf, complex, func, llvm, vector
from xdsl.dialects.builtin import DenseArrayBase, UnrealizedConversionCastOp, i32, i64
from xdsl.ir import Attribute, Operation, SSAValue

from hlo_run.codegen.to_llvm.builder import Builder, Handler
from hlo_run.dialects import gpu, gpu_launch, llvm_extra, nvvm
from hlo_run.dialects.types import constant_int, is_vector
from hlo_run.errors import InternalError

_WARP_THREADS = 32
_SHUFFLE_KINDS = {
    gpu.ShuffleMode.DOWN: nvvm.ShuffleKind.DOWN,
    gpu.ShuffleMode.UP: nvvm.ShuffleKind.UP,
    gpu.ShuffleMode.XOR: nvvm.ShuffleKind.BFLY,
    gpu.ShuffleMode.IDX: nvvm.ShuffleKind.IDX,
}


def _id(registers: Mapping[str, type[Operation]]) -> Handler:
    """Return the lowering of an id. Its interval (`xla.range`) is dropped; the printer writes it from the launch dimensions."""

    def lower(builder: Builder, op: Any) -> None:
        value = builder.add(registers[op.dimension.data.value], [], i32)
        index_type = builder.module.index_type
        builder.values[op.result] = value if index_type == i32 else builder.add(llvm.SExtOp, [value], index_type)

    return lower


def _barrier(builder: Builder, op: gpu.BarrierOp) -> None:
    builder.append(nvvm.BarrierOp())


def _shuffle(builder: Builder, op: gpu.ShuffleOp) -> None:
    width = constant_int(op.width)
    if width is None or op.valid.uses:
        raise InternalError("a shuffle with a width that is not constant, or with users of its validity, has no lowering")
    mode = op.mode.data
    mask = (1 << width) - 1 - (1 << _WARP_THREADS if width == _WARP_THREADS else 0)
    clamp = _WARP_THREADS - width if mode is gpu.ShuffleMode.UP else width - 1
    shuffled = nvvm.ShuffleSyncOp(
        _SHUFFLE_KINDS[mode],
        builder.integer(mask, i32),
        builder.value(op.value),
        builder.value(op.offset),
        builder.integer(clamp, i32),
    )
    builder.append(shuffled)
    builder.values[op.shuffle_result] = shuffled.res


def _position(builder: Builder, op: vector.ExtractOp | vector.InsertOp) -> SSAValue:
    positions = op.get_mixed_position()
    if len(positions) != 1:
        raise InternalError(f"'{op.name}' with {len(positions)} positions: run flatten-tensors first")
    (position,) = positions
    return builder.integer(position, i32) if isinstance(position, int) else builder.value(position)


def _vector_extract(builder: Builder, op: vector.ExtractOp) -> None:
    source = builder.value(op.vector)
    position = _position(builder, op)
    builder.values[op.result] = builder.add(llvm_extra.ExtractElementOp, [source, position], builder.convert(op.result.type))


def _vector_insert(builder: Builder, op: vector.InsertOp) -> None:
    dest, element = builder.value(op.dest), builder.value(op.source)
    position = _position(builder, op)
    builder.values[op.result] = builder.add(llvm.InsertElementOp, [dest, element, position], dest.type)


def _vector_broadcast(builder: Builder, op: vector.BroadcastOp) -> None:
    type_ = builder.convert(op.vector.type)
    if not is_vector(type_) or is_vector(op.source.type):
        raise InternalError("only a scalar can be broadcast to a vector")
    poison = builder.add(llvm_extra.PoisonOp, [], type_)
    first = builder.add(llvm.InsertElementOp, [poison, builder.value(op.source), builder.integer(0, i32)], type_)
    mask = DenseArrayBase.from_list(i32, [0] * type_.get_shape()[0])
    builder.values[op.vector] = builder.add(llvm.ShuffleVectorOp, [first, poison], type_, {"mask": mask})


def _call(builder: Builder, op: func.CallOp) -> None:
    arguments = builder.operands(op)
    if not op.results:
        builder.append(llvm.CallOp(op.callee, *arguments))
        return
    returned = builder.call_function(op.callee, arguments, builder.module.result_type(op.result_types))
    if len(op.results) == 1:
        builder.values[op.results[0]] = returned
        return
    for number, result in enumerate(op.results):
        position = DenseArrayBase.from_list(i64, [number])
        type_ = builder.convert(result.type)
        builder.values[result] = builder.add(llvm.ExtractValueOp, [returned], type_, {"position": position})


def _return(builder: Builder, op: func.ReturnOp) -> None:
    values = builder.operands(op)
    if len(values) <= 1:
        builder.append(llvm.ReturnOp(values[0] if values else None))
        return
    builder.append(llvm.ReturnOp(_struct(builder, values, builder.module.result_type(op.operand_types))))


def _branch(builder: Builder, op: cf.BranchOp) -> None:
    builder.append(llvm.BrOp(builder.blocks[op.successor], *builder.operands(op)))


def _conditional_branch(builder: Builder, op: cf.ConditionalBranchOp) -> None:
    then_values = [builder.value(value) for value in op.then_arguments]
    else_values = [builder.value(value) for value in op.else_arguments]
    then_block, else_block = builder.blocks[op.then_block], builder.blocks[op.else_block]
    builder.append(llvm.CondBrOp(builder.value(op.cond), then_block, then_values, else_block, else_values))


def _switch(builder: Builder, op: cf.SwitchOp) -> None:
    if op.default_operands or op.case_operands:
        raise InternalError("a switch that passes values to its blocks has no lowering to LLVM")
    numbers = [] if op.case_values is None else [*op.case_values.get_values()]
    targets = [builder.blocks[block] for block in op.case_blocks]
    builder.append(llvm_extra.SwitchOp(builder.value(op.flag), builder.blocks[op.default_block], numbers, targets))


def _copied(builder: Builder, op: Operation) -> None:
    """Copy an op of the LLVM dialect. Only its operands and its 8-bit float types change."""
    types: list[Attribute] = [builder.convert(result.type) for result in op.results]
    copy = type(op).create(operands=builder.operands(op), result_types=types, properties=op.properties, attributes=op.attributes)
    builder.append(copy)
    for old, new in zip(op.results, copy.results, strict=True):
        builder.values[old] = new


def _llvm_constant(builder: Builder, op: llvm.ConstantOp) -> None:
    builder.values[op.result] = builder.constant(op.value, op.result.type)


def _complex_of(builder: Builder, op: complex.CreateOp) -> None:
    builder.values[op.complex] = _struct(builder, builder.operands(op), builder.convert(op.complex.type))


def _complex_constant(builder: Builder, op: complex.ConstantOp) -> None:
    parts = [builder.constant(part, op.complex.type.element_type) for part in op.value]
    builder.values[op.complex] = _struct(builder, parts, builder.convert(op.complex.type))


def _struct(builder: Builder, values: Sequence[SSAValue], type_: Attribute) -> SSAValue:
    whole = builder.add(llvm_extra.PoisonOp, [], type_)
    for number, value in enumerate(values):
        position = DenseArrayBase.from_list(i64, [number])
        whole = builder.add(llvm.InsertValueOp, [whole, value], type_, {"position": position})
    return whole


def _complex_part(number: int) -> Handler:
    def lower(builder: Builder, op: complex.ReOp | complex.ImOp) -> None:
        position = DenseArrayBase.from_list(i64, [number])
        type_ = builder.convert(op.result.type)
        builder.values[op.result] = builder.add(llvm.ExtractValueOp, builder.operands(op), type_, {"position": position})

    return lower


def _cast(builder: Builder, op: UnrealizedConversionCastOp) -> None:
    """Lower a cast between a type and its type in LLVM, as in dumps of XLA. A cast without users is dropped."""
    if not any(result.uses for result in op.outputs):
        return
    (value,) = builder.operands(op)
    if len(op.outputs) != 1 or builder.convert(op.outputs[0].type) != value.type:
        raise InternalError(f"a cast from {op.inputs[0].type} to {op.outputs[0].type} has no lowering")
    builder.values[op.outputs[0]] = value


COPIED = (
    nvvm.GridDependencyOp,
    llvm_extra.LoadOp,
    llvm.StoreOp,
    llvm.ExtractValueOp,
    llvm.InsertValueOp,
    llvm.InlineAsmOp,
    llvm.CallIntrinsicOp,
    llvm_extra.AtomicRMWOp,
    llvm_extra.AtomicCmpXchgOp,
    llvm_extra.GEPOp,
    llvm.AddressOfOp,
    llvm.AllocaOp,
    llvm.PtrToIntOp,
    llvm_extra.AddrSpaceCastOp,
    llvm_extra.PoisonOp,
    # XLA's dumps have these before the lowering: masks of packed elements, words of an atomic.
    *(llvm.AddOp, llvm.SubOp, llvm.MulOp, llvm.UDivOp, llvm.URemOp, llvm.AndOp, llvm.OrOp, llvm.XOrOp),
    *(llvm.ShlOp, llvm.LShrOp, llvm.AShrOp, llvm.TruncOp, llvm.ZExtOp, llvm.SExtOp, llvm.BitcastOp, llvm.ICmpOp),
    *(llvm.SelectOp, llvm.IntToPtrOp),
)

STRUCTURE: dict[type[Operation], Handler] = {
    gpu.ThreadIdOp: _id(nvvm.THREAD_ID_OPS),
    gpu.BlockIdOp: _id(nvvm.BLOCK_ID_OPS),
    gpu_launch.BlockDimOp: _id(nvvm.BLOCK_DIM_OPS),
    gpu_launch.GridDimOp: _id(nvvm.GRID_DIM_OPS),
    gpu.BarrierOp: _barrier,
    gpu.ShuffleOp: _shuffle,
    vector.ExtractOp: _vector_extract,
    vector.InsertOp: _vector_insert,
    vector.BroadcastOp: _vector_broadcast,
    UnrealizedConversionCastOp: _cast,
    func.CallOp: _call,
    func.ReturnOp: _return,
    cf.BranchOp: _branch,
    cf.ConditionalBranchOp: _conditional_branch,
    cf.SwitchOp: _switch,
    complex.CreateOp: _complex_of,
    complex.ConstantOp: _complex_constant,
    complex.ReOp: _complex_part(0),
    complex.ImOp: _complex_part(1),
    llvm.ConstantOp: _llvm_constant,
    **dict.fromkeys(COPIED, _copied),
}
