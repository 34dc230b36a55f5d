"""Fill an array a second time instead of copying the first one, which saves reading it.

    f = f32[512,512] fusion(), calls={ c = f32[] constant(1)  ROOT b = f32[512,512] broadcast(c) }
    k = f32[512,512] copy(f);  t = tuple(k);  u = tuple(f)
      =>   k = f32[512,512] fusion(), calls={ .. };  t = tuple(k);  u = tuple(f)

Takes copies in the entry of 1 MiB and more that keep the layout and have no control dependencies; a bitcast that only the copy
reads may lie between. A copy stays if the same instruction reads all uses of the fill, behind their copies, as one tuple does. If
nothing else reads the fill, it takes the place of the copy. XLA's `ConstantFillCopyRewriter`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import clone_called, copy_instruction, has_order, remove_replaced
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.pass_support.hlo_pass import PassContext

_LEAST_BYTES = 1 << 20


class ConstantFillCopyRewriter(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "constant-fill-copy-rewriter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit the entry in place."""
        del ctx
        for copy in module.in_post_order("copy"):
            if copy.parent is module.entry and copy.shape.size_bytes >= _LEAST_BYTES:
                fill = _fill_behind(copy)
                if fill is not None and not _feeds_one(copy, fill):
                    module.replace_uses(copy, _second_fill(module, copy, fill))
                    remove_replaced(copy)


def _fill_behind(copy: HloInstruction) -> HloInstruction | None:
    """Return the fusion whose result the copy reads, behind at most one bitcast, if the fusion only fills an array."""
    fill = copy.operands[0]
    if copy.shape != fill.shape or not _is_free(copy) or not (copy.users or copy.is_root):
        return None
    if fill.opcode == "bitcast":
        source = fill.operands[0]
        if len(fill.users) != 1 or not _is_free(fill) or _bits(fill) != _bits(source):
            return None
        fill = source
    if fill.opcode != "fusion" or fill.fusion_kind != "kLoop" or fill.operands or not _is_free(fill):
        return None
    body = fill.fused_computation
    is_fill = len(body.instructions) == 2 and body.root.opcode == "broadcast" and body.root.operands[0].opcode == "constant"
    return fill if is_fill and not body.root.operands[0].shape.dims else None


def _is_free(instruction: HloInstruction) -> bool:
    return instruction.sharding is None and not has_order(instruction)


def _bits(instruction: HloInstruction) -> int:
    return DTYPES[instruction.shape.element_type].bits


def _feeds_one(copy: HloInstruction, fill: HloInstruction) -> bool:
    """True if the copy's only user is the one that reads every use of the fill, behind a bitcast and a copy."""
    if len(copy.users) != 1:
        return False
    (reader,) = copy.users
    return all(_reader_behind(user) is reader for user in fill.users)


def _reader_behind(user: HloInstruction) -> HloInstruction:
    for opcode in ("bitcast", "copy"):
        if user.opcode == opcode and len(user.users) == 1:
            (user,) = user.users
    return user


def _second_fill(module: HloModule, copy: HloInstruction, fill: HloInstruction) -> HloInstruction:
    """Return a value to use in place of the copy: a new fill, or the first one if the copy alone uses it."""
    source = copy.operands[0]
    if len(fill.users) < 2:
        return source
    made = module.entry.add(copy_instruction(fill, (), name=f"{fill.name}.rematerialized"))
    clone_called(module, made)
    return made if source is fill else module.entry.add(copy_instruction(source, [made], copy.shape))
