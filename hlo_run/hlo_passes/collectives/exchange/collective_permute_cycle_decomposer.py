"""Split a collective-permute whose pairs form a cycle into one for the edge that closes it and one for the others.

    p = f32[8] collective-permute(x), source_target_pairs={{0,1},{1,2},{2,3},{3,0}}
        =>   b = f32[8] collective-permute(x), source_target_pairs={{3,0}}
             f = f32[8] collective-permute(x), source_target_pairs={{0,1},{1,2},{2,3}}
             p = f32[8] select(compare(partition-id, 0), b, f)

XLA's `CollectivePermuteCycleDecomposer`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
from msgspec import Struct

from hlo_run.hlo.edit import Editor, copy_instruction
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.collectives.communication.channels import free_channels, move_to_channel
from hlo_run.pass_support.hlo_pass import PassContext

Pairs = Sequence[tuple[int, ...]]


class CollectivePermuteCycleDecomposer(Struct, frozen=True):
    """The pass; see the module's docstring. Values of less than `threshold_in_bytes` stay."""

    name: ClassVar[str] = "collective-permute-cycle-decomposer"
    threshold_in_bytes: int = 0

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        channels = free_channels(module)
        for permute in module.in_post_order("collective-permute"):
            if len(permute.operands) != 1 or not permute.shape.is_array or permute.shape.size_bytes < self.threshold_in_bytes:
                continue
            pairs = permute.source_target_pairs
            closing = _closing_edges(pairs) if len(pairs) > 1 else []
            if closing:
                _split(module, permute, closing, channels)


def _closing_edges(pairs: Pairs) -> list[int]:
    """Return the places of the pairs against the direction of most, whose end another pair leaves."""
    is_forward = 2 * sum(source < target for source, target in pairs) > len(pairs)
    if not is_forward:
        pairs = [(target, source) for source, target in pairs]
    # From here on most sources are smaller than their targets.
    along = [source < target for source, target in pairs]
    left = {source for (source, _), is_along in zip(pairs, along, strict=True) if is_along}
    ends = sorted((target, place) for place, (_, target) in enumerate(pairs) if not along[place])
    return sorted(place for target, place in ends if target in left)


def _split(module: HloModule, permute: HloInstruction, closing: Sequence[int], channels: Iterator[int]) -> None:
    editor, pairs = Editor(permute), permute.source_target_pairs
    back = tuple(pair for place, pair in enumerate(pairs) if place in closing)
    forward = tuple(pair for place, pair in enumerate(pairs) if place not in closing)
    parts: list[HloInstruction] = []
    for own, suffix in ((back, "bwd"), (forward, "fwd")):
        part = copy_instruction(permute, permute.operands, name=f"{permute.name}-{suffix}")
        part.attrs["source_target_pairs"] = own
        parts.append(editor.computation.add(part))
    move_to_channel(parts[1], channels)
    number = editor.add("replica-id" if permute.channel_id is None else "partition-id", Shape.array("u32", ()))
    receives = editor.compare(number, editor.constant(np.uint32(back[-1][1]), "u32"), "EQ")
    chosen = editor.add("select", permute.shape, [receives, *parts])
    module.replace_uses(permute, chosen)
    editor.computation.remove(permute)
