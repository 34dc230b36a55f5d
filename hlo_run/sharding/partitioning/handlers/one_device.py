"""Compute an instruction on one device alone, in a branch of a conditional. The other devices get zeros."""

from __future__ import annotations

from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.values.shape import Shape
from hlo_run.sharding.partitioning.handlers.visit import Visit
from hlo_run.sharding.partitioning.state import Builder, Part
from hlo_run.sharding.values.make import elements_of, maximal, same_for_all


def only_device(v: Visit) -> int | None:
    """Return the device that has every leaf of the result; None if several devices have leaves."""
    leaves = elements_of(v.sharding)
    is_same = all(leaf.kind == "maximal" and leaf.device == leaves[0].device for leaf in leaves)
    return leaves[0].device if is_same else None


def on_one_device(v: Visit, device: int) -> Part:
    """Run a copy of the instruction where the partition's number is `device`; its operands are brought there."""
    b, alone = v.b, maximal(device)
    operand = b.tuple([part.reshard(same_for_all(part.base, alone)).hlo for part in v.parts])
    is_there = b.compare(v.state.partition_id, b.constant(device, "u32"), "EQ")
    inside, outside = (Builder(HloComputation(f"{side}_computation")) for side in ("true", "false"))
    inside.origin = outside.origin = v.hlo
    given = inside.add("parameter", operand.shape, name="true_branch_param", parameter_number=0)
    outside.add("parameter", operand.shape, name="false_branch_param", parameter_number=0)
    values = [inside.get_tuple_element(given, number) for number in range(len(v.parts))]
    made = inside.computation.root = inside.clone(v.hlo, v.hlo.shape, values)
    made.attrs["sharding"] = v.hlo.given_sharding
    outside.computation.root = zeros(outside, v.hlo.shape)
    called = {name: [v.state.module.add_computation(branch.computation)] for name, branch in _names(inside, outside)}
    return v.made(b.add("conditional", v.hlo.shape, [is_there, operand, operand], called))


def _names(inside: Builder, outside: Builder) -> tuple[tuple[str, Builder], ...]:
    return ("true_computation", inside), ("false_computation", outside)


def zeros(b: Builder, shape: Shape) -> HloInstruction:
    """Add zeros of any shape: tuples of them, and tokens that wait for nothing."""
    if shape.is_tuple:
        return b.tuple([zeros(b, part) for part in shape.tuple_shapes])
    return b.zeros(shape) if shape.is_array else b.add("after-all", shape)
