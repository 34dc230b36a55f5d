"""Find the called functions whose results depend on their arguments and on memory alone.

In long scalar code a value with several uses becomes a function that each use calls, so the calls grow exponentially along the
chain. An engine that keeps the last results of such a function computes each value once.
"""

from __future__ import annotations

from hlo_run.backends.host.ptx.control_flow import Block, Invoke, KernelGraph
from hlo_run.backends.host.ptx.instruction_set import Operation
from hlo_run.backends.host.ptx.specs import Store, Trap, Update
from hlo_run.backends.host.ptx.syntax import Operand, Symbol
from hlo_run.walks import walk

_ORDERED = frozenset(("volatile", "relaxed", "acquire", "mmio"))


def pure_functions(graph: KernelGraph) -> frozenset[str]:
    """Return the called functions that a thread may skip if an earlier call had the same arguments and memory."""
    if _passes_local_memory(graph):
        return frozenset()
    impure = {name for name, function in graph.functions.items() if not function.outputs}
    callers: dict[str, set[str]] = {name: set() for name in graph.functions}
    for name, function in graph.functions.items():
        for block in (graph.blocks[index] for index in function.blocks):
            if any(_is_impure(operation) for operation in block.operations):
                impure.add(name)
            if isinstance(block.terminator, Invoke):
                callers[block.terminator.function].add(name)
    return frozenset(graph.functions.keys() - set(walk(impure, callers.__getitem__)))


def changes_memory(operation: Operation) -> bool:
    """True if an operation may change what pure functions read. Local memory belongs to one function."""
    return isinstance(operation.spec, Store | Update) and operation.spec.space != "local"


def block_changes_memory(block: Block) -> bool:
    """True if a block may change what pure functions read."""
    return any(changes_memory(operation) for operation in block.operations)


def _is_impure(operation: Operation) -> bool:
    is_ordered = not operation.flags.isdisjoint(_ORDERED)
    return changes_memory(operation) or isinstance(operation.spec, Trap) or is_ordered


def _passes_local_memory(graph: KernelGraph) -> bool:
    """True if a called function may get an address in local memory."""
    if not graph.local.size_bytes:
        return False
    found: set[str] = set()
    operations = [operation for block in graph.blocks for operation in block.operations if operation.opcode != "ld"]
    count = -1
    while len(found) != count:
        count = len(found)
        for operation in operations:
            written = operation.writes()
            if any(_is_local(operand, graph) for operand in operation.operands) or not found.isdisjoint(operation.reads()):
                found.update(written)
    return any(not found.isdisjoint(function.inputs) for function in graph.functions.values())


def _is_local(operand: Operand, graph: KernelGraph) -> bool:
    return isinstance(operand, Symbol) and operand.name in graph.local.offsets
