"""Chooses the layouts of parameters and results of called computations: branches and calls.

In the first round, called computations have no layout constraints, and propagation in each one gives layouts of its result and
its parameters. Then the instructions that call it choose one layout for both sides:

- branches use the result layout of the largest branch; the others derive their parameters again from that result;
- a call uses the layouts of its computation.

In the second round these layouts are constraints. XLA's `LayoutAssignment` (`CalculateComputationLayout`,
`AddConditionalConstraints`, `AddCallConstraints`). Computations with several callers, and those of asynchronous
calls, keep default layouts. The bodies and conditions of loops belong to the computation around them (`linked_loops.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from msgspec import Struct, field

from hlo_run.analysis.layout.layout_propagation import LayoutPropagation, Order
from hlo_run.analysis.layout.linked_loops import value_behind
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.traits import CONTROL_FLOW
from hlo_run.hlo.values.shape import Shape, ShapeIndex

# Minor-to-major orders of the arrays of a shape, by shape index.
Orders: TypeAlias = "dict[ShapeIndex, Order]"


class Interface(Struct):
    """The layouts of a computation's parameters and result. The layout of a parameter is None until it is settled."""

    parameters: list[Orders] | None
    result: Orders


def default_orders(shape: Shape) -> Orders:
    """Return the default layouts of all arrays of a shape."""
    return {index: tuple(reversed(range(leaf.rank))) for index, leaf in shape.leaves() if leaf.is_array}


class CalledLayouts(Struct):
    """The interfaces of called computations. `learn` sets one from propagated layouts; `agree` makes both sides of a call equal.

    Computations come callees first.
    """

    _interfaces: dict[HloComputation, Interface] = field(default_factory=dict["HloComputation", Interface])
    _fixed: set[HloComputation] = field(default_factory=set["HloComputation"])

    @staticmethod
    def of(computations: Iterable[HloComputation]) -> CalledLayouts:
        """Return the interfaces of these computations and their callers. Only default layouts are settled at first."""
        known = CalledLayouts()
        for computation in computations:
            for caller in computation.instructions:
                if caller.opcode in CONTROL_FLOW:
                    known._add(caller)
        return known

    def _add(self, caller: HloInstruction) -> None:
        called = caller.called_computations
        if caller.opcode == "async-start" or any(len(computation.callers) > 1 for computation in called):
            for computation in called:
                parameters = [default_orders(parameter.shape) for parameter in computation.parameters]
                self._interfaces[computation] = Interface(parameters, default_orders(computation.root.shape))
                self._fixed.add(computation)

    def get(self, computation: HloComputation) -> Interface | None:
        """Return the layouts that are required of a computation; None without requirements."""
        return self._interfaces.get(computation)

    def is_settled(self, computation: HloComputation) -> bool:
        """True if the computation's interface is final."""
        found = self._interfaces.get(computation)
        return found is not None and found.parameters is not None

    def learn(self, computation: HloComputation, layouts: LayoutPropagation) -> None:
        """Use the propagated layouts of a computation as its interface. A required result layout stays."""
        found = self._interfaces.get(computation)
        parameters = [
            {index: layouts.values[parameter, index] for index, leaf in parameter.shape.leaves() if leaf.is_array}
            for parameter in computation.parameters
        ]
        if found is not None:
            found.parameters = parameters
            return
        root = computation.root
        result = {index: layouts.values[value_behind(root, index)] for index, leaf in root.shape.leaves() if leaf.is_array}
        self._interfaces[computation] = Interface(parameters, result)

    def agree(self, caller: HloInstruction) -> None:
        """Use the layouts of the largest branch for all branches."""
        if any(computation in self._fixed for computation in caller.called_computations):
            return
        if caller.opcode == "conditional":
            given = self._interfaces[_largest_branch(caller)].result
            for branch in caller.called_computations:
                interface = self._interfaces[branch]
                if interface.result != given:
                    interface.result, interface.parameters = given, None

    def asked(self, caller: HloInstruction) -> tuple[dict[int, Orders], Orders]:
        """Return the layouts that a caller requires of its operands, by number, and of its result."""
        called = [self._interfaces[computation] for computation in caller.called_computations]
        if caller.opcode == "conditional":
            operands = {number + 1: branch.parameters[0] for number, branch in enumerate(called) if branch.parameters is not None}
            return operands, called[0].result
        if caller.opcode == "while":
            carried = self._interfaces[caller.while_body].result
            return {0: carried}, carried
        return dict(enumerate(called[0].parameters or ())), called[0].result


def _largest_branch(conditional: HloInstruction) -> HloComputation:
    """Return the first of the branches with most instructions among those with a non-empty operand, else the first branch."""
    branches = conditional.called_computations
    takers = [
        branch
        for branch, operand in zip(branches, conditional.operands[1:], strict=True)
        if not operand.shape.is_tuple or operand.shape.tuple_shapes
    ]
    return max(takers, key=lambda branch: sum(1 for _ in branch.instructions), default=branches[0])
