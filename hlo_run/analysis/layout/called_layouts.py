"""Which layouts do the bodies of loops, branches and calls take and give?

In a first round no layout is asked of a called computation, and what spreads in it says in which layouts it gives its result and
wants its parameters. The instructions that call it then agree on one layout for both sides:

- a loop carries what its body gives: the body and the condition take that, too;
- branches give what the largest of them gives, the others settle their parameters once more with that result;
- a call takes and gives what its computation does.

In the second round these layouts are demanded. XLA's `LayoutAssignment` (`CalculateComputationLayout`, `AddWhileConstraints`,
`AddConditionalConstraints`, `AddCallConstraints`). Computations that several instructions call, and those of asynchronous
calls, keep default layouts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from hlo_run.analysis.defining_value import ShapeIndex
from hlo_run.analysis.layout.layout_propagation import LayoutPropagation, Order, value_behind
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.values.shape import Shape

# Minor-to-major orders of the arrays of a shape, by their place in it.
Orders: TypeAlias = "dict[ShapeIndex, Order]"
# They call computations that take and give layouts of their own.
SETTLED_CALLERS = frozenset(("call", "conditional", "while"))


@dataclass(slots=True)
class Interface:
    """The layouts of a computation's parameters and of its result; parameters of None are not settled yet."""

    parameters: list[Orders] | None
    result: Orders


def default_orders(shape: Shape) -> Orders:
    """Return the default layouts of all arrays of a shape."""
    return {index: tuple(reversed(range(leaf.rank))) for index, leaf in shape.leaves() if leaf.is_array}


@dataclass
class CalledLayouts:
    """The interfaces of called computations: `learn` takes what spread in one, `agree` makes both sides of a caller fit.

    Computations come callees first.
    """

    _interfaces: dict[HloComputation, Interface] = field(default_factory=dict["HloComputation", Interface])
    _fixed: set[HloComputation] = field(default_factory=set["HloComputation"])

    @staticmethod
    def of(computations: Iterable[HloComputation]) -> CalledLayouts:
        """Return the interfaces of these computations and the callers in them, of which only default ones are settled."""
        known = CalledLayouts()
        for computation in computations:
            for caller in computation.instructions:
                if caller.opcode in SETTLED_CALLERS or caller.opcode == "async-start":
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
        """Return what is demanded of a computation, if anything is."""
        return self._interfaces.get(computation)

    def is_settled(self, computation: HloComputation) -> bool:
        """True if nothing is to be learnt of the computation any more."""
        found = self._interfaces.get(computation)
        return found is not None and found.parameters is not None

    def learn(self, computation: HloComputation, layouts: LayoutPropagation) -> None:
        """Take the layouts that spread in a computation as its interface; a result that is demanded stays."""
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
        """Let a loop carry what its body gives, and let all branches give what the largest does."""
        if any(computation in self._fixed for computation in caller.called_computations):
            return
        if caller.opcode == "while":
            carried = self._interfaces[caller.called["body"][0]].result
            for computation in caller.called_computations:
                self._interfaces[computation].parameters = [carried]
        elif caller.opcode == "conditional":
            given = self._interfaces[_largest_branch(caller)].result
            for branch in caller.called_computations:
                interface = self._interfaces[branch]
                if interface.result != given:
                    interface.result, interface.parameters = given, None

    def asked(self, caller: HloInstruction) -> tuple[dict[int, Orders], Orders]:
        """Return what a caller asks of its operands, by their numbers, and the layouts of its result."""
        called = [self._interfaces[computation] for computation in caller.called_computations]
        if caller.opcode == "conditional":
            operands = {number + 1: branch.parameters[0] for number, branch in enumerate(called) if branch.parameters is not None}
            return operands, called[0].result
        if caller.opcode == "while":
            carried = self._interfaces[caller.called["body"][0]].result
            return {0: carried}, carried
        return dict(enumerate(called[0].parameters or ())), called[0].result


def _largest_branch(conditional: HloInstruction) -> HloComputation:
    """Return the first branch of the most instructions, of those that take anything; else the first one."""
    branches = conditional.called_computations
    takers = [
        branch
        for branch, operand in zip(branches, conditional.operands[1:], strict=True)
        if not operand.shape.is_tuple or operand.shape.tuple_shapes
    ]
    return max(takers, key=lambda branch: sum(1 for _ in branch.instructions), default=branches[0])
