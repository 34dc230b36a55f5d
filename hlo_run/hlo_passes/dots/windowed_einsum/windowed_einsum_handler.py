"""Let the products of loops that send tiles round the devices overlap.

    while: two steps, n / 2 times   =>   while: all n steps, once; each product has a stream of its own

The loops are those that spmd-partitioning makes of large products. Their steps are unrolled inside of a loop that runs once,
which keeps them apart from what is around it. Sums of products over tiles of the contracting dimension are made after the loop,
from all products. A product of the gathered operand of such a loop takes the operand from the loop, which collects its tiles:

    dot(all-gather(x), y), while(x, ..)   =>   dot(element n of while(x, .., zeros), y)

Scales of 8-bit floats move into the loops. With `--xla_gpu_experimental_enable_alltoall_windowed_einsum` products beside an
all-to-all are split as well. XLA's `WindowedEinsumHandler`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.computation_order import computation_post_order
from hlo_run.hlo.edit import Editor, next_channel_id, remove_uncalled, remove_unused, scalar_reducer
from hlo_run.hlo.frontend_attributes import set_frontend_attribute
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.dots.windowed_einsum.exchanged_products import split_by_exchange
from hlo_run.hlo_passes.dots.windowed_einsum.loop_scales import move_scales, scaled
from hlo_run.hlo_passes.subgraphs.async_pairs import set_earliest, set_queue
from hlo_run.hlo_passes.subgraphs.loops.unrolling import UnrollLimits, unroll
from hlo_run.pass_support.hlo_pass import HloPass, PassContext

_GATHERS = "windowed_dot_general_body_ag"
_ADDS = "windowed_dot_general_body_rs"
# while_loop_simplifier keeps loops with it.
_RUNS_ONCE = "skip-simplify-while-loops_trip-count-one"


class WindowedEinsumHandler(Struct, frozen=True):
    """The pass; see the module's docstring. It runs `simplifiers` before it unrolls, so that the loops' counters are found."""

    name: ClassVar[str] = "windowed-einsum-handler"

    simplifiers: tuple[HloPass, ...] = ()

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        is_exchanging = bool(module.instructions_of("all-to-all"))
        splits = is_exchanging and ctx.options.xla_gpu_experimental_enable_alltoall_windowed_einsum
        if not splits and not any(_loop_of(loop.while_body) for loop in module.instructions_of("while")):
            return
        loops = [loop for c in computation_post_order(module) if (loop := _loop_of(c)) is not None]
        queue = next_channel_id(module)
        for loop in loops:
            move_scales(loop)
        gathering = [loop for loop in loops if loop.while_body.name.startswith(_GATHERS)]
        collecting: dict[HloInstruction, int] = {}
        for instruction in module.in_post_order("dot", "all-to-all"):
            if instruction.parent is None:
                continue
            for loop in gathering if instruction.opcode == "dot" else ():
                _take_from_loop(instruction, loop, collecting)
            if splits:
                split_by_exchange(module, instruction)
        if not loops:
            return
        for simplifier in self.simplifiers:
            simplifier.apply(ctx, module)
        for loop in loops:
            names = [f"unrolled_{c.name}" for c in (loop.while_body, loop.while_condition)]
            if not unroll(module, loop, UnrollLimits(), wraps=True):
                continue
            for computation, name in zip((loop.while_body, loop.while_condition), names, strict=True):
                computation.name = module.unique_computation_name(name)
            set_frontend_attribute(loop, _RUNS_ONCE, "true")
            _spread(module, loop, queue)
        remove_uncalled(module)


def _loop_of(computation: HloComputation) -> HloInstruction | None:
    """Return the loop with such a body of at least two products."""
    if computation.is_fusion or not computation.name.startswith((_GATHERS, _ADDS)):
        return None
    if sum(i.opcode == "dot" for i in computation.instructions) < 2:
        return None
    callers = [caller for caller in computation.callers if caller.opcode == "while"]
    return callers[0] if len(callers) == 1 else None


def _spread(module: HloModule, loop: HloInstruction, queue: int) -> None:
    """Give the products of an unrolled loop streams from `queue` on, and let its first exchange start early."""
    body = loop.while_body
    added: list[HloInstruction] = []
    for instruction in body.post_order():
        operands = instruction.operands
        if instruction.opcode == "collective-permute" and _is_element(operands[0], body, 0):
            set_earliest(instruction)
        elif instruction.opcode == "dot":
            set_queue(instruction, str(queue))
            queue += 1
        elif instruction.opcode == "add":
            added += [operand for operand in reversed(operands) if operand.opcode == "dot"][:1]
    if added and _GATHERS in body.name and len(loop.operands[0].users) == 1:
        _add_after_loop(module, loop, added)


def _is_element(value: HloInstruction, body: HloComputation, index: int) -> bool:
    return value.opcode == "get-tuple-element" and value.operands[0] is body.parameters[0] and value.tuple_index == index


def _add_after_loop(module: HloModule, loop: HloInstruction, products: Sequence[HloInstruction]) -> None:
    """Let the loop return all partial products, and add them after it."""
    editor, inside = Editor(loop), Editor(loop.while_body.root)
    shape = products[0].shape
    zero = editor.constant(0, shape.element_type)
    rows = [inside.reshape(product, (1, *shape.dims)) for product in products]
    place = _append(loop, editor.broadcast(zero, (len(rows), *shape.dims)), inside.concatenate(rows, 0))
    add = _sum(module, shape.element_type)
    total = editor.add("reduce", shape, [editor.element(loop, place), zero], {"to_apply": [add]}, dimensions=(0,))
    for user in [user for user in loop.users if user.opcode == "get-tuple-element" and user.tuple_index == 2]:
        module.replace_uses(user, total)


def _sum(module: HloModule, element_type: str) -> HloComputation:
    return module.add_computation(scalar_reducer("add", "add", Shape.array(element_type, ())))


def _append(loop: HloInstruction, initial: HloInstruction, final: HloInstruction | None = None) -> int:
    """Add an element to the loop's state, and return its number. Without `final`, the body returns what it gets."""
    (state,) = loop.operands
    shape = Shape.make_tuple((*state.shape.tuple_shapes, initial.shape))
    loop.operands = (Editor(loop).tuple([*state.operands, initial]),)
    remove_unused([state])
    loop.shape = shape
    for computation in (loop.while_body, loop.while_condition):
        computation.parameters[0].shape = shape
    body, place = loop.while_body, len(shape.tuple_shapes) - 1
    old = body.root
    last = final if final is not None else Editor(old).element(body.parameters[0], place)
    body.root = Editor(old).tuple([*old.operands, last])
    remove_unused([old])
    return place


def _take_from_loop(dot: HloInstruction, loop: HloInstruction, collecting: dict[HloInstruction, int]) -> None:
    """Let a product of the loop's gathered operand use the tiles that the loop gets anyway."""
    (state,) = loop.operands
    if dot.parent is not loop.parent or state.opcode != "tuple" or len(state.users) != 1:
        return
    gather = next((o for o in dot.operands if o.opcode == "all-gather" and len(o.operands) == 1), None)
    if gather is None:
        return
    moving, source = state.operands[0], scaled(gather.operands[0])
    is_scaled = source is not None and source.narrow is moving and not source.views
    if not is_scaled and gather.operands[0] is not moving:
        return
    if loop not in collecting:
        place = _collect(loop, gather)
        if place is None:
            return
        collecting[loop] = place
    editor = Editor(dot)
    whole = editor.element(loop, collecting[loop])
    if source is not None and is_scaled:
        whole = source.widened(editor, whole, source.scale)
    dot.replace_operand(gather, whole)
    remove_unused([gather])


def _collect(loop: HloInstruction, gather: HloInstruction) -> int | None:
    """Let the loop write the tiles of its first operand into one array; return the number of that element of its state."""
    body, dim = loop.while_body, gather.dimensions[0]
    tile = next((i for i in body.instructions if _is_element(i, body, 0)), None)
    received = next((i for i in tile.users if i.opcode == "collective-permute"), None) if tile is not None else None
    starts = _starts(body)
    if tile is None or received is None or len(starts) != 2:
        return None
    editor = Editor(loop)
    zeros = editor.broadcast(editor.constant(0, tile.shape.element_type), gather.shape.dims)
    place = _append(loop, zeros)
    inside = Editor(body.root)
    old, whole = body.root, body.root.operands[place]
    zero = inside.constant(0, "s32")
    for piece, start in zip((tile, received), starts, strict=True):
        indices = [start if n == dim else zero for n in range(whole.shape.rank)]
        whole = inside.add("dynamic-update-slice", whole.shape, [whole, piece, *indices])
    body.root = inside.tuple([*old.operands[:place], whole])
    remove_unused([old])
    return place


def _starts(body: HloComputation) -> list[HloInstruction]:
    """Return where the tiles of the two steps begin in the gathered operand, as s32 scalars."""
    found: list[HloInstruction] = []
    for instruction in body.post_order():
        if instruction.opcode == "dynamic-update-slice":
            found += [_fresh(i) for i in instruction.operands[2:] if _is_look_up(i)]
        elif instruction.opcode == "dot" and instruction.operands[1].opcode == "dynamic-slice":
            found += [i for i in instruction.operands[1].operands[1:] if _is_look_up(i)]
    return found


def _is_look_up(value: HloInstruction) -> bool:
    return value.opcode == "reshape" and value.operands[0].opcode == "dynamic-slice" and not value.shape.dims


def _fresh(look_up: HloInstruction) -> HloInstruction:
    return Editor(look_up).reshape(look_up.operands[0], ())
