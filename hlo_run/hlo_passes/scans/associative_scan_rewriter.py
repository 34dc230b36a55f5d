"""Rewrite associative scans to reduce-windows whose windows end at each element, instead of loops.

    scan(f32[40,4] x, broadcast(zero)), dimensions={0}, num_carries=1, is_associative=true, to_apply=f
        =>   reduce-window(x, zero), window={size=40x1 pad=39_0x0_0}, to_apply=scalar f

The body must be elementwise with its result as carry; the scan must be forward, start with a scalar, and have an unused last
carry. `reduce-window-rewriter` splits long windows into blocks, which apply the start more than once: a long scan stays if its
start is not an identity of the reducer. XLA's `AssociativeScanRewriter`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.elementwise import is_elementwise
from hlo_run.analysis.simple_reducer import is_identity, simple_reducer
from hlo_run.hlo.edit import Editor, InstructionMaker, copy_instruction, remove_uncalled, remove_unused
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.attribute_values import Window, WindowDim
from hlo_run.hlo.values.shape import Shape
from hlo_run.pass_support.hlo_pass import PassContext

# The largest size that `reduce-window-rewriter` leaves in one window.


class AssociativeScanRewriter(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "associative-scan-rewriter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        block = ctx.options.xla_reduce_window_rewrite_base_length
        rewritten = [scan for scan in module.instructions_of("scan") if _rewrite(module, scan, block)]
        if rewritten:
            remove_unused(rewritten)
            remove_uncalled(module)


def _rewrite(module: HloModule, scan: HloInstruction, block: int) -> bool:
    init = _start(scan) if _is_standard(scan) else None
    reducer = _scalar_reducer(scan.to_apply) if init is not None else None
    if init is None or reducer is None:
        return False
    values, dim = scan.operands[0], scan.dimensions[0]
    size = values.shape.dims[dim]
    opcode = simple_reducer(reducer)
    is_safe = opcode in ("maximum", "minimum") or bool(opcode and is_identity(init, opcode))
    if size > block and not is_safe:
        return False
    reducer = module.add_computation(reducer)
    editor = Editor(scan)
    dims = tuple(WindowDim(size, pad_low=size - 1) if d == dim else WindowDim() for d in range(values.shape.rank))
    start = init if init.parent is not None else editor.computation.add(init)
    made = editor.add("reduce-window", values.shape, [values, start], {"to_apply": [reducer]}, window=Window(dims))
    module.replace(scan, editor.tuple([made, scan.operands[1]]))
    return True


def _is_standard(scan: HloInstruction) -> bool:
    """Return True for a forward associative scan of one array with one carry, whose last carry is unused."""
    if not scan.is_associative or scan.is_reverse or scan.num_carries != 1:
        return False
    if len(scan.operands) != 2 or scan.is_root or scan.control_predecessors or scan.operands[0].shape.dynamic_dims:
        return False
    is_pair = scan.shape.is_tuple and len(scan.shape.tuple_shapes) == 2
    return is_pair and all(user.opcode == "get-tuple-element" and user.tuple_index == 0 for user in scan.users)


def _start(scan: HloInstruction) -> HloInstruction | None:
    """Return the scalar start of a scan, None if it is not a scalar; from a splat constant, a new one in no computation yet."""
    value = scan.operands[1]
    while value.opcode in ("broadcast", "reshape"):
        value = value.operands[0]
    if not value.shape.dims:
        return value
    if value.opcode != "constant":
        return None
    first = value.constant_array.reshape(-1)[:1]
    if not first.size or not (value.constant_array == first).all():
        return None
    shape = Shape.array(value.shape.element_type, ())
    return InstructionMaker(where=value.where).add("constant", shape, name="start", literal=first.reshape(()))


def _scalar_reducer(body: HloComputation) -> HloComputation | None:
    """Return the body on scalars with parameters (carry, element); None if it is not elementwise or its results differ."""
    root = body.root
    if root.opcode != "tuple" or len(root.operands) != 2 or root.operands[0] is not root.operands[1]:
        return None
    made: dict[HloInstruction, HloInstruction] = {}
    reducer = HloComputation(f"{body.name}_scalarized", body.where)
    for name, number in (("carry", 1), ("input", 0)):
        parameter = body.parameters[number]
        shape = Shape.array(parameter.shape.element_type, ())
        new = InstructionMaker(where=parameter.where).parameter(1 - number, shape, name)
        made[parameter] = reducer.add(new)
    for old in body.post_order():
        if old in made or old is root:
            continue
        if old.opcode in ("broadcast", "reshape") and not old.operands[0].shape.dims:
            made[old] = made[old.operands[0]]
        elif (is_elementwise(old) and old.opcode != "map") or (old.opcode == "constant" and not old.shape.dims):
            shape = Shape.array(old.shape.element_type, ())
            made[old] = reducer.add(copy_instruction(old, [made[operand] for operand in old.operands], shape))
        else:
            return None
    reducer.root = made[root.operands[0]]
    return reducer
