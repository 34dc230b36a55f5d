"""Assign a layout to every array: propagate required layouts, insert copies at conflicts, use the default elsewhere.

    t = f32[4,3] transpose(f32[3,4]{1,0} p), dimensions={1,0};  ROOT n = f32[4,3]{1,0} negate(t)
        =>   t = f32[4,3]{0,1} transpose(p);  n = f32[4,3]{0,1} negate(t);  ROOT copy = f32[4,3]{1,0} copy(n)

The entry keeps its given layouts, and infeeds and outfeeds those of the text. A loop is settled with the computation around it
(`linked_loops.py`); branches and calls use the layouts that their computations prefer (`called_layouts.py`). Library calls and
batched dots get the default layout; custom calls with constraints and bitcasts keep theirs; a fusion gets those of its body;
cuDNN convolutions get the layouts that cuDNN prefers (`convolution_layouts.py`). XLA's `GpuLayoutAssignment`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.computation_order import computation_post_order, in_definition_order
from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.analysis.layout.called_layouts import CalledLayouts, Orders
from hlo_run.analysis.layout.convolution_layouts import is_convolution_call, liked_orders
from hlo_run.analysis.layout.layout_propagation import LayoutPropagation, Order, Use, leaf_at
from hlo_run.analysis.layout.linked_loops import NAMES, is_linked, units
from hlo_run.analysis.matrix_product import lies_as_matrices
from hlo_run.hlo.attributes.table import EntryLayout
from hlo_run.hlo.edit import Editor, InstructionMaker
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.opcodes.traits import (
    ASYNC_DONE,
    ASYNC_START,
    COLLECTIVE,
    CONTROL_FLOW,
    DEVICE_ID,
    ELEMENTWISE,
    KEEPS_LAYOUT,
    SIDE_EFFECT,
    SYNC_CONTROL_FLOW,
)
from hlo_run.hlo.values.attribute_values import AttributeValue
from hlo_run.hlo.values.shape import Layout, Shape, ShapeIndex
from hlo_run.hlo.views.dots import dot_side
from hlo_run.hlo_passes.subgraphs.gemm_record import epilogue_of, is_call
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.records import replace
from hlo_run.target import TargetSpec
from hlo_run.walks import walk

# The host gives and takes data in the layout that the text names.
_FEEDS: frozenset[Opcode] = frozenset(("infeed", "outfeed"))
# Opcodes without a kernel of ours, and those that communicate: their operands and results have default layouts.
_DEFAULT = (
    (COLLECTIVE - KEEPS_LAYOUT)
    | ASYNC_START
    | ASYNC_DONE
    | SIDE_EFFECT
    | DEVICE_ID
    | opcode_set("""after-all async-update cholesky domain dynamic-reshape fft map ragged-dot rng-bit-generator scan
    set-dimension-size sort topk""")
) - _FEEDS
# Opcodes pinned before all others, and opcodes that keep the layouts of the module's text.
_CALLERS = CONTROL_FLOW | opcode_set("async-done")
_AS_WRITTEN: frozenset[Opcode] = frozenset(("bitcast", "fusion"))
_BYTE_BITS = 8
_NARROW_TYPES = frozenset(("f8e4m3fn", "f8e5m2fnuz"))


class LayoutAssignment(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "layout-assignment"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit the executed computations in place."""
        _copy_sent(module)
        order = _callees_first(module)
        innermost = ctx.options.convolution_features_innermost
        called = CalledLayouts.of(order)
        groups = units(order)
        for members in groups:
            for instruction in (instruction for member in members for instruction in member.post_order()):
                called.agree(instruction)
            if not members[-1].is_entry and not called.is_settled(members[-1]):
                called.learn(members[-1], _propagate(module, members, called, ctx, innermost))
        for members in groups:
            layouts = _propagate(module, members, called, ctx, innermost)
            if not members[-1].is_entry and not called.is_settled(members[-1]):
                called.learn(members[-1], layouts)
            _assign(layouts)
        _drop_element_sizes(module, order)


def _copy_sent(module: HloModule) -> None:
    """Let each send send a copy, as in XLA, whose layout is free; later passes remove those that change nothing."""
    for send in in_definition_order(module, "send"):
        value = send.operands[0]
        if value.opcode != "copy" or len(value.users) > 1:
            send.replace_operand(value, Editor(value).unary("copy", value))


def _callees_first(module: HloModule) -> list[HloComputation]:
    """Return the computations that are executed by control flow, callees first, the entry last."""
    executed = set(executed_computations(module))
    return [computation for computation in computation_post_order(module) if computation in executed]


def _propagate(
    module: HloModule, members: list[HloComputation], called: CalledLayouts, ctx: PassContext, innermost: bool | None
) -> LayoutPropagation:
    """Settle the layouts of a computation and of its loops' bodies and conditions."""
    layouts = LayoutPropagation(members)
    # The last pin spreads first, as in XLA: custom calls, library calls (the first over the second), results, loops, parameters.
    for computation in members:
        _pin_given(layouts, computation, module, called)
        for instruction in computation.instructions:  # in the order of the text, as in XLA
            if instruction.opcode in SYNC_CONTROL_FLOW:
                if not is_linked(instruction):
                    _pin_caller(layouts, instruction, called)
            elif instruction.opcode in _CALLERS:
                _pin_default(layouts, instruction)
    _pin_result(layouts, module, called)
    orders = [computation.post_order() for computation in members]
    for instructions in orders:
        for instruction in reversed(instructions):
            if is_convolution_call(instruction):
                _pin_convolution(layouts, instruction, liked_orders(instruction, ctx.target, innermost))
            elif instruction.opcode == "dot":
                _pin_dot(layouts, instruction, ctx)
            elif instruction.opcode not in _CALLERS:
                _pin(layouts, instruction)
    for instruction in (instruction for instructions in orders for instruction in instructions):
        if instruction.opcode == "custom-call" and not is_convolution_call(instruction):
            _pin_custom_call(layouts, instruction)
    layouts.run()
    return layouts


def _drop_element_sizes(module: HloModule, computations: list[HloComputation]) -> None:
    """Leave element sizes of packed types to `sub-byte-size-setter`, but for parameters and results of the entry, as in XLA."""
    results = walk([module.entry.root], lambda result: result.operands if result.opcode == "tuple" else ())
    kept = {*module.entry.parameters, *results}
    known: dict[Shape, Shape] = {}
    for instruction in (i for c in computations for i in c.instructions if i not in kept):
        shape = instruction.shape
        if shape not in known:
            known[shape] = shape.map_leaves(_without_element_size)
        if known[shape] != shape:
            instruction.shape = known[shape]


def _without_element_size(shape: Shape) -> Shape:
    if not shape.is_array or shape.layout is None or shape.dtype.bits >= _BYTE_BITS:
        return shape
    size = f"E({shape.dtype.bits})"
    return replace(shape, layout=Layout(shape.layout.minor_to_major, shape.layout.extra.replace(size, "")))


def _assign(layouts: LayoutPropagation) -> None:
    for (instruction, index), order in layouts.values.items():
        _set_order(instruction, index, order)
    orders = [computation.post_order() for computation in layouts.members]
    for instruction in (instruction for instructions in orders for instruction in instructions):
        if instruction.opcode in NAMES:
            _follow(instruction)
    for computation, instructions in zip(layouts.members, orders, strict=True):
        _insert_copies(layouts, instructions)
        if (result := _result_orders(layouts, computation)) is not None:
            computation.root = _relaid(computation.root, (), result)


def _result_orders(layouts: LayoutPropagation, computation: HloComputation) -> Orders | None:
    """Return the layouts that the result must have; None for the condition of a loop, whose result is a scalar."""
    if computation is layouts.members[-1]:
        return {index: layouts.uses[None, 0, index] for index, leaf in computation.root.shape.leaves() if leaf.is_array}
    loop = computation.callers[0]
    return layouts.carried[loop] if computation is loop.while_body else None


def _pin_caller(layouts: LayoutPropagation, caller: HloInstruction, called: CalledLayouts) -> None:
    operands, result = called.asked(caller)
    for number, orders in operands.items():
        layouts.pin_use(caller, number, orders)
    for index, order in result.items():
        layouts.pin_value((caller, index), order)


def _pin(layouts: LayoutPropagation, instruction: HloInstruction) -> None:
    """Pin the layouts that an instruction requires whatever is around it."""
    opcode = instruction.opcode
    if opcode in COLLECTIVE and opcode in KEEPS_LAYOUT:
        _pin_collective(layouts, instruction)
    elif opcode in _AS_WRITTEN:
        for number, operand in enumerate(instruction.operands):
            layouts.pin_use(
                instruction, number, {i: _operand_as_written(instruction, number, i) for i, _ in _static(operand.shape)}
            )
        made = instruction.fused_computation.root.shape if opcode == "fusion" else instruction.shape
        for index, leaf in _static(made):
            layouts.pin_value((instruction, index), leaf.minor_to_major)
    elif opcode in _DEFAULT or opcode in COLLECTIVE:
        _pin_default(layouts, instruction)
    elif _changes_rank(instruction):
        _pin_parts(layouts, instruction)
    elif opcode == "triangular-solve":
        _pin_columns(layouts, instruction)
    elif opcode == "transpose":
        _pin_transposed_dot(layouts, instruction)


def _pin_default(layouts: LayoutPropagation, instruction: HloInstruction) -> None:
    for number, operand in enumerate(instruction.operands):
        layouts.pin_use(instruction, number, {index: _default(leaf) for index, leaf in _static(operand.shape)})
    # The bias of a product belongs to the innermost dimension of the result, which must stay innermost.
    keeps_layout = is_call(instruction) and "BIAS" in epilogue_of(instruction)
    for index, leaf in _static(instruction.shape):
        layouts.pin_value((instruction, index), leaf.minor_to_major if keeps_layout else _default(leaf))


def _pin_custom_call(layouts: LayoutPropagation, call: HloInstruction) -> None:
    """Pin the layouts that the text requires, and default ones of a library call; other calls take any layout, as in XLA."""
    constraints = call.operand_layouts
    if constraints is None:
        if call.custom_call_target.startswith("__"):
            _pin_default(layouts, call)
        return
    for index, leaf in _static(call.shape):
        layouts.pin_value((call, index), leaf.minor_to_major)
    for number, shape in enumerate(constraints):
        layouts.pin_use(call, number, {index: leaf.minor_to_major for index, leaf in _static(shape)})


def _static(shape: Shape) -> list[tuple[ShapeIndex, Shape]]:
    """Return the arrays without dynamic sizes; the others may have any layout."""
    return [(index, leaf) for index, leaf in shape.leaves() if leaf.is_array and not any(leaf.dynamic_dims)]


def _pin_collective(layouts: LayoutPropagation, collective: HloInstruction) -> None:
    """Pin the dimension that is gathered, scattered or exchanged as the major one: then each device's part is contiguous."""
    dimensions = collective.ints("dimensions")
    if dimensions and not _is_constrained(collective):
        for index, leaf in collective.shape.leaves():
            order = (*(dim for dim in leaf.minor_to_major if dim != dimensions[0]), dimensions[0])
            if index:
                layouts.pin_value((collective, index), order)
            else:
                layouts.pin_instruction(collective, order)


def _is_constrained(instruction: HloInstruction) -> bool:
    """Return True for a collective that keeps the layouts of the text."""
    return instruction.opcode in COLLECTIVE and instruction.constrains_layout


def _pin_convolution(layouts: LayoutPropagation, call: HloInstruction, liked: tuple[list[Order], Order]) -> None:
    operands, result = liked
    for number, order in enumerate(operands):
        layouts.pin_use(call, number, {(): order})
        if number == 1:
            layouts.pin_value((call, (0,)), result)
    for index, leaf in call.shape.leaves():
        if index != (0,):
            layouts.pin_value((call, index), _default(leaf))


def _changes_rank(instruction: HloInstruction) -> bool:
    return instruction.opcode == "bitcast-convert" and instruction.operands[0].shape.rank != instruction.shape.rank


def _pin_parts(layouts: LayoutPropagation, convert: HloInstruction) -> None:
    """Pin layouts in which a bitcast-convert moves no byte: parts of an element are innermost, other dimensions as written."""
    source, result = convert.operands[0].shape, convert.shape
    split = max(source, result, key=lambda shape: shape.rank)
    parts = split.rank - 1
    others = tuple(dim for dim in split.minor_to_major if dim != parts)
    layouts.pin_use(convert, 0, {(): (parts, *others) if source is split else others})
    layouts.pin_instruction(convert, (parts, *others) if result is split else others)


def _operand_as_written(instruction: HloInstruction, number: int, index: ShapeIndex) -> Order:
    if instruction.opcode == "fusion":
        return leaf_at(instruction.fused_computation.parameters[number].shape, index).minor_to_major
    return leaf_at(instruction.operands[number].shape, index).minor_to_major


def _pin_columns(layouts: LayoutPropagation, solve: HloInstruction) -> None:
    """Pin the layouts that cuBLAS reads: the columns of each matrix are contiguous."""
    for number, operand in enumerate(solve.operands):
        layouts.pin_use(solve, number, {(): _by_columns(operand.shape)})
    layouts.pin_instruction(solve, _by_columns(solve.shape))


def _by_columns(shape: Shape) -> Order:
    row, column, *batch = _default(shape)
    return (column, row, *batch)


def _pin_dot(layouts: LayoutPropagation, dot: HloInstruction, ctx: PassContext) -> None:
    """Pin layouts in which the batch, row and column dimensions are each adjacent, and the batch is not innermost.

    Operands keep their written layouts if those qualify, and the result takes a layout that a user asked for; otherwise they get
    default layouts, or the order batch, contracting, free dimensions if the default does not qualify either. If the library only
    reads along the contracting dimensions, those are innermost.
    """
    sides = dot_side(dot, 0), dot_side(dot, 1)
    for number, side in enumerate(sides):
        shape = dot.operands[number].shape
        packs = ctx.options.xla_gpu_experimental_pack_dot_operands_along_k_dimension
        if _is_read_along_depth(dot, ctx.target) or (packs and _is_packed(dot.operands[number])):
            is_innermost = not side.contracting or side.contracting[-1] == shape.rank - 1
            along_depth = tuple(reversed((*side.batch, *side.free, *side.contracting)))
            layouts.pin_use(dot, number, {(): _default(shape) if is_innermost else along_depth})
        elif side.batch or len(side.free) > 1 or len(side.contracting) > 1:
            groups = side.batch, side.contracting, side.free
            fitting = (order for order in (shape.minor_to_major, _default(shape)) if lies_as_matrices(order, *groups))
            layouts.pin_use(dot, number, {(): next(fitting, tuple(reversed(sum(groups, ()))))})
    order = _result_order(dot, layouts.uses)
    if order is not None:
        layouts.pin_value((dot, ()), order)


def _result_order(dot: HloInstruction, uses: Mapping[Use, Order]) -> Order | None:
    """Return the layout of a product with batches or several free dimensions, by the known layouts of its uses; or None."""
    sides = dot_side(dot, 0), dot_side(dot, 1)
    if not sides[0].batch and max(len(side.free) for side in sides) <= 1:
        return None
    places = ((user, number, ()) for user in dot.users for number, operand in enumerate(user.operands) if operand is dot)
    asked = (uses[place] for place in places if place in uses)
    return next((order for order in asked if _gives(dot, order)), _default(dot.shape))


def _is_read_along_depth(dot: HloInstruction, target: TargetSpec) -> bool:
    """Return True for a cuBLASLt product that needs both operands contiguous along the contracting dims (e5m2: decided later)."""
    types = {operand.shape.element_type for operand in dot.operands}
    return (types == {"s8"} and dot.shape.element_type == "s32") or (types <= _NARROW_TYPES and not target.is_blackwell)


def _is_packed(value: HloInstruction) -> bool:
    """True if a value is computed from elements below a byte by instructions of one operand and elementwise ones of two."""

    def sources(instruction: HloInstruction) -> Sequence[HloInstruction]:
        is_binary = len(instruction.operands) == 2 and instruction.opcode in ELEMENTWISE
        return instruction.operands if len(instruction.operands) == 1 or is_binary else ()

    return any(i.shape.is_array and i.shape.dtype.bits < _BYTE_BITS for i in walk([value], sources))


def _pin_transposed_dot(layouts: LayoutPropagation, transpose: HloInstruction) -> None:
    """Let a dot produce its result transposed, if the transpose is its only user and the library can."""
    dot, order = transpose.operands[0], tuple(reversed(transpose.dimensions))
    if dot.opcode == "dot" and len(dot.users) == 1 and _gives(dot, order):
        layouts.pin_use(transpose, 0, {(): order})


def _gives(dot: HloInstruction, order: Order) -> bool:
    """Return True if a batched matrix product can have its result in this layout."""
    batch = len(dot.lhs_batch_dims)
    columns = dot.shape.rank - (dot.operands[1].shape.rank - batch - len(dot.rhs_contracting_dims))
    return lies_as_matrices(order, range(batch), range(batch, columns), range(columns, dot.shape.rank))


def _pin_given(layouts: LayoutPropagation, computation: HloComputation, module: HloModule, called: CalledLayouts) -> None:
    """Pin infeeds, outfeeds and parameters: the entry's as given, parameters of other computations as far as they are known."""
    interface, given = called.get(computation), _given_layout(computation, module)
    if computation.is_entry:
        shapes = given.parameters if given is not None else [parameter.shape for parameter in computation.parameters]
        orders = [_written_orders(shape) for shape in shapes]
    else:
        orders = (interface.parameters if interface is not None else None) or []
    known = dict(zip(computation.parameters, orders, strict=False))
    for instruction in computation.instructions:  # in the order of the text, as in XLA
        if instruction.opcode == "outfeed":
            written = instruction.outfeed_shape or instruction.operands[0].shape
            layouts.pin_use(instruction, 0, _written_orders(written))
        elif _is_constrained(instruction):
            layouts.pin_instruction(instruction, instruction.shape.minor_to_major)
        leaves = _written_orders(instruction.shape) if instruction.opcode == "infeed" else known.get(instruction, {})
        for index, order in leaves.items():
            layouts.pin_value((instruction, index), order)


def _pin_result(layouts: LayoutPropagation, module: HloModule, called: CalledLayouts) -> None:
    """Pin the result: the entry's as given, another computation's if it is known."""
    computation, given = layouts.members[-1], _given_layout(layouts.members[-1], module)
    if computation.is_entry:
        layouts.pin_result(_written_orders(computation.root.shape if given is None else given.result))
    elif (interface := called.get(computation)) is not None:
        layouts.pin_result(interface.result)


def _written_orders(shape: Shape) -> Orders:
    return {index: leaf.minor_to_major for index, leaf in shape.leaves() if leaf.is_array}


def _given_layout(computation: HloComputation, module: HloModule) -> EntryLayout | None:
    return module.entry_layout if computation.is_entry else None


def _default(shape: Shape) -> Order:
    return tuple(reversed(range(shape.rank)))


def _with_order(shape: Shape, index: ShapeIndex, order: Order) -> Shape:
    if not index:
        if shape.minor_to_major == order and shape.layout is not None:
            return shape
        return replace(shape, layout=Layout(order, shape.layout.extra if shape.layout else ""))
    elements = list(shape.tuple_shapes)
    elements[index[0]] = _with_order(elements[index[0]], index[1:], order)
    return replace(shape, tuple_shapes=tuple(elements))


def _set_order(instruction: HloInstruction, index: ShapeIndex, order: Order) -> None:
    if leaf_at(instruction.shape, index).minor_to_major != order:
        instruction.shape = _with_order(instruction.shape, index, order)


def _follow(instruction: HloInstruction) -> None:
    """Give an instruction that only renames values (a tuple, an element, ..) the layouts of its operands, set before."""
    match instruction.opcode:
        case "tuple":
            shape = Shape.make_tuple(tuple(operand.shape for operand in instruction.operands))
        case "get-tuple-element":
            index = instruction.tuple_index
            shape = instruction.operands[0].shape.tuple_shapes[index]
        case _:
            shape = instruction.operands[0].shape
    if shape != instruction.shape:
        instruction.shape = shape


def _insert_copies(layouts: LayoutPropagation, instructions: list[HloInstruction]) -> None:
    """Copy operands to the layouts that their users need: a copy per use, as in XLA; `cse` merges equal ones later."""
    for user in instructions:
        if user.opcode in ("tuple", "get-tuple-element"):
            continue
        operands = list(user.operands)
        for number, operand in enumerate(operands):
            wanted = {index: _wanted(layouts, user, number, index) for index, leaf in operand.shape.leaves() if leaf.is_array}
            if user.opcode == "conditional" and number and operand.users == [user]:
                _copy_in_branch(user.called_computations[number - 1], operand.shape, wanted)
            else:
                operands[number] = _relaid(operand, (), wanted)
        if operands != list(user.operands):
            user.operands = tuple(operands)


def _copy_in_branch(branch: HloComputation, given: Shape, wanted: dict[ShapeIndex, Order]) -> None:
    """Let a branch take its operand in the given layouts, and copy inside the branch: the copies run only if it is taken."""
    parameter = branch.parameters[0]
    users = list(parameter.users)
    is_root = parameter.is_root
    parameter.shape = given
    copy = _relaid(parameter, (), wanted)
    if copy is parameter:
        return
    for user in users:
        user.operands = tuple([copy if operand is parameter else operand for operand in user.operands])
    if is_root:
        branch.root = copy


def _wanted(layouts: LayoutPropagation, user: HloInstruction, number: int, index: ShapeIndex) -> Order:
    operand = user.operands[number].shape
    if user.opcode in KEEPS_LAYOUT and user.shape.is_array and operand.is_array and operand.rank == user.shape.rank:
        return user.shape.minor_to_major
    found = layouts.uses.get((user, number, index))
    # Barriers and similar instructions only rename values: they take their operand as it is.
    return leaf_at(operand, index).minor_to_major if found is None else found


def _relaid(value: HloInstruction, index: ShapeIndex, wanted: dict[ShapeIndex, Order]) -> HloInstruction:
    """Return `value`, at `index` of an operand, with the layouts wanted there."""
    if not value.shape.is_tuple:
        order = wanted.get(index)
        if order is None or order == value.shape.minor_to_major:
            return value
        return Editor(value).add_with("copy", _with_order(value.shape, (), order), [value], _notes(value))
    if _lies_right(value.shape, index, wanted):
        return value
    editor = Editor(value)
    parts: list[HloInstruction] = []
    for number, shape in enumerate(value.shape.tuple_shapes):
        # Read from the tuple, as in XLA; `tuple-simplifier` removes these. Only parts that are copied have metadata.
        place = (*index, number)
        stays = _lies_right(shape, place, wanted)
        attributes: dict[str, AttributeValue] = {"index": number}
        if not stays:
            attributes |= _notes(value, "metadata")
        part = InstructionMaker(editor.computation, value.where).add_with("get-tuple-element", shape, [value], attributes)
        parts.append(part if stays else _relaid(part, place, wanted))
    return editor.tuple(parts)


def _notes(value: HloInstruction, *others: str) -> dict[str, AttributeValue]:
    """Return the attributes that a copy of `value` takes from it: frontend attributes and `others`, if it has them."""
    return {name: value.attrs[name] for name in ("frontend_attributes", *others) if name in value.attrs}


def _lies_right(shape: Shape, index: ShapeIndex, wanted: dict[ShapeIndex, Order]) -> bool:
    leaves = shape.leaves()
    return all(leaf.minor_to_major == wanted.get((*index, *place), leaf.minor_to_major) for place, leaf in leaves)
