"""Find the threads of a launch that have an effect, and how many threads one loop covers.

Many kernels begin with a test: is the thread's number below the number of elements? If the other threads only exit, a block's
loop stops at the last thread that continues, and the bounds of addresses count only threads up to that one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct

from hlo_run.backends.host.jit.affine import PureValues
from hlo_run.backends.host.ptx.control_flow import EFFECTS, Block, Branch, Exit, KernelGraph, single_definitions
from hlo_run.backends.host.ptx.instruction_set import Operation
from hlo_run.backends.host.ptx.specs import Compare, Load
from hlo_run.backends.host.ptx.syntax import Operand, Register, SpecialRegister
from hlo_run.target import WARP_THREADS

_OF_WARPS = ("%laneid", "%warpid", "%nwarpid", "%lanemask")
_LAST = {"gt": 0, "ge": -1, "le": 0, "lt": -1}
"""The number to add to the limit of a comparison to get the last thread that continues."""


class Guard(Struct, frozen=True):
    """The first `threads` threads of a launch continue at block `goes_on`. The others exit."""

    threads: int
    goes_on: int


def choose_loops(graph: KernelGraph, make: Callable[[int, Guard | None], PureValues]) -> tuple[PureValues, Guard | None]:
    """Return the facts about the registers, and the guard. `make(lanes, guard)` gets the number of threads per loop.

    A loop covers a warp, or the whole block if that makes no address less precise.
    """
    by_warps = make(WARP_THREADS, None)
    guard = _find_guard(graph, by_warps)
    if guard is not None:
        by_warps = make(WARP_THREADS, guard)
    if by_warps.threads <= WARP_THREADS or any(block.cut is not None for block in graph.blocks) or _asks_for_warps(graph):
        return by_warps, guard
    whole = make(by_warps.threads, guard)
    return (whole if _unclear(graph, whole) <= _unclear(graph, by_warps) else by_warps), guard


def _asks_for_warps(graph: KernelGraph) -> bool:
    return any(
        isinstance(operand, SpecialRegister) and operand.name.startswith(_OF_WARPS)
        for operation in _operations(graph)
        for operand in operation.operands
    )


def _unclear(graph: KernelGraph, values: PureValues) -> int:
    """Return the number of pure registers that are not affine in other symbols."""
    names = (name for operation in _operations(graph) for name in operation.writes() if values.is_pure(name))
    found = ((name, values.affine_of(Register(name))) for name in names)
    return sum(affine is not None and affine.terms == ((name, 1),) for name, affine in found)


def _operations(graph: KernelGraph) -> Iterator[Operation]:
    return (operation for block in graph.blocks for operation in block.operations)


def _find_guard(graph: KernelGraph, values: PureValues) -> Guard | None:
    first = graph.blocks[0]
    branch = first.terminator
    if not isinstance(branch, Branch) or branch.guards or any(block.cut is not None for block in graph.blocks):
        return None
    if not values.flat or values.grid[1] * values.grid[2] != 1 or any(_does_something(op) for op in first.operations):
        return None
    comparison = single_definitions(graph).get(branch.register)
    if comparison is None or not isinstance(comparison.spec, Compare) or comparison.spec.type not in ("u32", "s32"):
        return None
    relation = comparison.spec.relation
    if relation not in _LAST or comparison.spec.logic:
        return None
    ends, goes_on = (branch.taken, branch.otherwise)
    if (relation in ("lt", "le")) != branch.negated:
        ends, goes_on = goes_on, ends
    last = _last_thread(values, comparison.operands[1:], relation)
    return Guard(last + 1, goes_on) if last is not None and _only_ends(graph.blocks[ends]) else None


def _last_thread(values: PureValues, sides: tuple[Operand, ...], relation: str) -> int | None:
    """Return the last thread that continues, if the comparison is about the thread's number in the launch."""
    number, limit = (values.affine_of(side) for side in sides)
    if number is None or limit is None or limit.terms or number.constant or number.terms != values.thread_number().terms:
        return None
    last = limit.constant + _LAST[relation]
    return last if 0 <= last < number.high else None


def _does_something(operation: Operation) -> bool:
    spec = operation.spec
    return operation.opcode in EFFECTS and not (isinstance(spec, Load) and spec.space == "param")


def _only_ends(block: Block) -> bool:
    return isinstance(block.terminator, Exit) and not any(_does_something(operation) for operation in block.operations)
