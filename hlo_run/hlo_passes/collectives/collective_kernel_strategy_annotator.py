"""Annotate the backend_config of a small all-reduce with the kernel that does it, and its strategy.

    all-reduce(x)   =>   all-reduce(x), backend_config={.. "kernel_strategy":"KERNEL_STRATEGY_TRITON_ONE_SHOT" ..}

In one shot each device reads the values of all others, which have up to 2 MiB together. In two shots, up to 32 MiB, each reduces
a part and then gathers the others. Needs an H100 or newer with NVLink, one operand, and groups that are listed and have all 1, 2,
4 or 8 devices. `--xla_gpu_experimental_use_collective_kernels` names the collectives with kernels; all-reduces alone have one
here. XLA's `CollectiveKernelStrategyAnnotator`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.latency.kernel_strategies import ONE_SHOT, TWO_SHOT
from hlo_run.hlo.frontend_attributes import frontend_attribute
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo_passes.collectives.communication.reductions import kind_of_reducer
from hlo_run.hlo_passes.subgraphs.async_pairs import set_collective_config
from hlo_run.pass_support.hlo_pass import PassContext

# Of all devices of a group.
_ONE_SHOT_BYTES, _TWO_SHOT_BYTES = 2 << 20, 32 << 20
_SIZES = (1, 2, 4, 8)
_NUMERIC = ("bf16", "f32", "f64", "s32", "s64")
# Of booleans: or, and.
_LOGIC: tuple[Opcode, ...] = ("maximum", "minimum")
_GROUP = "_collectives_group"
_HOPPER = 90


class CollectiveKernelStrategyAnnotator(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "collective-kernel-strategy-annotator"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        for reduce in module.instructions_of("all-reduce"):
            if ctx.target.sm >= _HOPPER and ctx.target.active_links > 0 and _has_kernel(reduce):
                is_small = _bytes_of_group(reduce) <= _ONE_SHOT_BYTES
                set_collective_config(reduce, kernel_strategy=ONE_SHOT if is_small else TWO_SHOT)


def _has_kernel(reduce: HloInstruction) -> bool:
    groups = reduce.replica_groups.groups()
    if len(reduce.operands) != 1 or not groups or {len(group) for group in groups} != {len(groups[0])}:
        return False
    shape, kind = reduce.operands[0].shape, kind_of_reducer(reduce.to_apply)
    if not kind or _is_grouped(reduce) or len(groups[0]) not in _SIZES or _bytes_of_group(reduce) > _TWO_SHOT_BYTES:
        return False
    return shape.element_type in _NUMERIC or (shape.element_type == "pred" and kind in _LOGIC)


def _bytes_of_group(reduce: HloInstruction) -> int:
    return reduce.operands[0].shape.size_bytes * len(reduce.replica_groups.groups()[0])


def _is_grouped(reduce: HloInstruction) -> bool:
    """True if several collectives run as one operation with it."""
    assert reduce.parent is not None, "the all-reduce is in a computation"
    return any(frontend_attribute(caller, _GROUP) is not None for caller in reduce.parent.callers)
