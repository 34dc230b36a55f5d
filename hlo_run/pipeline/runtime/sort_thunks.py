"""`sort` and the calls of CUB's radix sort: by keys where the comparator says so, else by the comparator as a kernel."""

from __future__ import annotations

import math

from hlo_run.analysis.sort_order import KeyExpression, sort_order
from hlo_run.artifact import SortComparator, SortKey, SortThunk, Thunk
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.isolate import isolate_instruction
from hlo_run.hlo.shape import Shape
from hlo_run.pipeline.runtime.emission import Emission, EmitThunk, backend_config


def _sort(emission: Emission, sort: HloInstruction) -> list[Thunk]:
    operands = tuple(emission.array(operand) for operand in sort.operands)
    results = tuple(emission.array(sort, (number,) if sort.shape.is_tuple else ()) for number in range(len(operands)))
    (dim,) = sort.attrs["dimensions"]
    return [SortThunk(sort.name, operands, results, dim, _order(emission, sort))]


def _order(emission: Emission, sort: HloInstruction) -> tuple[SortKey, ...] | SortComparator:
    # A copy to take apart.
    alone = isolate_instruction(sort).entry.root
    (comparator,) = alone.called["to_apply"]
    keys = sort_order(comparator)
    if keys is None:
        shapes = [_flat(operand.shape) for operand in sort.operands for _ in range(2)]
        fusion = _mapped(f"{sort.name}_comparator", comparator, shapes, _flat(sort.operands[0].shape).with_element_type("pred"))
        return SortComparator(emission.kernels.detached(fusion), math.prod(sort.operands[0].shape.dims))
    return tuple(_key(emission, sort, key) for key in keys)


def _flat(shape: Shape) -> Shape:
    return Shape.array(shape.element_type, (shape.element_count,))


def _key(emission: Emission, sort: HloInstruction, key: KeyExpression) -> SortKey:
    dtype = key.value.shape.element_type
    if key.value.opcode == "parameter":
        return SortKey(key.operands, dtype, key.descending, key.total_order)
    shapes = [sort.operands[number].shape for number in key.operands]
    result = shapes[0].with_element_type(dtype)
    fusion = _mapped(f"{sort.name}_key", _extract(key), shapes, result)
    return SortKey(key.operands, dtype, key.descending, key.total_order, emission.kernels.detached(fusion))


def _extract(key: KeyExpression) -> HloComputation:
    """Return a computation of the key alone, with a parameter per operand that it needs."""
    made = HloComputation("key", key.value.where)
    copies: dict[HloInstruction, HloInstruction] = {}
    for number, operand in enumerate(key.operands):
        source = next(p for p in _parameters(key.value) if p.attrs["parameter_number"] == 2 * operand)
        copies[source] = made.add(
            HloInstruction(source.name, "parameter", source.shape, attrs={"parameter_number": number}, where=source.where)
        )
    assert key.value.parent is not None, "it stands in the comparator"
    needed = _reached(key.value)
    for old in key.value.parent.post_order():
        if old in needed and old not in copies:
            operands = [copies[operand] for operand in old.operands]
            copies[old] = made.add(
                HloInstruction(old.name, old.opcode, old.shape, operands, dict(old.attrs), dict(old.called), old.where)
            )
    made.root = copies[key.value]
    return made


def _parameters(value: HloInstruction) -> list[HloInstruction]:
    return [instruction for instruction in _reached(value) if instruction.opcode == "parameter"]


def _reached(value: HloInstruction) -> dict[HloInstruction, None]:
    """Return the instructions that a value is made of."""
    found = {value: None}
    waiting = [value]
    while waiting:
        for operand in waiting.pop().operands:
            if operand not in found:
                found[operand] = None
                waiting.append(operand)
    return found


def _mapped(name: str, scalar: HloComputation, shapes: list[Shape], result: Shape) -> HloInstruction:
    """Return a fusion, in a module of its own, that applies a computation on scalars to the elements of arrays."""
    module = HloModule(name)
    body, entry = HloComputation(f"{name}_computation"), HloComputation("main")
    inner = [_parameter(body, number, shape) for number, shape in enumerate(shapes)]
    outer = [_parameter(entry, number, shape) for number, shape in enumerate(shapes)]
    dims = tuple(range(result.rank))
    called = {"to_apply": (scalar,)}
    body.add(HloInstruction("map", "map", result, inner, {"dimensions": dims}, called, scalar.where), is_root=True)
    fusion = HloInstruction(name, "fusion", result, outer, {"kind": "kLoop"}, {"calls": (body,)}, scalar.where)
    entry.add(fusion, is_root=True)
    for computation in dict.fromkeys((scalar, body, entry)):
        if computation.module is None:
            module.add_computation(computation, is_entry=computation is entry)
    return fusion


def _parameter(computation: HloComputation, number: int, shape: Shape) -> HloInstruction:
    return computation.add(HloInstruction(f"p{number}", "parameter", shape, attrs={"parameter_number": number}))


def _radix_sort(emission: Emission, call: HloInstruction) -> list[Thunk]:
    """CUB sorts the last dimension by the first operand, in the total order of its bits; a second operand goes along."""
    descending = backend_config(call).get("descending", False) is True
    operands = tuple(emission.array(operand) for operand in call.operands)
    results = tuple(emission.array(call, (number,)) for number in range(len(operands)))
    key = SortKey((0,), operands[0].dtype, descending, total_order=True)
    return [SortThunk(call.name, operands, results, len(operands[0].dims) - 1, (key,), "kCustomCall")]


OPCODES: dict[str, EmitThunk] = {"sort": _sort}
_CUB = ("sort_keys", "sort_pairs", "sort_keys_unassigned_scratch_size", "sort_pairs_unassigned_scratch_size")
CUSTOM_CALLS: dict[str, EmitThunk] = {
    **{f"xla.gpu.ext.cub_{name}": _radix_sort for name in _CUB},
    "__cub$DeviceRadixSort": _radix_sort,
}
