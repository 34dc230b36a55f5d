"""Which instructions of the module as it was first written a value stands for (XLA's `OriginalValue`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class OriginalArray:
    """The output of an instruction, or the element of it at `index`."""

    instruction: str
    index: tuple[int, ...] = ()

    def __str__(self) -> str:
        index = f" {{{','.join(map(str, self.index))}}}" if self.index else ""
        return f'{{"{self.instruction}"{index}}}'


# A leaf that nothing is known of is None; a tuple may be empty.
OriginTree: TypeAlias = "OriginalArray | tuple[OriginTree, ...] | None"


@dataclass(frozen=True, slots=True)
class OriginalValue:
    """A tree like the value's shape; `is_synthetic_call` marks a call that did not exist before, and has no tree."""

    tree: OriginTree = ()
    is_synthetic_call: bool = False

    def __str__(self) -> str:
        return "{[synthetic_call]}" if self.is_synthetic_call else "{" + _tree_text(self.tree) + "}"


def _tree_text(tree: OriginTree) -> str:
    # A stack of what is still to be written: the depth is the text's.
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
