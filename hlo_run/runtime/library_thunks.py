"""Emits thunks of instructions and custom calls that become one library call: GEMMs, convolutions, FFTs, solves, top-k."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from hlo_run.analysis.buffers.copied_operands import SlicePlace
from hlo_run.analysis.buffers.sliced_products import SlicedProduct
from hlo_run.analysis.topk_order import picks_largest
from hlo_run.artifact import (
    ArraySpec,
    BufferSlice,
    CholeskyThunk,
    ConvolutionNumbers,
    ConvolutionThunk,
    CopyThunk,
    DotNumbers,
    FftThunk,
    GemmThunk,
    LoopOffset,
    MovingArray,
    ResizeThunk,
    ScanThunk,
    SelectKThunk,
    SequentialThunk,
    SlicedProductThunk,
    Thunk,
    TriangularSolveThunk,
    WindowSpec,
)
from hlo_run.artifact.library_thunks import Activation
from hlo_run.errors import ParseError, Unsupported
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.scan_calls import SCAN_TARGETS, row_scan
from hlo_run.hlo.values.shape import ShapeIndex
from hlo_run.hlo.views.convolutions import Convolution
from hlo_run.records import replace
from hlo_run.runtime.thunk_context import EmitThunk, ThunkContext, backend_config, integers, number, record, text

_ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)
_OPERAND_SCALES = 2
_F8_RESULTS = ("f8e4m3fn", "f8e5m2")
_PRODUCT_OPERANDS: tuple[Literal["lhs", "rhs", "addend"], ...] = ("lhs", "rhs", "addend")
_EPILOGUES = ("DEFAULT", "BIAS", "RELU", "GELU", "BIAS_RELU", "BIAS_GELU", "GELU_AUX", "BIAS_GELU_AUX")


# ---- products -------------------------------------------------------------------------------------------------------


def _dot(context: ThunkContext, dot: HloInstruction) -> list[Thunk]:
    """Emit a dot that no pass has rewritten."""
    numbers = DotNumbers(dot.lhs_batch_dims, dot.lhs_contracting_dims, dot.rhs_batch_dims, dot.rhs_contracting_dims)
    left, right = (context.array(operand) for operand in dot.operands[:2])
    return [GemmThunk(dot.name, left, right, context.array(dot), numbers, kind="kGemm")]


def _gemm(context: ThunkContext, call: HloInstruction) -> list[Thunk]:
    """Emit `__cublas$gemm` or `__cublas$lt$matmul`: a, b, (c), (bias) to (d, (aux), workspace). The f8 form adds scales."""
    target = call.custom_call_target
    config = record(backend_config(call), "gemm_backend_config")
    beta = number(config, "beta", 0.0)
    epilogue = text(config, "epilogue", "DEFAULT")
    if epilogue not in _EPILOGUES:
        raise Unsupported(f"%{call.name} has the cuBLASLt epilogue {epilogue}", call.where)
    waiting = [context.array(operand) for operand in call.operands]
    left, right = waiting.pop(0), waiting.pop(0)
    addend = waiting.pop(0) if beta and waiting else None
    bias = waiting.pop(_place_of_bias(waiting)) if "BIAS" in epilogue and waiting else None
    result = context.array(call, (0,) if call.shape.is_tuple else ())
    auxiliary = context.array(call, (1,)) if epilogue.endswith("_AUX") else None
    is_f8 = target.endswith("$f8")
    thunk = GemmThunk(
        call.name,
        left,
        right,
        result,
        _dot_numbers(config),
        alpha=(number(config, "alpha_real", 1.0), number(config, "alpha_imag", 0.0)),
        beta=beta,
        epilogue=epilogue,
        addend=addend,
        bias=bias,
        auxiliary=auxiliary,
        scales=tuple(waiting[:_OPERAND_SCALES]) if is_f8 else (),
        # The last operand: older modules have the scale of the addend, which is not of 8 bits, before it.
        result_scale=waiting[-1] if is_f8 and len(waiting) > _OPERAND_SCALES and result.dtype in _F8_RESULTS else None,
        largest=context.array(call, (1,)) if config.get("damax_output") is True else None,
        kind="kGemm" if target == "__cublas$gemm" else "kCublasLtMatmul",
        workspace=_workspace(context, call),
    )
    _check_gemm(call, thunk)
    return [thunk]


def _workspace(context: ThunkContext, call: HloInstruction) -> BufferSlice | None:
    """Return the last result, bytes for the library, if it has any."""
    last = call.shape.tuple_shapes[-1] if call.shape.is_tuple else None
    if last is None or not last.is_array or last.element_type not in ("s8", "u8"):
        return None
    return context.array(call, (len(call.shape.tuple_shapes) - 1,)).slice


def _place_of_bias(waiting: Sequence[ArraySpec]) -> int:
    """Return the number of the bias operand: the first operand that is not a scalar, as scales are; otherwise the last."""
    return next((place for place, spec in enumerate(waiting) if spec.dims), len(waiting) - 1)


def _dot_numbers(config: Mapping[str, object]) -> DotNumbers:
    numbers = record(config, "dot_dimension_numbers")
    return DotNumbers(
        integers(numbers, "lhs_batch_dimensions"),
        integers(numbers, "lhs_contracting_dimensions"),
        integers(numbers, "rhs_batch_dimensions"),
        integers(numbers, "rhs_contracting_dimensions"),
    )


def _check_gemm(call: HloInstruction, thunk: GemmThunk) -> None:
    """Raise ParseError if the config does not match the arrays."""
    numbers = thunk.numbers
    left, right = (*numbers.lhs_batch, *numbers.lhs_contracting), (*numbers.rhs_batch, *numbers.rhs_contracting)
    fits = all(0 <= dim < len(spec.dims) for spec, dims in ((thunk.lhs, left), (thunk.rhs, right)) for dim in dims)
    if not fits or _product_dims(thunk) != thunk.result.dims:
        raise ParseError(f"the dimensions in the backend_config of %{call.name} do not match its arrays", call.where)
    if any(scale is not None and scale.dims for scale in (*thunk.scales, thunk.result_scale)):
        raise ParseError(f"the scales of %{call.name} must be scalars", call.where)


def _product_dims(thunk: GemmThunk) -> tuple[int, ...]:
    numbers = thunk.numbers
    left = [d for n, d in enumerate(thunk.lhs.dims) if n not in (*numbers.lhs_batch, *numbers.lhs_contracting)]
    right = [d for n, d in enumerate(thunk.rhs.dims) if n not in (*numbers.rhs_batch, *numbers.rhs_contracting)]
    batch = [thunk.lhs.dims[dim] for dim in numbers.lhs_batch] or [thunk.rhs.dims[dim] for dim in numbers.rhs_batch]
    return (*batch, *left, *right)


# ---- products in parts of arrays ------------------------------------------------------------------------------------


def sliced_product_thunks(context: ThunkContext, fusion: HloInstruction, found: SlicedProduct) -> list[Thunk]:
    """Return the thunks of a fusion with a product.

    A result that is not in the memory of the operand that it changes begins as a copy of it. A product that would write what it
    reads goes into its workspace first, if that is large enough; XLA lets it write there at once.
    """
    before: list[Thunk] = []
    placed: dict[tuple[HloInstruction, ShapeIndex], BufferSlice] = {}
    moving: list[MovingArray] = []
    for field, operand, place in zip(_PRODUCT_OPERANDS, found.call.operands, found.operands, strict=False):
        whole = context.buffers.slice(fusion.operands[place.number])
        placed[operand, ()] = _first(whole, place, operand.shape.size_bytes)
        if place.step_bytes:
            moving.append(MovingArray(field, whole, loop_offset(place)))
    written: MovingArray | None = None
    for result in found.results:
        whole = context.buffers.slice(fusion, result.index)
        index = (result.number,) if found.call.shape.is_tuple else ()
        shape = found.call.shape.tuple_shapes[result.number] if found.call.shape.is_tuple else found.call.shape
        if result.place is None:
            placed[found.call, index] = whole
            continue
        old = context.buffers.slice(fusion.operands[result.place.number])
        if old != whole:
            before.append(CopyThunk(fusion.name, old, whole))
        placed[found.call, index] = _first(whole, result.place, shape.size_bytes)
        written = MovingArray("result", whole, loop_offset(result.place))
    (product,) = _gemm(replace(context, placed=placed), found.call)
    assert isinstance(product, GemmThunk), "the call is a product"
    room = _room(product, moving, written) if written is not None else None
    if room is not None:
        product = replace(product, result=replace(product.result, slice=room))
    moving += [] if written is None else [written]
    count = len(found.call.shape.tuple_shapes) if found.call.shape.is_tuple else 1
    return [*before, SlicedProductThunk(fusion.name, product, tuple(moving), len(found.call.operands), count, room)]


def _first(whole: BufferSlice, place: SlicePlace, size_bytes: int) -> BufferSlice:
    """Return the place in the first iteration. As for a dynamic-slice, it ends where the array does at the latest."""
    start = min(max(place.first_bytes, 0), whole.size_bytes - size_bytes)
    return BufferSlice(whole.allocation, whole.offset_bytes + start, size_bytes)


def loop_offset(place: SlicePlace) -> LoopOffset:
    """Return the offset of a place in bytes, by the iteration."""
    return LoopOffset(place.first_bytes, place.step_bytes, place.loop)


def _room(product: GemmThunk, moving: list[MovingArray], written: MovingArray) -> BufferSlice | None:
    """Return the part of the workspace for a result that must not be written where it goes; None if it may be, or has no room."""
    room, size_bytes = product.workspace, product.result.slice.size_bytes
    if room is None or room.size_bytes < size_bytes or not _reads(product, moving, written):
        return None
    return BufferSlice(room.allocation, room.offset_bytes, size_bytes)


def _reads(product: GemmThunk, moving: list[MovingArray], written: MovingArray) -> bool:
    """True if the product may read what it writes. An addend at the place of the result is read before that is written."""
    moved = {part.field: part for part in moving}
    arrays: tuple[tuple[str, ArraySpec | None], ...] = (
        ("lhs", product.lhs),
        ("rhs", product.rhs),
        ("addend", product.addend),
    )
    for field, array in arrays:
        if array is None:
            continue
        part = moved.get(field)
        piece = array.slice if part is None else part.whole
        is_same = field == "addend" and part is not None and (part.whole, part.offset) == (written.whole, written.offset)
        is_apart = (
            piece.allocation != written.whole.allocation
            or piece.offset_bytes + piece.size_bytes <= written.whole.offset_bytes
            or written.whole.offset_bytes + written.whole.size_bytes <= piece.offset_bytes
        )
        if not is_same and not is_apart:
            return True
    return False


# ---- convolutions ---------------------------------------------------------------------------------------------------


def _convolution(context: ThunkContext, call: HloInstruction) -> list[Thunk]:
    """Emit a convolution that no pass has rewritten."""
    source, weights = (context.array(operand) for operand in call.operands[:2])
    return [_convolution_thunk(call, "forward", source, weights, context.array(call))]


_DIRECTIONS: dict[str, Literal["forward", "backward-input", "backward-filter"]] = {
    "__cudnn$convForward": "forward",
    "__cudnn$convBiasActivationForward": "forward",
    "__cudnn$convBackwardInput": "backward-input",
    "__cudnn$convBackwardFilter": "backward-filter",
}


def _cudnn_convolution(context: ThunkContext, call: HloInstruction) -> list[Thunk]:
    """Emit a cuDNN convolution: (source, weights), (result, weights) or (source, result), then optional bias and side."""
    direction = _DIRECTIONS[call.custom_call_target]
    config = record(backend_config(call), "cudnn_conv_backend_config")
    first, second, *extras = (context.array(operand) for operand in call.operands)
    out = context.array(call, (0,) if call.shape.is_tuple else ())
    activation = text(config, "activation_mode", "kNone")
    if activation not in _ACTIVATIONS:
        raise Unsupported(f"%{call.name} has the cuDNN activation {activation}", call.where)
    source, weights, result = {
        "forward": (first, second, out),
        "backward-input": (out, second, first),
        "backward-filter": (first, out, second),
    }[direction]
    return [
        _convolution_thunk(
            call,
            direction,
            source,
            weights,
            result,
            scale=number(config, "conv_result_scale", 1.0),
            bias=extras[0] if extras else None,
            side=extras[1] if len(extras) > 1 else None,
            side_scale=number(config, "side_input_scale", 0.0),
            activation=activation,
            leaky_alpha=number(config, "leakyrelu_alpha", 0.0),
            workspace=_workspace(context, call),
        )
    ]


def _convolution_thunk(
    call: HloInstruction,
    direction: Literal["forward", "backward-input", "backward-filter"],
    source: ArraySpec,
    weights: ArraySpec,
    result: ArraySpec,
    **extras: Any,
) -> ConvolutionThunk:
    view = Convolution.of(call)
    labels = view.labels
    return ConvolutionThunk(
        call.name,
        direction,
        source,
        weights,
        result,
        tuple(
            WindowSpec(d.size, d.stride, d.pad_low, d.pad_high, d.base_dilation, d.window_dilation, d.reversal)
            for d in view.window.dims
        ),
        ConvolutionNumbers(
            *((part.first_dim, part.second_dim, *part.spatial_dims) for part in (labels.input, labels.kernel, labels.output))
        ),
        feature_groups=view.feature_groups,
        batch_groups=view.batch_groups,
        **extras,
    )


# ---- other library calls --------------------------------------------------------------------------------------------


def _fft(context: ThunkContext, fft: HloInstruction) -> list[Thunk]:
    lengths = fft.fft_length
    return [FftThunk(fft.name, fft.fft_type, lengths, context.array(fft.operands[0]), context.array(fft))]


def _cholesky(context: ThunkContext, cholesky: HloInstruction) -> list[Thunk]:
    lower = cholesky.lower
    return [CholeskyThunk(cholesky.name, lower, context.array(cholesky.operands[0]), context.array(cholesky))]


def _triangular_solve(context: ThunkContext, solve: HloInstruction) -> list[Thunk]:
    return [_solve(context, solve, dict(solve.attrs), context.array(solve))]


def _cublas_triangular_solve(context: ThunkContext, call: HloInstruction) -> list[Thunk]:
    config = backend_config(call)
    options = record(config, "triangular_solve_options") or config
    right, result = context.array(call.operands[1]), context.array(call, (0,) if call.shape.is_tuple else ())
    solve = _solve(context, call, options, result)
    if right.slice == result.slice:
        return [solve]
    # cuBLAS solves in place
    copy = CopyThunk(call.name, right.slice, result.slice)
    return [SequentialThunk("", (copy, replace(solve, right=result)))]


def _solve(
    context: ThunkContext, instruction: HloInstruction, options: Mapping[str, object], result: ArraySpec
) -> TriangularSolveThunk:
    transpose = options.get("transpose_a", "NO_TRANSPOSE")
    return TriangularSolveThunk(
        instruction.name,
        context.array(instruction.operands[0]),
        context.array(instruction.operands[1]),
        result,
        left_side=options.get("left_side", False) is True,
        lower=options.get("lower", False) is True,
        unit_diagonal=options.get("unit_diagonal", False) is True,
        transpose=transpose if transpose in ("TRANSPOSE", "ADJOINT") else "NO_TRANSPOSE",
    )


def _topk(context: ThunkContext, topk: HloInstruction) -> list[Thunk]:
    largest = topk.largest
    source, values, indices = context.array(topk.operands[0]), context.array(topk, (0,)), context.array(topk, (1,))
    return [SelectKThunk(topk.name, source, values, indices, largest)]


def _row_scan(context: ThunkContext, call: HloInstruction) -> list[Thunk]:
    scan = row_scan(call)
    assert scan is not None, "the call was verified"
    source, result = context.array(call.operands[0]), context.array(call, (0,))
    return [ScanThunk(call.name, source, result, scan.vector, scan.rows, scan.columns, scan.is_reverse)]


def _topk_call(context: ThunkContext, call: HloInstruction) -> list[Thunk]:
    """Emit a TopK call in the order of its comparator. Raises Unsupported unless that compares the two elements."""
    largest = picks_largest(call)
    if largest is None:
        raise Unsupported(f"TopK with the comparator of %{call.name}", call.where, hint="sort the elements instead")
    source, values, indices = context.array(call.operands[0]), context.array(call, (0,)), context.array(call, (1,))
    return [SelectKThunk(call.name, source, values, indices, largest)]


def _pad_to_static(context: ThunkContext, call: HloInstruction) -> list[Thunk]:
    sizes = tuple(context.array(call, (number,)) for number in range(1, len(call.shape.tuple_shapes)))
    return [ResizeThunk(call.name, context.array(call.operands[0]), context.array(call, (0,)), sizes, is_padding=True)]


def _slice_to_dynamic(context: ThunkContext, call: HloInstruction) -> list[Thunk]:
    source, *sizes = (context.array(operand) for operand in call.operands)
    return [ResizeThunk(call.name, source, context.array(call), tuple(sizes), is_padding=False)]


OPCODES: dict[Opcode, EmitThunk] = {
    "dot": _dot,
    "convolution": _convolution,
    "fft": _fft,
    "cholesky": _cholesky,
    "triangular-solve": _triangular_solve,
    "topk": _topk,
}
CUSTOM_CALLS: dict[str, EmitThunk] = {
    "__cublas$gemm": _gemm,
    "__cublas$lt$matmul": _gemm,
    "__cublas$lt$matmul$f8": _gemm,
    **dict.fromkeys(_DIRECTIONS, _cudnn_convolution),
    "__cublas$triangularSolve": _cublas_triangular_solve,
    "__gpu$TopK": _topk_call,
    "TopK": _topk_call,
    **dict.fromkeys(SCAN_TARGETS, _row_scan),
    "PadToStatic": _pad_to_static,
    "SliceToDynamic": _slice_to_dynamic,
}
