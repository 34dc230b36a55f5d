"""Copy values that share a buffer with another live value, and remove copies that are not needed.

    ROOT f = f32[100] fusion(p, u, i), calls=dynamic_update_slice   =>   c = f32[100] copy(p);  ROOT f = fusion(c, u, i)

These share one buffer: the state of a loop (init, body parameter, body root, result); the results of a conditional's branches;
an operand that is updated in place and the result; a parameter and the result that `input_output_alias` assigns to it.
An entry without loops, branches and calls gets its copies as in XLA (`subgraphs/straight_copies.py`), from the order that
dependencies imply. Otherwise `analysis/copy_plan.py` finds the necessary copies from the schedule. A module without a schedule is
analysed in a post-order that reads aliased parameters before their results are written, and control dependencies bind later
schedules to that order. XLA's `copy-insertion` only uses the order that dependencies imply, and so may copy more there.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import ClassVar, assert_never

from msgspec import Struct

from hlo_run.analysis.buffers.alias_pairs import in_place_pairs
from hlo_run.analysis.buffers.copy_lives import Copy, CopyKind, Life
from hlo_run.analysis.buffers.copy_plan import CopyPlan, plan_copies
from hlo_run.analysis.buffers.dataflow import Dataflow, analyze_dataflow
from hlo_run.analysis.computation_order import nested_computations
from hlo_run.analysis.defining_value import ShapeIndex
from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.analysis.tiling.fusion_roots_and_heroes import fusion_roots
from hlo_run.analysis.topological_order import TopologicalOrder
from hlo_run.errors import Unsupported
from hlo_run.hlo.async_ops import is_async_wrapper
from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import NO_CODE
from hlo_run.hlo.tuple_edits import copy_leaves, elements
from hlo_run.hlo.verify.config import aliases
from hlo_run.hlo_passes.hlo_pass import PassContext
from hlo_run.hlo_passes.subgraphs.result_copies import copy_results
from hlo_run.hlo_passes.subgraphs.straight_copies import insert_copies, is_straight
from hlo_run.ops.buffer_calls import is_buffer


class CopyInsertion(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "copy-insertion"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit all executed computations in place; raises Unsupported for buffer types (`b(f32[4])`)."""
        del ctx
        _refuse_buffers(module)
        for fusion in list(module.instructions_of("fusion")):
            _part_scattered_arrays(fusion)
        if is_straight(module):
            insert_copies(module)
            copy_results(module)
            return
        computations = executed_computations(module)
        if not aliases(module) and not any(_may_need_copies(i) for c in computations for i in c.instructions):
            return
        if module.schedule is None:
            for computation in computations:
                for loop in computation.instructions:
                    if loop.opcode == "while":
                        _read_state_again(module, loop)
        given = module.schedule or {}
        dataflow = analyze_dataflow(module)
        orders = {c: list(given[c]) if c in given else _post_order(dataflow, c) for c in computations}
        plan = plan_copies(dataflow, lambda computation: orders[computation])
        made = _Edits(module).make(plan.needed)
        for copy in plan.superfluous:
            _drop(module, copy.instruction)
        if module.schedule is None:
            _keep_order(plan, made)


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
            fusion.operands = [*fusion.operands, fusion.operands[parameter.parameter_number]]
            changed = own if source is parameter else editor.add("bitcast", source.shape, [own])
            scatter.operands = [*scatter.operands[:number], changed, *scatter.operands[number + 1 :]]
        seen.add(parameter)


def _may_need_copies(instruction: HloInstruction) -> bool:
    return instruction.opcode in ("while", "conditional", "copy") or bool(in_place_pairs(instruction))


def _read_state_again(module: HloModule, loop: HloInstruction) -> None:
    """Read the elements of a loop's state by new instructions.

    XLA copies the whole state at the begin of the body, and then removes the copies that are not needed. The order of users that
    this leaves decides between instructions that the schedulers like equally.
    """
    body = loop.while_body
    parameter, root, olds = body.parameters[0], body.root, list(body.parameters[0].users)
    if root.opcode != "tuple" or any(i.opcode != "get-tuple-element" or i.is_root or i.control_predecessors for i in olds):
        return
    if all(value in olds and value.tuple_index == place for place, value in enumerate(root.operands)):
        return
    news = elements(body, parameter)
    first = {old: news[old.tuple_index] for old in olds}
    ordered = [i for i in body.instructions if any(before in first for before in i.control_predecessors)]
    for instruction in ordered:
        befores = (first.get(before, before) for before in instruction.control_predecessors)
        instruction.control_predecessors = list(dict.fromkeys(befores))
    kept = {before for instruction in ordered for before in instruction.control_predecessors}
    for old in olds:
        module.replace(old, news[old.tuple_index])
        body.remove(old)
    for new in news:
        if not new.users and new not in kept:
            body.remove(new)


def _post_order(dataflow: Dataflow, computation: HloComputation) -> list[HloInstruction]:
    """Return a post-order; in the entry, readers of a parameter precede the result that overwrites it, where possible."""
    aliased = aliases(dataflow.module) if computation.is_entry else ()
    if not aliased:
        return computation.post_order()
    order = TopologicalOrder(computation)
    for output, number, index, _ in aliased:
        old = dataflow.value(computation.parameters[number], index)
        new = dataflow.value(computation.root, output)
        for use in old.uses:
            is_here = use.instruction.parent is computation and new.instruction.parent is computation
            if old is not new and is_here and use.instruction is not new.instruction:
                order.add_edge(use.instruction, new.instruction)
    return order.instructions


def _drop(module: HloModule, copy: HloInstruction) -> None:
    computation, source = copy.parent, copy.operands[0]
    assert computation is not None
    has_order = copy.control_predecessors or any(copy in i.control_predecessors for i in computation.instructions)
    if not has_order:
        module.replace(copy, source)
        computation.remove(copy)


class _Edits:
    """Inserts copies; those at one place (the state of a loop, a root) are inserted together."""

    def __init__(self, module: HloModule) -> None:
        self._module = module
        self._made: dict[Life, HloInstruction] = {}

    def make(self, copies: list[Copy]) -> dict[Life, HloInstruction]:
        """Insert the copies and return their instructions by value life."""
        places: dict[tuple[CopyKind, HloInstruction, int], dict[ShapeIndex, Life]] = {}
        for copy in copies:
            if copy.kind is not CopyKind.WRITTEN:
                places.setdefault((copy.kind, copy.instruction, copy.operand_number), {})[copy.index] = copy.life
        for (kind, instruction, number), leaves in places.items():
            match kind:
                case CopyKind.PARAMETER:
                    self._copy_result(instruction, leaves)
                case CopyKind.ROOT | CopyKind.RESULT:
                    self._copy_root(instruction, leaves)
                case CopyKind.IN_PLACE | CopyKind.INIT:
                    self._copy_operand(instruction, number, leaves)
                case CopyKind.WRITTEN:
                    raise AssertionError("a WRITTEN copy already exists in the module")
                case _:
                    assert_never(kind)
        return self._made

    def _note(self, copies: dict[ShapeIndex, HloInstruction], leaves: dict[ShapeIndex, Life]) -> None:
        self._made.update({life: copies[index] for index, life in leaves.items()})

    def _copy_operand(self, instruction: HloInstruction, number: int, leaves: dict[ShapeIndex, Life]) -> None:
        assert instruction.parent is not None
        if is_async_wrapper(instruction.parent) and instruction.operands[number].opcode == "parameter":
            # The wrapped computation holds one instruction only, so the copy goes before the start.
            number = instruction.operands[number].parameter_number
            instruction = next(caller for caller in instruction.parent.callers if caller.opcode == "async-start")
            assert instruction.parent is not None
        if instruction.opcode == "recv-done":
            self._copy_result(instruction, leaves)  # its operand must be the transfer itself
            return
        rebuilt = copy_leaves(instruction.parent, instruction.operands[number], leaves, before=instruction)
        operands = list(instruction.operands)
        replaced, operands[number] = operands[number], rebuilt.value
        instruction.operands = operands
        _remove_dead_tuple(replaced)
        if rebuilt.value.opcode == "tuple":
            # XLA copies every element, and removes needless copies later: the tuple becomes the last user of their operands.
            final, sources = rebuilt.value.operands, {copy.operands[0]: copy for copy in rebuilt.copies.values()}
            rebuilt.value.operands = [sources.get(element, element) for element in final]
            rebuilt.value.operands = final
        self._note(rebuilt.copies, leaves)

    def _copy_root(self, root: HloInstruction, leaves: dict[ShapeIndex, Life]) -> None:
        computation = root.parent
        assert computation is not None
        # The root may have been rebuilt already, around a copied parameter.
        replaced = computation.root
        rebuilt = copy_leaves(computation, replaced, leaves)
        computation.root = rebuilt.value
        _remove_dead_tuple(replaced)
        self._note(rebuilt.copies, leaves)

    def _copy_result(self, parameter: HloInstruction, leaves: dict[ShapeIndex, Life]) -> None:
        """Let all users of a parameter, or of another tuple, use copies of the leaves."""
        body = parameter.parent
        assert body is not None
        order = (self._module.schedule or {}).get(body, body.instructions)
        place = order.index(parameter) + 1
        users, is_root = list(parameter.users), parameter.is_root
        rebuilt = copy_leaves(body, parameter, leaves, before=order[place] if place < len(order) else None)
        for user in users:
            if user.opcode == "get-tuple-element":
                self._module.replace(user, rebuilt.value.operands[user.tuple_index])
                body.remove(user)
            else:
                user.operands = [rebuilt.value if operand is parameter else operand for operand in user.operands]
        if is_root:
            body.root = rebuilt.value
        self._note(rebuilt.copies, leaves)


def _remove_dead_tuple(value: HloInstruction) -> None:
    if value.opcode == "tuple" and value.parent is not None and not value.users and not value.is_root:
        value.parent.remove(value)


def _keep_order(plan: CopyPlan, made: dict[Life, HloInstruction]) -> None:
    """Add control dependencies: the next value of a buffer is written after all writers and readers of the previous value."""
    known: dict[HloInstruction, set[HloInstruction]] = {}
    copied: dict[Life, list[HloInstruction]] = {}
    for copy in plan.needed:
        if copy.life in made:
            copied.setdefault(copy.source, []).append(made[copy.life])
    for order in plan.orders:
        for earlier, later in pairwise(order):
            maker = next((found for life in later if (found := life.instruction or made.get(life)) is not None), None)
            if maker is None:
                continue
            for life in earlier:
                makers = (life.instruction, made.get(life))
                for other in (*makers, *(use.instruction for use in life.readers), *copied.get(life, ())):
                    if other is not None:
                        _run_before(other, maker, known)


def _run_before(first: HloInstruction, second: HloInstruction, known: dict[HloInstruction, set[HloInstruction]]) -> None:
    """Add a control dependency; `known` caches the instructions that precede an instruction anyway."""
    if first.parent is None or second.parent is None or first.opcode in NO_CODE:
        return
    for one, other in zip(reversed(list(_callers(first))), reversed(list(_callers(second))), strict=False):
        if one is not other:
            if other not in known:
                known[other] = _made_for(other)
            if one.parent is other.parent and one not in known[other] and other.opcode not in NO_CODE:
                known[other].add(one)
                other.control_predecessors.append(one)
                other.touch()
            return


def _made_for(instruction: HloInstruction) -> set[HloInstruction]:
    """Return the instructions before an instruction: operands (through tuples and similar) and control predecessors."""
    found = {*instruction.operands, *instruction.control_predecessors}
    waiting = list(found)
    while waiting:
        operand = waiting.pop()
        if operand.opcode in NO_CODE:
            fresh = set(operand.operands) - found
            found |= fresh
            waiting += fresh
    return found


def _callers(instruction: HloInstruction) -> Iterator[HloInstruction]:
    """Yield the instruction, the caller of its computation, the caller of that one's, and so on up to the entry."""
    while True:
        yield instruction
        computation: HloComputation | None = instruction.parent
        callers = [c for c in computation.callers if computation in nested_computations(c)] if computation is not None else []
        if not callers:
            return
        instruction = callers[0]
