"""Removes choices for one platform: schedules, control dependencies, fusions."""

from __future__ import annotations

from hlo_run.hlo.edit import remove_uncalled
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo_passes.subgraphs.inlining import inline


def remove_schedule(module: HloModule) -> None:
    """Remove the module's schedule."""
    if module.schedule is not None:
        module.schedule = None
        module.attrs.pop("is_scheduled", None)
        module.version += 1


def remove_control_dependencies(module: HloModule) -> None:
    """Remove the control dependencies of all instructions."""
    for instruction in module.instructions:
        if instruction.control_predecessors:
            instruction.control_predecessors = []
            instruction.touch()


def defuse(module: HloModule) -> None:
    """Replace every fusion by the instructions of its computation, inner fusions after outer ones."""
    while fusions := [i for c in module.computations if not c.is_fusion for i in c.instructions if i.opcode == "fusion"]:
        for fusion in fusions:
            inline(module, fusion, fusion.fused_computation)
            fusion.control_predecessors = []
            assert fusion.parent is not None, "the fusion is in a computation"
            fusion.parent.remove(fusion)
        remove_uncalled(module)
