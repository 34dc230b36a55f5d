"""Copy what shares a buffer with another value while it is still needed.

    ROOT f = f32[100] fusion(p, u, i), calls=dynamic_update_slice   =>   c = f32[100] copy(p);  ROOT f = fusion(c, u, i)

The state of a loop is one buffer (what comes in, the body's parameter, what the body makes, what comes out), and so are the
results of the branches of a conditional. Whatever is not handed on unchanged is copied where it enters the loop, where the
body begins and where it ends. What a fusion changes in place is copied if others need it: parameters, constants, values
with further uses. Mirrors XLA's `copy-insertion`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hlo_run.analysis.alias_pairs import in_place_pairs
from hlo_run.analysis.dataflow import Dataflow, analyze_dataflow
from hlo_run.analysis.defining_value import ShapeIndex, defining_value
from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.tuple_edits import copy_leaves
from hlo_run.pipeline.passes import PassContext

_COPIED = frozenset(("parameter", "constant"))


@dataclass(frozen=True)
class CopyInsertion:
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "copy-insertion"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit all executed computations in place."""
        del ctx
        computations = executed_computations(module)
        joins = [i for c in computations for i in c.instructions if i.opcode in ("while", "conditional")]
        if joins:
            dataflow = analyze_dataflow(module)
            leaves = {join: _joined_leaves(dataflow, join) for join in joins}
            for join, indices in leaves.items():
                _copy_state(module, join, indices)
        for computation in computations:
            for fusion in list(computation.instructions):
                _copy_changed_operands(computation, fusion)


def _joined_leaves(dataflow: Dataflow, join: HloInstruction) -> list[ShapeIndex]:
    """Return the leaves of a while or conditional at which several values come together."""
    tree = dataflow.trees[join]
    return [index for index, shape in join.shape.leaves() if shape.is_array and tree.at(index).value.instruction is join]


def _copy_state(module: HloModule, join: HloInstruction, leaves: list[ShapeIndex]) -> None:
    if not leaves:
        return
    assert join.parent is not None
    if join.opcode == "conditional":
        bodies = join.called_computations
    else:
        bodies = join.called["body"]
        join.operands = [copy_leaves(join.parent, join.operands[0], leaves, before=join)]
        _copy_parameter(module, bodies[0], leaves)
    for body in bodies:
        body.root = copy_leaves(body, body.root, leaves)


def _copy_parameter(module: HloModule, body: HloComputation, leaves: list[ShapeIndex]) -> None:
    parameter = body.parameters[0]
    order = (module.schedule or {}).get(body, body.instructions)
    place = order.index(parameter) + 1
    users, is_root = list(parameter.users), parameter.is_root
    copied = copy_leaves(body, parameter, leaves, before=order[place] if place < len(order) else None)
    for user in users:
        if user.opcode == "get-tuple-element":
            module.replace(user, copied.operands[int(user.attrs["index"])])
            body.remove(user)
        else:
            user.operands = [copied if operand is parameter else operand for operand in user.operands]
    if is_root:
        body.root = copied


def _copy_changed_operands(computation: HloComputation, instruction: HloInstruction) -> None:
    for number, index, _ in in_place_pairs(instruction):
        source = instruction.operands[number]
        if _is_needed_elsewhere(source, instruction, computation.root):
            operands = list(instruction.operands)
            operands[number] = copy_leaves(computation, source, (index,), before=instruction)
            instruction.operands = operands


def _is_needed_elsewhere(source: HloInstruction, fusion: HloInstruction, root: HloInstruction) -> bool:
    """True if the buffer of `source` is the caller's, a constant's, or read by anything but this operand of `fusion`."""
    defining, index = defining_value(source)
    if defining.opcode in _COPIED or fusion.operands.count(source) > 1:
        return True
    if index or source.shape.is_tuple:
        # A part of a tuple: its other readers are not looked for.
        return True
    value = source
    while value is not defining:
        if len(value.users) != 1 or value is root:
            return True
        value = value.operands[0]
    return len(value.users) != 1 or value is root
