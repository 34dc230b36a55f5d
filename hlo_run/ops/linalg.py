"""Shape rules of matrix decompositions, batch normalisation and Fourier transforms (`ops.md` 8)."""

from __future__ import annotations

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.shape import Shape
from hlo_run.ops.rule import Rule, array_operand, array_operands, brief, dynamic_dims, make_array, refuse

_MATRIX_KINDS = ("float", "complex")


def _cholesky(instruction: HloInstruction) -> Shape:
    shape = array_operand(instruction)
    if shape.dtype.kind not in _MATRIX_KINDS:
        raise refuse(f"cholesky does not support elements of type {shape.element_type}")
    if shape.rank < 2 or shape.dims[-1] != shape.dims[-2]:
        raise refuse(f"expects square matrices, but the operand has shape {brief(shape)}")
    return shape


def _triangular_solve(instruction: HloInstruction) -> Shape:
    matrix, right = array_operands(instruction)
    if matrix.element_type != right.element_type or matrix.dtype.kind not in _MATRIX_KINDS:
        raise refuse(f"expects floats or complex numbers of one type, but has {brief(matrix)} and {brief(right)}")
    size = right.dims[-2 if instruction.left_side else -1] if right.rank > 1 else -1
    if matrix.rank != right.rank or matrix.dims[-2:] != (size, size) or matrix.dims[:-2] != right.dims[:-2]:
        raise refuse(f"matrices of shape {brief(matrix)} do not match right-hand sides of shape {brief(right)}")
    if instruction.attrs.get("transpose_a", "TRANSPOSE_INVALID") == "TRANSPOSE_INVALID":
        raise refuse("transpose_a must be NO_TRANSPOSE, TRANSPOSE or ADJOINT")
    return right


def _features(instruction: HloInstruction, vectors: tuple[int, ...]) -> tuple[Shape, Shape]:
    """Return the shapes of operand 0 and of a per-feature vector; check the operands `vectors`, which must be such vectors."""
    shape = array_operand(instruction)
    dim = instruction.feature_index
    if not 0 <= dim < shape.rank:
        raise refuse(f"feature_index is {dim}, but the rank is {shape.rank}")
    if not shape.dtype.is_float:
        raise refuse(f"the operand must have floats, but has shape {brief(shape)}")
    for number in vectors:
        vector = array_operand(instruction, number)
        if vector.dims != (shape.dims[dim],):
            raise refuse(f"operand {number} must have {shape.dims[dim]} elements, but has shape {brief(vector)}")
        if vector.dtype.kind != "float":
            raise refuse(f"operand {number} must have floats, but has shape {brief(vector)}")
    return shape, make_array(shape.element_type, (shape.dims[dim],), (dynamic_dims(shape)[dim],))


def _batch_norm_training(instruction: HloInstruction) -> Shape:
    shape, vector = _features(instruction, (1, 2))
    return Shape.make_tuple((shape, vector, vector))


def _batch_norm_inference(instruction: HloInstruction) -> Shape:
    return _features(instruction, (1, 2, 3, 4))[0]


def _batch_norm_grad(instruction: HloInstruction) -> Shape:
    shape, vector = _features(instruction, (1, 2, 3))
    output = array_operand(instruction, 4)
    if output.dims != shape.dims or not output.dtype.is_float:
        raise refuse(f"the output's gradient must have shape {brief(shape)}, but has {brief(output)}")
    return Shape.make_tuple((shape, vector, vector))


def _fft(instruction: HloInstruction) -> Shape:
    shape, lengths = array_operand(instruction), instruction.fft_length
    kind, rank = instruction.fft_type, len(lengths)
    if not 1 <= rank <= 3 or rank > shape.rank:
        raise refuse(f"fft_length has {rank} entries, but the operand has shape {brief(shape)}")
    wanted = ("f32", "f64") if kind == "RFFT" else ("c64", "c128")
    if shape.element_type not in wanted:
        raise refuse(f"{kind} takes elements of type {wanted[0]} or {wanted[1]}, but has {brief(shape)}")
    half = lengths[-1] // 2 + 1 if lengths[-1] else 0
    expected = (*lengths[:-1], half) if kind == "IRFFT" else tuple(lengths)
    if kind in ("RFFT", "IRFFT") and shape.dims[shape.rank - rank :] != expected:
        raise refuse(f"{kind} of length {lengths} needs innermost dimensions {expected}, but has {brief(shape)}")
    if kind == "RFFT":
        return make_array(_COMPLEX[shape.element_type], (*shape.dims[:-1], half), dynamic_dims(shape))
    if kind == "IRFFT":
        return make_array(_REAL[shape.element_type], (*shape.dims[:-1], lengths[-1]), dynamic_dims(shape))
    return shape


_COMPLEX = {"f32": "c64", "f64": "c128"}
_REAL = {"c64": "f32", "c128": "f64"}

INFER: dict[Opcode, Rule] = {
    "cholesky": _cholesky,
    "triangular-solve": _triangular_solve,
    "batch-norm-training": _batch_norm_training,
    "batch-norm-inference": _batch_norm_inference,
    "batch-norm-grad": _batch_norm_grad,
    "fft": _fft,
}
