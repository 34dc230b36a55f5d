"""Lists the contents of a module's fusions in a form that compares two modules regardless of names.

kLoop f32[8]{0}: f32[8]{0} add, f32[8]{0} negate
"""

from __future__ import annotations

from collections import Counter

from hlo_run.hlo.graph import HloInstruction, HloModule


def fusion_contents(module: HloModule) -> Counter[str]:
    """Return how often each fusion occurs in the module, by its contents. Ignores kCustom fusions and fusions inside fusions."""
    fusions = (i for c in module.computations if not c.is_fusion for i in c.instructions if i.opcode == "fusion")
    return Counter(_contents(fusion) for fusion in fusions if fusion.fusion_kind != "kCustom")


def _contents(fusion: HloInstruction) -> str:
    inside = [i for i in fusion.fused_computation.instructions if i.opcode != "parameter"]
    ops = Counter(f"{i.shape.to_string()} {i.opcode}" for i in inside)
    listed = ", ".join(f"{count} {op}" if count > 1 else op for op, count in sorted(ops.items()))
    return f"{fusion.fusion_kind} {fusion.shape.to_string()}: {listed}"
