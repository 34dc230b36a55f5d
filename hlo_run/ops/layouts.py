"""Layout checks, after layout assignment: opcodes that keep their operands' layout, and opcodes that pass on buffers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hlo_run.errors import ParseError
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import KEEPS_LAYOUT
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.verify.module import instruction_error

# Two shapes with equal layouts: the expected one, the found one, and a description.
_Pair = tuple[Shape, Shape, str]


def check_layouts(module: HloModule) -> None:
    """Raise ParseError for an instruction that changes a layout without moving data, or passes on a buffer in another layout."""
    for computation in module.computations:
        _check_computation(computation)
    _check_entry(module)


def _check_computation(computation: HloComputation) -> None:
    for instruction in computation.instructions:
        for expected, found, what in (*_kept(instruction), *_forwarded(instruction)):
            if not _same_layouts(expected, found):
                raise instruction_error(instruction, f"{what}: expected the layout of {expected}, found {found}")
        _check_bitcast(instruction)


def check_broadcasts(module: HloModule) -> None:
    """Raise ParseError for a broadcast whose dimensions do not ascend.

    Bodies of fusions, which no pass changes, are free. So is what nothing calls, such as the old body of a merged fusion.
    """
    for computation in module.computations:
        if computation.is_entry or (computation.callers and not computation.is_fusion):
            for instruction in computation.instructions:
                _check_broadcast(instruction)


def check_windows(module: HloModule) -> None:
    """Raise ParseError for a scatter whose window dimensions do not ascend. Layout normalization may make such scatters."""
    for instruction in (i for c in module.computations for i in c.instructions if i.opcode == "scatter"):
        _check_ascending(instruction, instruction.update_window_dims, "update_window_dims")


def layouts_fit(module: HloModule) -> bool:
    """Return True if `check_layouts` does not raise."""
    try:
        check_layouts(module)
    except ParseError:
        return False
    return True


def fused_layouts_fit(module: HloModule) -> bool:
    """Return True if `check_layouts` does not raise inside of fusions, whose layouts no pass assigns."""
    try:
        for computation in module.computations:
            if computation.is_fusion:
                _check_computation(computation)
    except ParseError:
        return False
    return True


def _kept(instruction: HloInstruction) -> Iterator[_Pair]:
    shape = instruction.shape
    if instruction.opcode not in KEEPS_LAYOUT or not shape.is_array:
        return
    for number, operand in enumerate(instruction.operands):
        if operand.shape.is_array and operand.shape.rank == shape.rank:
            yield operand.shape, shape, f"keeps the layout of operand {number}"


def _forwarded(instruction: HloInstruction) -> Iterator[_Pair]:
    shapes = [operand.shape for operand in instruction.operands]
    called = instruction.called_computations
    match instruction.opcode:
        case "tuple":
            for number, (shape, element) in enumerate(zip(shapes, instruction.shape.tuple_shapes, strict=True)):
                yield shape, element, f"element {number}"
        case "get-tuple-element":
            yield shapes[0].tuple_shapes[instruction.tuple_index], instruction.shape, "the element"
        case "opt-barrier" | "add-dependency" | "domain":
            yield shapes[0], instruction.shape, "the operand"
        case "call" | "fusion":
            yield from _parameters(called[0], shapes)
            yield called[0].root.shape, instruction.shape, f"the result of '{called[0].name}'"
        case "while":
            for computation in called:
                yield from _parameters(computation, shapes)
            yield shapes[0], instruction.while_body.root.shape, "the body's result"
            yield shapes[0], instruction.shape, "the state"
        case "conditional":
            for computation, shape in zip(called, shapes[1:], strict=True):
                yield from _parameters(computation, [shape])
                yield computation.root.shape, instruction.shape, f"the result of '{computation.name}'"
        case _:
            pass


def _parameters(computation: HloComputation, shapes: Sequence[Shape]) -> Iterator[_Pair]:
    for parameter, shape in zip(computation.parameters, shapes, strict=True):
        yield shape, parameter.shape, f"parameter '{parameter.name}' of '{computation.name}'"


def _same_layouts(first: Shape, second: Shape) -> bool:
    if first is second:
        return True
    pairs = zip(first.leaves(), second.leaves(), strict=True)
    return all(one.minor_to_major == two.minor_to_major for (_, one), (_, two) in pairs if one.is_array and two.is_array)


def _check_bitcast(instruction: HloInstruction) -> None:
    if instruction.opcode != "bitcast":
        return
    source, target = instruction.operands[0].shape, instruction.shape
    if source.size_bytes != target.size_bytes:
        raise instruction_error(instruction, f"expected {source.size_bytes} bytes like {source}, found {target}")


def _check_broadcast(instruction: HloInstruction) -> None:
    if instruction.opcode == "broadcast":
        _check_ascending(instruction, instruction.ints("dimensions"), "dimensions")


def _check_ascending(instruction: HloInstruction, dims: tuple[int, ...], name: str) -> None:
    if list(dims) != sorted(dims):
        raise instruction_error(instruction, f"expected ascending {name}, found {{{','.join(map(str, dims))}}}")


def _check_entry(module: HloModule) -> None:
    layout, entry = module.entry_layout, module.entry
    if layout is None:
        return
    pairs = [*zip(layout.parameters, entry.parameters, strict=True), (layout.result, entry.root)]
    for expected, instruction in pairs:
        if not _same_layouts(expected, instruction.shape):
            raise instruction_error(
                instruction, f"expected {expected} as entry_computation_layout says, found {instruction.shape}"
            )
