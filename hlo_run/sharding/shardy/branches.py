"""Conditionals after XLA's way through StableHLO and back: branches have no parameters and capture the values they use.

    p = (f32[8], f32[4]) parameter(0); x = f32[4] get-tuple-element(p), index=1     =>   x = f32[4] parameter(0)

A branch gets the values that it uses, in the order of their first uses: one array, or a tuple of them. A conditional with one
result returns it without a tuple.
"""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.hlo.edit import InstructionMaker, remove_unused
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import TupleSharding
from hlo_run.sharding.values.make import elements_of


def capture_arguments(module: HloModule) -> None:
    """Edit all conditionals of the module in place."""
    for computation in module.computations:
        for conditional in [i for i in computation.instructions if i.opcode == "conditional"]:
            old = list(conditional.operands)
            branches = conditional.called_computations
            conditional.operands = (old[0], *(_captured(module, *pair) for pair in zip(branches, old[1:], strict=True)))
            remove_unused(dict.fromkeys(old))
            if len(conditional.shape.tuple_shapes) == 1 and conditional.shape.tuple_shapes[0].is_array:
                _return_array(module, conditional)


def _captured(module: HloModule, branch: HloComputation, argument: HloInstruction) -> HloInstruction:
    """Let the parameter of a branch have the elements that it uses only; return the argument for it."""
    (parameter,) = branch.parameters
    if parameter.shape.is_array and (parameter.users or parameter.is_root):
        return argument
    if not all(shape.is_array for shape in parameter.shape.tuple_shapes):
        return argument
    _read_elements(module, branch, parameter)
    values = list(argument.operands) if argument.opcode == "tuple" else None
    # The elements that are one value count as one.
    places: dict[object, list[int]] = {}
    for index in _order_of_use(branch, parameter):
        places.setdefault(index if values is None else values[index], []).append(index)
    kept = [indices[0] for indices in places.values()]
    number_of = {index: number for number, indices in enumerate(places.values()) for index in indices}
    found = _elements(argument, kept)
    parameter.shape = found.shape
    parameter.attrs.pop("sharding", None)
    if found.sharding is not None:
        parameter.attrs["sharding"] = found.sharding
    for reader in list(parameter.users):
        if len(kept) > 1:
            reader.attrs["index"] = number_of[reader.tuple_index]
        else:
            module.replace_uses(reader, parameter)
            branch.remove(reader)
    return found


def _read_elements(module: HloModule, branch: HloComputation, parameter: HloInstruction) -> None:
    """Let all users of the whole parameter use a tuple of its elements, and drop elements that nothing uses."""
    whole_users = [user for user in parameter.users if user.opcode != "get-tuple-element"]
    if parameter.shape.is_tuple and (whole_users or parameter.is_root):
        shapes = parameter.shape.tuple_shapes
        reads = [
            InstructionMaker(branch).add("get-tuple-element", shape, [parameter], index=number)
            for number, shape in enumerate(shapes)
        ]
        whole = InstructionMaker(branch).add("tuple", parameter.shape, reads)
        if parameter.sharding is not None:
            whole.attrs["sharding"] = parameter.sharding
        for user in whole_users:
            user.replace_operand(parameter, whole)
        if parameter.is_root:
            branch.root = whole
    remove_unused([user for user in parameter.users if not user.users and not user.is_root])


def _order_of_use(branch: HloComputation, parameter: HloInstruction) -> list[int]:
    """Return the numbers of the elements of the parameter in the order of their first uses."""
    found: dict[int, None] = {}
    reads = [user for user in parameter.users if user.opcode == "get-tuple-element"]
    for instruction in branch.post_order():
        # What the branches of a conditional use comes before the conditional's own operand.
        operands = instruction.operands
        for operand in (*operands[1:], operands[0]) if instruction.opcode == "conditional" else operands:
            if operand in reads and instruction is not parameter:
                found[operand.tuple_index] = None
    if branch.root in reads:
        found[branch.root.tuple_index] = None
    return list(found)


def _elements(argument: HloInstruction, kept: Sequence[int]) -> HloInstruction:
    """Return the element of a tuple, or a tuple of several."""
    computation = argument.parent
    assert computation is not None, "the argument is in a computation"
    if kept == list(range(len(argument.shape.tuple_shapes))) and len(kept) > 1:
        return argument
    leaves = elements_of(argument.sharding) if argument.sharding is not None else ()
    values: list[HloInstruction] = []
    for index in kept:
        if argument.opcode == "tuple":
            values.append(argument.operands[index])
            continue
        shape = argument.shape.tuple_shapes[index]
        values.append(InstructionMaker(computation).add("get-tuple-element", shape, [argument], index=index))
        if leaves:
            values[-1].attrs["sharding"] = leaves[index]
    if len(values) == 1:
        return values[0]
    made = InstructionMaker(computation).add("tuple", Shape.make_tuple(tuple(value.shape for value in values)), values)
    if "metadata" in argument.attrs:
        made.attrs["metadata"] = argument.attrs["metadata"]
    if leaves and kept:
        made.attrs["sharding"] = TupleSharding(tuple(leaves[index] for index in kept))
    return made


def _return_array(module: HloModule, conditional: HloInstruction) -> None:
    """Let a conditional and its branches return their only result itself."""
    computation = conditional.parent
    assert computation is not None, "the conditional is in a computation"
    for branch in conditional.called_computations:
        old = branch.root
        branch.root = _elements(old, [0])
        remove_unused([old] if not old.users else [])
    leaf = elements_of(conditional.sharding)[0] if conditional.sharding is not None else None
    tuple_shape, sharding = conditional.shape, conditional.sharding
    conditional.shape = tuple_shape.tuple_shapes[0]
    if leaf is not None:
        conditional.attrs["sharding"] = leaf
    whole_users = [user for user in conditional.users if user.opcode != "get-tuple-element"]
    was_root = conditional.is_root
    for reader in [user for user in conditional.users if user.opcode == "get-tuple-element"]:
        module.replace_uses(reader, conditional)
        computation.remove(reader)
    if whole_users or was_root:
        made = InstructionMaker(computation).add("tuple", tuple_shape, [conditional])
        if sharding is not None:
            made.attrs["sharding"] = sharding
        for user in whole_users:
            user.replace_operand(conditional, made)
        if was_root:
            computation.root = made
