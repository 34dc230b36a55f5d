"""Verify a module's configuration: input-output aliases, buffer donors, and the schedule."""

from __future__ import annotations

import re

from hlo_run.errors import ParseError
from hlo_run.hlo.attributes.table import RawText
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import CONTROL_FLOW
from hlo_run.hlo.values.braces import braces
from hlo_run.hlo.values.shape import Shape
from hlo_run.walks import walk

_Index = tuple[int, ...]

_ALIAS = re.compile(r"\{([\d,]*)\}: \((\d+), \{([\d,]*)\}, (may|must)-alias\)")
_DONOR = re.compile(r"\((\d+), \{([\d,]*)\}\)")


def aliases(module: HloModule) -> list[tuple[_Index, int, _Index, bool]]:
    """Return (output index, parameter number, index within the parameter, is must-alias) of `input_output_alias`."""
    found = _ALIAS.findall(_text(module, "input_output_alias"))
    return [(_index(output), int(number), _index(place), kind == "must") for output, number, place, kind in found]


def donors(module: HloModule) -> list[tuple[int, _Index]]:
    """Return (parameter number, index within the parameter) of `buffer_donor`."""
    return [(int(number), _index(place)) for number, place in _DONOR.findall(_text(module, "buffer_donor"))]


def _text(module: HloModule, name: str) -> str:
    value = module.attrs.get(name)
    return str(value) if isinstance(value, RawText) else ""


def _index(text: str) -> _Index:
    return tuple(int(part) for part in text.split(",")) if text else ()


def verify_buffers(module: HloModule) -> None:
    """Raise ParseError for aliases and donors that name no array or a repeated one, and must-aliases of different shapes."""
    root, seen = module.entry.root.shape, set[tuple[int, _Index]]()
    for output, number, place, must in aliases(module):
        where = f"input_output_alias {braces(output)}: ({number}, {braces(place)})"
        parameter, result = _parameter_part(module, number, place, where), _part(root, output)
        if result is None or not result.is_array:
            raise _error(module, f"{where}: the result of shape {_brief(root)} has no array at {braces(output)}")
        if (number, place) in seen:
            raise _error(module, f"{where}: the parameter is aliased twice")
        seen.add((number, place))
        if must and not parameter.compatible(result):
            raise _error(module, f"{where}: expected {_brief(result)} like the result, found {_brief(parameter)}")
    for number, place in donors(module):
        where = f"buffer_donor ({number}, {braces(place)})"
        _parameter_part(module, number, place, where)
        if (number, place) in seen:
            raise _error(module, f"{where} is also in input_output_alias")


def _parameter_part(module: HloModule, number: int, place: _Index, where: str) -> Shape:
    parameters = module.entry.parameters
    if number >= len(parameters):
        raise _error(module, f"{where}: '{module.entry.name}' has {len(parameters)} parameters")
    shape = parameters[number].shape
    part = _part(shape, place)
    if part is None or not part.is_array:
        raise _error(module, f"{where}: parameter {number} of shape {_brief(shape)} has no array at {braces(place)}")
    return part


def _part(shape: Shape, index: _Index) -> Shape | None:
    for number in index:
        if not shape.is_tuple or number >= len(shape.tuple_shapes):
            return None
        shape = shape.tuple_shapes[number]
    return shape


def verify_schedule(module: HloModule) -> None:
    """Raise ParseError unless a schedule has each instruction once, after its operands and control predecessors."""
    if module.schedule is None:
        return
    known = set(module.computations)
    for computation, order in module.schedule.items():
        if computation not in known:
            raise ParseError(f"the schedule names computation '{computation.name}', which the module lacks", computation.where)
        _verify_order(computation, order)
    for computation in walk([module.entry], _executed):
        if computation not in module.schedule:
            raise ParseError(f"computation '{computation.name}' is not scheduled", computation.where)


def _executed(computation: HloComputation) -> list[HloComputation]:
    return [called for i in computation.instructions if i.opcode in CONTROL_FLOW for called in i.called_computations]


def _verify_order(computation: HloComputation, order: list[HloInstruction]) -> None:
    places = {instruction: number for number, instruction in enumerate(order)}
    if len(places) != len(order) or places.keys() != set(computation.instructions):
        expected, found = len(computation.instructions), len(order)
        raise ParseError(
            f"the schedule of '{computation.name}' must hold each of its {expected} instructions once, but has {found} entries",
            computation.where,
        )
    for instruction, place in places.items():
        for other in (*instruction.operands, *instruction.control_predecessors):
            if places[other] > place:
                raise ParseError(
                    f"'{instruction.name}' is scheduled before '{other.name}', which it waits for", instruction.where
                )


def _brief(shape: Shape) -> str:
    return shape.to_string(layout=False)


def _error(module: HloModule, message: str) -> ParseError:
    return ParseError(message, module.entry.where)
