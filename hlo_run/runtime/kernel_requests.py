"""Collects the kernels that thunks launch: one per fusion; equal fusions with matching arguments share a kernel."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from hlo_run.analysis.fingerprint import computation_fingerprint
from hlo_run.artifact import BufferSlice, KernelArgument
from hlo_run.errors import Unsupported
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.names import NameUniquer, kernel_name
from hlo_run.runtime.buffers import BufferAssignment


class KernelRequest(Struct, frozen=True):
    """A fusion that needs a kernel: the kernel's name, its arguments (operands, then results), and their alignments.

    Requests with the same `key` and name have the same kernel, also in different modules. `part` numbers the kernels of a
    fusion with several.
    """

    fusion: HloInstruction
    kernel: str
    arguments: tuple[KernelArgument, ...]
    alignments_bytes: tuple[int, ...]
    key: str
    part: int = 0


class KernelRequests:
    """Collects the kernels of a module in the order of their first launch."""

    def __init__(self, buffers: BufferAssignment) -> None:
        self._buffers = buffers
        self._names = NameUniquer("__")
        self._known: dict[tuple[object, ...], str] = {}
        self.requests: list[KernelRequest] = []

    def of_fusion(self, fusion: HloInstruction) -> tuple[str, tuple[KernelArgument, ...]]:
        """Return the name of a fusion's kernel, and the arguments that it is launched with.

        Raises Unsupported as `fusion_arguments` does.
        """
        arguments = fusion_arguments(fusion, self._buffers)
        return self._take(fusion, arguments, fusion.name), arguments

    def of_parts(
        self, fusion: HloInstruction, name: str, arguments: tuple[KernelArgument, ...], parts: Sequence[object]
    ) -> list[str]:
        """Return the names of the kernels that a fusion launches in order, one per part, all with the same arguments.

        Equal parts share a kernel.
        """
        names = [name if number == 0 else f"{name}__{number}" for number in range(len(parts))]
        return [self._take(fusion, arguments, names[number], number, part) for number, part in enumerate(parts)]

    def _take(
        self, fusion: HloInstruction, arguments: tuple[KernelArgument, ...], name: str, number: int = 0, part: object = None
    ) -> str:
        alignments = tuple(self._buffers.alignment_bytes(argument.slice) for argument in arguments)
        key = (*_kernel_key(fusion, arguments, alignments), part)
        if key not in self._known:
            self._known[key] = self._names.unique(kernel_name(name))
            self.requests.append(KernelRequest(fusion, self._known[key], arguments, alignments, repr(key), number))
        return self._known[key]


def fusion_arguments(fusion: HloInstruction, buffers: BufferAssignment) -> tuple[KernelArgument, ...]:
    """Return the kernel arguments of a fusion: its operands, then its results.

    Raises Unsupported for an operand that is not an array, or whose layout differs from the fused parameter's.
    """
    written = [buffers.slice(fusion, index) for index, _ in fusion.shape.leaves()]
    read = [buffers.slice(operand) for operand in _operands(fusion)]
    return kernel_arguments(read, written)


def kernel_arguments(read: Sequence[BufferSlice], written: Sequence[BufferSlice]) -> tuple[KernelArgument, ...]:
    """Return the arguments of a kernel: the slices read, then the slices written. A slice may be in both."""
    return (*(KernelArgument(place, _overlaps(place, written)) for place in read), *(KernelArgument(p, True) for p in written))


def _operands(fusion: HloInstruction) -> tuple[HloInstruction, ...]:
    for operand, parameter in zip(fusion.operands, fusion.fused_computation.parameters, strict=True):
        if not operand.shape.is_array:
            raise Unsupported(f"fusion %{fusion.name} has an operand {operand.shape}: kernels take arrays only", fusion.where)
        if operand.shape.minor_to_major != parameter.shape.minor_to_major:
            raise Unsupported(
                f"operand %{operand.name} of fusion %{fusion.name} is {operand.shape}, but inside the fusion {parameter.shape}",
                fusion.where,
                hint="give the fused parameter the layout of the operand",
            )
    return fusion.operands


def _overlaps(place: BufferSlice, others: Sequence[BufferSlice]) -> bool:
    return any(
        place.allocation == other.allocation
        and place.offset_bytes < other.offset_bytes + other.size_bytes
        and other.offset_bytes < place.offset_bytes + place.size_bytes
        for other in others
    )


def _kernel_key(fusion: HloInstruction, arguments: tuple[KernelArgument, ...], alignments: tuple[int, ...]) -> tuple[object, ...]:
    """Return a key of everything a kernel depends on: the fused computation, its backend_config and the arguments.

    An argument counts with the number of its slice (equal slices have equal numbers), alignment, size, and `written`.
    """
    numbers: dict[BufferSlice, int] = {}
    alike = tuple(
        (numbers.setdefault(a.slice, len(numbers)), alignment, a.slice.size_bytes, a.written)
        for a, alignment in zip(arguments, alignments, strict=True)
    )
    return (computation_fingerprint(fusion.fused_computation), fusion.backend_config, *alike)
