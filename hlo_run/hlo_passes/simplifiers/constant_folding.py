"""Fold instructions whose operands are constants into constants.

    c = f32[] constant(2);  r = f32[] sqrt(c)   =>   constant(1.41421354)

At least one operand must be a constant (with `aggressive`: none); the others may also be broadcasts of constants or iotas. Not
folded: instructions that only enlarge a constant (broadcast, iota, pad of a broadcast), loops, random numbers, effects, and
instructions whose result, or operands together, have more than 45 million elements. The elements of a tuple that is an operand
count as operands. A result of several arrays becomes a tuple of constants; XLA makes one constant, which its simplifier splits. A
parameter to which all calls of a computation pass the same constant becomes that constant, unless all parameters do. XLA's
`HloConstantFolding`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from msgspec import Struct

from hlo_run.analysis.computation_order import computation_post_order
from hlo_run.errors import HloRunError
from hlo_run.hlo.edit import Editor, Leftovers, copy_instruction, has_side_effect
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.isolate import isolate_instruction
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.hlo.opcodes.traits import ASYNC, COLLECTIVE, CONTROL_FLOW, DEVICE_ID, NO_CODE, SIDE_EFFECT
from hlo_run.hlo.values.shape import Shape
from hlo_run.pass_support.hlo_pass import PassContext

if TYPE_CHECKING:
    from hlo_run.reference.values import Array, Value

_MOST_ELEMENTS = 45_000_000
# Never folded: known already, must run at run time, cheap to recompute, or too expensive to fold.
_NEVER = (
    NO_CODE
    | (CONTROL_FLOW - opcode_set("call conditional"))
    | COLLECTIVE
    | SIDE_EFFECT
    | DEVICE_ID
    | {*ASYNC, *"broadcast iota fft fusion custom-call rng-bit-generator sort topk cholesky triangular-solve".split()}
)
# Their NaNs depend on the processor if several operands or elements are NaN.
_COMBINES = opcode_set("""add subtract multiply divide remainder power atan2 maximum minimum clamp dot ragged-dot scaled-dot
    convolution reduce reduce-window select-and-scatter scatter map scan call conditional""")


class ConstantFolding(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "constant_folding"

    aggressive: bool = False

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit all computations except fusion bodies in place, callers first, operands before their users."""
        for computation in reversed(computation_post_order(module)):
            if not computation.is_fusion:
                _take_constant_arguments(module, computation)
            if computation.is_fusion or not any(self._may_fold(i) for i in computation.instructions):
                continue
            ordered = {p for i in computation.instructions for p in i.control_predecessors}
            folded = Leftovers()
            for instruction in computation.post_order():
                is_dead = not instruction.users and not instruction.is_root
                if is_dead or instruction in ordered or not self._may_fold(instruction):
                    continue
                if (value := _value(instruction)) is not None and ctx.fuel.take("constant-folding"):
                    module.replace_uses(instruction, _constant(Editor(instruction), instruction.shape, value))
                    folded.add(instruction)
            folded.remove()

    def _may_fold(self, i: HloInstruction) -> bool:
        operands = [leaf for operand in i.operands for leaf in _leaves(operand)]
        if not operands or i.control_predecessors or not all(map(_is_known, operands)):
            return False
        if not _is_element(i) and not _is_foldable(i):
            return False
        if not _is_static(i.shape):
            return False
        if not self.aggressive and not any(operand.opcode == "constant" for operand in operands):
            return False
        if i.opcode == "pad" and i.operands[0].opcode == "broadcast":
            return False
        return max(_elements(i.shape), sum(operand.shape.element_count for operand in operands)) <= _MOST_ELEMENTS


def _leaves(value: HloInstruction) -> list[HloInstruction]:
    """Return the elements of a `tuple` instruction, of the tuples in it too; of another instruction itself."""
    return [leaf for operand in value.operands for leaf in _leaves(operand)] if value.opcode == "tuple" else [value]


def _is_element(i: HloInstruction) -> bool:
    return i.opcode == "get-tuple-element" and i.operands[0].opcode == "tuple"


def _is_static(shape: Shape) -> bool:
    """Return True if a shape consists of arrays without dynamic dimensions."""
    if shape.is_tuple:
        return all(map(_is_static, shape.tuple_shapes))
    return shape.is_array and not any(shape.dynamic_dims)


def _elements(shape: Shape) -> int:
    return sum(map(_elements, shape.tuple_shapes)) if shape.is_tuple else shape.element_count


def _is_foldable(i: HloInstruction) -> bool:
    if i.opcode in _NEVER or has_side_effect(i):
        return False
    inner = (
        (each for computation in i.called_computations for each in computation.instructions) if i.opcode in CONTROL_FLOW else ()
    )
    return all(each.opcode in ("constant", "parameter", "tuple", "get-tuple-element") or _is_foldable(each) for each in inner)


def _take_constant_arguments(module: HloModule, computation: HloComputation) -> None:
    """Replace the parameters to which every call passes the same constant, unless the calls themselves can be folded."""
    callers = list(computation.callers)
    if not callers or any(caller.opcode != "call" for caller in callers):
        return
    same = [_is_one_constant([caller.operands[number] for caller in callers]) for number in range(len(computation.parameters))]
    if all(same):
        return
    for parameter, is_same in zip(computation.parameters, same, strict=True):
        if is_same and parameter.users:
            constant = callers[0].operands[parameter.parameter_number]
            module.replace_uses(parameter, computation.add(copy_instruction(constant, ())))


def _is_one_constant(values: list[HloInstruction]) -> bool:
    if any(value.opcode != "constant" or not value.shape.is_array for value in values):
        return False
    first = values[0]
    return all(v.shape == first.shape and v.constant_array.tobytes() == first.constant_array.tobytes() for v in values)


def _is_known(value: HloInstruction) -> bool:
    if not value.shape.is_array or value.shape.dynamic_dims:
        return False
    return value.opcode in ("constant", "iota") or (value.opcode == "broadcast" and value.operands[0].opcode == "constant")


def _value(i: HloInstruction) -> object:
    """Return the value of an instruction with known operands, a tuple of values for a tuple; None if it cannot be evaluated."""
    from hlo_run.reference.evaluate.evaluate import folded  # many modules have nothing to fold

    if _is_element(i):
        return _literal(i.operands[0].operands[i.tuple_index])
    operands = [_literal(operand) for operand in dict.fromkeys(i.operands)]
    try:
        value = folded(isolate_instruction(i), operands)
    except HloRunError:
        return None
    return _with_one_nan(value, operands) if i.opcode in _COMBINES else value


def _with_one_nan(value: Value, operands: Sequence[Value]) -> Value:
    """Return the value with negative NaNs, as x86 makes them, where they come from several kinds of NaN or from none."""
    if isinstance(value, tuple):
        return tuple(_with_one_nan(part, operands) for part in value)
    if not _has_nans(value) or len(_nans(operands)) == 1:
        return value
    return np.where(np.isnan(value), np.negative(np.abs(np.full_like(value, np.nan))), value)


def _has_nans(array: Array) -> bool:
    return (array.dtype.kind == "f" or array.dtype.name == "bfloat16") and bool(np.isnan(array).any())


def _nans(operands: Sequence[Value]) -> set[int]:
    """Return the bits of the NaNs among the numbers of operands."""
    found: set[int] = set()
    for operand in operands:
        if isinstance(operand, tuple):
            found |= _nans(operand)
        elif _has_nans(operand):
            found.update(operand[np.isnan(operand)].view(f"u{operand.dtype.itemsize}").tolist())
    return found


def _constant(editor: Editor, shape: Shape, value: Any) -> HloInstruction:
    """Return a new constant with a value, or a tuple of constants."""
    if shape.is_tuple:
        parts = [_constant(editor, part, one) for part, one in zip(shape.tuple_shapes, value, strict=True)]
        return editor.add("tuple", shape, parts)
    return editor.add("constant", shape, literal=np.ascontiguousarray(np.asarray(value)).reshape(shape.dims))


def _literal(value: HloInstruction) -> Any:
    shape = value.shape
    if value.opcode == "tuple":
        return tuple(map(_literal, value.operands))
    if value.opcode == "constant":
        return value.constant_array
    if value.opcode == "iota":
        dim = value.iota_dimension
        counted = np.arange(shape.dims[dim]).astype(shape.dtype.numpy)
        return np.broadcast_to(counted.reshape([-1 if d == dim else 1 for d in range(shape.rank)]), shape.dims)
    literal, dims = value.operands[0].constant_array, value.dimensions
    order = sorted(range(len(dims)), key=lambda d: dims[d])
    spread = [shape.dims[d] if d in dims else 1 for d in range(shape.rank)]
    return np.broadcast_to(np.transpose(literal, order).reshape(spread), shape.dims)
