"""Partitions a computation into functions that are emitted separately.

The code of a user computes an operand's element at one index. An instruction whose users need the same index is emitted with
them. An instruction that is needed at two indices, or in two functions, becomes a separate function; otherwise the code would
double with every such instruction:

    log = log(p);  t = transpose(log);  ROOT add = add(log, t)    =>    {t, add} and {p, log}

Mirrors XLA's `PartitionedComputation` with one difference. A function may have more than 2000 instructions: each value that
crosses such a cut is a function with everything that it needs, and functions that call each other twice multiply, while a long
block only costs LLVM and ptxas time that grows with its length.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from msgspec import Struct, field

from hlo_run.analysis.elementwise import is_elementwise
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.hlo.opcodes.traits import MOVES_ELEMENTS
from hlo_run.indexing.compose import compose
from hlo_run.indexing.expr import dim
from hlo_run.indexing.indexing_map import IndexingMap
from hlo_run.ops.index import operand_map

# A function of only these ops is recomputed wherever it is used (XLA's `IsNoCompute`).
_NO_COMPUTE = MOVES_ELEMENTS | opcode_set("constant iota parameter")


class Subgraph(Struct, eq=False):
    """One function. `root` computes its result (a tuple's elements if it is a tuple). Users come before operands."""

    name: str
    root: HloInstruction
    instructions: list[HloInstruction] = field(default_factory=list[HloInstruction])

    @property
    def is_no_compute(self) -> bool:
        """True if the function only moves elements. Such a function is always inlined."""
        return only_moves_elements(self.instructions)


def only_moves_elements(instructions: Iterable[HloInstruction]) -> bool:
    """Return True if no instruction computes anything."""
    return all(instruction.opcode in _NO_COMPUTE for instruction in instructions)


class PartitionedComputation(Struct, frozen=True, eq=False):
    """The subgraphs of a computation in order of creation (users before producers), and the subgraph of each instruction."""

    computation: HloComputation
    subgraphs: tuple[Subgraph, ...]
    subgraph_of: dict[HloInstruction, Subgraph]

    def __str__(self) -> str:
        lines = [f"{s.name}: {', '.join(i.name for i in reversed(s.instructions))}" for s in self.subgraphs]
        return "\n".join(lines)


class _Uses(Struct):
    """The subgraphs that use an instruction, with the maps from their root's index to the instruction's index (None: unknown)."""

    subgraphs: list[Subgraph] = field(default_factory=list[Subgraph])
    indexings: list[IndexingMap] = field(default_factory=list[IndexingMap])

    def add(self, subgraph: Subgraph, indexing: IndexingMap | None) -> None:
        if subgraph not in self.subgraphs:
            self.subgraphs.append(subgraph)
        if indexing is not None and not indexing.is_known_empty and indexing not in self.indexings:
            self.indexings.append(indexing)


def partition(computation: HloComputation, forced_roots: Iterable[HloInstruction] = ()) -> PartitionedComputation:
    """Return the subgraphs. Each of `forced_roots` (heroes of an epilogue, and their operands) is the root of one."""
    forced = frozenset(forced_roots)
    uses = {instruction: _Uses() for instruction in computation.instructions}
    subgraphs: list[Subgraph] = []
    subgraph_of: dict[HloInstruction, Subgraph] = {}
    for instruction in reversed(computation.post_order()):
        use = uses[instruction]
        starts = instruction in forced or len(use.subgraphs) != 1 or len(use.indexings) > 1
        if starts:
            subgraphs.append(Subgraph(function_name(f"{computation.name}_{instruction.name}"), instruction))
        subgraph = subgraphs[-1] if starts else use.subgraphs[0]
        subgraph.instructions.append(instruction)
        subgraph_of[instruction] = subgraph
        own = None if starts else next(iter(use.indexings), None)
        _use_operands(instruction, subgraph, own, starts, uses)
    return PartitionedComputation(computation, tuple(subgraphs), subgraph_of)


def _use_operands(
    instruction: HloInstruction,
    subgraph: Subgraph,
    own: IndexingMap | None,
    starts: bool,
    uses: dict[HloInstruction, _Uses],
) -> None:
    for number, operand in enumerate(instruction.operands):
        step = _operand_map(instruction, number)
        if starts or instruction.opcode == "tuple":
            indexing = step
        elif own is None or step is None:
            indexing = None
        else:
            indexing = own if _is_identity(step) else _without_unused(compose(own, step).simplify())
        uses[operand].add(subgraph, indexing)


def _operand_map(instruction: HloInstruction, number: int) -> IndexingMap | None:
    """Return the operand's map without symbols that no result needs. Tuples forward their index."""
    operand = instruction.operands[number]
    if instruction.opcode in ("tuple", "scatter"):
        _, first = next(operand.shape.leaves())
        return _identity(first.dims)
    if is_elementwise(instruction) and operand.shape.dims == instruction.shape.dims:
        return _identity(instruction.shape.dims)
    found = operand_map(instruction, number)
    return None if found is None else _without_unused(found)


def _without_unused(indexing_map: IndexingMap) -> IndexingMap:
    return indexing_map.remove_unused_symbols()[0] if indexing_map.symbols else indexing_map


@lru_cache(maxsize=1024)
def _identity(dims: tuple[int, ...]) -> IndexingMap:
    return IndexingMap.identity(dims)


def _is_identity(indexing_map: IndexingMap) -> bool:
    results = indexing_map.results
    return (
        len(results) == len(indexing_map.dims)
        and not indexing_map.constraints
        and all(result is dim(number) for number, result in enumerate(results))
    )


def function_name(text: str) -> str:
    """Return `text` as a symbol: characters other than letters, digits, `_`, `$` become `_`; a leading digit gets a `_`."""
    name = re.sub(r"[^A-Za-z0-9_$]", "_", text)
    return f"_{name}" if name[:1].isdigit() else name
