"""Groups the values that must share a buffer.

The state of a loop is one buffer: the initial value, the parameters of condition and body, the body's result, and the loop's
result. The results of a conditional and of its branches are one buffer. So are an operand that is changed in place and the
result. Mirrors XLA's `HloAliasAnalysis`, numbers of buffers included. Copy insertion ensures that no two values of a buffer
are live at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from hlo_run.analysis.buffers.alias_pairs import in_place_pairs
from hlo_run.analysis.buffers.dataflow import Dataflow
from hlo_run.analysis.buffers.dataflow_values import HloValue
from hlo_run.analysis.computation_order import nested_computations
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.shape import ShapeIndex
from hlo_run.hlo.verify.config import aliases


class HloBuffer(Struct, frozen=True, eq=False):
    """The values that share one buffer, by id."""

    id: int
    values: tuple[HloValue, ...]


class AliasAnalysis(Struct, frozen=True, eq=False):
    """All buffers of a module, and the buffer of each value."""

    dataflow: Dataflow
    buffers: tuple[HloBuffer, ...]
    buffer_of: dict[HloValue, HloBuffer]

    def live_out(self) -> dict[HloBuffer, None]:
        """Return the buffers of the entry's result."""
        root = self.dataflow.trees[self.dataflow.module.entry.root]
        return dict.fromkeys(self.buffer_of[value] for _, value in root.walk())


def analyze_aliases(dataflow: Dataflow, with_module_aliases: bool = True) -> AliasAnalysis:
    """Return the buffers. Without `with_module_aliases`, ignore the module's `input_output_alias`."""
    groups = _Groups(dataflow.values)
    for one, other in must_share(dataflow, with_module_aliases):
        groups.join(one, other)
    buffers = tuple(HloBuffer(n, tuple(sorted(v, key=lambda value: value.id))) for n, v in enumerate(groups.groups()))
    return AliasAnalysis(dataflow, buffers, {value: buffer for buffer in buffers for value in buffer.values})


def must_share(dataflow: Dataflow, with_module_aliases: bool = True) -> Iterator[tuple[HloValue, HloValue]]:
    """Yield the pairs of values that must share a buffer, value by value."""
    partners: dict[tuple[HloInstruction, ShapeIndex], list[tuple[HloInstruction, ShapeIndex]]] = {}
    for one, other in _places(dataflow, with_module_aliases):
        partners.setdefault(one, []).append(other)
        partners.setdefault(other, []).append(one)
    for value in dataflow.values:
        for position in value.positions:
            for instruction, index in partners.get((position.instruction, position.shape_index), ()):
                yield value, dataflow.value(instruction, index)


_Place = tuple[HloInstruction, ShapeIndex]


def _places(dataflow: Dataflow, with_module_aliases: bool) -> Iterator[tuple[_Place, _Place]]:
    """Yield pairs of places whose values must share a buffer."""
    entry = dataflow.module.entry
    if with_module_aliases:
        for output, number, index, _ in aliases(dataflow.module):
            yield (entry.root, output), (entry.parameters[number], index)
    for instruction, tree in dataflow.trees.items():
        if instruction.opcode in ("while", "conditional"):
            for other in _joined(instruction):
                for index, _ in tree.walk():
                    yield (other, index), (instruction, index)
        for number, place, output in in_place_pairs(instruction):
            yield (instruction.operands[number], place), (instruction, output)


def _joined(instruction: HloInstruction) -> list[HloInstruction]:
    """Return the instructions whose results share buffers with a while or conditional, index by index."""
    called = nested_computations(instruction)
    if instruction.opcode == "conditional":
        return [computation.root for computation in called]
    parameters = [computation.parameters[0] for computation in called]
    return [instruction.operands[0], *parameters, instruction.while_body.root]


class _Groups:
    """Disjoint sets of values. A join keeps the larger set's number, as XLA numbers buffers."""

    def __init__(self, values: Iterable[HloValue]) -> None:
        self._members: dict[HloValue, list[HloValue]] = {value: [value] for value in values}
        self._name = {value: value for value in self._members}

    def join(self, one: HloValue, other: HloValue) -> None:
        """Join the groups of two values."""
        large, small = self._name[one], self._name[other]
        if large is small:
            return
        if len(self._members[large]) < len(self._members[small]):
            large, small = small, large
        moved = self._members.pop(small)
        self._members[large] += moved
        self._name.update(dict.fromkeys(moved, large))

    def groups(self) -> list[list[HloValue]]:
        """Return the groups in the order of their first values."""
        return list(self._members.values())
