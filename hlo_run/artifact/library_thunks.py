"""What a library does with whole arrays; `kind` is XLA's word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from hlo_run.artifact.buffers import ArraySpec


class LibraryWork:
    """What a library does: the kinds of `LibraryThunk`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class DotNumbers:
    """Which dimensions of the operands of a product go together; all others are free, those of the left one first.

    A side without a batch is multiplied by every matrix of the other's.
    """

    lhs_batch: tuple[int, ...]
    lhs_contracting: tuple[int, ...]
    rhs_batch: tuple[int, ...]
    rhs_contracting: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GemmThunk(LibraryWork):
    """result = epilogue(alpha * scales * lhs . rhs + beta * addend + bias) * result_scale, in the order of a dot's dimensions.

    `epilogue` is XLA's: DEFAULT, BIAS, RELU, GELU, BIAS_RELU, BIAS_GELU, each perhaps with `_AUX`, which stores in
    `auxiliary` what went into the activation. `bias` goes along the last dimension, and may be shorter than that. `scales`
    are those of both operands, f32 scalars. A result of 8 bits may have a scale too: then it is clamped to the range of its
    type, and `largest` is where the largest magnitude before that goes, an f32 scalar. `alpha` is complex.
    """

    name: str
    lhs: ArraySpec
    rhs: ArraySpec
    result: ArraySpec
    numbers: DotNumbers
    alpha: tuple[float, float] = (1.0, 0.0)
    beta: float = 0.0
    epilogue: str = "DEFAULT"
    addend: ArraySpec | None = None
    bias: ArraySpec | None = None
    auxiliary: ArraySpec | None = None
    scales: tuple[ArraySpec, ...] = ()
    result_scale: ArraySpec | None = None
    largest: ArraySpec | None = None
    kind: Literal["kGemm", "kCublasLtMatmul"] = "kCublasLtMatmul"


@dataclass(frozen=True, slots=True)
class ResizeThunk(LibraryWork):
    """Between an array of dynamic sizes and one of its bounds with the sizes, an s32 for each dimension, beside it.

    If `is_padding` the source is the dynamic one and the sizes are written, else the result is and they are read.
    """

    name: str
    source: ArraySpec
    result: ArraySpec
    sizes: tuple[ArraySpec, ...]
    is_padding: bool
    kind: Literal["kKernel"] = "kKernel"


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """One spatial dimension of a convolution's window."""

    size: int
    stride: int = 1
    pad_low: int = 0
    pad_high: int = 0
    base_dilation: int = 1
    window_dilation: int = 1
    is_reversed: bool = False


@dataclass(frozen=True, slots=True)
class ConvolutionNumbers:
    """Where the dimensions of a convolution's arrays are: (batch, feature, *spatial), the kernel's (in, out, *spatial)."""

    source: tuple[int, ...]
    kernel: tuple[int, ...]
    result: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConvolutionThunk(LibraryWork):
    """result = activation(scale * convolution(source, weights) + side_scale * side + bias).

    `direction` says which of the three arrays is computed from the other two: forward the result, backward-input the source,
    backward-filter the weights; the window is always that of the forward convolution. `activation` is XLA's: kNone, kRelu, ..
    """

    name: str
    direction: Literal["forward", "backward-input", "backward-filter"]
    source: ArraySpec
    weights: ArraySpec
    result: ArraySpec
    window: tuple[WindowSpec, ...]
    numbers: ConvolutionNumbers
    feature_groups: int = 1
    batch_groups: int = 1
    scale: float = 1.0
    bias: ArraySpec | None = None
    side: ArraySpec | None = None
    side_scale: float = 0.0
    activation: str = "kNone"
    leaky_alpha: float = 0.0
    kind: Literal["kConvolution"] = "kConvolution"


@dataclass(frozen=True, slots=True)
class FftThunk(LibraryWork):
    """Transform the innermost `len(lengths)` dimensions; inverses divide by the number of elements."""

    name: str
    type: Literal["FFT", "IFFT", "RFFT", "IRFFT"]
    lengths: tuple[int, ...]
    source: ArraySpec
    result: ArraySpec
    kind: Literal["kFft"] = "kFft"


@dataclass(frozen=True, slots=True)
class CholeskyThunk(LibraryWork):
    """The triangular factor of symmetric matrices in the last two dimensions; the other triangle of the result is zero."""

    name: str
    lower: bool
    source: ArraySpec
    result: ArraySpec
    kind: Literal["kCholesky"] = "kCholesky"


@dataclass(frozen=True, slots=True)
class TriangularSolveThunk(LibraryWork):
    """result = x of a . x = b, or x . a = b; `transpose` says what is done to `a` first."""

    name: str
    matrix: ArraySpec
    right: ArraySpec
    result: ArraySpec
    left_side: bool
    lower: bool
    unit_diagonal: bool
    transpose: Literal["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"]
    kind: Literal["kTriangularSolve"] = "kTriangularSolve"


@dataclass(frozen=True, slots=True)
class SelectKThunk(LibraryWork):
    """The `k` largest (or smallest) of the last dimension in order, and where they stood; equal ones as they stood."""

    name: str
    source: ArraySpec
    values: ArraySpec
    indices: ArraySpec
    largest: bool = True
    kind: Literal["kSelectK"] = "kSelectK"


LibraryThunk: TypeAlias = (
    GemmThunk | ConvolutionThunk | FftThunk | CholeskyThunk | TriangularSolveThunk | SelectKThunk | ResizeThunk
)
