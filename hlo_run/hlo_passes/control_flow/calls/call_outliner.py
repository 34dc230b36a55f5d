"""Move the instructions between two markers of `call-marker` into a computation, and call it.

    b = (f32[]) custom-call(x), custom_call_target="__xla_internal_call_marker_before"
    y = negate(b[0])                                                                     =>   a = call(x), to_apply=c
    a = custom-call(y), custom_call_target="__xla_internal_call_marker_after"

XLA's `CallOutliner`. Values from outside become further operands, constants are copied. Raises Unsupported for markers that are
not nested.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct, field

from hlo_run.errors import Unsupported
from hlo_run.hlo.edit import Editor, InstructionMaker, copy_instruction, remove_unused
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.attribute_values import AttributeValue
from hlo_run.hlo_passes.control_flow.calls.call_markers import (
    AFTER,
    BEFORE,
    COMPUTATION,
    INSTRUCTION,
    as_attributes,
    frontend_attributes,
)
from hlo_run.pass_support.hlo_pass import PassContext


class CallOutliner(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "call-outliner"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place, the innermost pairs of markers first."""
        del ctx
        for computation in list(module.computations):
            if any(_is_marker(i, BEFORE) or _is_marker(i, AFTER) for i in computation.instructions):
                _outline_all(module, computation)


class _Block(Struct):
    before: HloInstruction
    body: list[HloInstruction] = field(default_factory=list[HloInstruction])


def _is_marker(value: HloInstruction, target: str) -> bool:
    return value.opcode == "custom-call" and value.custom_call_target == target


def _outline_all(module: HloModule, computation: HloComputation) -> None:
    open_blocks: list[_Block] = []
    for value in computation.post_order():
        if _is_marker(value, BEFORE):
            open_blocks.append(_Block(value))
        elif _is_marker(value, AFTER):
            name = frontend_attributes(value).get(COMPUTATION, "")
            if not open_blocks or frontend_attributes(open_blocks[-1].before).get(COMPUTATION, "") != name:
                raise Unsupported(f"the marker %{value.name} of the call of '{name}' ends no open call", value.where)
            call = _outline(module, computation, open_blocks.pop(), value)
            if open_blocks:
                open_blocks[-1].body.append(call)
        elif open_blocks and value.opcode != "parameter":
            open_blocks[-1].body.append(value)
    if open_blocks:
        first = open_blocks[0].before
        raise Unsupported(f"the marker %{first.name} begins a call that does not end", first.where)


def _outline(module: HloModule, computation: HloComputation, block: _Block, after: HloInstruction) -> HloInstruction:
    """Replace a block by a call, and return it."""
    made = _Outlined(str(frontend_attributes(after).get(COMPUTATION, "")) or "outlined", block)
    for value in block.body:
        made.add(value)
    results = [made.of(operand) for operand in after.operands]
    root = results[0] if len(results) == 1 else Editor(results[0]).tuple(results)
    made.computation.root = root
    made.computation.execution_thread = computation.execution_thread
    module.add_computation(made.computation)
    name = str(frontend_attributes(after).get(INSTRUCTION, "")) or "call"
    attributes = {key: text for key, text in frontend_attributes(after).items() if key not in (COMPUTATION, INSTRUCTION)}
    rest: dict[str, AttributeValue] = {
        key: after.attrs[key] for key in ("sharding", "backend_config", "metadata") if key in after.attrs
    }
    if attributes:
        rest["frontend_attributes"] = as_attributes(attributes)
    called = {"to_apply": (made.computation,)}
    call = InstructionMaker(computation, after.where).add_with("call", root.shape, made.operands, rest, called, name)
    call.control_predecessors = block.before.control_predecessors
    _replace(module, computation, after, call)
    inside = [value for value in reversed(block.body) if value.parent is computation]
    block.before.control_predecessors, after.control_predecessors = [], []
    computation.remove(after)
    _read_operands(module, block.before)
    remove_unused([value for value in inside if value.parent is computation])
    if block.before.parent is not None and not block.before.users:
        computation.remove(block.before)
    return call


def _replace(module: HloModule, computation: HloComputation, after: HloInstruction, call: HloInstruction) -> None:
    for other in computation.instructions:
        if after in other.control_predecessors:
            other.control_predecessors = [call if p is after else p for p in other.control_predecessors]
    result = call
    if call.shape != after.shape and call.shape.is_array:
        opcode = "copy" if call.shape.compatible(after.shape) else "bitcast"
        result = Editor(call).add(opcode, after.shape, [call])
    module.replace(after, result)


def _read_operands(module: HloModule, before: HloInstruction) -> None:
    """Let the remaining users of the first marker read its operands."""
    for user in list(before.users):
        if user.opcode == "get-tuple-element":
            module.replace(user, before.operands[user.tuple_index])
            remove_unused([user])
    if before.users or before.is_root:
        value = Editor(before).tuple(before.operands) if before.shape.is_tuple else before.operands[0]
        module.replace(before, value)


class _Outlined:
    """The new computation, and the operands of its call."""

    def __init__(self, name: str, block: _Block) -> None:
        self.computation = HloComputation(name, block.before.where)
        self.operands = list(block.before.operands)
        self._before = block.before
        self._made: dict[HloInstruction, HloInstruction] = {}
        self._parameters = [self._parameter(f"p{n}", value) for n, value in enumerate(self.operands)]

    def _parameter(self, name: str, value: HloInstruction) -> HloInstruction:
        number = len(self.computation.parameters)
        return InstructionMaker(self.computation).parameter(number, value.shape, name)

    def add(self, value: HloInstruction) -> None:
        """Copy an instruction of the block."""
        if not self._is_operand(value):
            new = copy_instruction(value, [self.of(operand) for operand in value.operands])
            new.control_predecessors = [self._made[p] for p in value.control_predecessors if p in self._made]
            self._made[value] = self.computation.add(new)

    def of(self, value: HloInstruction) -> HloInstruction:
        """Return the value's counterpart inside the computation."""
        if value in self._made:
            return self._made[value]
        if self._is_operand(value):
            return self._parameters[value.tuple_index if value.opcode == "get-tuple-element" else 0]
        if value.opcode == "constant":
            made = self.computation.add(copy_instruction(value, ()))
        else:
            made = self._parameter(f"extra_{len(self.operands)}", value)
            self.operands.append(value)
        self._made[value] = made
        return made

    def _is_operand(self, value: HloInstruction) -> bool:
        if value.opcode == "get-tuple-element" and value.operands[0] is self._before:
            return True
        return value is self._before and not value.shape.is_tuple
