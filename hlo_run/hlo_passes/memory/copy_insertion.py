"""Copy values that share a buffer with another live value, and remove copies that are not needed.

    ROOT f = f32[100] fusion(p, u, i), calls=dynamic_update_slice   =>   c = f32[100] copy(p);  ROOT f = fusion(c, u, i)

These share one buffer: the state of a loop (init, body parameter, body root, result); the results of a conditional's branches;
an operand that is updated in place and the result; a parameter and the result that `input_output_alias` assigns to it.
Every value that comes to such a buffer is copied first, with control dependencies between the copies of one element of a loop's
state. Then copies go that no order of the dependencies needs, or that the schedule does not need, if there is one. At last,
parameters and constants that would be overwritten are copied, and results that must not share a buffer. XLA's `CopyInsertion`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.buffers.alias_pairs import in_place_pairs
from hlo_run.analysis.buffers.dataflow import Dataflow, analyze_dataflow
from hlo_run.analysis.computation_order import computation_post_order
from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.analysis.tiling.fusion_roots_and_heroes import fusion_roots
from hlo_run.errors import Unsupported
from hlo_run.hlo.async_ops import is_async_wrapper
from hlo_run.hlo.edit import Editor, remove_dead
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import TRANSFER
from hlo_run.hlo.tuple_edits import deep_copy
from hlo_run.hlo.values.shape import ShapeIndex
from hlo_run.hlo.verify.config import aliases
from hlo_run.hlo_passes.memory.copy_steps import add_special_copies, copy_for_all, remove_needless_copies
from hlo_run.hlo_passes.subgraphs.new_in_schedule import schedule_again
from hlo_run.hlo_passes.subgraphs.tuple_simplification import simplify_tuples
from hlo_run.ops.buffer_calls import is_buffer
from hlo_run.pass_support.hlo_pass import PassContext


class CopyInsertion(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "copy-insertion"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit all executed computations in place; raises Unsupported for buffer types (`b(f32[4])`)."""
        del ctx
        _refuse_buffers(module)
        for fusion in list(module.instructions_of("fusion")):
            _part_scattered_arrays(fusion)
        orders, module.schedule = module.schedule, None
        given = frozenset(module.instructions_of("copy"))
        _add_copies(module)
        simplify_tuples(module)
        remove_dead(module)
        schedule_again(module, orders)
        remove_needless_copies(module, given)
        orders, module.schedule = module.schedule, None
        add_special_copies(module)
        simplify_tuples(module)
        remove_dead(module)
        schedule_again(module, orders)


def _refuse_buffers(module: HloModule) -> None:
    """Raise Unsupported for buffers, `b(f32[4])`, which may not be copied."""
    for instruction in module.instructions_of("custom-call"):
        if is_buffer(instruction.shape):
            raise Unsupported(
                f"copy-insertion takes arrays, but %{instruction.name} is a buffer",
                instruction.where,
                hint="run buffer-remover first",
            )


def _part_scattered_arrays(fusion: HloInstruction) -> None:
    """Let a scatter that updates one array twice read it from two parameters: each result needs its own buffer."""
    roots = fusion_roots(fusion)
    if len(roots) != 1 or roots[0].opcode != "scatter":
        return
    (scatter,) = roots
    editor = Editor(scatter)
    seen: set[HloInstruction] = set()
    for number, source in enumerate(scatter.operands[: len(scatter.operands) // 2]):
        parameter = source.operands[0] if source.opcode == "bitcast" else source
        if parameter.opcode == "parameter" and parameter in seen:
            own = editor.add("parameter", parameter.shape, parameter_number=len(fusion.operands))
            fusion.operands = (*fusion.operands, fusion.operands[parameter.parameter_number])
            changed = own if source is parameter else editor.add("bitcast", source.shape, [own])
            scatter.operands = (*scatter.operands[:number], changed, *scatter.operands[number + 1 :])
        seen.add(parameter)


def _add_copies(module: HloModule) -> None:
    """Copy every value that comes to a shared buffer."""
    dataflow = analyze_dataflow(module)
    executed = set(executed_computations(module))
    for computation in computation_post_order(module):
        if computation not in executed or is_async_wrapper(computation):
            continue
        for instruction in computation.post_order():
            match instruction.opcode:
                case "while":
                    _copy_state(dataflow, instruction)
                case "conditional":
                    _copy_branches(dataflow, instruction)
                case _:
                    _copy_changed_operands(instruction)
    if aliases(module):
        _copy_aliased(module)


def _copy_state(dataflow: Dataflow, loop: HloInstruction) -> None:
    """Copy the elements of a loop's state that the body changes: before the loop, and at both ends of the body."""
    (init,), body = loop.operands, loop.while_body
    parameter, root = body.parameters[0], body.root
    changed = {index for index, value in dataflow.trees[loop].walk() if dataflow.value(init, index) is not value}
    if init.opcode == "tuple":
        changed = {index for index in changed if not index or init.operands[index[0]].opcode not in TRANSFER}
    if not changed or root is parameter:
        return
    assert loop.parent is not None, "an executed loop is in a computation"
    loop.replace_operand(init, deep_copy(loop.parent, init, changed).value)
    users = list(parameter.users)
    olds, news = deep_copy(body, parameter, changed), deep_copy(body, root, changed)
    for index, copy in olds.copies.items():
        news.copies[index].control_predecessors.append(copy)
    for user in users:
        user.replace_operand(parameter, olds.value)
    body.root = news.value


def _copy_branches(dataflow: Dataflow, conditional: HloInstruction) -> None:
    """Copy the results of branches that become one value."""
    joined: set[ShapeIndex] = set()
    for index, value in dataflow.trees[conditional].walk():
        if value.is_phi and value.instruction is conditional:
            joined.add(index)
    for computation in conditional.called_computations if joined else ():
        copy_for_all(computation.root, joined)


def _copy_changed_operands(instruction: HloInstruction) -> None:
    """Copy every operand that the instruction changes in place, for this use alone."""
    changes = instruction
    if instruction.opcode == "async-start" and not in_place_pairs(instruction):
        changes = instruction.called_computations[0].root
    operands = list(instruction.operands)
    for number in dict.fromkeys(pair.operand_number for pair in in_place_pairs(changes)):
        assert instruction.parent is not None, "an executed instruction is in a computation"
        operands[number] = deep_copy(instruction.parent, operands[number]).value
    if operands != list(instruction.operands):
        instruction.operands = tuple(operands)


def _copy_aliased(module: HloModule) -> None:
    """Copy aliased parameters for all users, and then the aliased results."""
    entry, pairs = module.entry, aliases(module)
    places: dict[int, set[ShapeIndex]] = {}
    for _, number, place, _ in pairs:
        places.setdefault(number, set()).add(place)
    copies: dict[tuple[int, ShapeIndex], HloInstruction] = {}
    for parameter in entry.parameters:
        number = parameter.parameter_number
        if number in places:
            copies.update({(number, place): copy for place, copy in copy_for_all(parameter, places[number]).items()})
    results = deep_copy(entry, entry.root, {output for output, *_ in pairs})
    for output, number, place, _ in pairs:
        results.copies[output].control_predecessors.append(copies[number, place])
    entry.root = results.value
