"""Applies the changes that XLA's way through StableHLO and back makes to a module besides Shardy's work.

Arrays get the layouts that XLA infers: descending ones, except that a transpose leaves the elements where they are, and that
the results of many instructions have the layout of their operand. Plain matrix products lose their algorithm, and each
instruction has reducers of its own.
"""

from __future__ import annotations

from hlo_run.hlo.edit import InstructionMaker, clone_with_fusions, descending
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.values.attribute_values import AttributeValue
from hlo_run.hlo.values.shape import Shape
from hlo_run.sharding.shardy.rules import is_elementwise
from hlo_run.sharding.values.make import elements_of

# Their layouts are part of what they do.
_KEEPS_LAYOUT: frozenset[Opcode] = frozenset(["constant", "custom-call", "infeed", "outfeed"])
# Their results have the layouts of the first operand, or one result per operand that of the operand.
_LIKE_FIRST = opcode_set("""all-gather all-reduce all-to-all cholesky collective-permute copy dynamic-update-slice fft
    reduce-scatter reverse scatter select-and-scatter sort triangular-solve""")
_BARRIERS: tuple[Opcode, ...] = ("opt-barrier",)
_CONTROL_FLOW: tuple[Opcode, ...] = ("while", "conditional", "call", "fusion")


def round_trip(module: HloModule) -> None:
    """Edit the module in place."""
    owned: set[HloComputation] = set()
    in_order = [instruction for computation in module.computations for instruction in computation.post_order()]
    # The meaning of a bitcast depends on the layouts around it.
    has_bitcasts = any(instruction.opcode == "bitcast" for instruction in in_order)
    for instruction in in_order:
        if instruction.opcode not in _KEEPS_LAYOUT and not has_bitcasts:
            shape = _laid_out(instruction)
            if shape != instruction.shape:
                instruction.shape = shape
        if instruction.opcode == "dot" and "algorithm" in instruction.attrs and _is_plain(instruction):
            del instruction.attrs["algorithm"]
        if instruction.opcode not in _CONTROL_FLOW and instruction.called:
            _own(module, instruction, owned)
    _descend_results(module.entry)


def _descend_results(entry: HloComputation) -> None:
    """Give the elements of a result with shardings descending layouts, by reshapes."""
    root = entry.root
    if root.opcode != "tuple" or root.sharding is None:
        return
    leaves = elements_of(root.sharding)
    operands = list(root.operands)
    for number, value in enumerate(operands):
        shape = _all_descending(value.shape)
        if shape == value.shape or not shape.is_array:
            continue
        attributes: dict[str, AttributeValue] = {"sharding": leaves[number]} if len(leaves) == len(operands) else {}
        operands[number] = InstructionMaker(entry, value.where).add_with("reshape", shape, [value], attributes)
    root.operands = tuple(operands)


def _laid_out(instruction: HloInstruction) -> Shape:
    """Return the shape of an instruction with the layouts that XLA infers."""
    shape, operands = instruction.shape, instruction.operands
    opcode = instruction.opcode
    if opcode == "tuple":
        return Shape.make_tuple(tuple(operand.shape for operand in operands))
    if opcode == "get-tuple-element":
        return operands[0].shape.tuple_shapes[instruction.tuple_index]
    if opcode == "while" or (opcode in _BARRIERS and len(operands) == 1):
        return operands[0].shape
    if opcode in ("conditional", "call"):
        return instruction.called_computations[0].root.shape
    if shape.is_tuple:
        if opcode in _LIKE_FIRST and len(shape.tuple_shapes) == len(operands):
            pairs = zip(shape.tuple_shapes, operands, strict=True)
            return Shape.make_tuple(tuple(_with_order_of(part, operand.shape) for part, operand in pairs))
        return _all_descending(shape)
    if not shape.is_array:
        return shape
    source = operands[0].shape if operands else shape
    if opcode == "transpose" and source.layout is not None:
        place = {dim: number for number, dim in enumerate(instruction.dimensions)}
        return _with_order(shape, tuple(place[dim] for dim in source.layout.minor_to_major))
    if opcode in ("clamp", "triangular-solve") or (opcode == "select" and not source.rank):
        source = operands[1].shape
    if opcode in _LIKE_FIRST or (is_elementwise(instruction) and source.dims == shape.dims):
        return _with_order_of(shape, source)
    return descending(shape)


def _with_order_of(shape: Shape, source: Shape) -> Shape:
    return _with_order(shape, source.layout.minor_to_major) if source.layout is not None else descending(shape)


def _with_order(shape: Shape, order: tuple[int, ...]) -> Shape:
    return Shape.array(shape.element_type, shape.dims, order)


def _all_descending(shape: Shape) -> Shape:
    if not shape.is_tuple:
        return descending(shape) if shape.is_array else shape
    return Shape.make_tuple(tuple(_all_descending(part) for part in shape.tuple_shapes))


def _is_plain(dot: HloInstruction) -> bool:
    """True for a product of matrices or vectors along the last dimension of the left and the first of the right operand."""
    left, right = dot.operands[0].shape.rank, dot.operands[1].shape.rank
    contracted = dot.lhs_contracting_dims == (left - 1,) and dot.rhs_contracting_dims == (0,)
    return contracted and not dot.lhs_batch_dims and left <= 2 and right <= 2


def _own(module: HloModule, instruction: HloInstruction, owned: set[HloComputation]) -> None:
    called: dict[str, tuple[HloComputation, ...]] = {}
    for name, group in instruction.called.items():
        own = [clone_with_fusions(module, computation) if computation in owned else computation for computation in group]
        owned.update(own)
        called[name] = tuple(own)
    if called != instruction.called:
        instruction.called = called
