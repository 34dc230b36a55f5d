"""Split a product beside an all-to-all into parts, so that one part is exchanged while another one is multiplied.

    d = dot(all-to-all(x), y)   =>   all-to-all(slice(x)) * slice(y) + .., one part per member of a group
    e = all-to-all(dot(x, y))   =>   all-to-all(slice(x) * slice(y)) + .., likewise

The parts are slices of the contracting dimension. Reshapes, transposes and copies between the two go to the other side of the
all-to-all first, if they keep its dimension.
"""

from __future__ import annotations

from hlo_run.analysis.bitcast_kind import unmodified_dims
from hlo_run.hlo.edit import Editor, descending, next_channel_id, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.replica_groups import ReplicaGroups
from hlo_run.hlo_passes.subgraphs.async_pairs import set_queue

_VIEWS: tuple[Opcode, ...] = ("copy", "reshape", "transpose")
_OF_PRODUCT = (
    *("lhs_batch_dims", "lhs_contracting_dims", "rhs_batch_dims", "rhs_contracting_dims"),
    *("operand_precision", "algorithm"),
)


def split_by_exchange(module: HloModule, instruction: HloInstruction) -> None:
    """Split a dot whose left operand is an all-to-all, or an all-to-all of a dot; leave others as they are."""
    if instruction.opcode == "dot":
        exchange = _exchange_before(module, instruction)
        # Along the contracting dimension each part would meet other rows than its own: XLA splits then too, with wrong values.
        if exchange is not None and exchange.dimensions[0] not in instruction.lhs_contracting_dims:
            _split(module, instruction, exchange, result=instruction)
    elif _is_plain(instruction):
        found = _product_before(module, instruction)
        if found is not None:
            exchange, dot = found
            _split(module, dot, exchange, result=exchange)


def _is_plain(exchange: HloInstruction) -> bool:
    """True for the all-to-all of one array whose groups are listed."""
    if exchange.opcode != "all-to-all" or not exchange.shape.is_array or exchange.constrains_layout:
        return False
    return len(exchange.replica_groups.groups()) > 0


def _views_up_to(value: HloInstruction, user: HloInstruction) -> tuple[list[HloInstruction], HloInstruction] | None:
    """Return the views from `value`, an operand of `user`, to what they view, last one first. All have one user."""
    views: list[HloInstruction] = []
    while list(value.users) == [user] and not value.is_root:
        if value.opcode not in _VIEWS:
            return views, value
        views.append(value)
        value, user = value.operands[0], value
    return None


def _seen_through(view: HloInstruction, dim: int, backward: bool = False) -> int | None:
    """Return where a view has its operand's dimension `dim`, or with `backward` where its operand has the view's."""
    if view.opcode == "transpose":
        return view.dimensions[dim] if backward else view.dimensions.index(dim)
    if view.opcode == "reshape":
        pairs = unmodified_dims(view.operands[0].shape.dims, view.shape.dims)
        return dict((after, before) if backward else (before, after) for before, after in pairs).get(dim)
    return dim


def _exchanged(editor: Editor, like: HloInstruction, operand: HloInstruction, dim: int, channel: int) -> HloInstruction:
    """Add the exchange of another operand along `dim`."""
    made = editor.add("all-to-all", operand.shape, [operand], replica_groups=like.replica_groups, dimensions=(dim,))
    # An exchange between replicas has no channel: one would make it an exchange between partitions.
    if like.channel_id is not None:
        made.attrs["channel_id"] = channel
    return made


def _exchanged_operand(module: HloModule, editor: Editor, operand: HloInstruction, dim: int) -> HloInstruction:
    """Add the exchange of the editor's origin for another operand; its groups are listed, as in XLA."""
    made = _exchanged(editor, editor.origin, operand, dim, next_channel_id(module))
    made.attrs["replica_groups"] = ReplicaGroups(made.replica_groups.groups())
    return made


def _exchange_before(module: HloModule, dot: HloInstruction) -> HloInstruction | None:
    """Return the all-to-all that makes the dot's left operand, after views between them went in front of it."""
    if dot.operands[0] is dot.operands[1]:
        return None
    found = _views_up_to(dot.operands[0], dot)
    if found is None or not _is_plain(found[1]):
        return None
    views, exchange = found
    if not views:
        return exchange
    dim: int | None = exchange.dimensions[0]
    for view in reversed(views):
        dim = _seen_through(view, dim)
        if dim is None:
            return None
    views[-1].replace_operand(exchange, exchange.operands[0])
    editor = Editor(exchange, derives=False)
    made = _exchanged_operand(module, editor, views[0], dim)
    dot.replace_operand(views[0], made)
    editor.computation.remove(exchange)
    return made


def _product_before(module: HloModule, exchange: HloInstruction) -> tuple[HloInstruction, HloInstruction] | None:
    """Return the all-to-all of a dot, after views between them went behind it, and the dot."""
    found = _views_up_to(exchange.operands[0], exchange)
    if found is None or found[1].opcode != "dot":
        return None
    views, dot = found
    if not views:
        return exchange, dot
    dim: int | None = exchange.dimensions[0]
    for view in views:
        dim = _seen_through(view, dim, backward=True)
        if dim is None:
            return None
    editor = Editor(exchange)
    made = _exchanged_operand(module, editor, dot, dim)
    views[-1].replace_operand(dot, made)
    module.replace(exchange, views[0])
    editor.computation.remove(exchange)
    return made, dot


def _split(module: HloModule, dot: HloInstruction, exchange: HloInstruction, result: HloInstruction) -> None:
    """Replace `result`, the later of the two, by a sum of parts if the contracting dimension has equal ones."""
    sizes = {len(group) for group in exchange.replica_groups.groups()}
    if len(sizes) > 1 or len(dot.lhs_contracting_dims) != 1:
        return
    (parts,) = sizes
    lhs, rhs = exchange.operands[0] if result is dot else dot.operands[0], dot.operands[1]
    left, right = dot.lhs_contracting_dims[0], dot.rhs_contracting_dims[0]
    step, rest = divmod(rhs.shape.dims[right], parts)
    if rest:
        return
    derived, own = Editor(exchange), Editor(exchange, derives=False)
    queue = next_channel_id(module)
    attributes = {name: dot.attrs[name] for name in _OF_PRODUCT if name in dot.attrs}
    total = own.broadcast(own.constant(0, result.shape.element_type), result.shape.dims)
    for n in range(queue, queue + parts):
        bounds = (n - queue) * step, (n - queue + 1) * step
        part, other = _part(derived, lhs, left, bounds), _part(derived, rhs, right, bounds)
        if result is dot:
            part = _exchanged(derived, exchange, part, exchange.dimensions[0], n)
        product = own.add_with("dot", descending(dot.shape), [part, other], attributes)
        set_queue(product, str(n))
        sent = product if result is dot else _exchanged(derived, exchange, product, exchange.dimensions[0], n)
        total = derived.binary("add", sent, total)
    module.replace(result, total)
    remove_unused([result])


def _part(editor: Editor, value: HloInstruction, dim: int, bounds: tuple[int, int]) -> HloInstruction:
    starts, limits = [0] * value.shape.rank, list(value.shape.dims)
    starts[dim], limits[dim] = bounds
    return editor.slice(value, starts, limits)
