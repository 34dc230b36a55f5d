"""Widen a module for `--reference_precision=f64`: every float becomes f64, every complex number c128.

    p = bf16[8] parameter(0)                    p = f64[8] parameter(0)
    b = u16[8] bitcast-convert(p)       ⇒       c = bf16[8] convert(p)
    s = bf16[8] exponential(p)                  b = u16[8] bitcast-convert(c)
                                                s = f64[8] exponential(p)

Evaluators read their types from the shapes, so they need no change and do not round to narrower types. Ops that are
defined on a type's bits keep their types and get converts around them: bitcast-convert, rng, stochastic-convert,
infeed, outfeed. Roundings in the text (convert, reduce-precision, a dot's algorithm) are dropped too. Integers and
pred stay. A loop whose condition compares floats may run another number of iterations.
"""

from __future__ import annotations

import numpy as np

from hlo_run.hlo.edit import InstructionMaker
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.dtype import DType
from hlo_run.hlo.values.shape import Shape
from hlo_run.records import replace
from hlo_run.reference.values import Value, narrow, quiet

# What they do depends on the width of their type: they keep it when all else is widened.
_ON_BITS: frozenset[Opcode] = frozenset(
    ("bitcast-convert", "bitcast", "rng", "rng-bit-generator", "stochastic-convert", "infeed", "outfeed")
)
# Of instructions with a wider result than in the text: 36 digits of a function are enough.
IS_WIDENED = "is_widened"
_DTYPE_TO_WIDE = {"float": "f64", "complex": "c128"}


def widen_module(module: HloModule) -> HloModule:
    """Return a copy of the module whose floats are f64 and whose complex numbers are c128; see the module's docstring."""
    copy = module.clone()
    # The copies are in the order of the originals, which keep the types of the text.
    for old, new in zip(module.instructions, copy.instructions, strict=True):
        _widen_instruction(old, new)
    return copy


def widen_value(value: Value, shape: Shape) -> Value:
    """Convert a value of `shape` to the types of the widened module; exact."""
    if isinstance(value, tuple):
        return tuple(widen_value(part, element) for part, element in zip(value, shape.tuple_shapes, strict=True))
    return value.astype(widen_shape(shape).dtype.numpy, copy=False)


def round_value(value: Value, shape: Shape) -> Value:
    """Round a value of the widened module to the types of `shape`."""
    if isinstance(value, tuple):
        return tuple(round_value(part, element) for part, element in zip(value, shape.tuple_shapes, strict=True))
    with quiet():
        return narrow(value, shape.dtype)


def widen_shape(shape: Shape) -> Shape:
    """Return the shape with f64 for every float type and c128 for every complex type."""
    if shape.is_tuple:
        return replace(shape, tuple_shapes=tuple(widen_shape(element) for element in shape.tuple_shapes))
    if not shape.is_array:
        return shape
    return shape.with_element_type(wide_type(shape.dtype))


def wide_type(dtype: DType) -> str:
    """Return the name of the type that replaces `dtype`."""
    return _DTYPE_TO_WIDE.get(dtype.kind, dtype.name)


def _widen_instruction(old: HloInstruction, new: HloInstruction) -> None:
    own = old.shape
    wide = widen_shape(own)
    if old.opcode in _ON_BITS and not _moves_whole_elements(old):
        _keep_own_types(old, new)
        return
    if old.opcode == "reduce-precision":
        new.opcode = "copy"
    elif old.opcode == "constant":
        new.attrs["literal"] = widen_value(_literal(old.literal), own)
    elif old.algorithm.startswith("dot_"):
        new.attrs["algorithm"] = "unset"
    if wide != own:
        new.shape = wide
        new.attrs[IS_WIDENED] = True


def _moves_whole_elements(instruction: HloInstruction) -> bool:
    """True for a bitcast that keeps the element type, which does not depend on the bits."""
    is_bitcast = instruction.opcode in ("bitcast", "bitcast-convert")
    return is_bitcast and instruction.shape.element_type == instruction.operands[0].shape.element_type


def _literal(literal: Value) -> Value:
    return literal if isinstance(literal, tuple) else np.asarray(literal)


def _keep_own_types(old: HloInstruction, new: HloInstruction) -> None:
    """Convert the operands back to their own types, and the result to the wide types."""
    computation = new.parent
    assert computation is not None, "a clone's instructions are in computations"
    pairs = zip(old.operands, new.operands, strict=True)
    new.operands = tuple([_convert(computation, operand, widen_shape(o.shape), o.shape) for o, operand in pairs])
    users, was_root = list(new.users), new.is_root
    wide = _convert(computation, new, old.shape, widen_shape(old.shape))
    if wide is new:
        return
    for user in users:
        user.operands = tuple([wide if operand is new else operand for operand in user.operands])
    if was_root:
        computation.root = wide


def _convert(computation: HloComputation, source: HloInstruction, shape: Shape, target: Shape) -> HloInstruction:
    """Return the instruction that converts `source`, of `shape`, to the element types of `target`, leaf by leaf."""
    if shape == target:
        return source
    if not shape.is_tuple:
        return InstructionMaker(computation, source.where).add("convert", target, [source])
    parts: list[HloInstruction] = []
    for number, (element, wanted) in enumerate(zip(shape.tuple_shapes, target.tuple_shapes, strict=True)):
        part = InstructionMaker(where=source.where).add("get-tuple-element", element, [source], name="part", index=number)
        parts.append(_convert(computation, computation.add(part), element, wanted))
    return InstructionMaker(computation, source.where).add("tuple", target, parts, name="parts")
