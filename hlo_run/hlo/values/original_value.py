"""The instructions of the original module that a value comes from (XLA's `OriginalValue`)."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from hlo_run.hlo.values.escape import escape


class OriginalArray(Struct, frozen=True):
    """The output of an instruction, or its element at shape index `index`."""

    instruction: str
    index: tuple[int, ...] = ()

    def __str__(self) -> str:
        index = f" {{{','.join(map(str, self.index))}}}" if self.index else ""
        return f'{{"{self.instruction}"{index}}}'


# A leaf of unknown origin is None; a tuple may be empty.
OriginTree: TypeAlias = "OriginalArray | tuple[OriginTree, ...] | None"


class OriginalValue(Struct, frozen=True):
    """A tree with the structure of the value's shape.

    `call_hierarchy` are the calls of the original module around a value that is in none of them any more. A call that a pass
    made has no tree and an empty hierarchy, the `[synthetic_call]` of older text.
    """

    tree: OriginTree = ()
    call_hierarchy: str | None = None

    def __str__(self) -> str:
        hierarchy = "" if self.call_hierarchy is None else f',["{escape(self.call_hierarchy)}"]'
        return "{" + _tree_text(self.tree) + hierarchy + "}"


def _tree_text(tree: OriginTree) -> str:
    # An explicit stack, as the text sets the depth.
    parts: list[str] = []
    waiting: list[OriginTree | str] = [tree]
    while waiting:
        item = waiting.pop()
        if isinstance(item, tuple):
            inner: list[OriginTree | str] = ["("]
            for number, element in enumerate(item):
                inner += [", ", element] if number else [element]
            waiting += reversed([*inner, ")"])
        else:
            parts.append(item if isinstance(item, str) else "{}" if item is None else str(item))
    return "".join(parts)
