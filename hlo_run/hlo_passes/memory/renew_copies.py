"""Make the copies of parameters, constants and repeated results again after the schedule, as XLA does.

    copy = f32[8] copy(p), metadata={scheduling_name="copy"};  ROOT t = tuple(copy, x)
        =>   t = tuple(p, x);  e = get-tuple-element(t), index=0;  e.1 = get-tuple-element(t), index=1
             copy.1 = f32[8] copy(e);  ROOT t.1 = tuple(copy.1, e.1)

XLA removes the copies that no write needs. Then it adds those that keep parameters and constants apart from results
(`RunPostSchedulingCopyInsertion`): of a result at the end, of other values where the value is made. Here a copy of a value with
several users stays at its place.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.buffers.copy_chains import by_schedule
from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.verify.config import aliases
from hlo_run.hlo_passes.hlo_pass import PassContext
from hlo_run.hlo_passes.subgraphs.result_copies import results_to_copy
from hlo_run.hlo_passes.subgraphs.straight_copies import elide_copies


class RenewCopies(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "renew-copies"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        copies = module.instructions_of("copy")
        if not copies:
            return
        entry = module.entry
        results = set(entry.root.operands) if entry.root.opcode == "tuple" else set[HloInstruction]()
        others = [copy for copy in copies if copy not in results]
        renewed = [copy for copy in others if _is_read_only(module, copy.operands[0], copy.parent is entry)]
        if module.schedule is not None and others and executed_computations(module) == [entry]:
            elide_copies(module, entry, by_schedule(module.schedule[entry]), {*renewed, *results, entry.root})
        # A result in the buffer of a parameter may only be written after the parameter's other readers: such copies stay.
        moves = not aliases(module)
        for copy in renewed:
            _renew(module, copy, moves)
        if moves and results:
            _renew_results(module)


def _is_read_only(module: HloModule, value: HloInstruction, is_in_entry: bool) -> bool:
    """Return True for a constant, and for a parameter of the entry that may not be overwritten."""
    while value.opcode in ("bitcast", "get-tuple-element"):
        value = value.operands[0]
    if value.opcode == "parameter":
        return is_in_entry and all(value.parameter_number != number for _, number, _, _ in aliases(module))
    return value.opcode == "constant"


def _renew(module: HloModule, copy: HloInstruction, moves: bool) -> None:
    copy.name = module.unique_instruction_name("copy")
    copy.attrs.pop("metadata", None)
    copy.touch()
    assert copy.parent is not None, "the copy is in a computation"
    order, source = (module.schedule or {}).get(copy.parent), copy.operands[0]
    if not moves or order is None or copy.control_predecessors:
        return
    if source.opcode not in ("parameter", "constant") or source.users != [copy]:
        return
    order.remove(copy)
    order.insert(order.index(source) + 1, copy)


def _renew_results(module: HloModule) -> None:
    """Copy the elements of the result, instead of the values that become its elements."""
    entry = module.entry
    root = entry.root
    given = list(root.operands)
    copies = {number for number, operand in enumerate(given) if _is_only_result(operand)}
    if not copies or any(given[number].operands[0].opcode == "copy" for number in copies):
        return
    root.operands = [value.operands[0] if number in copies else value for number, value in enumerate(given)]
    needed = {index[0] for index in results_to_copy(module, root) if len(index) == 1}
    if not needed or not needed <= copies or len(needed) != len(results_to_copy(module, root)):
        root.operands = given
        return
    root.operands = [value.operands[0] if number in needed else value for number, value in enumerate(given)]
    for number in needed:
        entry.remove(given[number])
    elements: list[HloInstruction] = []
    made: list[HloInstruction] = []
    for number, value in enumerate(root.operands):
        element = HloInstruction(
            "get-tuple-element", "get-tuple-element", value.shape, [root], {"index": number}, where=root.where
        )
        elements.append(entry.add(element))
        made.append(
            entry.add(HloInstruction("copy", "copy", value.shape, [element], where=root.where)) if number in needed else element
        )
    entry.root = entry.add(HloInstruction("tuple", "tuple", root.shape, made, where=root.where))
    order = (module.schedule or {}).get(entry)
    if order is not None:
        # All elements are ready before the first copy.
        new = {*elements, *made, entry.root}
        order[:] = [i for i in order if i not in new]
        order += [*elements, *(copy for copy in made if copy.opcode == "copy"), entry.root]


def _is_only_result(value: HloInstruction) -> bool:
    root = value.parent.root if value.parent is not None else None
    is_free = not value.control_predecessors and value.opcode == "copy" and value.shape.is_array
    return is_free and root is not None and list(value.users) == [root] and list(root.operands).count(value) == 1
