"""Lower tensors to pointers: a tensor value is the state of a buffer, so its reads and writes become loads and stores.

    func.func @k(%in: tensor<8xf32> {xla.invariant},      func.func @k(%in: !llvm.ptr {xla.invariant}, %out: !llvm.ptr) {
                 %out: tensor<8xf32>) -> tensor<8xf32> {    %j = arith.index_castui %i : index to i32
      %x = tensor.extract %in[%i]                           %p = llvm.getelementptr inbounds %in[%j] : .., f32
      %r = tensor.insert %x into %out[%i]            =>     %x = llvm.load %p invariant
      return %r                                             %q = llvm.getelementptr inbounds %out[%j] : .., f32
    }                                                       llvm.store %x, %q
                                                            return
                                                          }

Shared tiles become globals in address space 3, array constants become constant globals, sync_threads becomes a barrier, and
transfers become vector loads and stores. Tensors are removed from the results of functions, loops and ifs. The pass needs
flat tensors (rank 0 or 1) and ordinary calls. A vector access has the alignment that follows from the indexing map and from
`llvm.align` of the kernel's argument; tiles of narrow elements begin at a bank word. LLVM may derive a higher alignment.
Loads from arguments marked `xla.invariant` become `invariant`. Several elements of less than a byte share a byte (see
`dialects/editing/packed.py`). Complex numbers in memory are structs of their parts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import gcd
from typing import Any

from msgspec import Struct, field
from xdsl.context import Context
from xdsl.dialects import arith, complex, func, llvm, scf, tensor, vector
from xdsl.dialects.builtin import (
    DenseArrayBase,
    DenseIntOrFPElementsAttr,
    FunctionType,
    IntAttr,
    IntegerAttr,
    IntegerType,
    ModuleOp,
    TensorType,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from hlo_run.dialects.arith_extra import IndexCastUIOp
from hlo_run.dialects.editing.atomics import lower_atomic, lower_packed_atomic
from hlo_run.dialects.editing.loops import hand_on_origin, yield_of
from hlo_run.dialects.editing.memory import SHARED_SPACE, Globals, memory_type
from hlo_run.dialects.editing.packed import BYTE_BITS, PackedAccess, bits_of, is_packed, packed_constant
from hlo_run.dialects.gpu import BarrierOp
from hlo_run.dialects.llvm_extra import AddrSpaceCastOp, GEPOp, LoadOp, PoisonOp
from hlo_run.dialects.module_info import index_bits
from hlo_run.dialects.types import constant_int, is_complex, is_tensor, is_vector, tensor_type
from hlo_run.dialects.xla_gpu import AllocateSharedOp, ApplyIndexingOp, AtomicRMWOp, SyncThreadsOp
from hlo_run.indexing.divisor import divisor_of

_POINTER = llvm.LLVMPointerType()
# Tiles of narrow elements begin at a bank word, so that whole words can be loaded and stored.
_BANK_WORD_BYTES = 4
_SHARED_POINTER = llvm.LLVMPointerType(IntAttr(SHARED_SPACE))


class LowerTensors(ModulePass):
    """Lowers tensors to pointers, and element accesses to loads and stores."""

    name = "lower-tensors"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Lower every function. Constant tensors and shared memory become globals."""
        globals_ = Globals(op)
        index_type = IntegerType(index_bits(op))
        for function in [each for each in op.body.block.ops if isinstance(each, func.FuncOp)]:
            _FunctionLowering(globals_, index_type).run(function)


def _offset_divisor(index: SSAValue) -> int:
    """Return a number that divides the index; 0 if it is always 0."""
    number = constant_int(index)
    if number is not None:
        return abs(number)
    producer = index.owner
    return divisor_of(producer.map.results[producer.res.index(index)]) if isinstance(producer, ApplyIndexingOp) else 1


def _array_type(type_: TensorType[Attribute]) -> llvm.LLVMArrayType:
    element, count = type_.get_element_type(), type_.element_count()
    if is_packed(element):
        count = -(-count * bits_of(element) // BYTE_BITS)
    return llvm.LLVMArrayType(count, memory_type(element))


class _FunctionLowering(Struct):
    """Lowers one function in program order. Each visited tensor value is replaced by its pointer in all users."""

    globals: Globals
    index_type: IntegerType
    alignments: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    invariant: set[SSAValue] = field(default_factory=set[SSAValue])

    def run(self, function: func.FuncOp) -> None:
        if function.body.blocks:
            self._arguments(function)
            for block in function.body.blocks:
                self._block(block)
        inputs = [_POINTER if is_tensor(type_) else type_ for type_ in function.function_type.inputs]
        outputs = [type_ for type_ in function.function_type.outputs if not is_tensor(type_)]
        function.function_type = FunctionType.from_lists(inputs, outputs)

    def _arguments(self, function: func.FuncOp) -> None:
        attributes = function.arg_attrs.data if function.arg_attrs is not None else ()
        for number, arg in enumerate(function.body.blocks[0].args):
            if not is_tensor(arg.type):
                continue
            memory_type(arg.type.get_element_type())
            pointer = Rewriter.replace_value_with_new_type(arg, _POINTER)
            if not attributes:
                continue
            if "xla.invariant" in attributes[number].data:
                self.invariant.add(pointer)
            alignment = attributes[number].data.get("llvm.align")
            if isinstance(alignment, IntegerAttr):
                self.alignments[pointer] = alignment.value.data

    def _block(self, block: Block) -> None:
        for op in [*block.ops]:
            self._operation(op)

    def _operation(self, op: Operation) -> None:
        lower = _LOWERINGS.get(type(op))
        if lower is not None:
            for result in op.results:
                if is_tensor(result.type):
                    result.name_hint = None  # the name of a state is not the name of the buffer
            lower(self, op)
            return
        assert not any(is_tensor(result.type) for result in op.results), f"{op.name} returns a tensor but has no lowering"

    def extract(self, op: tensor.ExtractOp) -> None:
        self._load(op, op.tensor, op.indices, op.result.type, alignment=None)

    def insert(self, op: tensor.InsertOp) -> None:
        self._store(op, op.scalar, op.dest, op.indices, alignment=None)

    def transfer_read(self, op: vector.TransferReadOp) -> None:
        self._load(op, op.source, op.indices, op.result.type, self._vector_alignment(op.source, op.indices, op.result.type))

    def transfer_write(self, op: vector.TransferWriteOp) -> None:
        self._store(op, op.vector, op.source, op.indices, self._vector_alignment(op.source, op.indices, op.vector.type))

    def synchronize(self, op: SyncThreadsOp) -> None:
        Rewriter.replace_op(op, hand_on_origin(op, BarrierOp()), [*op.tensors])

    def select(self, op: arith.SelectOp) -> None:
        if not is_tensor(op.result.type):
            return
        if op.lhs is op.rhs:
            Rewriter.replace_op(op, [], [op.lhs])
        else:
            Rewriter.replace_op(op, hand_on_origin(op, arith.SelectOp(op.cond, op.lhs, op.rhs)))

    def return_(self, op: func.ReturnOp) -> None:
        op.operands = [operand for operand in op.operands if operand.type != _POINTER]

    def atomic(self, op: AtomicRMWOp) -> None:
        current = op.current.type
        element = current.get_element_type() if is_vector(current) else current
        if is_packed(element):
            packed = self._packed(op, element)
            address, shift = packed.address(op.tensor, self._index(op, op.indices))
            lower_packed_atomic(op, address, shift, element)
        else:
            lower_atomic(op, self._address(op, op.tensor, op.indices, memory_type(element)))
        Rewriter.replace_op(op, [], [op.tensor])

    # Accesses.

    def _load(
        self, op: Operation, source: SSAValue, indices: Sequence[SSAValue], type_: Attribute, alignment: int | None
    ) -> None:
        element = type_.get_element_type() if is_vector(type_) else type_
        stored, invariant = memory_type(element), source in self.invariant
        if is_packed(element):
            packed, index = self._packed(op, element), self._index(op, indices)
            if is_vector(type_):
                value = packed.load_vector(source, index, type_.get_shape()[0], alignment or 1, invariant=invariant)
            else:
                value = packed.load(source, index, invariant=invariant)
            Rewriter.replace_op(op, [], [value])
            return
        address = self._address(op, source, indices, stored)
        loaded_type = type_ if stored == element else _with_element(type_, stored)
        load = LoadOp(address, loaded_type, alignment, invariant=invariant)
        load.res.name_hint = op.results[0].name_hint
        hand_on_origin(op, load)
        if stored == element:
            Rewriter.replace_op(op, load)
        elif is_complex(element):
            parts = [
                llvm.ExtractValueOp(DenseArrayBase.from_list(i64, [part]), load.res, element.element_type) for part in (0, 1)
            ]
            new = [load, *parts, complex.CreateOp(parts[0], parts[1], element)]
            Rewriter.replace_op(op, [hand_on_origin(op, each) for each in new])
        else:
            Rewriter.replace_op(op, [load, hand_on_origin(op, arith.BitcastOp(load.res, type_))])

    def _store(self, op: Operation, value: SSAValue, dest: SSAValue, indices: Sequence[SSAValue], alignment: int | None) -> None:
        element = value.type.get_element_type() if is_vector(value.type) else value.type
        stored = memory_type(element)
        if is_packed(element):
            packed, index = self._packed(op, element), self._index(op, indices)
            if is_vector(value.type):
                packed.store_vector(value, dest, index, alignment or 1)
            else:
                packed.store(value, dest, index)
            Rewriter.replace_op(op, [], [dest] if op.results else [])
            return
        address = self._address(op, dest, indices, stored)
        if is_complex(element):
            value = self._struct_of(op, value, stored)
        elif stored != element:
            value = self._insert(op, arith.BitcastOp(value, _with_element(value.type, stored)))
        Rewriter.replace_op(op, hand_on_origin(op, llvm.StoreOp(value, address, alignment)), [dest] if op.results else [])

    def _struct_of(self, op: Operation, value: SSAValue, type_: Attribute) -> SSAValue:
        """Return a complex number as its struct in memory."""
        whole = self._insert(op, PoisonOp(type_))
        for number, part in enumerate((complex.ReOp, complex.ImOp)):
            position = DenseArrayBase.from_list(i64, [number])
            whole = self._insert(op, llvm.InsertValueOp(position, whole, self._insert(op, part(value))))
        return whole

    def _insert(self, op: Operation, new: Operation) -> SSAValue:
        Rewriter.insert_op(hand_on_origin(op, new), InsertPoint.before(op))
        return new.results[0]

    def _packed(self, op: Operation, element: Attribute) -> PackedAccess:
        def insert(new: Operation) -> SSAValue | None:
            Rewriter.insert_op(hand_on_origin(op, new), InsertPoint.before(op))
            return new.results[0] if new.results else None

        return PackedAccess(insert, element)

    def _index(self, op: Operation, indices: Sequence[SSAValue]) -> SSAValue | None:
        """Return the only index as an integer; None for an access of rank 0."""
        if not indices:
            return None
        assert len(indices) == 1, "flatten-tensors has run"
        number = constant_int(indices[0])
        if number is None:
            return self._insert(op, IndexCastUIOp(indices[0], self.index_type))
        return self._insert(op, arith.ConstantOp(IntegerAttr(number, self.index_type)))

    def _address(self, op: Operation, base: SSAValue, indices: Sequence[SSAValue], element: Attribute) -> SSAValue:
        index = self._index(op, indices)
        return base if index is None else self._insert(op, GEPOp(base, [index], element))

    def _vector_alignment(self, base: SSAValue, indices: Sequence[SSAValue], type_: Attribute) -> int:
        assert is_vector(type_), "a transfer moves a vector"
        bits = bits_of(type_.get_element_type())
        known = self.alignments.get(base)
        if known is None:
            return max(1, bits // BYTE_BITS)
        divisors = [_offset_divisor(index) for index in indices]
        return max(1, gcd(known * BYTE_BITS, *(divisor * bits for divisor in divisors)) // BYTE_BITS)

    # Buffers that the kernel allocates.

    def shared_tile(self, op: AllocateSharedOp) -> None:
        type_ = tensor_type(op.res)
        element = type_.get_element_type()
        is_narrow = not is_complex(element) and bits_of(element) < _BANK_WORD_BYTES * BYTE_BITS
        name = self.globals.shared(_array_type(type_), _BANK_WORD_BYTES if is_narrow else None)
        address = llvm.AddressOfOp(name, _SHARED_POINTER)
        cast = AddrSpaceCastOp(address, _POINTER)
        cast.result.name_hint = op.res.name_hint
        if is_narrow:
            self.alignments[cast.result] = _BANK_WORD_BYTES
        Rewriter.replace_op(op, [hand_on_origin(op, address), hand_on_origin(op, cast)])

    def constant(self, op: arith.ConstantOp) -> None:
        type_, value = op.result.type, op.value
        if not is_tensor(type_):
            return
        assert isinstance(value, DenseIntOrFPElementsAttr), "a tensor constant is dense"
        if is_packed(type_.get_element_type()):
            value = packed_constant(value, type_)
        name = self.globals.constant(_array_type(type_), value)
        Rewriter.replace_op(op, hand_on_origin(op, llvm.AddressOfOp(name, _POINTER)))

    # Control flow.

    def loop(self, op: scf.ForOp) -> None:
        """Lower a loop. Its tensors must be the same buffers in every step: the loop must yield the buffers of its inits."""
        body = op.body.block
        buffers = [place for place, arg in enumerate(body.args[1:]) if is_tensor(arg.type)]
        for place in buffers:
            _become(body.args[place + 1], op.iter_args[place])
        self._block(body)
        if not buffers:
            return
        ended, inits = yield_of(body), [*op.iter_args]
        assert all(ended.operands[place] is inits[place] for place in buffers), "a loop keeps its buffers"
        kept = [place for place in range(len(inits)) if place not in buffers]
        ended.operands = [ended.operands[place] for place in kept]
        for place in reversed(buffers):
            body.erase_arg(body.args[place + 1])
        new = scf.ForOp(op.lb, op.ub, op.step, [inits[place] for place in kept], op.detach_region(op.body))
        _replace_without(op, new, buffers, inits)

    def branches(self, op: scf.IfOp | scf.IndexSwitchOp) -> None:
        """Lower branches. A result that is the same buffer in all branches is removed; another tensor becomes a pointer."""
        blocks = [block for region in op.regions for block in region.blocks]
        for block in blocks:
            self._block(block)
        buffers = {place for place, result in enumerate(op.results) if is_tensor(result.type)}
        if not buffers:
            return
        ends = [yield_of(block) for block in blocks]
        firsts = [*ends[0].operands]
        same = {place for place in buffers if all(end.operands[place] is firsts[place] for end in ends)}
        for place in buffers - same:
            Rewriter.replace_value_with_new_type(op.results[place], _POINTER)
        if not same:
            return
        for end in ends:
            end.operands = [operand for place, operand in enumerate(end.operands) if place not in same]
        types = [result.type for place, result in enumerate(op.results) if place not in same]
        regions = [op.detach_region(region) for region in [*op.regions]]
        new = type(op).create(
            operands=op.operands, result_types=types, properties=op.properties, regions=regions, attributes=op.attributes
        )
        _replace_without(op, new, same, firsts)


_LOWERINGS: dict[type[Operation], Callable[[_FunctionLowering, Any], None]] = {
    tensor.ExtractOp: _FunctionLowering.extract,
    tensor.InsertOp: _FunctionLowering.insert,
    vector.TransferReadOp: _FunctionLowering.transfer_read,
    vector.TransferWriteOp: _FunctionLowering.transfer_write,
    AllocateSharedOp: _FunctionLowering.shared_tile,
    SyncThreadsOp: _FunctionLowering.synchronize,
    arith.ConstantOp: _FunctionLowering.constant,
    arith.SelectOp: _FunctionLowering.select,
    scf.ForOp: _FunctionLowering.loop,
    scf.IfOp: _FunctionLowering.branches,
    scf.IndexSwitchOp: _FunctionLowering.branches,
    func.ReturnOp: _FunctionLowering.return_,
    AtomicRMWOp: _FunctionLowering.atomic,
}


def _become(state: SSAValue, pointer: SSAValue) -> None:
    state.name_hint = None  # the name of a state is not the name of the buffer
    state.replace_all_uses_with(pointer)


def _with_element(type_: Attribute, element: Attribute) -> Attribute:
    return type(type_)(element, type_.get_shape()) if is_vector(type_) else element


def _replace_without(op: Operation, new: Operation, gone: Collection[int], pointers: Sequence[SSAValue]) -> None:
    """Replace `op` by `new`, and the results numbered `gone` by their pointers."""
    new.attributes |= op.attributes
    remaining = iter(new.results)
    results: list[SSAValue | None] = []
    for place, old in enumerate(op.results):
        if place in gone:
            results.append(pointers[place])
            continue
        result = next(remaining)
        result.name_hint = old.name_hint
        results.append(result)
    Rewriter.replace_op(op, new, results)
