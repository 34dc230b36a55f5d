"""Estimates from measured speeds: XLA's `SolLatencyEstimator`, its default for Hopper and Blackwell. The unit is a microsecond.

Products cost what was measured, loop and input fusions what the model of kernels says, all other work a hundredth of its
`TShirtSizes`. A collective has the latency of its transfer.
"""

from __future__ import annotations

from typing import Any

from hlo_run.analysis.cost.op_cycles import DEFAULT_PROFILE
from hlo_run.analysis.latency.async_kinds import async_kind, fused_collective, is_collective_done, is_collective_start
from hlo_run.analysis.latency.collective_times import Network, collective_microseconds, in_ticks, kernel_microseconds
from hlo_run.analysis.latency.estimator import LOW_COST, LatencyEstimator, metadata_nanoseconds
from hlo_run.analysis.latency.kernel_times import KernelTimes
from hlo_run.analysis.latency.speeds import Speeds
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.opcodes.traits import COLLECTIVE, TRANSFER
from hlo_run.hlo.values.backend_config import config_of
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.values.shape import Shape
from hlo_run.records import replace
from hlo_run.target import TargetSpec

_HOPPER, _BLACKWELL = 9, 10
_UNKNOWN_COLLECTIVES: frozenset[Opcode] = frozenset(("collective-broadcast", "ragged-all-to-all"))
_FUSIONS_OF_THE_MODEL = ("kLoop", "kInput")
PRODUCT_CALLS = frozenset(("__cublas$lt$matmul", "__cublas$lt$matmul$f8"))
_PART_OF_T_SHIRT = 0.01
_MICROSECONDS = 1e6


def asks_for_speeds(target: TargetSpec) -> bool:
    """Return True for Hopper and Blackwell, on which XLA hides latencies by default."""
    return target.compute_capability[0] in (_HOPPER, _BLACKWELL)


def knows_collectives(module: HloModule) -> bool:
    """Return True if the model has the times of all collectives of a module."""
    return all(instruction.opcode not in _UNKNOWN_COLLECTIVES for instruction in module.instructions)


class SpeedOfLight:
    """The estimates for a GPU. `other` estimates instructions that the model does not know, `speeds` are its measurements.

    As in XLA, kernels count the cycles per operation of GPUs without a profile.
    """

    def __init__(self, target: TargetSpec, network: Network, other: LatencyEstimator, speeds: Speeds) -> None:
        self._target = target
        self._network = network
        self._speeds = speeds
        self._other = other
        self._kernels = KernelTimes(target, replace(target, compute_capability=DEFAULT_PROFILE))
        self._times: dict[HloInstruction, float | None] = {}

    def cost(self, instruction: HloInstruction) -> float:
        """Return the time of an instruction. The start and the done of a collective cost 1."""
        given = metadata_nanoseconds(instruction)
        if given is not None:
            return given / 1000
        if is_collective_start(instruction) or is_collective_done(instruction) or async_kind(instruction).inner in TRANSFER:
            return LOW_COST
        if fused_collective(instruction) is not None:
            return LOW_COST
        product = self.product(instruction)
        if product is not None:
            return product
        if instruction.opcode == "fusion" and instruction.fusion_kind in _FUSIONS_OF_THE_MODEL:
            return self._kernels.microseconds(instruction)
        return _PART_OF_T_SHIRT * self._other.cost(instruction)

    def latency(self, first: HloInstruction, user: HloInstruction) -> float:
        """Return the time of the collective that `first` is, or the other estimator's latency."""
        one, other = async_kind(first), async_kind(user)
        is_pair = (one.phase, other.phase) == ("start", "done") and one.inner == other.inner
        fused = fused_collective(first) if is_pair else None
        if fused is not None:
            found = kernel_microseconds(fused, self._target)
            return self._other.latency(first, user) if found is None else found
        is_known = first.opcode in COLLECTIVE - _UNKNOWN_COLLECTIVES
        if is_known or (is_pair and one.inner in COLLECTIVE):
            if first not in self._times:
                self._times[first] = collective_microseconds(first, self._network, self._target, self._kernels, self._speeds)
            found = self._times[first]
            if found is not None:
                return found
        return self._other.latency(first, user)

    def product(self, instruction: HloInstruction) -> float | None:
        """Return the time of a product of matrices; None for other instructions."""
        if instruction.opcode == "dot":
            numbers: dict[str, object] = {
                "lhs_contracting_dimensions": instruction.lhs_contracting_dims,
                "rhs_contracting_dimensions": instruction.rhs_contracting_dims,
                "lhs_batch_dimensions": instruction.lhs_batch_dims,
                "rhs_batch_dimensions": instruction.rhs_batch_dims,
            }
        elif instruction.opcode == "custom-call" and instruction.custom_call_target in PRODUCT_CALLS:
            numbers = config_of(instruction.backend_config).get("gemm_backend_config", {}).get("dot_dimension_numbers", {})
        else:
            return None
        lhs, rhs = instruction.operands[0].shape, instruction.operands[1].shape
        result = instruction.shape.tuple_shapes[0] if instruction.shape.is_tuple else instruction.shape
        batch = _numbers(numbers, "lhs_batch_dimensions")
        inner = _numbers(numbers, "lhs_contracting_dimensions")
        other = _numbers(numbers, "rhs_batch_dimensions") + _numbers(numbers, "rhs_contracting_dimensions")
        point = _size(lhs, batch), _free_size(lhs, batch + inner), _size(lhs, inner), _free_size(rhs, other)
        types = f"{lhs.element_type}x{rhs.element_type}->{result.element_type}"
        element_bytes = max(DTYPES[result.element_type].bits // 8, 1)
        return in_ticks(self._speeds.product(types, element_bytes, point) * _MICROSECONDS)


def _numbers(numbers: dict[str, Any], name: str) -> list[int]:
    return [int(number) for number in numbers.get(name, ())]


def _size(shape: Shape, dims: list[int]) -> int:
    size = 1
    for dim in dims:
        size *= shape.dims[dim]
    return size


def _free_size(shape: Shape, dims: list[int]) -> int:
    return _size(shape, [dim for dim in range(shape.rank) if dim not in dims])
