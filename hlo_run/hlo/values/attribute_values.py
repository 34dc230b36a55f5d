"""The closed set of values of instruction and module attributes.

Each is hashable. `str` returns its HLO text, except for plain numbers, words, and tuples of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias
from typing import Literal as OneOf

from msgspec import Struct

from hlo_run.hlo.values.braces import braces
from hlo_run.hlo.values.escape import escape, json_dict_end
from hlo_run.hlo.values.literal import Literal, format_literal
from hlo_run.hlo.values.metadata import OpMetadata
from hlo_run.hlo.values.original_value import OriginalValue
from hlo_run.hlo.values.replica_groups import IntLists, ReplicaGroups
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import Sharding, without_metadata

if TYPE_CHECKING:
    from hlo_run.artifact.division import FedArray

FftType: TypeAlias = OneOf["FFT", "IFFT", "RFFT", "IRFFT"]


class RawText(str):
    """An attribute's value as in the text, with brackets and quotes."""

    __slots__ = ()


class WindowDim(Struct, frozen=True):
    """One dimension of a window; the fields are XLA's. `reversal` reverses the window."""

    size: int = 1
    stride: int = 1
    pad_low: int = 0
    pad_high: int = 0
    base_dilation: int = 1
    window_dilation: int = 1
    reversal: bool = False


class Window(Struct, frozen=True):
    """The window of a reduce-window, convolution or select-and-scatter, one entry per (spatial) dimension."""

    dims: tuple[WindowDim, ...] = ()

    def __str__(self) -> str:
        def field(name: str, entries: list[str], default: str) -> str:
            return f" {name}={'x'.join(entries)}" if any(entry != default for entry in entries) else ""

        if not self.dims:
            return "{}"
        text = "size=" + "x".join(str(d.size) for d in self.dims)
        text += field("stride", [str(d.stride) for d in self.dims], "1")
        text += field("pad", [f"{d.pad_low}_{d.pad_high}" for d in self.dims], "0_0")
        text += field("lhs_dilate", [str(d.base_dilation) for d in self.dims], "1")
        text += field("rhs_dilate", [str(d.window_dilation) for d in self.dims], "1")
        text += field("rhs_reversal", [str(int(d.reversal)) for d in self.dims], "0")
        return "{" + text + "}"


class OperandLabels(Struct, frozen=True):
    """The dimension numbers of one array of a convolution.

    `letters` are `bf` (batch, feature) for input and output, `io` (input and output feature) for the kernel; `first_dim` and
    `second_dim` are the dimensions that they name, `spatial_dims` those of the window's dimensions in their order.
    """

    letters: str
    first_dim: int
    second_dim: int
    spatial_dims: tuple[int, ...]

    @property
    def rank(self) -> int:
        """The number of dimensions up to the last one with a label."""
        return 1 + max(self.first_dim, self.second_dim, *self.spatial_dims)

    def __str__(self) -> str:
        text = ["?"] * self.rank
        text[self.first_dim] = self.letters[0]
        text[self.second_dim] = self.letters[1]
        for number, dim in enumerate(self.spatial_dims):
            text[dim] = str(number)
        return "".join(text)


class DimLabels(Struct, frozen=True):
    """The `dim_labels` of a convolution, such as `b01f_01io->b01f`."""

    input: OperandLabels
    kernel: OperandLabels
    output: OperandLabels

    def __str__(self) -> str:
        return f"{self.input}_{self.kernel}->{self.output}"


class TensorSparsity(Struct, frozen=True):
    """A sparsity: of each `block_size` elements along `dimension`, `stride` apart, only `non_zeros` are stored."""

    non_zeros: int = 0
    block_size: int = 0
    dimension: int = 0
    stride: int = 0
    # The number of the operand that says which elements are stored.
    idx: int = 0

    def __str__(self) -> str:
        place = f"dimension={self.dimension} stride={self.stride} idx={self.idx}"
        return f"{{sparsity={self.non_zeros}x{self.block_size} {place}}}"


class SparsityConfig(Struct, frozen=True):
    """The sparsity of the operands of a dot or convolution; None for a dense one."""

    lhs: TensorSparsity | None = None
    rhs: TensorSparsity | None = None

    def __str__(self) -> str:
        parts = (f"{name}={value}" for name, value in (("lhs", self.lhs), ("rhs", self.rhs)) if value)
        return "{" + " ".join(parts) + "}"


class TensorBlockScaling(Struct, frozen=True):
    """An operand is multiplied by scales: the numbers of the operands with scales and with zero points, and per dimension the
    elements that share a scale."""

    scale_idx: int = 0
    zero_idx: int = 0
    strides: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()

    def __str__(self) -> str:
        parts = [f"scale_idx={self.scale_idx}", *([f"zero_idx={self.zero_idx}"] if self.zero_idx else [])]
        sizes = (("strides", self.strides), ("steps", self.steps))
        parts += [f"{name}={'x'.join(map(str, values))}" for name, values in sizes if values]
        return "{" + " ".join(parts) + "}"


class BlockScalingConfig(Struct, frozen=True):
    """The scales of the operands of a dot or convolution; None for an operand without scales."""

    lhs: TensorBlockScaling | None = None
    rhs: TensorBlockScaling | None = None

    def __str__(self) -> str:
        parts = (f"{name}={value}" for name, value in (("lhs", self.lhs), ("rhs", self.rhs)) if value)
        return "{" + " ".join(parts) + "}"


class LateEntry:
    """A frontend attribute whose value is computed when it is first read."""

    __slots__ = ("_make", "_value", "name")

    def __init__(self, name: str, make: Callable[[], str]) -> None:
        self.name = name
        self._make: Callable[[], str] | None = make
        self._value = ""

    @property
    def value(self) -> str:
        """The value."""
        if self._make is not None:
            self._value, self._make = self._make(), None
        return self._value


class FrontendAttributes(Struct, frozen=True):
    """The attributes that a framework gave an instruction or module: (name, value) sorted by name, every name once.

    A module may have a `late` one besides.
    """

    entries: tuple[tuple[str, str], ...] = ()
    late: LateEntry | None = None

    def get(self, name: str) -> str | None:
        """Return the value of `name`, or None."""
        if self.late is not None and self.late.name == name:
            return self.late.value
        return next((value for key, value in self.entries if key == name), None)

    def __str__(self) -> str:
        entries = self.entries
        if self.late is not None:
            entries = tuple(sorted((*entries, (self.late.name, self.late.value))))
        return "{" + ",".join(f"{name}={string_or_json(value)}" for name, value in entries) + "}"


def string_or_json(text: str) -> str:
    """Return `text` unchanged if it is one JSON dictionary, else quoted."""
    begin = len(text) - len(text.lstrip(" \t\r\n"))
    end = json_dict_end(text, begin) if text[begin : begin + 1] == "{" else None
    return text if end is not None and not text[end:].strip(" \t\r\n") else f'"{escape(text)}"'


class Statistics(Struct, frozen=True):
    """Named numbers for a viewer, and the index of the one that it shows."""

    visualizing_index: int = 0
    values: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        parts = [f"visualizing_index={self.visualizing_index}", *(f"{name}={value:g}" for name, value in self.values)]
        return "{" + ",".join(parts) + "}"


class ResultAccuracy(Struct, frozen=True):
    """The accuracy required of a result: `mode` is `default` or `highest`, or empty for the tolerances."""

    mode: str = "default"
    atol: float = 0.0
    rtol: float = 0.0
    ulps: int = 0

    def __str__(self) -> str:
        if self.mode:
            return f"{{mode={self.mode}}}"
        return f"{{tolerance={{atol={self.atol:g},rtol={self.rtol:g},ulps={self.ulps}}}}}"


class OperandAliasing(Struct, frozen=True):
    """Outputs that share a buffer with an operand: (output index, operand, operand index)."""

    pairs: tuple[tuple[tuple[int, ...], int, tuple[int, ...]], ...] = ()

    def __str__(self) -> str:
        return "{" + ", ".join(f"{braces(out)}: ({operand}, {braces(path)})" for out, operand, path in self.pairs) + "}"


class Domain(Struct, frozen=True):
    """The shardings on the two sides of a domain instruction; their metadata is not printed."""

    entry: Sharding
    exit: Sharding
    kind: str = "sharding"

    def __str__(self) -> str:
        entry, leaving = without_metadata(self.entry), without_metadata(self.exit)
        return f'{{kind="{self.kind}", entry={entry}, exit={leaving}}}'


class ShapedLiteral(Struct, frozen=True, eq=False):
    """A literal with its shape, for `literal=` of a custom-call; two are equal if their text is."""

    shape: Shape
    value: Literal

    def __str__(self) -> str:
        return shaped_text(self.value, self.shape, reads_back=False)

    def __repr__(self) -> str:
        return self._key()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShapedLiteral) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> str:
        return shaped_text(self.value, self.shape, reads_back=True)


def shaped_text(value: Literal, shape: Shape, reads_back: bool) -> str:
    """Return `s32[2]{0} {1, 2}`, or for a tuple its elements in this form, in parentheses."""
    if isinstance(value, tuple):
        elements = zip(value, shape.tuple_shapes, strict=True)
        return "( " + ", ".join(shaped_text(element, inner, reads_back) for element, inner in elements) + " )"
    return f"{shape} {format_literal(value, shape, reads_back)}"


class EntryLayout(Struct, frozen=True):
    """The header's `entry_computation_layout`: shapes with the layouts of arguments and result at the caller."""

    parameters: tuple[Shape, ...]
    result: Shape


_Plain: TypeAlias = "bool | int | float | str | tuple[int, ...] | tuple[bool, ...] | tuple[str, ...] | IntLists | RawText"
_Numeric: TypeAlias = "Window | DimLabels | SparsityConfig | BlockScalingConfig | ReplicaGroups | OperandAliasing | Statistics"
_Said: TypeAlias = "ResultAccuracy | Sharding | Domain | FrontendAttributes | OpMetadata | OriginalValue | tuple[FedArray, ...]"
_Shaped: TypeAlias = "Shape | tuple[Shape, ...] | EntryLayout | ShapedLiteral | Literal"
AttributeValue: TypeAlias = "_Plain | _Numeric | _Said | _Shaped"
