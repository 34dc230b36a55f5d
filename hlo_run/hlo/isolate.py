"""Extract an instruction, or a subgraph, as a module: inputs become parameters, called computations are copied."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence

from hlo_run.hlo.edit import InstructionMaker, copy_instruction
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.walks import post_order

# Header attributes to which instructions refer by number.
_KEPT_ATTRIBUTES = ("stack_frames",)


def isolate_instruction(instruction: HloInstruction) -> HloModule:
    """Return a module named after `instruction` whose entry is that instruction, on parameters named after its operands.

    An operand that is used twice becomes one parameter, so that it still shares memory. Shapes keep their layouts,
    instructions their source locations. The module of `instruction` is unchanged. Mirrors XLA's `HloDecomposer`.
    """
    source = instruction.parent.module if instruction.parent is not None else None
    kept = {name: source.attrs[name] for name in _KEPT_ATTRIBUTES if source is not None and name in source.attrs}
    module = HloModule(instruction.name, attrs=kept)
    copies: dict[HloComputation, HloComputation] = {}
    called = {key: tuple(_copy(computation, copies) for computation in group) for key, group in instruction.called.items()}
    entry = HloComputation("main", instruction.where)
    parameters: dict[HloInstruction, HloInstruction] = {}
    for operand in instruction.operands:
        if operand not in parameters:
            maker = InstructionMaker(entry, operand.where)
            parameters[operand] = maker.parameter(len(parameters), operand.shape, operand.name)
    operands = [parameters[operand] for operand in instruction.operands]
    entry.add(copy_instruction(instruction, operands, called=called), is_root=True)
    for computation in copies.values():
        module.add_computation(computation)
    module.add_computation(entry, is_entry=True)
    return module


def _copy(computation: HloComputation, copies: dict[HloComputation, HloComputation]) -> HloComputation:
    """Return the copy of a computation, made once; callees come before it in `copies`."""
    if computation not in copies:
        copy, _ = copy_computation(computation, lambda callee: _copy(callee, copies))
        copies[computation] = copy
    return copies[computation]


def copy_computation(
    computation: HloComputation, callee: Callable[[HloComputation], HloComputation]
) -> tuple[HloComputation, dict[HloInstruction, HloInstruction]]:
    """Return a copy outside any module, and the copy of each instruction; `callee` maps each called computation."""
    copy = HloComputation(computation.name, computation.where)
    copy.execution_thread = computation.execution_thread
    instructions: dict[HloInstruction, HloInstruction] = {}
    for old in computation.post_order():
        called = {key: tuple(map(callee, group)) for key, group in old.called.items()}
        operands = [instructions[operand] for operand in old.operands]
        new = copy_instruction(old, operands, called=called)
        new.control_predecessors = [instructions[predecessor] for predecessor in old.control_predecessors]
        instructions[old] = copy.add(new, is_root=old is computation.root)
    return copy, instructions


def isolate_between(root: HloInstruction, inputs: Sequence[HloInstruction], name: str) -> HloModule:
    """Return a module `name` that computes `root` from `inputs`, which become its parameters in this order.

    All parameters that `root` needs must be among `inputs`. Called computations are copied. The module of `root` is
    unchanged.
    """
    return isolate_values([((root,), {value: number for number, value in enumerate(inputs)})], inputs, name)


def isolate_values(
    sides: Sequence[tuple[Sequence[HloInstruction], Mapping[HloInstruction, int]]], inputs: Sequence[HloInstruction], name: str
) -> HloModule:
    """Return a module `name` that computes values of one or more sides from the same parameters.

    The parameters have the names and shapes of `inputs`. A side is a pair (values, numbers of the parameters that instructions
    are); an instruction with another layout than its parameter is a copy of it. The result is the only value, or a tuple of
    all values in order. All parameters that a value needs must have numbers in its side. Called computations are copied.
    """
    module = HloModule(name)
    entry = HloComputation("main", sides[0][0][0].where)
    parameters: list[HloInstruction] = []
    for number, value in enumerate(inputs):
        parameters.append(InstructionMaker(entry, value.where).parameter(number, value.shape, value.name))
    results: list[HloInstruction] = []
    called: dict[HloComputation, HloComputation] = {}
    for values, numbers in sides:
        copies: dict[HloInstruction, HloInstruction] = {}
        for value, number in numbers.items():
            copies[value] = parameter = parameters[number]
            if value.shape != parameter.shape:
                copies[value] = InstructionMaker(entry, value.where).add("copy", value.shape, [parameter], name=value.name)
        for value in values:
            for old in needed_for(value, copies):
                groups = {key: tuple(_copy(computation, called) for computation in group) for key, group in old.called.items()}
                operands = [copies[operand] for operand in old.operands]
                copies[old] = entry.add(copy_instruction(old, operands, called=groups))
            results.append(copies[value])
    if len(results) == 1:
        entry.root = results[0]
    else:
        shape = Shape.make_tuple(tuple(value.shape for value in results))
        entry.root = InstructionMaker(entry).add("tuple", shape, results, name="values")
    for computation in called.values():
        module.add_computation(computation)
    module.add_computation(entry, is_entry=True)
    return module


def needed_for(root: HloInstruction, known: Container[HloInstruction]) -> list[HloInstruction]:
    """Return the instructions that `root` needs and that are not `known`: operands first, `root` last; [] if it is known."""
    if root in known:
        return []
    return post_order(root, lambda instruction: [operand for operand in instruction.operands if operand not in known])
