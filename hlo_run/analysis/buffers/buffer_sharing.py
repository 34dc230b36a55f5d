"""Decides whether a result may be written to the buffer of an operand that is read for the last time.

    add(p, q), of two arrays of its shape   yes, p or q
    fusion(p, q): ROOT add(exp(p), q)       yes, p or q: every thread reads the element that it writes
    fusion(p): ROOT add(p, reverse(p))      no: another thread may still have to read what one writes
    fusion(p): ROOT (exp(p), sum of p)      yes: a thread adds an element up before it writes there
    a . b + c in a call of cuBLASLt         yes, c

Mirrors XLA's `CanShareOperandBufferWithUser` with the rules of its GPU `alias_info.cc`, where our emitters allow it too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from hlo_run.analysis.buffers.alias_pairs import InPlacePair, in_place_pairs
from hlo_run.analysis.buffers.dataflow_values import HloValue, subshape
from hlo_run.analysis.elementwise import is_elementwise
from hlo_run.analysis.tiling.emitter_kind import choose_emitter_kind
from hlo_run.analysis.tiling.fusion_roots_and_heroes import find_heroes, fusion_roots
from hlo_run.analysis.tiling.node_facts import is_real_reduction
from hlo_run.analysis.tiling.reduction_groups import group_roots
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.backend_config import config_of
from hlo_run.hlo.values.shape import Shape, ShapeIndex
from hlo_run.hlo.views.slices import DynamicSlice

_BYTE_BITS = 8
# The number of operand c among a, b, c.
_ADDEND = 2


class BufferSharing:
    """Decides for the instructions of one module. Caches the verdicts on fusions."""

    def __init__(self) -> None:
        self._verdicts: dict[tuple[HloInstruction, int, ShapeIndex], bool] = {}

    def may_take_place(self, user: HloValue, value: HloValue) -> bool:
        """Return whether `user` may be written to the buffer of `value`. Its instruction must be the last to read `value`."""
        instruction = user.instruction
        if instruction.opcode == "copy" or user.is_phi:
            return False
        places = list(_operand_places(value, instruction))
        return bool(places) and all(self.may_share(instruction, n, index, user.index) for n, index in places)

    def may_share(self, user: HloInstruction, number: int, index: ShapeIndex, output: ShapeIndex) -> bool:
        """Return whether `user` may write its result at `output` to the buffer of operand `number` at `index`."""
        key = (user, number, output)
        if index:
            return InPlacePair(number, index, output) in in_place_pairs(user)
        if key not in self._verdicts:
            self._verdicts[key] = _judge(user, number, output)
        return self._verdicts[key]


def _operand_places(value: HloValue, user: HloInstruction) -> Iterable[tuple[int, ShapeIndex]]:
    positions: dict[HloInstruction, list[ShapeIndex]] = {}
    operands = set(user.operands)
    for position in value.positions:
        if position.instruction in operands:
            positions.setdefault(position.instruction, []).append(position.shape_index)
    for number, operand in enumerate(user.operands):
        for index in positions.get(operand, ()):
            yield number, index


def _judge(user: HloInstruction, number: int, output: ShapeIndex) -> bool:
    operand = user.operands[number]
    if operand.opcode == "constant":
        return False
    if InPlacePair(number, (), output) in in_place_pairs(user):
        return True
    if user.opcode == "sort":
        return output == ((number,) if user.shape.is_tuple else ()) and operand.shape == subshape(user.shape, output)
    if user.opcode == "custom-call":
        return number == _ADDEND and output == (0,) and _adds_matrix(user) and operand.shape == subshape(user.shape, output)
    if user.opcode != "fusion":
        return user.opcode != "copy" and is_elementwise(user) and operand.shape == user.shape
    if user.fused_computation.root.opcode == "sort":
        return _sorted_in_place(user, number, output)
    return _same_room(operand.shape, subshape(user.shape, output)) and _read_where_written(user, number, output)


def _sorted_in_place(fusion: HloInstruction, number: int, output: ShapeIndex) -> bool:
    """True if the operand is what the sort turns into this result, and has no other use."""
    sort, parameter = fusion.fused_computation.root, fusion.fused_computation.parameters[number]
    places = [place for place, operand in enumerate(sort.operands) if operand is parameter]
    return places == [output[0] if output else 0] and parameter.users == [sort]


def _adds_matrix(call: HloInstruction) -> bool:
    """True for a cuBLASLt product that adds beta times a matrix, which it reads where it writes."""
    if call.custom_call_target != "__cublas$lt$matmul":
        return False
    record: object = config_of(call.backend_config).get("gemm_backend_config")
    beta = cast("dict[str, object]", record).get("beta", 0) if isinstance(record, dict) else 0
    return isinstance(beta, int | float | str) and float(beta) != 0


def _same_room(one: Shape, other: Shape) -> bool:
    """True for arrays with equal numbers of elements of equal width, at least a byte. Packed elements share bytes."""
    if not one.is_array or not other.is_array or one.element_count != other.element_count:
        return False
    return one.dtype.bits == other.dtype.bits >= _BYTE_BITS and (one.element_type == "pred") == (other.element_type == "pred")


def _read_where_written(fusion: HloInstruction, number: int, output: ShapeIndex) -> bool:
    """True if each element of the operand is read only to compute results at the same place, with `output` among them.

    The first reduction may read it too: its emitter reads an element for the reduction, then writes the other results there.
    """
    root = fusion.fused_computation.root
    result = root
    for place in output:
        if result.opcode != "tuple":
            return False
        result = result.operands[place]
    update = result.operands[0] if result.opcode == "bitcast" else result
    found, results_reached = False, set[HloInstruction]()
    queue: list[HloInstruction] = [fusion.fused_computation.parameters[number]]
    seen = set(queue)
    for instruction in queue:
        if instruction is result:
            found = True
        for user in instruction.users:
            if user is root and user.opcode == "tuple":
                results_reached.add(instruction)
            elif user not in seen:
                if user.opcode == "reduce" and user is _first_reduction(fusion):
                    continue
                if not _keeps_place(instruction, user, update):
                    return False
                seen.add(user)
                queue.append(user)
    results_reached.discard(result)
    return found and (not results_reached or _reads_before_it_writes(fusion, update))


def _keeps_place(operand: HloInstruction, user: HloInstruction, update: HloInstruction) -> bool:
    """True if an element of `user` needs only the operand's element at the same place in memory, or the slice of `update`."""
    if user.opcode == "bitcast":
        return operand.shape.is_array and operand.shape.dtype.bits == user.shape.dtype.bits
    if user.opcode == "dynamic-slice" and update.opcode == "dynamic-update-slice" and user.operands[0] is update.operands[0]:
        # It reads exactly the slice that is changed.
        read, written = DynamicSlice.of(user), DynamicSlice.of(update)
        return read.part.shape == written.part.shape and read.starts == written.starts
    if user is update and user.opcode == "dynamic-update-slice" and user.operands.count(operand) == 1:
        # The update is computed from the slice that it changes: see above.
        return operand in user.operands[:2]
    same_order = operand.shape.dims == user.shape.dims and operand.shape.minor_to_major == user.shape.minor_to_major
    return user.opcode != "copy" and is_elementwise(user) and same_order


def _first_reduction(fusion: HloInstruction) -> HloInstruction | None:
    """Return the first reduction that the threads of the fusion's kernel share; None with another emitter."""
    roots = fusion_roots(fusion)
    heroes = find_heroes(roots)
    if choose_emitter_kind(roots, heroes).name != "reduction":
        return None
    return next(hero for root, hero in zip(roots, heroes, strict=True) if is_real_reduction(hero, root))


def _reads_before_it_writes(fusion: HloInstruction, update: HloInstruction) -> bool:
    """True if a thread computes all results of a place before it writes one of them.

    Threads of a reduction do so for the results that are no reductions, if all roots are in the same blocks.
    """
    roots = fusion_roots(fusion)
    heroes = find_heroes(roots)
    kind = choose_emitter_kind(roots, heroes).name
    if kind != "reduction":
        return kind == "loop"
    is_reduction = [is_real_reduction(hero, root) for root, hero in zip(roots, heroes, strict=True)]
    return is_elementwise(update) and len(group_roots(roots, is_reduction)) == 1
