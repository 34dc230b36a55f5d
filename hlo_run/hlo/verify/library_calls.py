"""Checks the custom calls whose meaning we know: number, shapes and types of operands and results, and the attributes they need.

Neither the parser nor XLA's verifier looks at them, but passes, kernels and the reference rely on them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from msgspec import Struct

from hlo_run import custom_calls
from hlo_run.errors import Unsupported
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.matrix_calls import matrix_call
from hlo_run.hlo.scan_calls import SCAN_TARGETS, row_scan
from hlo_run.hlo.values.backend_config import config_of
from hlo_run.hlo.values.block_scaling import (
    BLOCK_SCALED_DOT,
    DEQUANTIZE,
    QUANTIZE,
    block_size,
    stated_block_size,
    used_scales,
)
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.views.convolutions import Convolution
from hlo_run.records import replace

Dims: TypeAlias = tuple[int, ...]
# Functions of `matrix_calls` that multiply their operands.
_OF_ONE_TYPE = frozenset(("orgqr", "ormqr", "gtsv", "cholesky_update"))
_WHOLE_NUMBERS = ("s32", "s64", "u32", "u64")


def verify_library_calls(module: HloModule) -> None:
    """Raise Unsupported for a custom call of a known target whose operands, results or attributes it cannot have."""
    for call in module.instructions_of("custom-call"):
        rule = _RULES.get(call.custom_call_target, _matrices)
        complaint = "" if custom_calls.is_registered(call.custom_call_target) else rule(_Call.of(call))
        if complaint:
            target = call.custom_call_target
            raise Unsupported(f"'{call.name}': the custom call {target} needs {complaint}", call.where)


class _Call(Struct, frozen=True):
    """A custom call: the shapes of its operands, and of the elements of its result. An array is its only element."""

    instruction: HloInstruction
    operands: Sequence[Shape]
    results: Sequence[Shape]

    @staticmethod
    def of(call: HloInstruction) -> _Call:
        results = call.shape.tuple_shapes if call.shape.is_tuple else (call.shape,)
        return _Call(call, [operand.shape for operand in call.operands], results)

    def has_arrays(self, operands: int, results: int) -> bool:
        """True if at least so many operands and results exist, and all that exist are arrays."""
        enough = len(self.operands) >= operands and len(self.results) >= results
        return enough and all(shape.is_array for shape in (*self.operands, *self.results))

    def config(self, name: str) -> Mapping[str, Any]:
        """Return a record of the backend_config, or the whole record without it."""
        whole = config_of(self.instruction.backend_config)
        found = whole.get(name)
        return cast("Mapping[str, Any]", found) if isinstance(found, dict) else whole


_Rule: TypeAlias = Callable[[_Call], str]


def _is_number(shape: Shape) -> bool:
    return shape.dtype.is_float or shape.dtype.is_complex


def _is_matrix(shape: Shape) -> bool:
    return len(shape.dims) >= 2 and _is_number(shape) and not any(shape.dynamic_dims)


def _is(shape: Shape, element_type: str, dims: Dims) -> bool:
    return shape.is_array and shape.element_type == element_type and shape.dims == dims


def _real(shape: Shape) -> str:
    return {"c64": "f32", "c128": "f64"}.get(shape.element_type, shape.element_type)


# ---- XLA's linear algebra, which expanders rewrite --------------------------------------------------------------------


def _eigh(call: _Call) -> str:
    if call.has_arrays(1, 2) and len(call.operands) == 1 and len(call.results) == 2 and _is_matrix(call.operands[0]):
        a = call.operands[0]
        results = call.results
        is_square = a.dims[-1] == a.dims[-2]
        if is_square and _is(results[0], a.element_type, a.dims) and _is(results[1], _real(a), a.dims[:-1]):
            return ""
    return "a square matrix, and results for the eigenvectors and the eigenvalues"


def _qr(call: _Call) -> str:
    if call.has_arrays(1, 2) and len(call.operands) == 1 and len(call.results) == 2 and _is_matrix(call.operands[0]):
        a = call.operands[0]
        taus = (*a.dims[:-2], min(a.dims[-2:]))
        if _is(call.results[0], a.element_type, a.dims) and _is(call.results[1], a.element_type, taus):
            return ""
    return "a matrix, and results for the factors and the scales of the reflections"


def _lu(call: _Call) -> str:
    if call.has_arrays(1, 3) and len(call.operands) == 1 and len(call.results) == 3 and _is_matrix(call.operands[0]):
        a = call.operands[0]
        batch = a.dims[:-2]
        pivots, permutation = (*batch, min(a.dims[-2:])), (*batch, a.dims[-2])
        expected = (a.element_type, a.dims), ("s32", pivots), ("s32", permutation)
        if all(_is(shape, *each) for shape, each in zip(call.results, expected, strict=True)):
            return ""
    return "a matrix, and results for the factors, the pivots and the permutation"


def _reflections(call: _Call) -> str:
    if call.has_arrays(2, 1) and len(call.operands) == 2 and not call.instruction.shape.is_tuple and _is_matrix(call.operands[0]):
        a, taus = call.operands
        fits = len(taus.dims) == len(a.dims) - 1 and taus.dims[:-1] == a.dims[:-2] and taus.dims[-1] <= min(a.dims[-2:])
        if fits and taus.element_type == a.element_type and _is(call.results[0], a.element_type, a.dims):
            return ""
    return "a matrix, the scales of its reflections, and a result like the matrix"


# ---- cuBLAS -----------------------------------------------------------------------------------------------------------


def _gemm(call: _Call) -> str:
    needs = "two arrays whose dimensions fit dot_dimension_numbers and the result"
    if not call.has_arrays(2, 1) or any(any(shape.dynamic_dims) for shape in (*call.operands, call.results[0])):
        return needs
    left, right = call.operands[:2]
    config = call.config("gemm_backend_config")
    found = config.get("dot_dimension_numbers", {})
    numbers = cast("Mapping[str, Any]", found if isinstance(found, dict) else {})
    sides: list[tuple[Dims, Dims, Dims]] = []
    for shape, side in ((left, "lhs"), (right, "rhs")):
        batch, contracted = (_dims(numbers, f"{side}_{kind}_dimensions") for kind in ("batch", "contracting"))
        used = (*batch, *contracted)
        if len(set(used)) != len(used) or not all(0 <= dim < len(shape.dims) for dim in used):
            return needs
        free = tuple(size for dim, size in enumerate(shape.dims) if dim not in used)
        sides.append((tuple(shape.dims[d] for d in batch), tuple(shape.dims[d] for d in contracted), free))
    (batch, contracted, rows), (other_batch, other_contracted, columns) = sides
    if contracted != other_contracted or (batch and other_batch and batch != other_batch):
        return needs
    result = call.results[0]
    if result.dims != (*(batch or other_batch), *rows, *columns):
        return needs
    is_integer = (left.element_type, right.element_type) == ("s8", "s8")
    if not (_is_number(left) and _is_number(right)) and not is_integer:
        return "operands of a float type, or of s8"
    return _gemm_extras(call, config, result)


def _dims(numbers: Mapping[str, Any], name: str) -> Dims:
    found = numbers.get(name, ())
    values = cast("Sequence[Any]", found) if isinstance(found, list) else ()
    return tuple(int(value) if str(value).isdecimal() else -1 for value in values)


def _gemm_extras(call: _Call, config: Mapping[str, Any], result: Shape) -> str:
    """Check what follows the two operands: the addend, the bias and the scales; and the second result."""
    waiting = list(call.operands[2:])
    try:
        beta = float(config.get("beta", 0.0))
    except (TypeError, ValueError):
        return "a number as beta"
    if beta and waiting and waiting.pop(0).dims != result.dims:
        return "an addend with the dimensions of the result"
    epilogue = str(config.get("epilogue", "DEFAULT"))
    if "BIAS" in epilogue and waiting:
        bias = waiting.pop(next((place for place, shape in enumerate(waiting) if shape.dims), len(waiting) - 1))
        # Shorter than a row whose padding needs none.
        if len(bias.dims) > 1 or (bias.dims and bias.dims[0] > max(result.dims, default=0)):
            return "a bias of at most the length of a row of the result"
    is_f8 = call.instruction.custom_call_target.endswith("$f8")
    if is_f8 and any(shape.dims for shape in waiting):
        return "scalars as scales"
    if not is_f8 and waiting:
        return "no more operands than its config names"
    if epilogue.endswith("_AUX") and (len(call.results) < 2 or not call.results[1].is_array):
        return "a result for the auxiliary array"
    if config.get("damax_output") is True and (len(call.results) < 2 or not _is(call.results[1], "f32", ())):
        return "an f32[] as second result"
    return ""


_SOLVE = "a square matrix, a right side that fits it, and a result like the right side"


def _solve(call: _Call) -> str:
    is_left = call.config("triangular_solve_options").get("left_side", False) is True
    return "" if call.has_arrays(2, 1) and _solves(call, is_left) else _SOLVE


def _solves(call: _Call, is_left: bool) -> bool:
    a, b = call.operands[:2]
    if not (_is_matrix(a) and _is_matrix(b)):
        return False
    size = b.dims[-2] if is_left else b.dims[-1]
    fits = a.dims == (*b.dims[:-2], size, size) and a.element_type == b.element_type
    return fits and _is(call.results[0], b.element_type, b.dims)


# ---- cuDNN ------------------------------------------------------------------------------------------------------------


def _convolution(roles: tuple[int, int, int], is_graph: bool = False) -> _Rule:
    """Return the rule of a direction. `roles`: which of (first operand, second operand, result) is input, kernel, output.

    The other operands of a graph are those of its later steps: arrays of any kind.
    """

    def rule(call: _Call) -> str:
        needs = "window and dim_labels, and an input, a kernel and an output that fit them"
        attrs = call.instruction.attrs
        if not call.has_arrays(2, 1) or "dim_labels" not in attrs:
            return needs
        arrays = (*call.operands[:2], call.results[0])
        if any(not (_is_number(shape) or shape.element_type in ("s8", "s32")) or any(shape.dynamic_dims) for shape in arrays):
            return needs
        source, kernel, output = (arrays[role] for role in roles)
        if not _convolves(call.instruction, source, kernel, output):
            return needs
        if is_graph:
            return "" if call.has_arrays(len(call.operands), len(call.results)) else "arrays"
        features = output.dims[call.instruction.dim_labels.output.second_dim]
        if len(call.operands) > 2 and call.operands[2].dims != (features,):
            return "a bias with one element per output feature"
        if len(call.operands) > 3 and call.operands[3].dims != output.dims:
            return "a side input like the output"
        return ""

    return rule


def _convolves(call: HloInstruction, source: Shape, kernel: Shape, output: Shape) -> bool:
    """True if the output has the dimensions of the convolution of source and kernel."""
    view = Convolution.of(call)
    labels = view.labels
    rank = len(view.window.dims) + 2
    parts = ((labels.input, source), (labels.kernel, kernel), (labels.output, output))
    for part, shape in parts:
        named = (part.first_dim, part.second_dim, *part.spatial_dims)
        if len(shape.dims) != rank or sorted(named) != list(range(rank)):
            return False
    groups, batch_groups = view.feature_groups, view.batch_groups
    batch, features = source.dims[labels.input.first_dim], source.dims[labels.input.second_dim]
    ins, outs = kernel.dims[labels.kernel.first_dim], kernel.dims[labels.kernel.second_dim]
    if groups < 1 or batch_groups < 1 or features != ins * groups or outs % groups or batch % batch_groups or outs % batch_groups:
        return False
    if (output.dims[labels.output.first_dim], output.dims[labels.output.second_dim]) != (batch // batch_groups, outs):
        return False
    for dim, read, size, written in view.spatial:
        if dim.size != kernel.dims[size]:
            return False
        length = max(0, (source.dims[read] - 1) * dim.base_dilation + 1 if source.dims[read] else 0)
        room = length + dim.pad_low + dim.pad_high - ((dim.size - 1) * dim.window_dilation + 1 if dim.size else 0)
        if output.dims[written] != (room // dim.stride + 1 if room >= 0 else 0):
            return False
    return True


# ---- JAX's calls of LAPACK and cuSOLVER -------------------------------------------------------------------------------


def _matrices(call: _Call) -> str:
    """Check a call of JAX's linear algebra as far as its functions do not; other targets are fine."""
    instruction = call.instruction
    found = matrix_call(instruction.custom_call_target, instruction.backend_config)
    if found is None:
        return ""
    shapes = (*call.operands, *(leaf for _, leaf in instruction.shape.leaves()))
    if not call.operands or not all(shape.is_array and not any(shape.dynamic_dims) for shape in shapes):
        return "arrays of static size"
    if found.function in _OF_ONE_TYPE and len({shape.element_type for shape in call.operands}) > 1:
        return "operands of one element type"
    if found.function != "trsm":
        return ""
    fits = len(call.operands) == 2 and len(call.results) == 1 and _solves(call, found.left)
    return "" if fits else _SOLVE


# ---- sorts, sizes, hints ----------------------------------------------------------------------------------------------


def _radix_sort(call: _Call) -> str:
    count = len(call.operands)
    if count in (1, 2) and call.instruction.shape.is_tuple and call.has_arrays(count, count) and call.operands[0].dims:
        same = all(_is(call.results[n], shape.element_type, call.operands[0].dims) for n, shape in enumerate(call.operands))
        if same and call.operands[-1].dims == call.operands[0].dims:
            return ""
    return "one or two arrays of the same dimensions, and results like them"


def _row_scan(call: _Call) -> str:
    scan = row_scan(call.instruction)
    if scan is None:
        return "a backend_config with the kind SUM"
    if len(call.operands) == 1 and call.instruction.shape.is_tuple and call.has_arrays(1, 1):
        source, result = call.operands[0], call.results[0]
        if _is(result, source.element_type, source.dims) and scan.element_count == source.element_count:
            return ""
    return "an array, a result like it, and lengths whose product is the number of its elements"


# ---- arrays with a scale per block --------------------------------------------------------------------------------------


def _quantize(call: _Call) -> str:
    if len(call.operands) == 1 and len(call.results) == 2 and call.has_arrays(1, 2):
        source, (numbers, scales) = call.operands[0], call.results
        floats = all(shape.dtype.is_float for shape in (source, numbers, scales))
        if floats and numbers.dims == source.dims and block_size(numbers, scales):
            return ""
    return "an array of floats, and results for narrower floats and the scales of their blocks"


def _dequantize(call: _Call) -> str:
    if len(call.operands) == 2 and call.has_arrays(2, 1) and not call.instruction.shape.is_tuple:
        numbers, scales = call.operands
        if _is(call.results[0], call.results[0].element_type, numbers.dims) and block_size(numbers, scales):
            return ""
    return "an array and the scales of its blocks, and a result like the array"


def _block_scaled_dot(call: _Call) -> str:
    """Judge operands (numbers, numbers, scales, scales, scale of the result); the last two may be absent."""
    if 3 <= len(call.operands) <= 5 and call.has_arrays(3, 1) and not call.instruction.shape.is_tuple:
        (lhs, rhs, *others), result = call.operands, call.results[0]
        stated = stated_block_size(call.instruction.backend_config)
        fits = len(lhs.dims) == len(rhs.dims) and lhs.dims[:-2] == rhs.dims[:-2] and lhs.dims[-1:] == rhs.dims[-1:]
        for numbers, scales in zip((lhs, rhs), others, strict=False):
            used = used_scales(numbers, scales, stated)
            fits = fits and used is not None and block_size(numbers, replace(scales, dims=used)) is not None
        plain = len(others) > 1 or rhs.element_type == result.element_type
        scaled = not others[2:] or _is(others[2], result.element_type, ())
        if fits and plain and scaled and result.dims == (*lhs.dims[:-1], rhs.dims[-2]):
            return ""
    return "two arrays of rank 2 or 3, multiplied along their last dimensions, the scales of their blocks, and a scalar scale"


# ---- other calls --------------------------------------------------------------------------------------------------------


def _top_k(call: _Call) -> str:
    if len(call.operands) == 1 and call.has_arrays(1, 2):
        source, (values, places) = call.operands[0], call.results[:2]
        same = values.dims[:-1] == source.dims[:-1] and len(values.dims) == len(source.dims)
        fits = bool(source.dims) and same and values.dims[-1] <= source.dims[-1] and values.element_type == source.element_type
        if fits and _is(places, "s32", values.dims):
            return ""
    return "an array, and results for k of its elements and their places"


def _pad_to_static(call: _Call) -> str:
    if len(call.operands) == 1 and call.operands[0].is_array and len(call.results) == 1 + len(call.operands[0].dims):
        source, (padded, *sizes) = call.operands[0], call.results
        static = _is(padded, source.element_type, source.dims) and not any(padded.dynamic_dims)
        if static and any(source.dynamic_dims) and all(_is(size, "s32", ()) for size in sizes):
            return ""
    return "an array of dynamic size, and results for the padded array and an s32[] per dimension"


def _slice_to_dynamic(call: _Call) -> str:
    if call.has_arrays(1, 1) and len(call.results) == 1 and len(call.operands) == 1 + len(call.operands[0].dims):
        source, *sizes = call.operands
        same = _is(call.results[0], source.element_type, source.dims) and not any(source.dynamic_dims)
        if same and any(call.results[0].dynamic_dims) and all(_is(size, "s32", ()) for size in sizes):
            return ""
    return "an array and an s32[] per dimension, and a result of dynamic size"


def _memory(call: _Call) -> str:
    leaves = (leaf for _, leaf in call.instruction.shape.leaves())
    return "a result of static size" if any(any(leaf.dynamic_dims) for leaf in leaves) else ""


def _hint(call: _Call) -> str:
    return "" if call.operands and _is_like(call.instruction.shape, call.operands[0]) else "a result like its first operand"


def _annotation(call: _Call) -> str:
    same = len(call.operands) == 1 and _is_like(call.instruction.shape, call.operands[0])
    return "" if same else "one operand, and a result like it"


def _is_like(result: Shape, operand: Shape) -> bool:
    """True if the shapes are equal up to layouts, and have the same dynamic dimensions."""
    dynamic = [[leaf.is_array and leaf.dynamic_dims for _, leaf in shape.leaves()] for shape in (result, operand)]
    return result.compatible(operand) and dynamic[0] == dynamic[1]


def _seed(call: _Call) -> str:
    result = call.instruction.shape
    fits = not call.operands and result.is_array and not result.dims and result.element_type in _WHOLE_NUMBERS
    return "" if fits else "no operands and a result like u64[]"


def _shard(call: _Call) -> str:
    if len(call.operands) == 1 and call.has_arrays(1, 1) and not call.instruction.shape.is_tuple:
        source, result = call.operands[0], call.results[0]
        if source.element_type == result.element_type and len(source.dims) == len(result.dims):
            return ""
    return "an array, and a result of the same type and rank"


_CUB = ("sort_keys", "sort_pairs", *(f"sort{of}_unassigned_scratch_size" for of in ("", "_keys", "_pairs")))
_ANNOTATIONS = "Sharding MoveToHost MoveToDevice annotate_device_placement LayoutConstraint InspectSharding".split()
_RULES: Mapping[str, _Rule] = {
    "Eigh": _eigh,
    "Qr": _qr,
    "LuDecomposition": _lu,
    "ProductOfElementaryHouseholderReflectors": _reflections,
    "__cublas$gemm": _gemm,
    "__cublas$lt$matmul": _gemm,
    "__cublas$lt$matmul$f8": _gemm,
    "__cublas$triangularSolve": _solve,
    "__cudnn$convForward": _convolution((0, 1, 2)),
    "__cudnn$convBiasActivationForward": _convolution((0, 1, 2)),
    "__cudnn$convBackwardInput": _convolution((2, 1, 0)),
    "__cudnn$convBackwardFilter": _convolution((0, 2, 1)),
    "__cudnn$convForwardGraph": _convolution((0, 1, 2), is_graph=True),
    **{f"xla.gpu.ext.cub_{name}": _radix_sort for name in _CUB},
    "__cub$DeviceRadixSort": _radix_sort,
    **dict.fromkeys(SCAN_TARGETS, _row_scan),
    QUANTIZE: _quantize,
    DEQUANTIZE: _dequantize,
    BLOCK_SCALED_DOT: _block_scaled_dot,
    "TopK": _top_k,
    "__gpu$TopK": _top_k,
    "PadToStatic": _pad_to_static,
    "SliceToDynamic": _slice_to_dynamic,
    **dict.fromkeys("AllocateBuffer CreateBuffer NopReturnToken __nop".split(), _memory),
    **dict.fromkeys("AssumeGatherIndicesInBound GatherScatterIndicesBitpacked".split(), _hint),
    **dict.fromkeys(_ANNOTATIONS, _annotation),
    "GetRngSeed": _seed,
    "SPMDFullToShardShape": _shard,
    "SPMDShardToFullShape": _shard,
}
