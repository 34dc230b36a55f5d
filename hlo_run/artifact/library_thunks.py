"""Thunks of library calls on whole arrays, such as cuBLAS and cuDNN; `kind` is XLA's `Thunk::Kind`."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from hlo_run.artifact.buffers import ArraySpec, BufferSlice

Activation: TypeAlias = Literal["kNone", "kRelu", "kRelu6", "kElu", "kLeakyRelu", "kSigmoid", "kTanh"]


class FunctionCall(Struct, frozen=True):
    """A function of a library or of the host, as data: the thunks other than kernels, copies, fills and sequences."""


class LibraryWork(FunctionCall, frozen=True):
    """The work of a library: the kinds of `LibraryThunk`."""


class DotNumbers(Struct, frozen=True):
    """The batch and contracting dimensions of a dot's operands, paired by position.

    All other dimensions are free: the left operand's come first in the result. An operand without batch dimensions is
    multiplied with every matrix of the other operand's batch.
    """

    lhs_batch: tuple[int, ...]
    lhs_contracting: tuple[int, ...]
    rhs_batch: tuple[int, ...]
    rhs_contracting: tuple[int, ...]


class GemmThunk(LibraryWork, frozen=True):
    """result = epilogue(alpha * scales * lhs . rhs + beta * addend + bias) * result_scale, in the order of a dot's dimensions.

    `epilogue` is XLA's: DEFAULT, BIAS, RELU, GELU, BIAS_RELU or BIAS_GELU, each possibly with `_AUX`, which stores the
    input of the activation in `auxiliary`. `bias` is added along the innermost dimension and may be shorter than it. `scales`
    are f32 scalars, one per operand. A result of 8 bits may have a `result_scale`: it is then clamped to the range of its
    type, and the largest magnitude before clamping is stored in `largest`, an f32 scalar. `alpha` is (real, imaginary).
    `workspace` is planned for the library; only texts show it.
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
    workspace: BufferSlice | None = None


class ResizeThunk(LibraryWork, frozen=True):
    """Converts between an array of dynamic sizes and one of its bounds with the sizes, an s32 for each dimension, beside it.

    `sizes` has one s32 scalar per dimension. If `is_padding`, the source is dynamic and the sizes are written. Otherwise
    the result is dynamic and the sizes are read.
    """

    name: str
    source: ArraySpec
    result: ArraySpec
    sizes: tuple[ArraySpec, ...]
    is_padding: bool
    kind: Literal["kKernel"] = "kKernel"


class WindowSpec(Struct, frozen=True):
    """One spatial dimension of a convolution's window, in elements. Padding may be negative."""

    size: int
    stride: int = 1
    pad_low: int = 0
    pad_high: int = 0
    base_dilation: int = 1
    window_dilation: int = 1
    is_reversed: bool = False


class ConvolutionNumbers(Struct, frozen=True):
    """The dimension numbers of a convolution's arrays: (batch, feature, *spatial), for the kernel (in, out, *spatial)."""

    source: tuple[int, ...]
    kernel: tuple[int, ...]
    result: tuple[int, ...]


class ConvolutionThunk(LibraryWork, frozen=True):
    """result = activation(scale * convolution(source, weights) + side_scale * side + bias).

    `direction` says which array is computed from the other two: `result` (forward), `source` (backward-input) or `weights`
    (backward-filter). `window` is always that of the forward convolution. `activation` is XLA's: kNone, kRelu, ..
    `workspace` is planned for the library; only texts show it.
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
    activation: Activation = "kNone"
    leaky_alpha: float = 0.0
    kind: Literal["kConvolution"] = "kConvolution"
    workspace: BufferSlice | None = None


class FftThunk(LibraryWork, frozen=True):
    """Fourier transform of the last `len(lengths)` dimensions. Inverses divide by the product of `lengths`."""

    name: str
    type: Literal["FFT", "IFFT", "RFFT", "IRFFT"]
    lengths: tuple[int, ...]
    source: ArraySpec
    result: ArraySpec
    kind: Literal["kFft"] = "kFft"


class CholeskyThunk(LibraryWork, frozen=True):
    """Cholesky factor of the matrices in the last two dimensions, lower or upper. The other triangle of the result is zero."""

    name: str
    lower: bool
    source: ArraySpec
    result: ArraySpec
    kind: Literal["kCholesky"] = "kCholesky"


class TriangularSolveThunk(LibraryWork, frozen=True):
    """Solve a . x = b (`left_side`) or x . a = b for x, with a = `matrix` after `transpose`, b = `right`."""

    name: str
    matrix: ArraySpec
    right: ArraySpec
    result: ArraySpec
    left_side: bool
    lower: bool
    unit_diagonal: bool
    transpose: Literal["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"]
    kind: Literal["kTriangularSolve"] = "kTriangularSolve"


class SelectKThunk(LibraryWork, frozen=True):
    """The k largest (or smallest) elements along the last dimension, sorted, and their indices (s32). Ties keep their order.

    `k` is the last dimension of `values`.
    """

    name: str
    source: ArraySpec
    values: ArraySpec
    indices: ArraySpec
    largest: bool = True
    kind: Literal["kSelectK"] = "kSelectK"


class ScanThunk(LibraryWork, frozen=True):
    """Running sums of an array whose memory, in order, is `columns` x `rows` x `vector` elements; they run along `rows`.

    `is_reverse` sums from the end of a row. The result has the source's type and number of elements.
    """

    name: str
    source: ArraySpec
    result: ArraySpec
    vector: int
    rows: int
    columns: int
    is_reverse: bool = False
    kind: Literal["kCustomCall"] = "kCustomCall"


LibraryThunk: TypeAlias = (
    GemmThunk | ConvolutionThunk | FftThunk | CholeskyThunk | TriangularSolveThunk | SelectKThunk | ScanThunk | ResizeThunk
)
