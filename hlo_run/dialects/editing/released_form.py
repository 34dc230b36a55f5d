"""Makes the form of kernel IR that released XLA prints, from ours; `xla.py` reads that form.

    %b = gpu.block_id  x               %0 = xla.workgroup_id x
    %t = gpu.thread_id  x        =>    %1 = scf.forall (%t) in (128) shared_outs(%o = %a) -> (tensor<8xf32>) {
    %l = xla_gpu.loop (%t, %b) ..        %l = xla.loop (%t, %0) ..
    return %l                            scf.forall.in_parallel { tensor.parallel_insert_slice %l into %o[0] [8] [1] .. }
                                       }
                                       return %1

XLA's emitters of loops, concatenations and updates in place write `scf.forall`, up to XLA's pass lower-xla-shared. Our rows
have no such pass. XLA gives the modules of these kernels a name, NAME_kernel_module.
"""

from __future__ import annotations

from typing import Literal

from xdsl.dialects import arith, func
from xdsl.dialects.builtin import DenseArrayBase, ModuleOp, StringAttr, i32, i64
from xdsl.ir import Block, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from hlo_run.dialects.editing.value_ranges import range_of, set_range
from hlo_run.dialects.gpu import BlockIdOp, ThreadIdOp
from hlo_run.dialects.printer import print_module
from hlo_run.dialects.xla import NAMES, BackendKind, BackendKindAttr, ForallOp, InParallelOp, ParallelInsertSliceOp, WorkgroupIdOp
from hlo_run.dialects.xla_gpu import ApplyIndexingOp, IndexingMapAttr, LoopOp
from hlo_run.indexing.interval import Interval
from hlo_run.indexing.variable import GRID_NAMES, Variable

Stage = Literal["emitted", "shared", "lowered"]
_ENTRY = "xla.entry"
_SHARED_KINDS = ("loop", "concatenate", "in-place dynamic-update-slice")


def print_released(module: ModuleOp, kind: str, *, stage: Stage, print_locations: bool = False) -> str:
    """Return the text of `released_form`, with released XLA's names of operations, values and maps, ending in a newline."""
    return print_module(released_form(module, kind, stage=stage), print_locations=print_locations, spelling=NAMES)


def released_form(module: ModuleOp, kind: str, *, stage: Stage) -> ModuleOp:
    """Return a copy of a kernel in released XLA's form. `kind` names the kernel's emitter, empty if it is not known.

    The stage "emitted" is before XLA's first canonicalize: maps have all six ids of threads and blocks. "shared" is before
    lower-xla-shared: loops have their `scf.forall`. "lowered" is everything after it.
    """
    copy = module.clone()
    entry = next((op for op in copy.body.block.ops if isinstance(op, func.FuncOp) and _ENTRY in op.attributes), None)
    if entry is None:
        return copy
    entry.attributes["xla.backend_kind"] = BackendKindAttr(BackendKind.GPU)
    if stage == "emitted":
        _read_all_ids(entry)
    if kind in _SHARED_KINDS:
        copy.sym_name = StringAttr(f"{entry.sym_name.data}_kernel_module")
        if stage != "lowered":
            _share_outputs(entry, carries_outputs=kind != "concatenate")
        else:
            _put_blocks_first(entry)
    return copy


def _read_all_ids(entry: func.FuncOp) -> None:
    """Read all ids at the start, and make them the dimensions of each map over ids. An id that is not read is 0."""
    start = entry.body.block
    reads = {_name_of(op): op for op in start.ops if isinstance(op, ThreadIdOp | BlockIdOp)}
    for op in reads.values():
        op.detach()
    for name in reversed(GRID_NAMES):
        if name not in reads:
            reads[name] = (ThreadIdOp if name.startswith("th") else BlockIdOp)(name[-1])
            set_range(reads[name], Interval.of_size(1))
        Rewriter.insert_op(reads[name], InsertPoint.at_start(start))
    ids: list[SSAValue] = [reads[name].result for name in GRID_NAMES]
    for op in [*entry.walk()]:
        if isinstance(op, LoopOp):
            dims, others = op.dims, op.inits
        elif isinstance(op, ApplyIndexingOp) and op.map.dims:
            dims, others = op.arguments[: len(op.map.dims)], op.arguments[len(op.map.dims) :]
        else:
            continue
        if all(each in ids for each in dims):
            places = [ids.index(each) for each in dims]
            bounds = [range_of(each) or Interval.of_size(1) for each in ids]
            for place, variable in zip(places, op.map.dims, strict=True):
                bounds[place] = variable.bounds
            variables = [Variable(each, name) for each, name in zip(bounds, GRID_NAMES, strict=True)]
            wide = IndexingMapAttr(op.map.with_dims(variables, places))
            op.properties["indexing_map"] = wide
            op.operands = [*ids, *others]
            if isinstance(op, LoopOp):
                op.properties["operandSegmentSizes"] = DenseArrayBase.from_list(i32, [len(ids), len(others)])


def _name_of(op: ThreadIdOp | BlockIdOp) -> str:
    prefix, dimension = "th" if isinstance(op, ThreadIdOp) else "bl", op.dimension.data
    return f"{prefix}_{dimension.value}"


def _put_blocks_first(entry: func.FuncOp) -> None:
    """Put the ids of blocks before the ids of threads: XLA reads the latter where its `scf.forall` was."""
    ops = [*entry.body.blocks[0].ops]
    first = next((op for op in ops if isinstance(op, ThreadIdOp)), None)
    if first is None:
        return
    for op in ops:
        if isinstance(op, BlockIdOp):
            op.detach()
            Rewriter.insert_op(op, InsertPoint.before(first))


def _share_outputs(entry: func.FuncOp, *, carries_outputs: bool) -> None:
    """Put the work of the threads into one `scf.forall`. Without `carries_outputs` the loops begin with the arguments."""
    block = entry.body.block  # control flow is structured before lower-xla-to-scf
    last = block.last_op
    assert isinstance(last, func.ReturnOp), "the function is verified"
    threads = [op for op in block.ops if isinstance(op, ThreadIdOp)]
    if not threads:
        return  # XLA's canonicalizer inlines a forall of one step
    outputs = [*block.args[len(block.args) - len(last.arguments) :]]
    body = Block(arg_types=[*(op.result.type for op in threads), *(output.type for output in outputs)])
    shared = body.args[len(threads) :]
    if carries_outputs:
        for output, inside in zip(outputs, shared, strict=True):
            output.replace_all_uses_with(inside)
    for op, argument in zip(threads, body.args, strict=False):
        op.result.replace_all_uses_with(argument)
    for op in [*block.ops]:
        if isinstance(op, BlockIdOp):
            Rewriter.replace_op(op, WorkgroupIdOp.like(op))
        elif not isinstance(op, ThreadIdOp | arith.ConstantOp | func.ReturnOp):
            op.detach()
            body.add_op(op)
    slices = [ParallelInsertSliceOp(operands=[value, into]) for value, into in zip(last.arguments, shared, strict=True)]
    body.add_op(InParallelOp(regions=[Region(Block(slices))]))
    forall = ForallOp(DenseArrayBase.from_list(i64, [_size(op) for op in threads]), [*outputs], Region(body))
    Rewriter.insert_op(forall, InsertPoint.before(last))
    Rewriter.replace_op(last, func.ReturnOp(*forall.res))
    for op in threads:
        Rewriter.erase_op(op)


def _size(op: ThreadIdOp) -> int:
    interval = range_of(op.result)
    assert interval is not None, "emitters give ids their range"
    return interval.upper + 1
