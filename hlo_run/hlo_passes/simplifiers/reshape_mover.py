"""Move reshapes and transposes of operands behind the elementwise instruction that uses them, where they may cancel.

    a = f32[8] add(reshape f32[8] (f32[2,4] p), reshape f32[8] (f32[2,4] q))   =>   reshape f32[8] (f32[2,4] add(p, q))

All operands must have the same reshape or transpose, or be constants or broadcasts that can be reshaped for free. The reshapes
must have no other users, since they would remain for those. XLA's `ReshapeMover`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.bitcast_kind import common_groups
from hlo_run.analysis.elementwise import is_element_operation
from hlo_run.hlo.edit import Editor, Leftovers, copy_instruction
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.pass_support.hlo_pass import PassContext

# The opcodes that the pass moves.
_REARRANGING: frozenset[Opcode] = frozenset(("reshape", "transpose"))


class ReshapeMover(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "reshape-mover"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit all computations except fusion bodies in place, by one walk over each."""
        del ctx
        computations = dict.fromkeys(i.parent for i in module.instructions_of(*sorted(_REARRANGING)))
        for computation in computations:
            assert computation is not None, "the instruction is in a computation"
            candidates = _candidates(computation)
            unused = Leftovers()
            for candidate in candidates:
                _sink(module, candidate)
                unused.add(candidate)
            unused.remove()


def _candidates(computation: HloComputation) -> dict[HloInstruction, None]:
    """Return the instructions whose rearranged operands can all move behind them and then have no users left."""
    found = {i: None for i in computation.instructions if _may_sink(i)}
    waiting = list(found)
    while waiting:
        candidate = waiting.pop()
        if candidate not in found:
            continue
        rearranged = [operand for operand in candidate.operands if operand.opcode in _REARRANGING]
        if all(user in found for operand in rearranged for user in operand.users) and not any(o.is_root for o in rearranged):
            continue
        del found[candidate]
        waiting += [user for operand in rearranged for user in operand.users if user in found]
    return found


def _may_sink(i: HloInstruction) -> bool:
    if not is_element_operation(i) or i.control_predecessors or not i.shape.is_array:
        return False
    pattern = _pattern(i)
    if pattern is None or i.shape.dynamic_dims or any(operand.shape.dims != i.shape.dims for operand in i.operands):
        return False
    return all(_is_alike(o, pattern) if o.opcode in _REARRANGING else _is_free(o, pattern) for o in i.operands)


def _pattern(i: HloInstruction) -> HloInstruction | None:
    """Return the first rearranged operand whose source is not free to rearrange (see `_is_free`)."""
    return next((o for o in i.operands if o.opcode in _REARRANGING and not _is_free(o.operands[0], o)), None)


def _is_free(value: HloInstruction, pattern: HloInstruction) -> bool:
    """Return True if undoing `pattern` on a value costs nothing.

    So it is for constants, random numbers, broadcasts that stay broadcasts, and a pattern without effect.
    """
    if pattern.shape == pattern.operands[0].shape if pattern.opcode == "reshape" else _is_identity(pattern.dimensions):
        return True
    if value.opcode == "rng" and len(value.users) == 1:
        return True
    if value.opcode != "broadcast":
        return value.opcode == "constant"
    dims = list(value.dimensions)
    if dims != sorted(dims) or not dims:
        return not dims
    if pattern.opcode == "transpose":
        moved = [pattern.dimensions[d] for d in dims]
        return moved == sorted(moved)
    source = value.operands[0].shape
    if sum(size != 1 for size in source.dims) <= 1:
        return True
    return 0 not in pattern.shape.dims and set(dims) <= set(_kept(pattern))


def _is_identity(permutation: tuple[int, ...]) -> bool:
    return permutation == tuple(range(len(permutation)))


def _kept(reshape: HloInstruction) -> dict[int, int]:
    """Map dimensions of a reshape's result, larger than 1, to the same dimension of its operand, if it is unchanged."""
    groups = common_groups(reshape.operands[0].shape.dims, reshape.shape.dims)
    return {theirs[0]: ours[0] for ours, theirs in groups if len(ours) == len(theirs) == 1}


def _is_alike(one: HloInstruction, two: HloInstruction) -> bool:
    if one.opcode != two.opcode or one.operands[0].shape.dims != two.operands[0].shape.dims:
        return False
    return one.opcode == "reshape" or one.dimensions == two.dimensions


def _sink(module: HloModule, i: HloInstruction) -> None:
    pattern = _pattern(i)
    assert pattern is not None, "a candidate has a rearranged operand"
    operands = [_rearranged(operand, pattern) for operand in i.operands]
    shape = pattern.operands[0].shape.with_element_type(i.shape.element_type)
    editor = Editor(i, derives=False)
    moved = editor.computation.add(copy_instruction(i, operands, shape))
    moved.attrs.pop("sharding", None)
    if pattern.opcode == "transpose":
        made = editor.add("transpose", i.shape, [moved], dimensions=pattern.dimensions)
    else:
        made = editor.add("reshape", i.shape, [moved])
    module.replace(i, made)


def _rearranged(value: HloInstruction, pattern: HloInstruction) -> HloInstruction:
    """Return a value with the effect of `pattern` undone, with its metadata."""
    if pattern.opcode == "transpose":
        return Editor(value).transpose_view(value, [pattern.dimensions.index(d) for d in range(value.shape.rank)])
    shape = pattern.operands[0].shape.with_element_type(value.shape.element_type)
    if value.shape == shape:
        return value
    if value.opcode == "reshape" and value.operands[0].shape == shape:
        return value.operands[0]
    return Editor(value).add("reshape", shape, [value])
