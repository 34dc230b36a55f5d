"""Gather the operands of all devices and reduce them on each device, unless the reducer is a sum, product, minimum or maximum.

    r = f32[8] all-reduce(x), replica_groups={{0,1}}, to_apply=norm
      =>   g = f32[2,8] all-gather(f32[1,8] bitcast(x)), replica_groups={{0,1}}, dimensions={0}
           f = f32[1,8] fusion(g), kind=kLoop, calls={ ROOT m = map(slice(g) [0:1], slice(g) [1:2]), to_apply=norm }
           r = f32[8] bitcast(f)

A device reduces in the order of its group. For a reduce-scatter it reduces its own piece alone. A reducer of 2N scalars reduces
N operands together. If groups have different sizes, all devices gather from all groups, and each reduces what its group sent.
Instructions in the place of a start replace the start and its done. XLA:GPU has no such pass: it refuses these reducers once all
its passes have run ("Unsupported reduction computation").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct

from hlo_run.errors import Unsupported
from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.opcodes.traits import ASYNC_DONE, REDUCING_COLLECTIVE
from hlo_run.hlo.values.attribute_values import AttributeValue
from hlo_run.hlo.values.replica_groups import ReplicaGroups
from hlo_run.hlo.values.shape import Layout, Shape
from hlo_run.hlo_passes.collectives.communication.reductions import kind_of_reducer
from hlo_run.hlo_passes.subgraphs.inlining import one_result
from hlo_run.hlo_passes.subgraphs.new_in_schedule import schedule_again
from hlo_run.ops.groups import FLATTENED, REPLICAS_AND_PARTITIONS, device_counts, group_mode
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.records import replace
from hlo_run.sharding.partitioning.offsets import look_up
from hlo_run.sharding.partitioning.state import Builder

# The gather has these of the collective.
_KEPT = ("replica_groups", "channel_id", "use_global_device_ids", "frontend_attributes")
_ID = Shape.array("u32", ())


class GeneralReductionDecomposer(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "general-reduction-decomposer"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place. Raises Unsupported for a reducer that does not fit the operands."""
        del ctx
        found = [each for each in module.in_post_order(*REDUCING_COLLECTIVE) if not kind_of_reducer(each.to_apply)]
        if not found:
            return
        orders, module.schedule = module.schedule, None
        for collective in found:
            for start in _starts_of(collective):
                _decompose(module, collective, start)
        schedule_again(module, orders)


def _decompose(module: HloModule, collective: HloInstruction, start: HloInstruction) -> None:
    chain, editor = _chain(start), Editor(start, keeps_sharding=False)
    shapes = collective.shape.tuple_shapes if collective.shape.is_tuple else (collective.shape,)
    together = _operands_together(collective)
    layouts = [operand.shape.layout for operand in start.operands[::together] for _ in range(together)]
    operands = [_in_layout(editor, operand, layout) for operand, layout in zip(start.operands, layouts, strict=True)]
    dim = collective.dimensions[0] if collective.opcode == "reduce-scatter" else None
    members = _Members.of(collective)
    gather, gathered = _gathered(editor, collective, [editor.bitcast(o, _row(o.shape, dim)) for o in operands], members)
    kernels = [
        _kernel(module, editor, collective, gathered[first : first + together], members)
        for first in range(0, len(gathered), together)
    ]
    reduced = [editor.element(kernel, n) if together > 1 else kernel for kernel in kernels for n in range(together)]
    results = [
        _in_layout(editor, editor.bitcast(value, replace(shape, layout=layout)), shape.layout)
        for value, shape, layout in zip(reduced, shapes, layouts, strict=True)
    ]
    _hand_on_order(chain, gather, kernels)
    result = editor.tuple(results) if collective.shape.is_tuple else results[0]
    for old in chain[:1] if len(chain) == 1 else [step for step in chain if step.opcode in ASYNC_DONE]:
        module.replace(old, result)
    body = start.called_computations[0] if start is not collective else None
    editor.computation.remove_all(set(chain))
    if body is not None and not body.callers:
        module.remove_computation(body)


def _starts_of(collective: HloInstruction) -> list[HloInstruction]:
    """Return every async-start of a computation that returns the collective, or the collective."""
    assert collective.parent is not None, "the collective is in a computation"
    starts = [caller for caller in collective.parent.callers if caller.opcode == "async-start"]
    return starts if collective.is_root and starts else [collective]


def _chain(start: HloInstruction) -> list[HloInstruction]:
    """Return a start with the updates and dones that follow it, or a collective alone."""
    found = [start]
    for step in found:
        if step.opcode.endswith(("-start", "-update")):
            found += [user for user in step.users if user.opcode in ASYNC_DONE or user.opcode == "async-update"]
    return found


def _hand_on_order(chain: Sequence[HloInstruction], gather: HloInstruction, kernels: Sequence[HloInstruction]) -> None:
    """Let the gather wait for what the collective waited for, and what waited for the collective wait for the kernels."""
    assert gather.parent is not None, "the gather is in a computation"
    gather.control_predecessors = list(chain[0].control_predecessors)
    for other in gather.parent.instructions:
        before = other.control_predecessors
        if before and other not in chain and not set(chain).isdisjoint(before):
            other.control_predecessors = list(dict.fromkeys(n for p in before for n in (kernels if p in chain else (p,))))
    for step in chain:
        step.control_predecessors = []


def _operands_together(collective: HloInstruction) -> int:
    """Return how many operands the reducer reduces at once; raises Unsupported if it does not fit them."""
    reducer = collective.to_apply
    results = reducer.root.shape.tuple_shapes if reducer.root.shape.is_tuple else (reducer.root.shape,)
    together, operands = len(results), [operand.shape for operand in collective.operands]
    scalars = [parameter.shape for parameter in reducer.parameters]
    alike = len(scalars) == 2 * together and (together == 1 or len(operands) == together)
    for number, shape in enumerate(operands if alike else ()):
        place = number % together
        types = {each.element_type for each in (results[place], scalars[place], scalars[together + place])}
        alike = alike and len(types) == 1 and (together == 1 or shape.dims == operands[0].dims)
        alike = alike and (shape.element_type in types or _is_wider(shape, results[place]))
    if not alike or any(shape.dims for shape in (*scalars, *results)):
        raise Unsupported(
            f"'{collective.opcode.removesuffix('-start')}' with the reduction %{reducer.name}: %{collective.name}",
            collective.where,
            hint="reduce with a computation of two scalars of the operands' type, or of two of each operand's type",
        )
    return together


def _is_wider(shape: Shape, scalar: Shape) -> bool:
    """True if the operand's type has the values of the scalar's: float-normalization widens operands, not their reducer."""
    wide, narrow = shape.dtype, scalar.dtype
    return wide.kind == narrow.kind and wide.is_signed == narrow.is_signed and wide.bits > narrow.bits


def _in_layout(editor: Editor, value: HloInstruction, layout: Layout | None) -> HloInstruction:
    shape = replace(value.shape, layout=layout)
    return value if shape == value.shape else editor.add("copy", shape, [value])


def _row(shape: Shape, dim: int | None) -> Shape:
    """Return the shape of the operand's bytes as one row; `dim`, which a reduce-scatter divides, stays a dimension."""
    order = tuple(reversed(shape.minor_to_major))
    sizes = [shape.dims[d] for d in order]
    place = 0 if dim is None else order.index(dim)
    dims = (1, math.prod(sizes)) if dim is None else (1, math.prod(sizes[:place]), sizes[place], math.prod(sizes[place + 1 :]))
    row, bits = Shape.array(shape.element_type, dims), shape.layout.element_size_bits if shape.layout else 0
    return replace(row, layout=Layout(row.minor_to_major, f"E({bits})")) if bits else row


class _Members(Struct, frozen=True):
    """The groups of a collective; `groups` has the numbers of replicas or devices in each.

    A number stands for `each` devices that follow each other.
    """

    groups: tuple[tuple[int, ...], ...]
    each: int
    mode: str
    partitions: int

    @staticmethod
    def of(collective: HloInstruction) -> _Members:
        """Return the groups of a collective."""
        replicas, partitions = device_counts(collective)
        mode = group_mode(collective)
        groups = collective.replica_groups.groups() or (tuple(range(replicas)),)
        return _Members(groups, partitions if mode == REPLICAS_AND_PARTITIONS else 1, mode, partitions)

    @property
    def is_even(self) -> bool:
        """True if all groups have one size."""
        return len({len(group) for group in self.groups}) == 1

    @property
    def most(self) -> int:
        """The number of devices in the largest group."""
        return max(len(group) for group in self.groups) * self.each

    @property
    def gathered(self) -> int:
        """The number of devices from which each device gathers."""
        return self.most if self.is_even else sum(len(group) for group in self.groups) * self.each

    def ids(self, is_scattered: bool) -> tuple[Opcode, ...]:
        """Return the opcodes that tell what a device reduces of what it gathers; none if it is everything."""
        if self.is_even and not is_scattered:
            return ()
        by_partition = self.mode == FLATTENED or (self.mode == REPLICAS_AND_PARTITIONS and is_scattered)
        return ("replica-id", "partition-id") if by_partition else ("replica-id",)

    def number(self, b: Builder, ids: Sequence[HloInstruction]) -> HloInstruction:
        """Return the number of the device in the groups."""
        if self.mode != FLATTENED:
            return ids[0]
        return b.binary("add", b.binary("multiply", ids[0], b.constant(self.partitions, "u32")), ids[1])

    def place(self, b: Builder, ids: Sequence[HloInstruction]) -> HloInstruction:
        """Return the place of the device in its group."""
        found = self._look_up(b, ids, [[place * self.each for place in range(len(group))] for group in self.groups])
        return b.binary("add", found, ids[1]) if self.mode == REPLICAS_AND_PARTITIONS else found

    def first(self, b: Builder, ids: Sequence[HloInstruction]) -> HloInstruction:
        """Return the place of the first device of the group among all groups."""
        before = [sum(len(other) for other in self.groups[:n]) * self.each for n in range(len(self.groups))]
        return self._look_up(b, ids, [[first] * len(group) for first, group in zip(before, self.groups, strict=True)])

    def size(self, b: Builder, ids: Sequence[HloInstruction]) -> HloInstruction:
        """Return the number of devices in the group."""
        return self._look_up(b, ids, [[len(group) * self.each] * len(group) for group in self.groups])

    def _look_up(self, b: Builder, ids: Sequence[HloInstruction], values: Sequence[Sequence[int]]) -> HloInstruction:
        pairs = [pair for group, own in zip(self.groups, values, strict=True) for pair in zip(group, own, strict=True)]
        return look_up(b, [value for _, value in sorted(pairs)], "u32", self.number(b, ids))


def _gathered(
    editor: Editor, collective: HloInstruction, rows: Sequence[HloInstruction], members: _Members
) -> tuple[HloInstruction, list[HloInstruction]]:
    """Add the gather of the rows of all members; return it and its results."""
    attributes: dict[str, AttributeValue] = {name: collective.attrs[name] for name in _KEPT if name in collective.attrs}
    if not members.is_even:
        attributes["replica_groups"] = ReplicaGroups((tuple(number for group in members.groups for number in group),))
    shapes = [replace(row.shape, dims=(members.gathered, *row.shape.dims[1:])) for row in rows]
    shape = shapes[0] if len(rows) == 1 else Shape.make_tuple(tuple(shapes))
    gather = editor.add_with("all-gather", shape, rows, {**attributes, "dimensions": (0,)})
    return gather, [gather] if len(rows) == 1 else [editor.element(gather, number) for number in range(len(rows))]


def _kernel(
    module: HloModule, editor: Editor, collective: HloInstruction, gathered: Sequence[HloInstruction], members: _Members
) -> HloInstruction:
    """Add the fusion that reduces what was gathered from the members."""
    reducer, is_scattered = collective.to_apply, collective.opcode == "reduce-scatter"
    reducers = [one_result(module, reducer, number) for number in range(len(gathered))]
    ids = [editor.add(opcode, _ID) for opcode in members.ids(is_scattered)]
    operands = [*gathered, *ids]
    b = Builder(HloComputation("fused_map"), origin=editor.origin)
    parameters = [b.parameter(n, o.shape, f"param_{n}") for n, o in enumerate(operands)]
    steps = _Steps(b, members, parameters[len(gathered) :], is_scattered)
    totals = steps.reduced(parameters[: len(gathered)], reducers)
    b.computation.root = totals[0] if len(totals) == 1 else b.tuple(totals)
    body = module.add_computation(b.computation)
    return editor.add("fusion", body.root.shape, operands, {"calls": [body]}, name="loop_map_fusion", kind="kLoop")


class _Steps(Struct):
    """Adds the instructions of the kernel: the members' rows, or their pieces for this device, and the reducers between them."""

    b: Builder
    members: _Members
    ids: Sequence[HloInstruction]
    is_scattered: bool

    def reduced(self, gathered: Sequence[HloInstruction], reducers: Sequence[HloComputation]) -> list[HloInstruction]:
        """Return the reduction of the rows that the members of the group sent."""
        b, members = self.b, self.members
        place = members.place(b, self.ids) if self.is_scattered else None
        first = None if members.is_even else members.first(b, self.ids)
        size = None if members.is_even else members.size(b, self.ids)
        types = [reducer.root.shape.element_type for reducer in reducers]
        totals = self._rows(gathered, types, 0, first, place)
        for number in range(1, members.most):
            others = self._rows(gathered, types, number, first, place)
            dimensions = tuple(range(totals[0].shape.rank))
            after = [
                b.add("map", total.shape, [*totals, *others], {"to_apply": [reducer]}, dimensions=dimensions)
                for total, reducer in zip(totals, reducers, strict=True)
            ]
            if size is not None:
                is_member = b.compare(b.constant(number, "u32"), size, "LT")
                chosen = b.filled(is_member, totals[0].shape)
                after = [b.select(chosen, new, old) for new, old in zip(after, totals, strict=True)]
            totals = after
        return [self._convert(total, value.shape.element_type) for total, value in zip(totals, gathered, strict=True)]

    def _convert(self, value: HloInstruction, element_type: str) -> HloInstruction:
        if value.shape.element_type == element_type:
            return value
        return self.b.add("convert", value.shape.with_element_type(element_type), [value])

    def _rows(
        self,
        gathered: Sequence[HloInstruction],
        types: Sequence[str],
        number: int,
        first: HloInstruction | None,
        place: HloInstruction | None,
    ) -> list[HloInstruction]:
        """Return the rows of a member of the group, or the device's pieces of them, in the types of the reducer."""
        rows = [self._row(value, number, first, place) for value in gathered]
        return [self._convert(row, element_type) for row, element_type in zip(rows, types, strict=True)]

    def _row(
        self, value: HloInstruction, number: int, first: HloInstruction | None, place: HloInstruction | None
    ) -> HloInstruction:
        b, rest = self.b, value.shape.dims[1:]
        if first is None and place is None:
            return b.slice(value, [number, *[0] * len(rest)], [number + 1, *rest])
        row, zero = b.constant(number, "u32"), b.constant(0, "u32")
        starts = [row if first is None else b.binary("add", first, row), *[zero] * len(rest)]
        sizes = [1, *rest]
        if place is not None:
            sizes[2] //= self.members.most
            starts[2] = b.binary("multiply", place, b.constant(sizes[2], "u32"))
        return b.dynamic_slice(value, starts, sizes)
