"""Lower reductions over blocks and warps to shuffles and shared memory.

    %r = gpu.all_reduce add %x {} : (f32) -> (f32)                         in a block of 128 threads
      =>
    %w = .. gpu.shuffle  xor %x, 16 .. 1, with arith.addf after each       the sum of the warp, in each lane
    scf.if %is_lane_0 { memref.store %w, %tile[%warp] : memref<4xf32, 3> }
    gpu.barrier
    %p = memref.load %tile[min(%lane, 3)]
    %q = .. gpu.shuffle  down %p, 2, 1, for lanes that have a partner      the sum of the block, in lane 0
    %r = gpu.shuffle  idx %q, 0
    gpu.barrier                                                            the tile can be used again

A block of threads that are no whole warps is reduced by halves in a tile of all its threads. A body in place of an operation is
copied to each step. The tiles become attributions of the gpu.func, whose `known_block_size` gives the threads. MLIR lowers
reductions in the same steps, with a second tile access in place of the last shuffle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from msgspec import Struct, field
from xdsl.context import Context
from xdsl.dialects import arith, memref, scf
from xdsl.dialects.builtin import IndexType, IntegerAttr, MemRefType, ModuleOp, NoneAttr, i64
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from hlo_run.dialects import gpu
from hlo_run.dialects.editing.all_reduce import reduction
from hlo_run.dialects.editing.rewriting import replace_op
from hlo_run.dialects.editing.shuffles import WARP_LANES, Shuffler
from hlo_run.dialects.editing.thread_ids import Ids, known_sizes
from hlo_run.dialects.gpu_kernel import WORKGROUP_SPACE, GpuFuncOp
from hlo_run.dialects.gpu_launch import AllReduceOp, SubgroupReduceOp, YieldOp
from hlo_run.errors import Unsupported


class LowerGpuReductions(ModulePass):
    """Lowers all_reduce and subgroup_reduce to shuffles and shared memory."""

    name = "lower-gpu-reductions"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Lower the reductions of every gpu.func. Raises Unsupported for what has no lowering."""
        for function in [each for each in op.walk() if isinstance(each, GpuFuncOp)]:
            for inner in [*function.body.walk()]:
                if isinstance(inner, AllReduceOp | SubgroupReduceOp):
                    block = known_sizes(function.known_block_size)
                    if not block:
                        raise Unsupported(f"'{inner.name}' in a kernel whose block size is not known")
                    _Lowering(inner, function, block).run()


class _Lowering(Struct):
    """The lowering of one reduction. `at` is the operation before which operations are inserted."""

    op: AllReduceOp | SubgroupReduceOp
    function: GpuFuncOp
    block: tuple[int, ...]
    at: list[InsertPoint] = field(default_factory=list[InsertPoint])

    def run(self) -> None:
        op, threads = self.op, prod(self.block)
        is_index = isinstance(op.value.type, IndexType)
        value = self.insert(arith.IndexCastOp(op.value, i64)) if is_index else op.value
        if isinstance(op, SubgroupReduceOp):
            if threads % WARP_LANES:
                raise Unsupported(f"gpu.subgroup_reduce in blocks of {threads} threads, which are no whole warps of {WARP_LANES}")
            result = self._reduce_warp(value)
        elif threads == 1:
            result = value
        elif threads % WARP_LANES:
            result = self._reduce_by_halves(value, threads)
        else:
            result = self._reduce_block(value, threads // WARP_LANES)
        replace_op(op, [self.insert(arith.IndexCastOp(result, IndexType())) if is_index else result])

    def insert(self, new: Operation) -> SSAValue:
        Rewriter.insert_op(new, self.at[-1] if self.at else InsertPoint.before(self.op))
        return new.results[0] if new.results else self.op.value

    @property
    def _ids(self) -> Ids:
        return Ids(self.op, self.block)

    def _reduce_warp(self, value: SSAValue) -> SSAValue:
        """Return the total of the warp, in each lane."""
        shuffler, distance = Shuffler(self.insert, gpu.ShuffleMode.XOR), WARP_LANES // 2
        while distance:
            value = self._combined(value, shuffler.shuffle(value, distance))
            distance //= 2
        return value

    def _reduce_block(self, value: SSAValue, warps: int) -> SSAValue:
        total = self._reduce_warp(value)
        if warps == 1:
            return total
        ids, tile = self._ids, self._tile(value, warps)
        lane, warp = ids.lane(), ids.warp()
        self._when(self._compare(lane, ids.number(0), "eq"), lambda: self._store(total, tile, warp))
        self.insert(gpu.BarrierOp())
        last = ids.number(warps - 1)
        part = self.insert(memref.LoadOp.get(tile, [self.insert(arith.MinUIOp(lane, last))]))
        distance = 1 << ((warps - 1).bit_length() - 1)
        while distance:
            other = Shuffler(self.insert).shuffle(part, distance)
            has_partner = self._compare(lane, ids.number(warps - distance), "slt")
            both = self._combined(part, other)
            part = self.insert(arith.SelectOp(has_partner, both, part))
            distance //= 2
        result = Shuffler(self.insert, gpu.ShuffleMode.IDX).shuffle(part, 0)
        self.insert(gpu.BarrierOp())
        return result

    def _reduce_by_halves(self, value: SSAValue, threads: int) -> SSAValue:
        ids, tile = self._ids, self._tile(value, threads)
        thread = ids.linear()
        self._store(value, tile, thread)
        self.insert(gpu.BarrierOp())
        distance = 1 << ((threads - 1).bit_length() - 1)
        count = threads
        while distance:
            partner = self.insert(arith.AddiOp(thread, ids.number(distance)))
            self._when(
                self._compare(partner, ids.number(count), "slt"), lambda partner=partner: self._add_partner(tile, thread, partner)
            )
            self.insert(gpu.BarrierOp())
            count, distance = distance, distance // 2
        result = self.insert(memref.LoadOp.get(tile, [ids.number(0)]))
        self.insert(gpu.BarrierOp())
        return result

    def _add_partner(self, tile: SSAValue, thread: SSAValue, partner: SSAValue) -> None:
        own, other = (self.insert(memref.LoadOp.get(tile, [place])) for place in (thread, partner))
        self._store(self._combined(own, other), tile, thread)

    def _tile(self, value: SSAValue, count: int) -> SSAValue:
        """Return a new tile in shared memory, an attribution of the function."""
        entry = self.function.body.blocks[0]
        place = len(self.function.function_type.inputs) + self.function.workgroup_count
        type_ = MemRefType(value.type, [count], NoneAttr(), IntegerAttr(WORKGROUP_SPACE, i64))
        self.function.workgroup_attributions = IntegerAttr(self.function.workgroup_count + 1, i64)
        tile = entry.insert_arg(type_, place)
        tile.name_hint = "tile"
        return tile

    def _store(self, value: SSAValue, tile: SSAValue, place: SSAValue) -> None:
        self.insert(memref.StoreOp.get(value, tile, [place]))

    def _compare(self, one: SSAValue, two: SSAValue, predicate: str) -> SSAValue:
        return self.insert(arith.CmpiOp(one, two, predicate))

    def _when(self, condition: SSAValue, work: Callable[[], None]) -> None:
        """Emit an `scf.if` with what `work` emits."""
        block = Block([scf.YieldOp()])
        self.insert(scf.IfOp(condition, [], Region(block), Region()))
        end = block.last_op
        assert end is not None, "the block has a yield"
        self.at.append(InsertPoint.before(end))
        work()
        self.at.pop()

    def _combined(self, own: SSAValue, other: SSAValue) -> SSAValue:
        op = self.op
        if op.op is not None:
            return self.insert(reduction(op.op.data, own, other))
        assert isinstance(op, AllReduceOp), "only all_reduce has a body"
        if len(op.body.blocks) != 1:
            raise Unsupported("gpu.all_reduce with a body of several blocks has no lowering")
        is_index = isinstance(op.value.type, IndexType)
        given: Sequence[SSAValue] = [own, other]
        if is_index:
            given = [self.insert(arith.IndexCastOp(value, IndexType())) for value in given]
        values: dict[SSAValue, SSAValue] = dict(zip(op.body.blocks[0].args, given, strict=True))
        for inner in op.body.blocks[0].ops:
            if isinstance(inner, YieldOp):
                result = values.get(inner.operands[0], inner.operands[0])
                return self.insert(arith.IndexCastOp(result, i64)) if is_index else result
            copy = inner.clone(values)
            self.insert(copy)
        raise Unsupported("the body of gpu.all_reduce does not end in gpu.yield")
