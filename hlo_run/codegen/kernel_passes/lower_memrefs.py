"""Lower kernels over memrefs to functions over pointers.

    gpu.func @k(%x: memref<8x4xf32>, %a: f32)           func.func @k(%x: !llvm.ptr, %p: !llvm.ptr) attributes {xla.entry} {
        workgroup(%w : memref<4xf32, 3>) kernel {         %a = llvm.load %p : !llvm.ptr -> f32
      %v = memref.load %x[%i, %j]                 =>      %w = llvm.addrspacecast (llvm.mlir.addressof @shared_0)
      memref.store %v, %w[%j]                             %v = llvm.load (%x + %i * 4 + %j)
      gpu.return                                          llvm.store %v, (%w + %j)
    }                                                     return

Every argument of a kernel is one pointer: to the first element of a memref, or to a scalar. The sizes of memrefs are constants of
the types, or values of the kernel. Memrefs in shared memory become globals, those of a thread stack memory. The pass follows
casts and subviews of memrefs, which no loop or branch may return. An i1 takes a byte, an index 8.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct, field
from xdsl.context import Context
from xdsl.dialects import arith, func, llvm, memref, scf
from xdsl.dialects.builtin import (
    AffineMapAttr,
    DenseArrayBase,
    DenseIntOrFPElementsAttr,
    IndexType,
    IntAttr,
    IntegerAttr,
    IntegerType,
    MemRefType,
    ModuleOp,
    NoneAttr,
    StridedLayoutAttr,
    UnitAttr,
    UnrankedMemRefType,
    i1,
    i8,
    i32,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from hlo_run.dialects.editing.functions import ENTRY
from hlo_run.dialects.editing.loops import hand_on_origin
from hlo_run.dialects.editing.memory import SHARED_SPACE, Globals, memory_type
from hlo_run.dialects.editing.packed import bits_of
from hlo_run.dialects.editing.rewriting import replace_op
from hlo_run.dialects.gpu_kernel import GpuFuncOp, ReturnOp, space_number
from hlo_run.dialects.llvm_extra import AddrSpaceCastOp, AtomicCmpXchgOp, AtomicRMWOp, GEPOp, LoadOp
from hlo_run.dialects.memref_syntax import ATOMIC_KINDS
from hlo_run.dialects.types import constant_int, is_memref
from hlo_run.errors import Unsupported

_POINTER = llvm.LLVMPointerType()
_SHARED_POINTER = llvm.LLVMPointerType(IntAttr(SHARED_SPACE))
_DYNAMIC = -(1 << 63)
_ALIGNMENT_BYTES = 16
# Memref's names -> those of llvm.atomicrmw, for integers and floats.
_NATIVE_ATOMICS = {
    **{"addi": "add", "andi": "_and", "ori": "_or", "xori": "_xor", "maxs": "max", "maxu": "umax", "mins": "min", "minu": "umin"},
    **{"assign": "xchg", "addf": "fadd"},
}
_COMPUTED_ATOMICS: dict[str, type[Operation]] = {
    "mulf": arith.MulfOp,
    "muli": arith.MuliOp,
    "maximumf": arith.MaximumfOp,
    "maxnumf": arith.MaxnumfOp,
    "minimumf": arith.MinimumfOp,
    "minnumf": arith.MinnumfOp,
}
_SWAPPED_BITS = (32, 64)
Size = int | SSAValue


class LowerMemrefs(ModulePass):
    """Lowers gpu.func with memrefs to func.func with pointers."""

    name = "lower-memrefs"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Lower every gpu.func. Raises Unsupported for what has no lowering."""
        globals_ = Globals(op)
        arrays = {each.sym_name.data: each for each in op.body.block.ops if isinstance(each, memref.GlobalOp)}
        for function in [each for each in op.body.block.ops if isinstance(each, GpuFuncOp)]:
            _Lowering(function, globals_, arrays).run()
        for array in arrays.values():
            Rewriter.erase_op(array)


class _View(Struct, frozen=True):
    """The lowered form of a memref: the pointer to its first element, sizes, and strides in elements."""

    pointer: SSAValue
    sizes: tuple[Size, ...]
    strides: tuple[Size, ...]
    element: Attribute


def _stored(element: Attribute) -> Attribute:
    """Return the type of an element in memory."""
    if element == i1:
        return i8
    return i64 if isinstance(element, IndexType) else memory_type(element)


def _strides_of(type_: MemRefType, sizes: Sequence[Size]) -> tuple[int, ...]:
    """Return the strides of a memref that begins at its pointer. Raises Unsupported for layouts with unknown strides."""
    layout = type_.layout
    if isinstance(layout, StridedLayoutAttr):
        strides = layout.get_strides()
        if any(stride is None for stride in strides) or layout.get_offset() not in (0, None):
            raise Unsupported(f"a memref of type {type_}: its layout is not constant")
        return tuple(stride for stride in strides if stride is not None)
    is_row_major = isinstance(layout, NoneAttr) or layout == AffineMapAttr(AffineMap.identity(len(sizes)))
    if not is_row_major:
        raise Unsupported(f"a memref of type {type_}: its layout is an affine map")
    strides_: list[int] = []
    step = 1
    for size in reversed(sizes):
        strides_.insert(0, step)
        if not isinstance(size, int):
            raise Unsupported(f"a memref of type {type_}: its sizes are not constant")
        step *= size
    return tuple(strides_)


class _Lowering(Struct):
    """Lowers one function in program order. `views` has the lowered form of each memref."""

    function: GpuFuncOp
    globals: Globals
    arrays: dict[str, memref.GlobalOp]
    views: dict[SSAValue, _View] = field(default_factory=dict[SSAValue, _View])
    names: dict[str, str] = field(default_factory=dict[str, str])
    first: list[Operation] = field(default_factory=list[Operation])

    def run(self) -> None:
        entry = self.function.body.blocks[0]
        count = len(self.function.function_type.inputs)
        shared, private = (list(each) for each in self.function.attributions)
        for value in shared:
            self.views[value] = self._shared(value.type)
        for value in private:
            self.views[value] = self._stack(value.type)
        for argument in list(entry.args[:count]):
            self._argument(argument)
        start = entry.first_op
        assert start is not None, "the function has a terminator"
        Rewriter.insert_op(self.first, InsertPoint.before(start))
        for op in [*self.function.body.walk()]:
            self._operation(op)
        for argument in reversed(entry.args[count:]):
            entry.erase_arg(argument)
        self._finish(entry)

    def _finish(self, entry: Block) -> None:
        body = self.function.detach_region(self.function.body)
        for block in body.blocks:
            if isinstance(block.last_op, ReturnOp):
                Rewriter.replace_op(block.last_op, func.ReturnOp(*block.last_op.operands))
        new = func.FuncOp(self.function.sym_name.data, ([argument.type for argument in entry.args], []), body)
        new.attributes[ENTRY] = UnitAttr()
        Rewriter.replace_op(self.function, new, [])

    def _argument(self, argument: SSAValue) -> None:
        type_ = argument.type
        if isinstance(type_, llvm.LLVMPointerType):
            return
        if is_memref(type_):
            sizes = tuple(type_.get_shape())
            strides = _strides_of(type_, sizes)
            pointer = Rewriter.replace_value_with_new_type(argument, _POINTER)
            self.views[pointer] = _View(pointer, sizes, strides, type_.element_type)
            return
        uses = list(argument.uses)
        pointer = Rewriter.replace_value_with_new_type(argument, _POINTER)
        if not uses:
            return
        value = self._loaded(pointer, type_, self.first.append)
        value.name_hint = pointer.name_hint
        for use in uses:
            use.operation.operands[use.index] = value

    def _loaded(self, address: SSAValue, element: Attribute, add: Callable[[Operation], None]) -> SSAValue:
        stored = _stored(element)
        load = LoadOp(address, stored)
        add(load)
        if stored == element:
            return load.res
        if element == i1:
            cast: Operation = arith.TruncIOp(load.res, i1)
        elif isinstance(element, IndexType):
            cast = arith.IndexCastOp(load.res, element)
        else:
            cast = arith.BitcastOp(load.res, element)
        add(cast)
        return cast.results[0]

    # ---- memory of the kernel

    def _array(self, type_: Attribute) -> tuple[MemRefType, llvm.LLVMArrayType]:
        assert is_memref(type_), "memory of a kernel is a memref"
        if not type_.has_static_shape():
            raise Unsupported(f"memory of a kernel of type {type_}: its sizes are not constant")
        return type_, llvm.LLVMArrayType(max(type_.element_count(), 1), _stored(type_.element_type))

    def _shared(self, type_: Attribute) -> _View:
        known, array = self._array(type_)
        address = llvm.AddressOfOp(self.globals.shared(array, _ALIGNMENT_BYTES), _SHARED_POINTER)
        cast = AddrSpaceCastOp(address.result, _POINTER)
        self.first += [address, cast]
        return _packed_view(cast.result, known)

    def _stack(self, type_: Attribute) -> _View:
        known, array = self._array(type_)
        one = arith.ConstantOp(IntegerAttr(1, i32))
        stack = llvm.AllocaOp(one.result, array, _ALIGNMENT_BYTES)
        self.first += [one, stack]
        return _packed_view(stack.res, known)

    # ---- operations

    def _operation(self, op: Operation) -> None:
        lower = _LOWERINGS.get(type(op))
        if lower is not None:
            lower(self, op)
        elif any(isinstance(result.type, MemRefType | UnrankedMemRefType) for result in op.results):
            raise Unsupported(f"'{op.name}' returns a memref, which has no lowering")

    def _add(self, op: Operation, new: Operation) -> SSAValue:
        Rewriter.insert_op(hand_on_origin(op, new), InsertPoint.before(op))
        return new.results[0]

    def _view(self, op: Operation, value: SSAValue) -> _View:
        found = self.views.get(value)
        if found is None:
            raise Unsupported(f"'{op.name}' of a memref that a loop, a branch or a call returns")
        return found

    def _number(self, op: Operation, value: Size) -> SSAValue:
        return self._add(op, arith.ConstantOp(IntegerAttr(value, IndexType()))) if isinstance(value, int) else value

    def _times(self, op: Operation, one: Size, two: Size) -> Size:
        if isinstance(one, int) and isinstance(two, int):
            return one * two
        if 0 in (one, two):
            return 0
        if 1 in (one, two):
            return two if one == 1 else one
        return self._add(op, arith.MuliOp(self._number(op, one), self._number(op, two)))

    def _plus(self, op: Operation, one: Size, two: Size) -> Size:
        if isinstance(one, int) and isinstance(two, int):
            return one + two
        if 0 in (one, two):
            return two if one == 0 else one
        return self._add(op, arith.AddiOp(self._number(op, one), self._number(op, two)))

    def _place(
        self, op: Operation, base: SSAValue, index: Sequence[Size], strides: Sequence[Size], element: Attribute
    ) -> SSAValue:
        place: Size = 0
        for at, stride in zip(index, strides, strict=True):
            known = constant_int(at) if isinstance(at, SSAValue) else at
            place = self._plus(op, place, self._times(op, at if known is None else known, stride))
        if place == 0:
            return base
        wide = self._add(op, arith.IndexCastOp(self._number(op, place), i64))
        return self._add(op, GEPOp(base, [wide], _stored(element)))

    def _address(self, op: Operation, memory: SSAValue, index: Sequence[SSAValue]) -> tuple[SSAValue, Attribute]:
        view = self._view(op, memory)
        return self._place(op, view.pointer, index, view.strides, view.element), view.element

    def load(self, op: memref.LoadOp) -> None:
        address, element = self._address(op, op.memref, op.indices)

        def add(new: Operation) -> None:
            self._add(op, new)

        value = self._loaded(address, element, add)
        value.name_hint = op.res.name_hint
        replace_op(op, [value])

    def store(self, op: memref.StoreOp) -> None:
        address, element = self._address(op, op.memref, op.indices)
        Rewriter.replace_op(op, hand_on_origin(op, llvm.StoreOp(self._in_memory(op, op.value, element), address)))

    def _in_memory(self, op: Operation, value: SSAValue, element: Attribute) -> SSAValue:
        stored = _stored(element)
        if stored == element:
            return value
        if element == i1:
            return self._add(op, arith.ExtUIOp(value, i8))
        if isinstance(element, IndexType):
            return self._add(op, arith.IndexCastOp(value, i64))
        return self._add(op, arith.BitcastOp(value, stored))

    def atomic(self, op: memref.AtomicRMWOp) -> None:
        address, element = self._address(op, op.memref, op.indices)
        kind = ATOMIC_KINDS[op.kind.value.data]
        if element == i1 or isinstance(element, IndexType):
            raise Unsupported(f"memref.atomic_rmw of elements of type {element}")
        if (keyword := _NATIVE_ATOMICS.get(kind)) is not None:
            replace_op(op, [self._add(op, AtomicRMWOp(keyword, address, op.value))])
            return
        bits = bits_of(element)
        if bits not in _SWAPPED_BITS or kind not in _COMPUTED_ATOMICS:
            raise Unsupported(f"memref.atomic_rmw {kind} of elements of type {element}")
        replace_op(op, [self._swapped(op, address, element, IntegerType(bits), _COMPUTED_ATOMICS[kind])])

    def _swapped(
        self, op: memref.AtomicRMWOp, address: SSAValue, element: Attribute, cell: IntegerType, kind: type[Operation]
    ) -> SSAValue:
        """Emit a compare-and-swap loop, and return the value before."""
        first = self._add(op, LoadOp(address, cell))
        before, after = Block(arg_types=[cell]), Block(arg_types=[cell])
        old: SSAValue = before.args[0]
        cast = None if element == cell else arith.BitcastOp(old, element)
        new = kind(old if cast is None else cast.result, op.value)  # pyright: ignore[reportCallIssue] - an operation of two values
        back = None if cast is None else arith.BitcastOp(new.results[0], cell)
        swap = AtomicCmpXchgOp(address, old, new.results[0] if back is None else back.result)
        now = llvm.ExtractValueOp(_position(0), swap.res, cell)
        done = llvm.ExtractValueOp(_position(1), swap.res, i1)
        true = arith.ConstantOp(IntegerAttr(1, i1))
        failed = arith.XOrIOp(done.res, true.result)
        body: list[Operation | None] = [cast, new, back, swap, now, done, true, failed, scf.ConditionOp(failed.result, now.res)]
        before.add_ops([each for each in body if each is not None])
        after.add_op(scf.YieldOp(after.args[0]))
        found = self._add(op, scf.WhileOp([first], [cell], Region(before), Region(after)))
        return found if element == cell else self._add(op, arith.BitcastOp(found, element))

    def alloca(self, op: memref.AllocaOp) -> None:
        if op.dynamic_sizes:
            raise Unsupported(f"'{op.name}' in a kernel with sizes that are not constant")
        before = len(self.first)
        is_shared = space_number(op.memref.type.memory_space) == SHARED_SPACE
        self.views[op.memref] = self._shared(op.memref.type) if is_shared else self._stack(op.memref.type)
        entry = self.function.body.blocks[0].first_op
        assert entry is not None, "the function has operations"
        Rewriter.insert_op(self.first[before:], InsertPoint.before(entry))

    def get_global(self, op: memref.GetGlobalOp) -> None:
        symbol: Any = op.properties["name"]
        name: str = symbol.string_value()
        array = self.arrays.get(name)
        if array is None:
            raise Unsupported(f"there is no memref.global @{name} in the kernel's module")
        type_, flat = self._array(array.type)
        value = array.initial_value
        if isinstance(value, DenseIntOrFPElementsAttr) and array.constant is None:
            raise Unsupported(f"memref.global @{name} has a value and is not constant")
        if name not in self.names:
            is_constant = isinstance(value, DenseIntOrFPElementsAttr)
            if not is_constant and space_number(type_.memory_space) != SHARED_SPACE:
                raise Unsupported(f"memref.global @{name} is neither a constant nor in shared memory")
            self.names[name] = self.globals.constant(flat, value) if is_constant else self.globals.shared(flat, _ALIGNMENT_BYTES)
        if isinstance(value, DenseIntOrFPElementsAttr):
            pointer = self._add(op, llvm.AddressOfOp(self.names[name], _POINTER))
        else:
            pointer = self._add(op, AddrSpaceCastOp(self._add(op, llvm.AddressOfOp(self.names[name], _SHARED_POINTER)), _POINTER))
        self.views[op.memref] = _packed_view(pointer, type_)

    def dim(self, op: memref.DimOp) -> None:
        sizes, number = self._view(op, op.source).sizes, constant_int(op.index)
        if number is None or not 0 <= number < len(sizes):
            raise Unsupported("memref.dim in a kernel needs the constant number of a dimension")
        replace_op(op, [self._number(op, sizes[number])])

    def cast(self, op: memref.CastOp | memref.MemorySpaceCastOp) -> None:
        self.views[op.dest] = self._view(op, op.source)

    def subview(self, op: memref.SubviewOp) -> None:
        view = self._view(op, op.source)
        offsets = _mixed(op.static_offsets, op.offsets)
        sizes, steps = _mixed(op.static_sizes, op.sizes), _mixed(op.static_strides, op.strides)
        pointer = self._place(op, view.pointer, offsets, view.strides, view.element)
        strides = [self._times(op, step, stride) for step, stride in zip(steps, view.strides, strict=True)]
        kept = _kept(sizes, op.result.type.get_shape())
        self.views[op.result] = _View(
            pointer, tuple(sizes[dim] for dim in kept), tuple(strides[dim] for dim in kept), view.element
        )

    def reinterpret(self, op: memref.ReinterpretCastOp) -> None:
        view = self._view(op, op.source)
        (offset,) = _mixed(op.static_offsets, op.offsets)
        sizes, strides = _mixed(op.static_sizes, op.sizes), _mixed(op.static_strides, op.strides)
        pointer = self._place(op, view.pointer, [offset], [1], view.element)
        self.views[op.result] = _View(pointer, tuple(sizes), tuple(strides), view.element)

    def refuse(self, op: Operation) -> None:
        raise Unsupported(f"'{op.name}' in a kernel")


def _position(number: int) -> DenseArrayBase[IntegerType]:
    return DenseArrayBase.from_list(i64, [number])


def _packed_view(pointer: SSAValue, type_: MemRefType) -> _View:
    sizes = tuple(type_.get_shape())
    return _View(pointer, sizes, _strides_of(type_, sizes), type_.element_type)


def _mixed(static: Any, dynamic: Sequence[SSAValue]) -> list[Size]:
    rest = iter(dynamic)
    return [next(rest) if int(number) == _DYNAMIC else int(number) for number in static.get_values()]


def _kept(sizes: Sequence[Size], wanted: Sequence[int]) -> list[int]:
    """Return the dimensions that stay in a subview of type `wanted`, which may drop sizes of 1."""
    kept: list[int] = []
    dropped = len(sizes) - len(wanted)
    for dim, size in enumerate(sizes):
        place = len(kept)
        fits = place < len(wanted) and (wanted[place] == size or wanted[place] < 0)
        if size == 1 and dropped and not (fits and wanted[place] == 1):
            dropped -= 1
        else:
            kept.append(dim)
    if len(kept) != len(wanted):
        raise Unsupported("a memref.subview whose dimensions are not those of its type")
    return kept


_LOWERINGS: dict[type[Operation], Callable[[_Lowering, Any], None]] = {
    memref.LoadOp: _Lowering.load,
    memref.StoreOp: _Lowering.store,
    memref.AtomicRMWOp: _Lowering.atomic,
    memref.AllocaOp: _Lowering.alloca,
    memref.AllocOp: _Lowering.refuse,
    memref.DeallocOp: _Lowering.refuse,
    memref.CopyOp: _Lowering.refuse,
    memref.GetGlobalOp: _Lowering.get_global,
    memref.DimOp: _Lowering.dim,
    memref.CastOp: _Lowering.cast,
    memref.MemorySpaceCastOp: _Lowering.cast,
    memref.SubviewOp: _Lowering.subview,
    memref.ReinterpretCastOp: _Lowering.reinterpret,
}
