"""Walk the scheduled entry computation and say what the device does, step by step: kernels to launch, bytes to copy."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hlo_run.analysis.copied_operands import copied_operands
from hlo_run.analysis.defining_value import FORWARDING
from hlo_run.analysis.fingerprint import computation_fingerprint
from hlo_run.artifact import BufferSlice, CopyThunk, KernelArgument, KernelThunk, Thunk
from hlo_run.errors import Unsupported
from hlo_run.hlo.graph import HloInstruction
from hlo_run.pipeline.runtime.buffers import BufferAssignment

# Nothing happens on the device: their value exists already, or is only a name for other values.
_NO_THUNK = frozenset(("parameter", "constant", "tuple", "get-tuple-element", "after-all", *FORWARDING))


@dataclass(frozen=True)
class KernelRequest:
    """A fusion that needs a kernel: its name, and its slices, operands first, then results."""

    fusion: HloInstruction
    kernel: str
    arguments: tuple[KernelArgument, ...]


def plan_thunks(order: list[HloInstruction], buffers: BufferAssignment) -> tuple[list[Thunk], list[KernelRequest]]:
    """Return the thunks in schedule order and the kernels they need; equal fusions with alike arguments share a kernel.

    Raises Unsupported for an instruction that neither becomes a kernel nor a copy.
    """
    thunks: list[Thunk] = []
    kernels: list[KernelRequest] = []
    names = _KernelNames()
    known: dict[tuple[object, ...], str] = {}
    for instruction in order:
        if instruction.opcode in _NO_THUNK or all(leaf.element_count == 0 for _, leaf in instruction.shape.leaves()):
            continue
        if instruction.opcode == "copy":
            thunks.append(CopyThunk(instruction.name, buffers.slice(instruction.operands[0]), buffers.slice(instruction)))
        elif instruction.opcode == "fusion" and (copied := copied_operands(instruction)):
            thunks += _copies(instruction, copied, buffers)
        elif instruction.opcode == "fusion":
            arguments = _arguments(instruction, buffers)
            key = _kernel_key(instruction, arguments, buffers)
            if key not in known:
                known[key] = names.take(instruction.name)
                kernels.append(KernelRequest(instruction, known[key], arguments))
            thunks.append(KernelThunk(instruction.name, known[key], arguments))
        else:
            raise Unsupported(
                f"'{instruction.opcode}' has no thunk yet: %{instruction.name}",
                instruction.where,
                hint="--platform=Interpreter, the numpy reference, knows more instructions",
            )
    return thunks, kernels


def _copies(fusion: HloInstruction, copied: tuple[int, ...], buffers: BufferAssignment) -> list[CopyThunk]:
    """Return a copy for each result that does not live where its operand does."""
    pairs = [
        (buffers.slice(fusion.operands[number]), buffers.slice(fusion, index))
        for number, (index, _) in zip(copied, fusion.shape.leaves(), strict=True)
    ]
    return [CopyThunk(fusion.name, source, target) for source, target in pairs if source != target]


def _kernel_key(fusion: HloInstruction, arguments: tuple[KernelArgument, ...], buffers: BufferAssignment) -> tuple[object, ...]:
    """Return what a kernel depends on: the fused computation, and of each argument which others are the same memory,
    its alignment, its size, and whether it is written."""
    numbers: dict[BufferSlice, int] = {}
    alike = tuple(
        (numbers.setdefault(a.slice, len(numbers)), buffers.alignment_bytes(a.slice), a.slice.size_bytes, a.written)
        for a in arguments
    )
    return (computation_fingerprint(fusion.fused_computation), fusion.attrs.get("backend_config"), *alike)


def _arguments(fusion: HloInstruction, buffers: BufferAssignment) -> tuple[KernelArgument, ...]:
    written = [buffers.slice(fusion, index) for index, _ in fusion.shape.leaves()]
    read = [buffers.slice(operand) for operand in _operands(fusion)]
    return (*(KernelArgument(place, _overlaps(place, written)) for place in read), *(KernelArgument(p, True) for p in written))


def _operands(fusion: HloInstruction) -> tuple[HloInstruction, ...]:
    for operand, parameter in zip(fusion.operands, fusion.fused_computation.parameters, strict=True):
        if not operand.shape.is_array:
            raise Unsupported(f"fusion %{fusion.name} takes a {operand.shape}: kernels take arrays only", fusion.where)
        if operand.shape.minor_to_major != parameter.shape.minor_to_major:
            raise Unsupported(
                f"operand %{operand.name} of fusion %{fusion.name} is {operand.shape}, but inside the fusion {parameter.shape}",
                fusion.where,
                hint="give the fused parameter the layout of the operand",
            )
    return fusion.operands


def _overlaps(place: BufferSlice, others: list[BufferSlice]) -> bool:
    return any(
        place.allocation == other.allocation
        and place.offset_bytes < other.offset_bytes + other.size_bytes
        and other.offset_bytes < place.offset_bytes + place.size_bytes
        for other in others
    )


class _KernelNames:
    """Kernel names: the instruction's with everything but letters, digits and `_` turned to `_`, made unique."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, instruction_name: str) -> str:
        """Return the next free name."""
        base = re.sub(r"[^A-Za-z0-9_]", "_", instruction_name)
        name, number = base, 0
        while name in self._taken:
            number += 1
            name = f"{base}_{number}"
        self._taken.add(name)
        return name
