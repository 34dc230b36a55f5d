"""Find the uniform paths of a phase: on each, all threads of a block go together.

A branch that depends only on the number of the block divides the blocks of a launch. A concatenation, or a pad along outer
dimensions, has many of them. Each path becomes a function without these branches. Otherwise LLVM would vectorise all paths
together, and mask the paths that a block does not take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, assert_never

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from hlo_run.backends.host.jit.phases import Phase
from hlo_run.backends.host.jit.plan import Plan
from hlo_run.backends.host.ptx.control_flow import Branch
from hlo_run.backends.host.ptx.instruction_set import Operation
from hlo_run.backends.host.ptx.specs import Compare
from hlo_run.backends.host.ptx.syntax import (
    Address,
    Float,
    Integer,
    Negated,
    Operand,
    OperandList,
    Pair,
    Register,
    Sink,
    SpecialRegister,
    Symbol,
    Vector,
)
from hlo_run.records import replace
from hlo_run.walks import walk

_MOST_PATHS = 16
_MOST_BLOCKS = 1 << 16

Numbers: TypeAlias = "NDArray[np.int64]"


class UniformPaths(Struct, frozen=True):
    """`of_block` holds the path of each block. `taken[n]` maps the branching basic blocks to their targets on path n."""

    of_block: bytes
    taken: tuple[Mapping[int, int], ...]

    def phase(self, whole: Phase, plan: Plan, path: int) -> Phase:
        """Return the phase reduced to the basic blocks of one path."""
        members, blocks = set(whole.blocks), plan.graph.blocks

        def successors(index: int) -> list[int]:
            chosen = self.taken[path].get(index)
            targets = blocks[index].successors() if chosen is None else (chosen,)
            return [target for target in targets if target in members and blocks[target].cut is None]

        return replace(whole, blocks=tuple(sorted(walk([whole.entry], successors))))


def find_uniform_paths(plan: Plan, phase: Phase) -> UniformPaths | None:
    """Return the uniform paths of a phase; None if it has only one, or too many."""
    x, y, z = plan.shape.grid
    if y * z != 1 or x > _MOST_BLOCKS:
        return None
    values = _BlockValues(plan, x)
    branches: list[int] = []
    rows: list[Numbers] = []
    for index in phase.blocks:
        branch = plan.graph.blocks[index].terminator
        found = values.of(Register(branch.register)) if isinstance(branch, Branch) else None
        if isinstance(branch, Branch) and found is not None:
            branches.append(index)
            rows.append(np.where((found != 0) != branch.negated, branch.taken, branch.otherwise))
    if not rows:
        return None
    paths, of_block = np.unique(np.broadcast_to(np.array(rows), (len(rows), x)), axis=1, return_inverse=True)
    if not 1 < paths.shape[1] <= _MOST_PATHS:
        return None
    taken = tuple(dict(zip(branches, path.tolist(), strict=True)) for path in paths.T)
    return UniformPaths(of_block.reshape(-1).astype(np.uint8).tobytes(), taken)


# ---- values of registers by block ---------------------------------------------------------------------------------------

_COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "min": np.minimum,
    "max": np.maximum,
}


class _BlockValues:
    """The values of integer registers of at most 32 bits that depend only on the number of the block."""

    def __init__(self, plan: Plan, blocks: int) -> None:
        self._plan = plan
        self._blocks = blocks
        self._known: dict[str, Numbers | None] = {}

    def of(self, operand: Operand) -> Numbers | None:
        """Return an operand's value in every block, as one item if it is equal in all; None if it is unknown."""
        match operand:
            case Integer():
                return np.array([operand.value], np.int64)
            case SpecialRegister("%ctaid.x"):
                return np.arange(self._blocks, dtype=np.int64)
            case Negated():
                found = self.of(operand.register)
                return None if found is None else 1 - found
            case Register():
                return self._register(operand.name)
            case SpecialRegister() | Float() | Symbol() | Address() | Vector() | Pair() | Sink() | OperandList():
                return None
            case _:
                assert_never(operand)

    def _register(self, name: str) -> Numbers | None:
        if name not in self._known:
            self._known[name] = None
            definition = self._plan.pure.definitions.get(name)
            if definition is not None and self._plan.pure.is_pure(name):
                self._known[name] = self._result(definition)
        return self._known[name]

    def _result(self, operation: Operation) -> Numbers | None:
        kind = operation.types[-1]
        if operation.opcode not in _HANDLED or not (kind == "pred" or (kind[0] in "sub" and kind[1:] in ("16", "32"))):
            return None
        sources = [self.of(source) for source in operation.operands[1:]]
        known = [_as(source, kind) for source in sources if source is not None]
        if len(known) != len(sources) or operation.flags & {"sat", "cc", "hi", "wide"}:
            return None
        value = _HANDLED[operation.opcode](operation, known)
        return None if value is None else _as(value, operation.types[0] if operation.opcode != "setp" else "pred")


def _as(value: Numbers, kind: str) -> Numbers:
    """Return the numbers that the bits represent in a type."""
    if kind == "pred":
        return value & 1
    bits = int(kind[1:])
    value = value & ((1 << bits) - 1)
    return np.where(value >> (bits - 1) != 0, value - (1 << bits), value) if kind[0] == "s" else value


def _compared(operation: Operation, sources: list[Numbers]) -> Numbers | None:
    spec = operation.spec
    if not isinstance(spec, Compare) or spec.logic:
        return None
    return _COMPARE[spec.relation](*sources).astype(np.int64)


def _shifted(operation: Operation, sources: list[Numbers]) -> Numbers | None:
    value, count = sources
    if not ((count >= 0) & (count < 16)).all():
        return None
    return value << count if operation.opcode == "shl" else value >> count


def _field(operation: Operation, sources: list[Numbers]) -> Numbers | None:
    value, start, count = sources
    within = (start >= 0).all() and (count >= 0).all() and (start + count <= 32).all()
    return value >> start & ((1 << count) - 1) if within and operation.type == "u32" else None


_HANDLED: Mapping[str, Callable[[Operation, list[Numbers]], Numbers | None]] = {
    "mov": lambda _, sources: sources[0],
    "not": lambda _, sources: ~sources[0],
    "mul": lambda _, sources: sources[0] * sources[1],
    "setp": _compared,
    "shl": _shifted,
    "shr": _shifted,
    "bfe": _field,
    **{name: lambda operation, sources: _BINARY[operation.opcode](*sources) for name in _BINARY},
}
