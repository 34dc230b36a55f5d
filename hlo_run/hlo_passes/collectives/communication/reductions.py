"""Compares the reductions of all-reduces and reduce-scatters."""

from __future__ import annotations

from msgspec import Struct

from hlo_run.hlo.edit import scalar_reducer
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.replica_groups import IntLists
from hlo_run.hlo.views.collectives import Collective
from hlo_run.hlo_passes.collectives.communication.channels import is_ordered

_KINDS = {"add": "sum", "multiply": "product", "minimum": "minimum", "maximum": "maximum"}
# Of booleans.
_LOGIC = {"and": "minimum", "or": "maximum"}


class ReductionKey(Struct, frozen=True):
    """The properties that two all-reduces (or reduce-scatters) share if one of several operands can replace them."""

    opcode: Opcode
    element_type: str
    has_channel: bool
    takes_global_ids: bool
    groups: IntLists


def reduction_key(instruction: HloInstruction, ignores_groups: bool = False) -> ReductionKey | None:
    """Return the key of a reducing collective; None with control dependencies or a reducer of more than one operation."""
    if is_ordered(instruction) or not is_one_operation(instruction.to_apply):
        return None
    root, collective = instruction.to_apply.root, Collective.of(instruction)
    return ReductionKey(
        root.opcode,
        root.shape.element_type,
        collective.has_channel,
        collective.has_global_ids,
        () if ignores_groups else collective.groups,
    )


def is_one_operation(computation: HloComputation) -> bool:
    """True if a reducer has two parameters and one operation."""
    return len(computation.instructions) == 3 and len(computation.parameters) == 2


def kind_of_operation(instruction: HloInstruction) -> str:
    """Return the kind of reduction that a binary operation is a step of: sum, product, minimum, maximum, or ""."""
    if not instruction.shape.is_array:
        return ""
    element_type = instruction.shape.dtype
    if instruction.opcode in ("minimum", "maximum") and element_type.is_complex:
        return ""
    if instruction.opcode in _LOGIC:
        return _LOGIC[instruction.opcode] if element_type.name == "pred" else ""
    return _KINDS.get(instruction.opcode, "")


def kind_of_reducer(computation: HloComputation) -> str:
    """Return the kind of a reducer that combines its two parameters by one operation on scalars, or ""."""
    root = computation.root
    is_simple = set(root.operands) == set(computation.parameters) and len(root.operands) == 2 and root.shape.is_array
    return kind_of_operation(root) if is_simple and all(size == 1 for size in root.shape.dims) else ""


def reducer_of_type(computation: HloComputation, element_type: str, name: str) -> HloComputation:
    """Add a computation of the same operation on scalars of another type; `name` is appended to its name."""
    assert computation.module is not None, "the computation is in a module"
    root = computation.root
    made = scalar_reducer(f"{computation.name}{name}", root.opcode, root.shape.with_element_type(element_type))
    return computation.module.add_computation(made)
