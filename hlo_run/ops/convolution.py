"""The shape rule of convolution, and the decoding of its dimension labels (`ops.md` 7)."""

from __future__ import annotations

from msgspec import Struct

from hlo_run.hlo.attributes.table import DimLabels
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.shape import Shape
from hlo_run.ops.dot import preferred_type
from hlo_run.ops.rule import Rule, array_operands, brief, dynamic_dims, make_array, refuse
from hlo_run.ops.windows import window_sizes


class ConvolutionLabels(Struct, frozen=True):
    """`dim_labels` decoded: for input, kernel and output, the dimension numbers of (batch, feature, spatial dimensions).

    For the kernel, (input feature, output feature, spatial dimensions).
    """

    input: tuple[int, int, tuple[int, ...]]
    kernel: tuple[int, int, tuple[int, ...]]
    output: tuple[int, int, tuple[int, ...]]


def convolution_labels(labels: DimLabels) -> ConvolutionLabels:
    """Return the dimension numbers of labels such as `b01f_01io->b01f`; raises ParseError if a label is repeated."""
    for part in (labels.input, labels.kernel, labels.output):
        if len({part.first_dim, part.second_dim, *part.spatial_dims}) != len(part.spatial_dims) + 2:
            raise refuse(f"dim_labels {labels} must name each of {', '.join(part.letters)} and the spatial dimensions once")
    parts = ((part.first_dim, part.second_dim, part.spatial_dims) for part in (labels.input, labels.kernel, labels.output))
    return ConvolutionLabels(*parts)


def _convolution(instruction: HloInstruction) -> Shape:
    source, kernel = array_operands(instruction)[:2]
    labels = convolution_labels(instruction.dim_labels)
    rank = len(labels.input[2]) + 2
    for part, shape in ((labels.input, source), (labels.kernel, kernel), (labels.output, None)):
        if shape is not None and shape.rank != rank:
            raise refuse(f"dim_labels name {rank} dimensions, but an operand has shape {brief(shape)}")
        if sorted((*part[:2], *part[2])) != list(range(rank)):
            raise refuse(f"dim_labels {instruction.dim_labels} must name dimensions 0 to {rank - 1}, each once")
    groups, batch_groups = _group_counts(instruction)
    _check_features(labels, source, kernel, groups, batch_groups)
    window = instruction.window
    if [dim.size for dim in window.dims] != [kernel.dims[dim] for dim in labels.kernel[2]]:
        raise refuse(f"the window's sizes are not the kernel's, {brief(kernel)}")
    sizes = window_sizes([source.dims[dim] for dim in labels.input[2]], window)
    kernel_dynamic, dynamic = dynamic_dims(kernel), dynamic_dims(source)
    if kernel_dynamic[labels.kernel[1]]:
        raise refuse(f"the output features of the kernel, {brief(kernel)}, must not be dynamic")
    dims, flags = [0] * rank, [False] * rank
    dims[labels.output[0]] = source.dims[labels.input[0]] // batch_groups
    dims[labels.output[1]] = kernel.dims[labels.kernel[1]]
    flags[labels.output[0]] = dynamic[labels.input[0]]
    for target, origin, size in zip(labels.output[2], labels.input[2], sizes, strict=True):
        dims[target], flags[target] = size, dynamic[origin]
    return make_array(preferred_type(instruction, source, kernel), dims, flags)


def _group_counts(instruction: HloInstruction) -> tuple[int, int]:
    groups = instruction.feature_group_count
    batch_groups = instruction.batch_group_count
    if groups < 1 or batch_groups < 1:
        raise refuse(f"group counts must be positive, but are {groups} and {batch_groups}")
    if groups > 1 and batch_groups > 1:
        raise refuse("feature_group_count and batch_group_count cannot both be greater than 1")
    return groups, batch_groups


def _check_features(labels: ConvolutionLabels, source: Shape, kernel: Shape, groups: int, batch_groups: int) -> None:
    batch, features = source.dims[labels.input[0]], source.dims[labels.input[1]]
    inputs, outputs = kernel.dims[labels.kernel[0]], kernel.dims[labels.kernel[1]]
    if features % groups or features // groups != inputs:
        raise refuse(f"{features} input features do not match {inputs} of the kernel in {groups} groups")
    if outputs % groups or outputs % batch_groups:
        raise refuse(f"{outputs} output features are not divisible into {max(groups, batch_groups)} groups")
    if batch % batch_groups:
        raise refuse(f"a batch of {batch} is not divisible into {batch_groups} groups")


INFER: dict[Opcode, Rule] = {"convolution": _convolution}
