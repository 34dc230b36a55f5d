"""Copy what a fusion is to change in place but others still need: parameters, constants, values with further uses.

    ROOT f = f32[100] fusion(p, u, i), calls=dynamic_update_slice   =>   c = f32[100] copy(p);  ROOT f = fusion(c, u, i)

Afterwards buffer assignment may let every in-place result live in its operand's buffer. The part of XLA's `copy-insertion`
that straight-line entries need; a value read by others is always copied, whenever they run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hlo_run.analysis.defining_value import defining_value
from hlo_run.analysis.in_place import in_place_operands
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.pipeline.passes import PassContext

_COPIED = frozenset(("parameter", "constant"))


@dataclass(frozen=True)
class CopyInsertion:
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "copy-insertion"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit the entry in place."""
        del ctx
        for fusion in list(module.entry.instructions):
            if fusion.opcode != "fusion":
                continue
            for number in dict.fromkeys(in_place_operands(fusion).values()):
                source = fusion.operands[number]
                if _is_needed_elsewhere(source, fusion, module.entry.root):
                    made = HloInstruction("copy", "copy", source.shape, [source], where=fusion.where)
                    operands = list(fusion.operands)
                    operands[number] = module.entry.add(made)
                    fusion.operands = operands


def _is_needed_elsewhere(source: HloInstruction, fusion: HloInstruction, root: HloInstruction) -> bool:
    """True if the buffer of `source` is the caller's, a constant's, or read by anything but this operand of `fusion`."""
    defining, index = defining_value(source)
    if defining.opcode in _COPIED or fusion.operands.count(source) > 1:
        return True
    if index:
        # A part of a tuple: its other readers are not looked for.
        return True
    value = source
    while value is not defining:
        if len(value.users) != 1 or value is root:
            return True
        value = value.operands[0]
    return len(value.users) != 1 or value is root
