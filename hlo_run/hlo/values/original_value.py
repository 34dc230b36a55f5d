"""The instructions of the original module that a value comes from (XLA's `OriginalValue`)."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct


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
    """A tree with the structure of the value's shape; `is_synthetic_call` marks a new call, which has no tree."""

    tree: OriginTree = ()
    is_synthetic_call: bool = False

    def __str__(self) -> str:
        return "{[synthetic_call]}" if self.is_synthetic_call else "{" + _tree_text(self.tree) + "}"


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
