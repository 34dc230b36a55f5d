"""Prints the origin of the bytes at the memory peak: a tree of computations, their callers, and op names of values.

    main (100.0%, total: 1 288 bytes, current: 0 bytes, remaining: 1 288 bytes)
      ├── jit(f)/while (79.8%, total: 1 028 bytes, current: 0 bytes, remaining: 1 288 bytes)
      │   └── body (..)

It is the last part of XLA's `*-live-range.txt`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct, field

from hlo_run.analysis.buffers.dataflow_values import HloValue, buffer_size_bytes
from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import CONTROL_FLOW
from hlo_run.hlo.values.braces import braces
from hlo_run.hlo.values.metadata import OpMetadata

# JAX's name of a leaf in a tree of arguments.
_ARGUMENT = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*\['[^']+'\](?:\['[^']+'\]|\.\w+)*")
_PART_ENDS = re.compile(r"'\]\['|'\]\.|\['|'\]|\.|/")


class _Node(Struct):
    """The bytes of the values with the node's path, and the child nodes."""

    current: int = 0
    parts: dict[str, _Node] = field(default_factory=dict[str, "_Node"])

    @property
    def total(self) -> int:
        return self.current + sum(part.total for part in self.parts.values())


def peak_breakdown(module: HloModule, alive: Sequence[HloValue]) -> list[str]:
    """Return the lines about the values that are live at the peak, not indented."""
    callers = {
        computation: instruction
        for caller in executed_computations(module)
        for instruction in caller.instructions
        if instruction.opcode in CONTROL_FLOW
        for computation in instruction.called_computations
    }
    top = _Node()
    for value in alive:
        if not buffer_size_bytes(value):
            continue
        node = top
        for part in _path(value, callers):
            node = node.parts.setdefault(part, _Node())
        node.current += buffer_size_bytes(value)
    return [f"Stack trace breakdown for peak usage: {_grouped(top.total)} bytes", *_Printer(top.total).lines(top)]


def _path(value: HloValue, callers: dict[HloComputation, HloInstruction]) -> list[str]:
    index = braces(value.index) if value.index else ""
    path = _parts(_label(value.instruction))
    path[-1] += index
    computation = value.instruction.parent
    while computation is not None:
        caller = callers.get(computation)
        path = [computation.name, *path]
        if caller is None:
            break
        path = _parts(_label(caller)) + path
        computation = caller.parent
    return path


def _label(instruction: HloInstruction) -> str:
    metadata = instruction.metadata
    name = metadata.op_name if isinstance(metadata, OpMetadata) else ""
    return name or instruction.name


def _parts(label: str) -> list[str]:
    """Return `p`, `a`, `b` for `p['a'].b`; one part for any other name."""
    if _ARGUMENT.fullmatch(label) is None:
        return [label]
    parts = _PART_ENDS.split(label)
    return parts[:-1] if label.endswith("']") else parts


class _Printer:
    """Prints the tree, larger nodes first. `_remaining` counts the bytes of nodes that are not printed yet."""

    def __init__(self, total: int) -> None:
        self._total = self._remaining = total

    def lines(self, node: _Node, indent: str = "") -> Iterator[str]:
        """Yield the lines of the nodes below `node`. A node without a name has no line itself."""
        order = sorted(node.parts.items(), key=lambda item: (-item[1].total, item[0]))
        for number, (name, part) in enumerate(order, 1):
            is_last = number == len(order)
            glyph = ("└── " if is_last else "├── ") if indent else "  "
            self._remaining -= part.current if name else 0
            if name:
                yield f"{indent}{glyph}{name} {self._numbers(part)}"
            deeper = indent + ("    " if is_last or not indent else "│   ")
            yield from self.lines(part, deeper if name else indent)

    def _numbers(self, node: _Node) -> str:
        percent = 100 * node.total / self._total if self._total else 0.0
        numbers = {"total": node.total, "current": node.current, "remaining": self._remaining}
        return f"({percent:.1f}%, {', '.join(f'{name}: {_grouped(number)} bytes' for name, number in numbers.items())})"


def _grouped(number: int) -> str:
    return f"{number:,}".replace(",", " ")
