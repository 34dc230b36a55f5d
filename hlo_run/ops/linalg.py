"""Shape rules of dot, convolution, linear algebra, normalisation and transforms (`ops.md` 7 and 8)."""

from __future__ import annotations

from dataclasses import dataclass

from hlo_run.hlo.attributes import DimLabels, Window
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.shape import Shape
from hlo_run.ops.rule import Rule, array_operand, array_operands, brief, dim_list, is_open, refuse
from hlo_run.ops.windows import window_sizes


def _result_type(instruction: HloInstruction, default: str) -> str:
    """Return the written element type (the preferred one of dot and convolution), or the operands' if it is open."""
    return default if is_open(instruction.shape) or not instruction.shape.is_array else instruction.shape.element_type


def _dot_of(instruction: HloInstruction, left: Shape, right: Shape) -> Shape:
    left_batch = dim_list(instruction, "lhs_batch_dims", left.rank)
    right_batch = dim_list(instruction, "rhs_batch_dims", right.rank)
    left_inner = dim_list(instruction, "lhs_contracting_dims", left.rank)
    right_inner = dim_list(instruction, "rhs_contracting_dims", right.rank)
    for what, ours, theirs in (("batch", left_batch, right_batch), ("contracting", left_inner, right_inner)):
        if [left.dims[dim] for dim in ours] != [right.dims[dim] for dim in theirs]:
            raise refuse(f"{what} dimensions of {brief(left)} and {brief(right)} do not match")
    if set(left_batch) & set(left_inner) or set(right_batch) & set(right_inner):
        raise refuse("a dimension cannot be both batch and contracting")
    dims = [left.dims[dim] for dim in left_batch]
    dims += [size for dim, size in enumerate(left.dims) if dim not in (*left_batch, *left_inner)]
    dims += [size for dim, size in enumerate(right.dims) if dim not in (*right_batch, *right_inner)]
    return Shape.array(_result_type(instruction, left.element_type), tuple(dims))


def _dot(instruction: HloInstruction) -> Shape:
    return _dot_of(instruction, *array_operands(instruction))


def _scaled_dot(instruction: HloInstruction) -> Shape:
    left, right, _, _ = array_operands(instruction)
    return _dot_of(instruction, left, right)


@dataclass(frozen=True, slots=True)
class ConvolutionLabels:
    """`dim_labels` by part: the position of batch, feature and each spatial dimension in input, kernel and output."""

    input: tuple[int, int, tuple[int, ...]]
    kernel: tuple[int, int, tuple[int, ...]]
    output: tuple[int, int, tuple[int, ...]]


def convolution_labels(labels: DimLabels) -> ConvolutionLabels:
    """Return the positions that `b01f_01io->b01f` names (kernel: input feature, output feature); raises ParseError."""
    for part in (labels.input, labels.kernel, labels.output):
        if len({part.first_dim, part.second_dim, *part.spatial_dims}) != len(part.spatial_dims) + 2:
            raise refuse(f"dim_labels {labels} must name each of {', '.join(part.letters)} and the spatial dimensions once")
    parts = ((part.first_dim, part.second_dim, part.spatial_dims) for part in (labels.input, labels.kernel, labels.output))
    return ConvolutionLabels(*parts)


def _convolution(instruction: HloInstruction) -> Shape:
    source, kernel = array_operands(instruction)
    labels = convolution_labels(instruction.attrs["dim_labels"])
    groups = instruction.attrs.get("feature_group_count", 1)
    batch_groups = instruction.attrs.get("batch_group_count", 1)
    batch, feature, spatial = labels.input
    kernel_in, kernel_out, kernel_spatial = labels.kernel
    if "?" in str(instruction.attrs["dim_labels"]):
        raise refuse("dim_labels with '?' are not supported")
    if source.rank != kernel.rank or source.rank != len(spatial) + 2:
        raise refuse(f"dim_labels do not go with the shapes {brief(source)} and {brief(kernel)}")
    window = instruction.attrs.get("window", Window())
    if [dim.size for dim in window.dims] != [kernel.dims[dim] for dim in kernel_spatial]:
        raise refuse(f"the window's sizes are not the kernel's, {brief(kernel)}")
    if groups < 1 or batch_groups < 1 or source.dims[feature] != kernel.dims[kernel_in] * groups:
        raise refuse(f"{source.dims[feature]} input features do not go with {kernel.dims[kernel_in]} x {groups} of the kernel")
    if source.dims[batch] % batch_groups or kernel.dims[kernel_out] % (groups * batch_groups):
        raise refuse("the group counts do not divide the batch or the output features")
    sizes = window_sizes([source.dims[dim] for dim in spatial], window)
    dims = [0] * source.rank
    dims[labels.output[0]], dims[labels.output[1]] = source.dims[batch] // batch_groups, kernel.dims[kernel_out]
    for dim, size in zip(labels.output[2], sizes, strict=True):
        dims[dim] = size
    return Shape.array(_result_type(instruction, source.element_type), tuple(dims))


def _cholesky(instruction: HloInstruction) -> Shape:
    shape = array_operand(instruction)
    if shape.rank < 2 or shape.dims[-1] != shape.dims[-2]:
        raise refuse(f"expects square matrices, but the operand has shape {brief(shape)}")
    return shape


def _triangular_solve(instruction: HloInstruction) -> Shape:
    matrix, right = array_operands(instruction)
    size = right.dims[-2 if instruction.attrs.get("left_side", False) else -1] if right.rank > 1 else -1
    if matrix.rank != right.rank or matrix.dims[-2:] != (size, size) or matrix.dims[:-2] != right.dims[:-2]:
        raise refuse(f"matrices of shape {brief(matrix)} do not go with right-hand sides of shape {brief(right)}")
    return right


def _batch_norm(instruction: HloInstruction) -> Shape:
    shape, dim = array_operand(instruction), instruction.attrs["feature_index"]
    if not 0 <= dim < shape.rank:
        raise refuse(f"feature_index is {dim}, but the rank is {shape.rank}")
    feature = array_operand(instruction, 1)
    if feature.dims != (shape.dims[dim],):
        raise refuse(f"the scale must have {shape.dims[dim]} elements, but has shape {brief(feature)}")
    if instruction.opcode == "batch-norm-inference":
        return shape
    return Shape.make_tuple((shape, feature, feature))


def _fft(instruction: HloInstruction) -> Shape:
    shape, lengths = array_operand(instruction), instruction.attrs["fft_length"]
    kind = instruction.attrs["fft_type"]
    if not 1 <= len(lengths) <= 3 or len(lengths) > shape.rank:
        raise refuse(f"fft_length has {len(lengths)} entries, but the operand has shape {brief(shape)}")
    dims = list(shape.dims)
    if kind == "RFFT":
        dims[-1] = lengths[-1] // 2 + 1 if lengths[-1] else 0
        return Shape.array({"f32": "c64", "f64": "c128"}.get(shape.element_type, "c64"), tuple(dims))
    if kind == "IRFFT":
        dims[-1] = lengths[-1]
        return Shape.array({"c64": "f32", "c128": "f64"}.get(shape.element_type, "f32"), tuple(dims))
    return shape


INFER: dict[str, Rule] = {
    "dot": _dot,
    "scaled-dot": _scaled_dot,
    "convolution": _convolution,
    "cholesky": _cholesky,
    "triangular-solve": _triangular_solve,
    "batch-norm-training": _batch_norm,
    "batch-norm-inference": _batch_norm,
    "batch-norm-grad": _batch_norm,
    "fft": _fft,
}
