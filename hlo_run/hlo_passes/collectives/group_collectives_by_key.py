"""Start collectives together that have the same frontend attribute `collective_group_key`.

    g = all-gather(a), frontend_attributes={collective_group_key="k"};  r = reduce-scatter(b), .., the same attribute
      =>   s = ((A, B), (G, R)) async-start(a, b), calls={ g = all-gather(a)  r = reduce-scatter(b)  ROOT t = tuple(g, r) },
               frontend_attributes={_collectives_group="",collective_group_key="k"}
           d = (G, R) async-done(s);  g = get-tuple-element(d), index=0;  r = get-tuple-element(d), index=1

Takes all-gathers, all-reduces and reduce-scatters of one computation; a key of one collective does nothing. Collectives of a key
must not depend on each other, and no two keys on each other: the module is refused otherwise. XLA's `GroupCollectivesByKey`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, TypeAlias

from msgspec import Struct

from hlo_run.errors import Unsupported
from hlo_run.hlo.async_ops import is_async_wrapper
from hlo_run.hlo.edit import InstructionMaker, copy_instruction
from hlo_run.hlo.frontend_attributes import frontend_attribute, set_frontend_attribute
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.attribute_values import FrontendAttributes
from hlo_run.hlo.values.shape import Shape
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.walks import walk

_KEY, _MARKER, _SCHEDULING_GROUP = "collective_group_key", "_collectives_group", "_scheduling_group_id"
_GROUPS = "collectives_group"
_TAKEN = ("all-gather", "all-reduce", "reduce-scatter")

# The collectives of each key, the keys in order.
_Groups: TypeAlias = "dict[str, list[HloInstruction]]"


class GroupCollectivesByKey(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "group-collectives-by-key"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place. Raises Unsupported if collectives of a key depend on each other."""
        del ctx
        keyed: dict[HloComputation, _Groups] = {}
        for collective in module.instructions_of(*_TAKEN):
            computation, key = collective.parent, frontend_attribute(collective, _KEY)
            if key and computation is not None and not computation.is_fusion and not is_async_wrapper(computation):
                keyed.setdefault(computation, {}).setdefault(key, []).append(collective)
        for computation, groups in keyed.items():
            several = {key: group for key, group in sorted(groups.items()) if len(group) > 1}
            _check_order(several)
            for group in several.values():
                _start_together(module, computation, group)


def _check_order(groups: _Groups) -> None:
    """Raise Unsupported if a collective needs another one of its key, or if keys need each other."""
    needs = {key: _needed(group) for key, group in groups.items()}
    for key, group in groups.items():
        for collective in group:
            if collective in needs[key]:
                raise Unsupported(
                    f"%{collective.name} has the collective_group_key {key} of a collective that depends on it",
                    collective.where,
                    hint="give them different keys",
                )
    left = dict(groups)
    while left:
        free = [
            key for key, group in left.items() if not any(one in needs[other] for other in left if other != key for one in group)
        ]
        if not free:
            first = next(iter(left.values()))[0]
            raise Unsupported(f"collectives of the keys {', '.join(left)} depend on each other", first.where)
        for key in free:
            del left[key]


def _needed(instructions: Iterable[HloInstruction]) -> set[HloInstruction]:
    """Return all instructions of the computation that must run before one of these."""
    return set(walk((before for instruction in instructions for before in _before(instruction)), _before))


def _before(instruction: HloInstruction) -> tuple[HloInstruction, ...]:
    return *instruction.operands, *instruction.control_predecessors


def _start_together(module: HloModule, computation: HloComputation, group: Sequence[HloInstruction]) -> None:
    body = _body(group)
    body.execution_thread = computation.execution_thread
    module.add_computation(body)
    operands = [operand for collective in group for operand in collective.operands]
    start_shape = Shape.make_tuple((Shape.make_tuple(tuple(operand.shape for operand in operands)), body.root.shape))
    maker, first = InstructionMaker(computation, group[0].where), group[0]
    start = maker.add("async-start", start_shape, operands, {"calls": (body,)}, name=f"{body.name}-start")
    done = maker.add("async-done", body.root.shape, [start], name=f"{body.name}-done")
    attributes = _merged(group)
    for made in (start, done, body.root):
        made.attrs["frontend_attributes"] = attributes
    for made in (start, done):
        made.attrs.update({name: first.attrs[name] for name in ("metadata", "backend_config") if name in first.attrs})
    for number, collective in enumerate(group):
        element = maker.add("get-tuple-element", collective.shape, [done], index=number)
        if collective.sharding is not None:
            element.attrs["sharding"] = collective.sharding
        start.control_predecessors = list(dict.fromkeys((*start.control_predecessors, *collective.control_predecessors)))
        collective.control_predecessors = []
        for other in computation.instructions:
            if collective in other.control_predecessors:
                others = (done if before is collective else before for before in other.control_predecessors)
                other.control_predecessors = list(dict.fromkeys(others))
        module.replace_uses(collective, element)
        computation.remove(collective)


def _body(group: Sequence[HloInstruction]) -> HloComputation:
    """Return a computation of copies of the collectives, whose operands are parameters and whose results a tuple."""
    body = HloComputation(_GROUPS, group[0].where)
    maker, number = InstructionMaker(body, group[0].where), 0
    copies: list[HloInstruction] = []
    for place, collective in enumerate(group):
        parameters: list[HloInstruction] = []
        for operand_number, operand in enumerate(collective.operands):
            parameters.append(maker.parameter(number, operand.shape, f"c{place}_operand_{operand_number}"))
            number += 1
        copy = body.add(copy_instruction(collective, parameters))
        set_frontend_attribute(copy, _SCHEDULING_GROUP, None)
        copies.append(copy)
    body.root = maker.tuple(copies)
    return body


def _merged(group: Sequence[HloInstruction]) -> FrontendAttributes:
    """Return the attributes of all collectives and the mark of a group; different values of a name are listed."""
    values: dict[str, set[str]] = {}
    for collective in group:
        for name, value in collective.frontend_attributes.entries if collective.frontend_attributes is not None else ():
            values.setdefault(name, set()).add(value)
    entries = {name: ",".join(sorted(found)) for name, found in values.items()} | {_MARKER: ""}
    return FrontendAttributes(tuple(sorted(entries.items())))
