"""Decides which f32 results become bf16: all their uses must round them anyway, or pass them on to such uses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hlo_run.analysis.buffers.alias_pairs import in_place_pairs
from hlo_run.analysis.buffers.dataflow_values import HloPosition, HloUse
from hlo_run.hlo.edit import has_side_effect
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import CONTROL_FLOW
from hlo_run.hlo.values.shape import ShapeIndex
from hlo_run.hlo_passes.precision.support import FloatSupport, hands_on, is_associative_scan
from hlo_run.hlo_passes.precision.value_sets import ValueSets, leaf_at

_WIDE, _NARROW = "f32", "bf16"
# The memory of the host.
_HOST = 5


def keeps_type(value: HloInstruction) -> bool:
    """True for an instruction whose types mean something outside of this module: a custom call, a transfer, a view of bits."""
    if value.opcode == "fusion" and value.fusion_kind == "kCustom":
        return keeps_type(value.fused_computation.root)
    if value.opcode == "bitcast":
        return value.shape.element_type != value.operands[0].shape.element_type
    if value.opcode == "custom-call":
        return value.custom_call_target != "AllocateBuffer"
    if value.opcode == "scan":
        return not value.is_associative
    return value.opcode == "bitcast-convert" or _has_own_effect(value)


def _has_own_effect(value: HloInstruction) -> bool:
    return value.opcode not in CONTROL_FLOW and has_side_effect(value)


def wide_leaves(value: HloInstruction) -> Iterator[ShapeIndex]:
    """Yield the indices of the f32 arrays of a result."""
    for index, leaf in value.shape.leaves():
        if leaf.element_type == _WIDE:
            yield index


class Plan:
    """The indices of each result that become bf16: `changes`."""

    def __init__(self, module: HloModule, support: FloatSupport) -> None:
        self.changes: dict[HloInstruction, set[ShapeIndex]] = {}
        self._support = support
        self._sets = ValueSets(module)
        self._kept: set[HloPosition] = set()
        self._visited: set[HloInstruction] = set()
        self._done: set[HloComputation] = set()
        self._candidates: set[HloInstruction] = set()
        for computation in module.computations:
            for value in computation.post_order():
                if self._is_candidate(value):
                    self._candidates.add(value)
        for computation in reversed(module.computations):
            if computation not in self._done:
                self._walk(computation, takes_parameters=False)
        for computation in reversed(module.computations):
            self._settle(computation)

    def type_of(self, value: HloInstruction, index: ShapeIndex) -> str:
        """Return the element type at an index after the changes."""
        kind = leaf_at(value.shape, index).element_type
        return _NARROW if kind == _WIDE and index in self.changes.get(value, ()) else kind

    def _set(self, value: HloInstruction, index: ShapeIndex, kind: str) -> None:
        if kind == _NARROW:
            self.changes.setdefault(value, set()).add(index)
            return
        indices = self.changes.get(value, set[ShapeIndex]())
        indices.discard(index)
        if not indices:
            self.changes.pop(value, None)

    def _keep(self, value: HloInstruction, index: ShapeIndex) -> None:
        """Let the values of an array be f32 for good."""
        for place in self._sets.at(value, index):
            if leaf_at(place.instruction.shape, place.shape_index).element_type == _WIDE:
                self._kept.add(place)

    def _is_candidate(self, value: HloInstruction) -> bool:
        if (
            not self._support.mixes(value)
            and value.opcode not in ("tuple", "get-tuple-element", "domain")
            and value.shape.element_type != _NARROW
            and any(not hands_on(value, n) or operand not in self._candidates for n, operand in enumerate(value.operands))
        ):
            return False
        if value.opcode in ("dynamic-slice", "copy"):
            layout = value.operands[0].shape.layout
            return layout is None or layout.memory_space != _HOST
        return True

    # ---- from users to operands -----------------------------------------------------------------------------------------

    def _walk(self, computation: HloComputation, takes_parameters: bool = True) -> None:
        for value in reversed(computation.post_order()):
            self._decide(value, takes_parameters)
            self._enter(value)
            self._visited.add(value)
        self._done.add(computation)

    def _decide(self, value: HloInstruction, takes_parameters: bool) -> None:
        computation = value.parent
        assert computation is not None, "the instruction is in a computation"
        if value is computation.root:
            for index in wide_leaves(value) if not computation.is_fusion else ():
                if self.type_of(value, index) == _WIDE:
                    self._keep(value, index)
            return
        if keeps_type(value) or (value.opcode == "parameter" and not takes_parameters):
            return
        if value not in self._candidates or not self._support.gives_bf16(value):
            return
        for index in wide_leaves(value):
            layout = leaf_at(value.shape, index).layout
            is_here = layout is None or layout.memory_space != _HOST
            if is_here and self.type_of(value, index) == _WIDE and self._all_take_narrow(value, index):
                self._set(value, index, _NARROW)

    def _enter(self, value: HloInstruction) -> None:
        """Let the computations of an instruction return its new result, and decide on the instructions in them."""
        if value.opcode == "fusion":
            if self._support.mixes(value):
                self._narrow_root(value.fused_computation.root, value)
                self._walk(value.fused_computation)
                self._forget_inner_changes(value)
        elif value.opcode == "while":
            self._narrow_root(value.while_body.root, value)
            self._walk(value.while_body)
            self._walk(value.while_condition)
        elif value.opcode in ("conditional", "call") or is_associative_scan(value):
            for called in value.called_computations:
                self._narrow_root(called.root, value)
                self._walk(called)
        elif value.opcode == "async-start":
            done = _done_of(value)
            (wrapped,) = value.called_computations
            if done is not None:
                self._narrow_root(wrapped.root, done)
            self._walk(wrapped)

    def _narrow_root(self, root: HloInstruction, result: HloInstruction) -> None:
        for index in wide_leaves(root):
            if self.type_of(result, index) == _NARROW:
                self._set(root, index, _NARROW)

    def _forget_inner_changes(self, fusion: HloInstruction) -> None:
        """Undo changes in a fusion's body that begin and end in it: they would only add roundings."""
        body = fusion.fused_computation
        of_root = {v for index in self.changes.get(body.root, ()) for v in self._sets.at(body.root, index)}
        for value in body.post_order():
            if value.opcode == "parameter" or any(of_root & self._sets.at(value, index) for index in wide_leaves(value)):
                continue
            if value.opcode == "fusion":
                inner = value.fused_computation.parameters
                undone = [p for p, o in zip(inner, value.operands, strict=True) if o not in self.changes and p in self.changes]
                for parameter in undone:
                    del self.changes[parameter]
                if undone:
                    self._forget_inner_changes(value)
            if value in self.changes and not any(operand in self.changes for operand in value.operands):
                del self.changes[value]

    def _all_take_narrow(self, value: HloInstruction, index: ShapeIndex) -> bool:
        """True if no use that was visited needs f32."""
        if leaf_at(value.shape, index).element_type not in (_WIDE, _NARROW):
            return False
        for place in self._sets.at(value, index):
            if place in self._kept:
                return False
            if leaf_at(place.instruction.shape, place.shape_index).element_type == _NARROW:
                continue
            if any(use.instruction in self._visited and not self._takes_narrow(use) for use in self._sets.uses(place)):
                return False
        return True

    def _takes_narrow(self, use: HloUse) -> bool:
        user, number, index = use
        if _has_own_effect(user):
            return False
        called = _parameters_of(user, number)
        if called:
            return all(self.type_of(parameter, index) == _NARROW for parameter in called)
        if user.opcode == "async-done" or (user.opcode == "bitcast" and user.operands[0].shape.element_type == _NARROW):
            return True
        if self._support.rounds(user):
            return True
        if not hands_on(user, number):
            return False
        if user.opcode == "all-reduce" and user.shape.is_tuple:
            index = (number, *index)
        return self.type_of(user, index) == _NARROW

    # ---- what shares memory has one type --------------------------------------------------------------------------------

    def _settle(self, computation: HloComputation) -> bool:
        """Give all arrays the type of the values that they are; return whether a parameter changed."""
        order = computation.post_order()[::-1]
        parameter_changed = False
        changed = True
        while changed:
            changed = False
            for value in order:
                if self._settle_result(value):
                    changed = True
                    parameter_changed = parameter_changed or value.opcode == "parameter"
                self._settle_roots(value)
                self._settle_called(value)
        for value in order:
            for parameter, argument in _bound_parameters(value):
                for index, leaf in parameter.shape.leaves():
                    if leaf.is_array and self.type_of(parameter, index) != self.type_of(argument, index):
                        self._set(parameter, index, self.type_of(argument, index))
        return parameter_changed

    def _settle_called(self, value: HloInstruction) -> None:
        if value.opcode == "while" or is_associative_scan(value):
            inner = (value.while_condition, value.while_body) if value.opcode == "while" else (value.to_apply,)
            # Parameters only ever become f32 again, so this ends.
            while any(self._settle(called) for called in inner) or self._align_carries(value):
                self._settle_result(value)
                self._settle_roots(value)
        elif value.opcode in ("fusion", "conditional", "async-start", "call"):
            for called in value.called_computations:
                self._settle(called)

    def _settle_result(self, value: HloInstruction) -> bool:
        if keeps_type(value):
            return False
        changed = False
        pairs = in_place_pairs(value)
        for index, leaf in value.shape.leaves():
            kind = self.type_of(value, index) if leaf.is_array else ""
            if kind not in (_WIDE, _NARROW):
                continue
            places = set(self._sets.at(value, index))
            for pair in pairs:
                if pair.output_index == index:
                    places |= self._sets.at(value.operands[pair.operand_number], pair.operand_index)
            is_narrow = all(self.type_of(*place) == _NARROW for place in places) and self._all_take_narrow(value, index)
            if not is_narrow:
                self._keep(value, index)
            new = _NARROW if is_narrow else _WIDE
            if new != kind:
                changed = True
                self._set(value, index, new)
        return changed

    def _settle_roots(self, value: HloInstruction) -> None:
        leaves = {index for index, _ in value.shape.leaves()}
        for root in _roots_of(value):
            for index, leaf in root.shape.leaves():
                if not leaf.is_array or index not in leaves:
                    continue
                kind = self.type_of(value, index)
                if self.type_of(root, index) == kind or (kind == _NARROW and keeps_type(root)):
                    continue
                self._set(root, index, kind)
                if kind == _WIDE:
                    self._keep(root, index)

    def _align_carries(self, value: HloInstruction) -> bool:
        """Let the carries of a scan be f32 everywhere if they begin so; return whether one changed."""
        if value.opcode != "scan":
            return False
        changed = False
        count, body = value.num_carries, value.to_apply
        outputs = len(value.shape.tuple_shapes) - count if value.shape.is_tuple else 0
        for number in range(count):
            operand = len(value.operands) - count + number
            index = (outputs + number,) if value.shape.is_tuple else ()
            if not value.operands[operand].shape.is_array or self.type_of(value.operands[operand], ()) != _WIDE:
                continue
            for place in ((body.parameters[operand], ()), (body.root, index), (value, index)):
                if self.type_of(*place) == _NARROW and place[0] in self.changes:
                    self._set(*place, _WIDE)
                    self._keep(*place)
                    changed = True
        return changed


def _done_of(start: HloInstruction) -> HloInstruction | None:
    value = start
    while value.users and value.opcode != "async-done":
        value = value.users[0]
    return value if value.opcode == "async-done" else None


def _parameters_of(user: HloInstruction, number: int) -> list[HloInstruction]:
    """Return the parameters that an operand becomes in the computations of an instruction, if they are of one module part."""
    if user.opcode in ("fusion", "call", "async-start", "while") or is_associative_scan(user):
        return [called.parameters[number] for called in user.called_computations]
    if user.opcode == "conditional" and number:
        return [user.called_computations[number - 1].parameters[0]]
    return []


def _roots_of(value: HloInstruction) -> Sequence[HloInstruction]:
    if value.opcode == "while":
        return [value.while_body.root]
    if value.opcode in ("fusion", "call", "conditional", "async-start") or is_associative_scan(value):
        return [called.root for called in value.called_computations]
    return []


def _bound_parameters(value: HloInstruction) -> Iterator[tuple[HloInstruction, HloInstruction]]:
    for number, operand in enumerate(value.operands):
        for parameter in _parameters_of(value, number):
            yield parameter, operand
