"""Prints a table of a module's fusions: kind, heroes, emitter, launch dimensions and memory.

target h100: sm_90, 132 SMs, 2048 threads each, 49152 bytes of shared memory per block
fusion         kind    heroes      emitter    launch                        vector  shared  bytes in  bytes out
reduce_fusion  kInput  reduce.3    reduction  grid 16x1x1 block 256x1x1     2       32      256000    256
"""

from __future__ import annotations

from math import prod

# Before all of xDSL's dialects, whose definitions are then made when they are used.
from hlo_run.dialects.types import is_complex, is_tensor

# isort: split
from msgspec import Struct
from xdsl.dialects.builtin import FixedBitwidthType
from xdsl.ir import Attribute

from hlo_run.analysis.buffers.copied_operands import copied_operands, copied_slice
from hlo_run.analysis.buffers.in_place import in_place_operands
from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.analysis.fusion_owner import fusion_owner
from hlo_run.analysis.tiling.analyze_fusion import analyze
from hlo_run.analysis.tiling.fusion_analysis import FusionAnalysis
from hlo_run.codegen.emitters.emit import EmittedKernel, EntryArgument, emit_kernel
from hlo_run.columns import aligned
from hlo_run.dialects.xla_gpu import AllocateSharedOp
from hlo_run.errors import Unsupported
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.runtime.buffers import ALLOCATION_ALIGNMENT_BYTES, PARAMETER_ALIGNMENT_BYTES
from hlo_run.target import TargetSpec

_HEAD = ("fusion", "kind", "heroes", "emitter", "launch", "vector", "shared", "bytes in", "bytes out")


def fusion_table(module: HloModule, target: TargetSpec) -> str:
    """Return the table of all fusions that run as kernels, computation by computation in schedule order.

    Column `vector` is the number of adjacent elements that a thread handles at a time, `shared` the bytes of shared memory per
    block. A fusion that no emitter supports has the reason in place of its launch. The table assumes that a result that may
    share its operand's buffer does so.
    """
    sms, threads, shared = target.core_count, target.threads_per_core_limit, target.shared_memory_per_block_bytes
    head = f"target {target.name}: {target.sm_name}, {sms} SMs, {threads} threads each, {shared} bytes of shared memory per block"
    schedule = module.schedule or {}
    order = [i for c in executed_computations(module) for i in schedule.get(c, c.post_order())]
    rows = [_row(fusion, target) for fusion in order if fusion.opcode == "fusion"]
    return "\n".join([head, *aligned([_HEAD, *rows])])


def _row(fusion: HloInstruction, target: TargetSpec) -> tuple[str, ...]:
    analysis = analyze(fusion, target)
    heroes = ", ".join(dict.fromkeys(hero.name for hero in analysis.heroes))
    plan = _plan(analysis)
    bytes_in = sum(leaf.size_bytes for operand in dict.fromkeys(fusion.operands) for _, leaf in operand.shape.leaves())
    bytes_out = sum(leaf.size_bytes for _, leaf in fusion.shape.leaves())
    return (
        fusion.name,
        _fusion_kind(fusion),
        heroes,
        plan.emitter,
        plan.launch,
        plan.vector,
        plan.shared_bytes,
        str(bytes_in),
        str(bytes_out),
    )


def _fusion_kind(fusion: HloInstruction) -> str:
    """Return XLA's kind of the fusion; for a custom fusion also its owner (`kCustom __triton`)."""
    kind = fusion.fusion_kind
    owner = fusion_owner(fusion)
    return f"{kind} {owner}" if owner else kind


class _Plan(Struct, frozen=True):
    emitter: str
    launch: str
    vector: str
    shared_bytes: str


def _plan(analysis: FusionAnalysis) -> _Plan:
    """Return the emitter and launch of a fusion."""
    if copied_operands(analysis.fusion) or copied_slice(analysis.fusion) is not None:
        return _Plan("copies", "no kernel", "-", "-")
    try:
        kernel = emit_kernel(analysis.fusion, "kernel", analysis.target, _arguments(analysis.fusion))
    except Unsupported as error:
        return _Plan(analysis.kind, f"unsupported: {error.message}", "-", "-")
    return _Plan(kernel.kind, str(kernel.launch), str(kernel.vector_size), str(_shared_bytes(kernel)))


def _arguments(fusion: HloInstruction) -> list[EntryArgument]:
    """Return the kernel's arguments, each in its own memory, except for results that may share an operand's."""
    operands, results = list(fusion.operands), [leaf for _, leaf in fusion.shape.leaves()]
    first = len(operands)
    over = in_place_operands(fusion)
    places = [*range(first), *(over.get(number, first + number) for number in range(len(results)))]
    sizes = [operand.shape.size_bytes for operand in operands] + [leaf.size_bytes for leaf in results]
    written = set(places[first:])
    return [
        EntryArgument(
            slice_index=place,
            align=PARAMETER_ALIGNMENT_BYTES if number < first else ALLOCATION_ALIGNMENT_BYTES,
            dereferenceable_bytes=size,
            invariant=place not in written,
        )
        for number, (place, size) in enumerate(zip(places, sizes, strict=True))
    ]


def _shared_bytes(kernel: EmittedKernel) -> int:
    total = 0
    for op in kernel.module.walk():
        if isinstance(op, AllocateSharedOp):
            type_ = op.res.type
            assert is_tensor(type_), "shared memory is a tensor"
            total += prod(type_.get_shape()) * _element_bytes(type_.get_element_type())
    return total


def _element_bytes(type_: Attribute) -> int:
    """Return the bytes of an element in shared memory, at least 1."""
    if is_complex(type_):
        return 2 * _element_bytes(type_.element_type)
    assert isinstance(type_, FixedBitwidthType), "elements are numbers"
    return max(1, type_.bitwidth // 8)
