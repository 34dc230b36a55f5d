"""Wrap matrix products with the slices that they read and write: the library then works in the large arrays, without copies.

    s = f32[1,48,48] dynamic-slice(x, i, zero, zero), ..    b = f32[48,48] bitcast(s)
    c = (f32[32,48], s8[33554432]) custom-call(a, b), custom_call_target="__cublas$lt$matmul"
        =>   f = (f32[32,48], s8[33554432]) fusion(x, i, a), kind=kCustom, calls=dynamic-slice-fusion, with the three in its body

A result that only goes into a dynamic-update-slice is written where that puts it, if the result is one of the computation's.
`dynamic-slice-annotator` wrote where dynamic slices are. Instructions that compute their indices come along. Leaves the old
instructions without users behind, and new elements of tuples without users. XLA's `DynamicSliceFusionRewriterV2`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, cast

from msgspec import Struct

from hlo_run.analysis.buffers.slice_copies import is_contiguous_slice
from hlo_run.analysis.buffers.sliced_products import PRODUCT_TARGETS
from hlo_run.hlo.edit import InstructionMaker, copy_instruction, remove_unused
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.values.backend_config import config_of
from hlo_run.hlo_passes.subgraphs.library_calls import gpu_backend_config
from hlo_run.pass_support.hlo_pass import PassContext

_VIEWS: tuple[Opcode, ...] = ("bitcast", "get-tuple-element")
_FIRST_INDEX: dict[Opcode, int] = {"dynamic-slice": 1, "dynamic-update-slice": 2}
_INDEX_MATHS = opcode_set("add subtract multiply compare select")
# A slice has a multiple of these bytes, so that arrays of one size keep the alignment of XLA's buffers.
_ALIGNMENT_BYTES = 256
_RECORD = {"kind": "__custom_fusion", "custom_fusion_config": {"name": "dynamic_slice_fusion", "kernel_index": 0}}


class DynamicSliceFusionRewriterV2(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "dynamic-slice-fusion-rewriter-v2"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        for hero in [i for i in module.instructions_of("custom-call") if _is_hero(i)]:
            read = [chain for operand in hero.operands if (chain := _read_slice(operand)) is not None]
            results = [_safe(hero, read, result) for result in _results(hero)]
            if read or any(result.update is not None for result in results):
                _rewrite(module, hero, read, results)


class _Result(Struct, frozen=True):
    """Element `number` of a product's results: the views of it, and the update that they go into, if they go into one."""

    number: int
    views: tuple[HloInstruction, ...] = ()
    update: HloInstruction | None = None


# ---- what to wrap ---------------------------------------------------------------------------------------------------


def _is_hero(instruction: HloInstruction) -> bool:
    if instruction.opcode != "custom-call" or instruction.custom_call_target not in PRODUCT_TARGETS:
        return False
    record: object = config_of(instruction.backend_config).get("gemm_backend_config")
    if not isinstance(record, dict) or cast("dict[str, object]", record).get("epilogue", "DEFAULT") != "DEFAULT":
        return False
    if any(operand.shape.is_tuple for operand in instruction.operands):
        return False
    if not instruction.shape.is_tuple:
        return True
    numbers = [user.tuple_index for user in instruction.users if user.opcode == "get-tuple-element"]
    return len(set(numbers)) == len(instruction.users)


def _read_slice(operand: HloInstruction) -> tuple[HloInstruction, ...] | None:
    """Return the slice that an operand is a view of, and the views; None without one that can be wrapped."""
    chain = [operand]
    while chain[-1].opcode in _VIEWS:
        chain.append(chain[-1].operands[0])
    source = chain[-1]
    if source.opcode not in ("slice", "dynamic-slice") or not _can_move(source):
        return None
    return tuple(reversed(chain))


def _can_move(slice_: HloInstruction) -> bool:
    """True for a contiguous slice at a known place."""
    if slice_.opcode != "slice" and "dynamic_slice_config" not in config_of(slice_.backend_config):
        return False
    part = slice_.operands[1].shape if slice_.opcode == "dynamic-update-slice" else slice_.shape
    has_bytes = part.dtype.bits % 8 == 0
    return has_bytes and is_contiguous_slice(slice_) and part.size_bytes % _ALIGNMENT_BYTES == 0


def _results(hero: HloInstruction) -> list[_Result]:
    if not hero.shape.is_tuple:
        found = _updated(hero.users[0], ()) if len(hero.users) == 1 else None
        return [] if found is None else [_Result(0, found[0], found[1])]
    elements = {user.tuple_index: user for user in hero.users}
    results: list[_Result] = []
    for number in range(len(hero.shape.tuple_shapes)):
        element = elements.get(number)
        if element is None:
            results.append(_Result(number))
            continue
        found = _updated(element.users[0], (element,)) if len(element.users) == 1 else None
        results.append(_Result(number, (element,)) if found is None else _Result(number, *found))
    return results


def _updated(
    user: HloInstruction, before: tuple[HloInstruction, ...]
) -> tuple[tuple[HloInstruction, ...], HloInstruction] | None:
    """Return the views between a result and the update at their end, and the update; None without one that can be wrapped."""
    while user.opcode in _VIEWS:
        if len(user.users) != 1:
            return None
        before, user = (*before, user), user.users[0]
    if user.opcode != "dynamic-update-slice" or not _can_move(user) or user.parent is None:
        return None
    root = user.parent.root
    is_result = user is root or (root.opcode == "tuple" and user in root.operands)
    return (before, user) if is_result else None


def _safe(hero: HloInstruction, read: Sequence[Sequence[HloInstruction]], result: _Result) -> _Result:
    """Return the result without an update that would write what the product reads, and is too large for its workspace.

    XLA wraps such an update too, and the library then reads what it has written.
    """
    if result.update is None:
        return result
    target, size_bytes = result.update.operands[0], result.update.operands[1].shape.size_bytes
    room = hero.shape.tuple_shapes[-1].size_bytes if hero.shape.is_tuple else 0
    is_read = target in hero.operands or any(target is chain[0].operands[0] for chain in read)
    return _Result(result.number, result.views[:1] if hero.shape.is_tuple else ()) if is_read and size_bytes > room else result


# ---- the fusion -----------------------------------------------------------------------------------------------------


class _Plan:
    """The instructions of the body of a fusion, operands first, and the values that become its parameters."""

    def __init__(self, hero: HloInstruction, read: Sequence[Sequence[HloInstruction]], results: Sequence[_Result]) -> None:
        self._inside: dict[HloInstruction, None] = {}
        self._maths: set[HloInstruction] = set()
        scanned: list[HloInstruction] = []
        for chain in read:
            self._add_maths(chain[0])
            self._inside.update(dict.fromkeys(chain))
            scanned += chain
        self._inside[hero] = None
        scanned.append(hero)
        for result in results:
            self._inside.update(dict.fromkeys(result.views))
            scanned += result.views
            if result.update is not None:
                self._add_maths(result.update)
                self._inside[result.update] = None
                scanned.append(result.update)
        constants = self._constants()
        self.inside = [*constants, *self._inside]
        self._inside.update(dict.fromkeys(constants))
        outside: dict[HloInstruction, None] = {}
        visited: set[HloInstruction] = set()
        for instruction in scanned:
            for operand in instruction.operands:
                self._collect(operand, outside, visited)
        self.outside = list(outside)

    def _add_maths(self, slice_: HloInstruction) -> None:
        if slice_.opcode in _FIRST_INDEX:
            for index in slice_.operands[_FIRST_INDEX[slice_.opcode] :]:
                self._add_index(index)

    def _add_index(self, index: HloInstruction) -> None:
        if not _is_maths(index) or index in self._inside:
            return
        self._maths.add(index)
        for operand in index.operands:
            self._add_index(operand)
        self._inside[index] = None

    def _constants(self) -> list[HloInstruction]:
        """Return the constants that only indices use. XLA's thunks want the others as parameters."""
        of_indices: dict[HloInstruction, None] = {}
        others: set[HloInstruction] = set()
        for instruction in self._inside:
            first = 0 if instruction in self._maths else _FIRST_INDEX.get(instruction.opcode, len(instruction.operands))
            for place, operand in enumerate(instruction.operands):
                if operand.opcode != "constant":
                    continue
                if place >= first:
                    of_indices[operand] = None
                else:
                    others.add(operand)
        return [constant for constant in of_indices if constant not in others]

    def _collect(self, operand: HloInstruction, outside: dict[HloInstruction, None], visited: set[HloInstruction]) -> None:
        if operand not in self._inside:
            outside[operand] = None
        elif operand in self._maths and operand not in visited:
            visited.add(operand)
            for inner in operand.operands:
                self._collect(inner, outside, visited)


def _is_maths(index: HloInstruction) -> bool:
    """True for an operation that XLA's thunks compute for an offset: on scalar integers."""
    if index.opcode not in _INDEX_MATHS:
        return False
    values = index.operands if index.opcode == "compare" else (index,)
    allowed_pred = index.opcode == "select"
    return all(
        value.shape.is_array
        and value.shape.rank == 0
        and (value.shape.dtype.is_integer or (allowed_pred and value.shape.element_type == "pred"))
        for value in values
    )


def _body(plan: _Plan, hero: HloInstruction, results: Sequence[_Result]) -> HloComputation:
    body = HloComputation("dynamic-slice-fusion", hero.where)
    maker = InstructionMaker(body, hero.where)
    copies: dict[HloInstruction, HloInstruction] = {}
    for number, outside in enumerate(plan.outside):
        copies[outside] = maker.parameter(number, outside.shape, f"p{number}")
    for old in plan.inside:
        copies[old] = body.add(copy_instruction(old, [copies[operand] for operand in old.operands]))
    root = copies[plan.inside[-1]]
    if len(results) > 1:
        elements: list[HloInstruction] = []
        for result in results:
            last = result.update if result.update is not None else result.views[-1] if result.views else None
            elements.append(maker.get_tuple_element(copies[hero], result.number) if last is None else copies[last])
        root = maker.tuple(elements)
    body.root = root
    return body


def _rewrite(
    module: HloModule, hero: HloInstruction, read: Sequence[Sequence[HloInstruction]], results: Sequence[_Result]
) -> None:
    parent = hero.parent
    assert parent is not None, "the product is in a computation"
    plan = _Plan(hero, read, results)
    body = module.add_computation(_body(plan, hero, results))
    module.unique_instruction_name("fusion")
    made = InstructionMaker(parent, hero.where)
    config = gpu_backend_config("fusion_backend_config", _RECORD)
    fusion = made.add(
        "fusion", body.root.shape, plan.outside, {"calls": (body,)}, "dynamic_slice_fusion", kind="kCustom", backend_config=config
    )
    fusion.control_predecessors = list(hero.control_predecessors)
    hero.control_predecessors = []
    for other in parent.instructions:
        if hero in other.control_predecessors:
            other.control_predecessors = [fusion if first is hero else first for first in other.control_predecessors]
    if len(results) <= 1:
        update = results[0].update if results else None
        _replace(module, hero if update is None else update, fusion)
        return
    replaced = False
    for number, result in enumerate(results):
        element = made.get_tuple_element(fusion, number)
        old = result.update if result.update is not None else result.views[-1] if result.views else None
        if old is not None:
            _replace(module, old, element)
            replaced = True
    if not replaced:
        _replace(module, hero, fusion)


def _replace(module: HloModule, old: HloInstruction, new: HloInstruction) -> None:
    module.replace(old, new)
    remove_unused((old,))
