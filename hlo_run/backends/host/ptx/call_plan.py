"""Decide which device functions are copied into their callers, and which the kernel calls.

A short kernel becomes one function: engines see all its code at once, and the JIT can vectorise it. In long scalar code many
functions call several others, so copies would grow exponentially. There only small functions are copied, and those at which
threads meet, because the JIT needs all meetings in the kernel itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from msgspec import Struct

from hlo_run.backends.host.ptx.syntax import Function, Instruction, Module, OperandList, Symbol

MEETING_OPCODES = frozenset(("bar", "barrier", "shfl", "vote", "match", "redux", "elect"))
"""Instructions that the threads of a warp or block execute together."""
_STAYS_IN_THE_KERNEL = MEETING_OPCODES | {"activemask", "exit"}

MOST_COPIED = 5000
"""A kernel of at most so many instructions, with all functions copied, has no calls."""
SMALL = 100
"""In longer kernels, functions of at most so many instructions are copied."""
MOST_WITH_MEETINGS = 100_000
"""Functions at which threads meet are copied into kernels of at most so many instructions."""
_DEEPEST = 100


class CallPlan(Struct, frozen=True):
    """The plan of a kernel. `called` functions are not copied. `recursive` functions call themselves, also indirectly."""

    called: frozenset[str]
    recursive: frozenset[str]


class _Outline(Struct, frozen=True):
    """The text of a function: its number of instructions, its calls by name, whether threads may meet or end there."""

    instructions: int
    calls: Counter[str]
    meets: bool


class _Size(Struct, frozen=True):
    """A function with its copies: instructions, levels of copies, whether threads may meet or end in the code."""

    instructions: int
    depth: int
    meets: bool


def plan_calls(module: Module, entry: Function) -> CallPlan:
    """Return the plan of a kernel."""
    outlines, recursive = _callees_first(module, entry.name)
    whole = _sizes(outlines, lambda _: True)[entry.name]
    if whole.instructions <= MOST_COPIED and whole.depth <= _DEEPEST:
        return CallPlan(frozenset(), recursive)
    chosen = _is_small_or_meets
    sizes = _sizes(outlines, chosen)
    if sizes[entry.name].instructions > MOST_WITH_MEETINGS:
        chosen = _is_small
        sizes = _sizes(outlines, chosen)
    return CallPlan(frozenset(name for name, size in sizes.items() if name != entry.name and not chosen(size)), recursive)


def _is_small_or_meets(size: _Size) -> bool:
    return size.meets or _is_small(size)


def _is_small(size: _Size) -> bool:
    return size.instructions <= SMALL and size.depth <= _DEEPEST


def _callees_first(module: Module, entry: str) -> tuple[dict[str, _Outline], frozenset[str]]:
    """Return the reachable functions that have a body, callees before callers, and those on cycles."""
    outlines: dict[str, _Outline] = {}
    recursive: set[str] = set()
    pending = [(entry, outline := _outline(module.functions[entry]), iter(outline.calls))]
    active = {entry: None}
    while pending:
        name, outline, callees = pending[-1]
        callee = next(callees, None)
        if callee is None:
            outlines[name] = outline
            del active[name]
            pending.pop()
        elif callee in active:
            members = list(active)
            recursive.update(members[members.index(callee) :])
        elif callee not in outlines and callee in module.functions and module.functions[callee].body is not None:
            active[callee] = None
            outline = _outline(module.functions[callee])
            pending.append((callee, outline, iter(outline.calls)))
    return outlines, frozenset(recursive)


def _outline(function: Function) -> _Outline:
    instructions = [statement for statement in function.body or () if isinstance(statement, Instruction)]
    calls = Counter(_callee(each) for each in instructions if each.opcode == "call")
    return _Outline(len(instructions), calls, any(each.opcode in _STAYS_IN_THE_KERNEL for each in instructions))


def _callee(call: Instruction) -> str:
    target = next((operand for operand in call.operands if not isinstance(operand, OperandList)), None)
    return target.name if isinstance(target, Symbol) else ""


def _sizes(outlines: Mapping[str, _Outline], is_copied: Callable[[_Size], bool]) -> dict[str, _Size]:
    """Return the sizes of all functions. A recursive call counts nothing."""
    sizes: dict[str, _Size] = {}
    for name, outline in outlines.items():
        copies = [(sizes[callee], n) for callee, n in outline.calls.items() if callee in sizes and is_copied(sizes[callee])]
        sizes[name] = _Size(
            outline.instructions + sum(size.instructions * n for size, n in copies),
            1 + max((size.depth for size, _ in copies), default=0),
            outline.meets or any(size.meets for size, _ in copies),
        )
    return sizes
