"""The closed set of values that an instruction's or a module's attribute may have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from hlo_run.hlo.literal import Literal
from hlo_run.hlo.shape import Shape


class RawText(str):
    """An attribute's value exactly as written, brackets and quotes included."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class WindowDim:
    """One dimension of a window; the fields are XLA's. `reversal` runs the window backwards."""

    size: int = 1
    stride: int = 1
    pad_low: int = 0
    pad_high: int = 0
    base_dilation: int = 1
    window_dilation: int = 1
    reversal: bool = False


@dataclass(frozen=True, slots=True)
class Window:
    """The window of a reduce-window, convolution or select-and-scatter, one entry per (spatial) dimension."""

    dims: tuple[WindowDim, ...] = ()


@dataclass(frozen=True, slots=True)
class EntryLayout:
    """The header's `entry_computation_layout`: shapes with layouts as the caller passes and gets them."""

    parameters: tuple[Shape, ...]
    result: Shape


IntLists: TypeAlias = "tuple[tuple[int, ...], ...]"
AttributeValue: TypeAlias = (
    "bool | int | float | str | RawText | tuple[int, ...] | IntLists | Window | Shape | EntryLayout | Literal"
)
