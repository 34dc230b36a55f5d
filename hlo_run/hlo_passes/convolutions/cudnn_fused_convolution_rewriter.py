"""Fuse the epilogue of a forward convolution into its cuDNN call: factor, bias, side input, activation, conversion to f16.

    maximum(add(multiply(c, 2), broadcast(bias)), 0)   =>   custom-call(x, k, bias), conv_result_scale 2, kRelu,
                                                            custom_call_target="__cudnn$convBiasActivationForward"

`c` is the result of a `__cudnn$convForward` without other users. The operands of the call are input, filter, bias (zeros if
the convolution has none), and optionally the side input, an array that is scaled and added. f16 convolutions that were
computed as f32 become f16. Convolutions of s8 that were computed as s32 or f32 get s8 operands and an f32 result, or an s8 result
if it is clamped to s8 or converted from f32. Other convolutions to s32 become what they were. Depthwise convolutions stay. XLA's
`CudnnFusedConvRewriter` without graphs of 8-bit floats, and without elu, leaky relu and relu6, which XLA also fuses only with
`--xla_gpu_use_runtime_fusion`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias

from msgspec import Struct

from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.hlo.edit import Editor, copy_instruction, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.backend_config import config_of
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.convolutions.exact_conversions import keeps_value
from hlo_run.hlo_passes.subgraphs.library_calls import to_json
from hlo_run.pass_support.hlo_pass import PassContext

_FORWARD, _FUSED = "__cudnn$convForward", "__cudnn$convBiasActivationForward"
_CONFIG = "cudnn_conv_backend_config"
# May be between a convolution and what is fused with it.
_MOVES: tuple[Opcode, ...] = ("reshape", "transpose")
# What a convolution and its call have in common.
_KEPT = ("window", "dim_labels", "feature_group_count", "operand_precision", "metadata")


class CudnnFusedConvolutionRewriter(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "cudnn-fused-convolution-rewriter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        with_calls = {call.parent for call in module.instructions_of("custom-call")}
        for computation in executed_computations(module):
            if computation not in with_calls:
                continue
            for rule in _RULES:
                for instruction in computation.post_order():
                    new = rule(instruction) if instruction.parent is computation else None
                    if new is not None:
                        module.replace(instruction, new)
                        remove_unused([instruction])


# ---- calls ----------------------------------------------------------------------------------------------------------


class _Call(Struct, frozen=True):
    """A cuDNN convolution: the call, its parsed backend config, and the element 0 of its result tuple."""

    call: HloInstruction
    config: dict[str, Any]
    result: HloInstruction

    @property
    def feature_dim(self) -> int:
        labels = self.call.dim_labels
        return labels.output.second_dim

    @property
    def feature_size(self) -> int:
        return self.result.shape.dims[self.feature_dim]

    @property
    def has_bias(self) -> bool:
        return len(self.call.operands) > 2 and _number(self.call.operands[2]) != 0

    @property
    def is_integral(self) -> bool:
        """True for results that wrap around or are clamped, so that nothing may be added before that."""
        return self.result.shape.dtype.is_integer

    def config_value(self, name: str) -> object:
        return self.config[_CONFIG][name]

    @property
    def module(self) -> HloModule:
        """The module of the call."""
        module = self.call.parent.module if self.call.parent is not None else None
        assert module is not None, "the call is in a module"
        return module

    def with_bias(self) -> _Call:
        """Return the call, replaced by one with a bias of zeros if it had none."""
        if self.call.custom_call_target == _FUSED:
            return self
        plain, module = Editor(self.call, derives=False), self.module
        shape = self.result.shape
        # The bias of integers is a float.
        kind = "f32" if shape.dtype.is_integer else shape.element_type
        zeros = plain.broadcast(plain.constant(0, kind), (self.feature_size,))
        made = plain.computation.add(copy_instruction(self.call, [*self.call.operands, zeros]))
        module.replace(self.call, made)
        remove_unused([self.call])
        made.attrs["custom_call_target"] = _FUSED
        made.name = module.unique_instruction_name("cudnn-conv-bias-activation")
        return _Call(made, self.config, self.result)

    def configure(self, **fields: object) -> HloInstruction:
        """Set `fields` in the config of the call, and return its result."""
        self.call.attrs["backend_config"] = to_json({**self.config, _CONFIG: {**self.config[_CONFIG], **fields}})
        return self.result

    def clone(self, operands: Sequence[HloInstruction], element_type: str = "", **fields: object) -> HloInstruction:
        """Return the result of the same convolution with other operands, and with `fields` in its config."""
        shape = self.result.shape.with_element_type(element_type or self.result.shape.element_type)
        editor = Editor(self.call, derives=False)
        whole = Shape.make_tuple((shape, self.call.shape.tuple_shapes[1]))
        # XLA names the copy twice; a copy of another type alone is a `clone` before, which takes no number of the name.
        name = f"{self.call.name}.clone" if tuple(operands) == self.call.operands else ""
        made = editor.computation.add(copy_instruction(self.call, operands, whole, name))
        made.name = self.module.unique_instruction_name(self.call.name)
        return _Call(made, self.config, editor.element(made, 0)).configure(**fields)


def _call_of(result: HloInstruction, may_be_depthwise: bool = False) -> _Call | None:
    """Return the call that `result` is element 0 of, if it is a forward convolution without other users."""
    if result.opcode != "get-tuple-element" or result.tuple_index != 0:
        return None
    call = result.operands[0]
    if call.opcode != "custom-call" or call.custom_call_target not in (_FORWARD, _FUSED) or len(call.users) > 1:
        return None
    labels = call.dim_labels
    groups = call.feature_group_count
    if not may_be_depthwise and groups > 1 and groups == call.operands[0].shape.dims[labels.input.second_dim]:
        return None
    config = config_of(call.backend_config)
    return _Call(call, config, result) if _CONFIG in config else None


def _with_call(instruction: HloInstruction) -> tuple[_Call, HloInstruction] | None:
    """Return (the call, the other operand) of a commutative instruction."""
    one, two = instruction.operands
    for result, other in ((one, two), (two, one)):
        call = _call_of(result) if len(result.users) == 1 and not result.is_root else None
        if call is not None:
            return call, other
    return None


def _number(value: HloInstruction) -> float | None:
    """Return the number if `value` is a broadcast scalar constant."""
    if value.opcode != "broadcast" or value.operands[0].opcode != "constant" or value.operands[0].shape.dims:
        return None
    return _plain(value.operands[0].constant_array)


def _plain(literal: Any) -> float:
    """Return a number as configs write it: 2, 0.5."""
    number = float(literal)
    return int(number) if number.is_integer() else number


# ---- rules ----------------------------------------------------------------------------------------------------------


def _scale(instruction: HloInstruction) -> HloInstruction | None:
    """convolution * 2 => conv_result_scale 2."""
    found = _with_call(instruction) if instruction.opcode == "multiply" else None
    factor = _number(found[1]) if found else None
    if (
        found is None
        or factor is None
        or found[0].is_integral
        or len(found[0].call.operands) > 2
        or found[0].config_value("conv_result_scale") != 1
    ):
        return None
    return found[0].with_bias().configure(conv_result_scale=factor)


def _add(instruction: HloInstruction) -> HloInstruction | None:
    """convolution + broadcast(bias) => bias; convolution + any other array => side input."""
    found = _with_call(instruction) if instruction.opcode == "add" else None
    if found is None or found[0].config_value("activation_mode") != "kNone" or found[0].is_integral:
        return None
    call, addend = found[0].with_bias(), found[1]
    bias = None if call.has_bias else _bias(call, addend)
    if bias is not None:
        source, weights, _, *side = call.call.operands
        return call.clone([source, weights, bias, *side])
    if len(call.call.operands) > 3:
        return None
    return call.clone([*call.call.operands, addend], side_input_scale=1)


def _bias(call: _Call, addend: HloInstruction) -> HloInstruction | None:
    """Return the vector that is added along the features, if `addend` broadcasts such a vector or a scalar."""
    if addend.opcode != "broadcast":
        return None
    dims, value = addend.dimensions, addend.operands[0]
    if dims == (call.feature_dim,):
        return value
    return Editor(call.call, derives=False).broadcast(value, (call.feature_size,)) if not dims else None


def _scale_side_input(instruction: HloInstruction) -> HloInstruction | None:
    """side input s * 2 => s with side_input_scale 2, also through reshapes and transposes."""
    is_alone = instruction.opcode == "custom-call" and len(instruction.users) == 1
    call = _call_of(instruction.users[0]) if is_alone else None
    if call is None or len(call.call.operands) < 4 or call.config_value("side_input_scale") != 1:
        return None
    moves: list[HloInstruction] = []
    value = call.call.operands[3]
    while value.opcode in _MOVES:
        moves.append(value)
        value = value.operands[0]
    if value.opcode != "multiply":
        return None
    one, two = value.operands
    base, factor = (one, _number(two)) if _number(two) is not None else (two, _number(one))
    if factor is None:
        return None
    assert call.call.parent is not None, "the instruction is in a computation"
    for move in reversed(moves):
        base = call.call.parent.add(copy_instruction(move, [base]))
    result = call.clone([*call.call.operands[:3], base], side_input_scale=factor)
    (made,) = result.operands
    call.call.parent.remove(result)
    return made


def _relu(instruction: HloInstruction) -> HloInstruction | None:
    """maximum(convolution, 0) => kRelu."""
    found = _with_call(instruction) if instruction.opcode == "maximum" else None
    if found is None or _number(found[1]) != 0 or found[0].config_value("activation_mode") != "kNone":
        return None
    return found[0].with_bias().configure(activation_mode="kRelu")


def _narrow(instruction: HloInstruction) -> HloInstruction | None:
    """convert f16 (f32 convolution of what was f16) => f16 convolution."""
    if instruction.opcode != "convert" or instruction.shape.element_type != "f16":
        return None
    call = _only_converted(instruction.operands[0])
    if call is None or call.result.shape.element_type != "f32":
        return None
    if not all(keeps_value(operand, "f16") for operand in call.call.operands):
        return None
    editor = Editor(call.call)
    return call.clone([editor.convert(operand, "f16") for operand in call.call.operands], "f16")


def _to_float(instruction: HloInstruction) -> HloInstruction | None:
    """convert f32 (s32 convolution) => f32 convolution of the same integers."""
    if instruction.opcode != "convert" or instruction.shape.element_type != "f32":
        return None
    call = _only_converted(instruction.operands[0])
    if call is None or call.result.shape.element_type != "s32":
        return None
    return call.clone(call.call.operands, "f32")


def _narrow_to_integers(instruction: HloInstruction) -> HloInstruction | None:
    """Convolution of what was s8 => convolution of s8, to f32 or, clamped, to s8."""
    if instruction.opcode == "convert" and instruction.shape.element_type == "s8":
        clamp = instruction.operands[0]
        if clamp.opcode == "clamp" and len(clamp.users) == 1 and _clamps_to_s8(clamp):
            return _of_integers(_only_converted(clamp.operands[1]), "s8")
        call = _only_converted(clamp)
        return _of_integers(call, "s8") if call is not None and call.result.shape.element_type == "f32" else None
    call = _call_of(instruction, may_be_depthwise=True)
    return _of_integers(call, "f32") if call is not None and instruction.shape.element_type == "f32" else None


def _only_converted(result: HloInstruction) -> _Call | None:
    """Return the call of a result with one user."""
    return _call_of(result, may_be_depthwise=True) if len(result.users) == 1 and not result.is_root else None


def _clamps_to_s8(clamp: HloInstruction) -> bool:
    low, _, high = clamp.operands
    limits = [value.operands[0] if value.opcode == "broadcast" else value for value in (low, high)]
    return [_plain(v.constant_array) for v in limits if v.opcode == "constant" and not v.shape.dims] == [-128, 127]


def _of_integers(call: _Call | None, element_type: str) -> HloInstruction | None:
    """Return the result of a call with s8 operands, if its operands are such numbers."""
    if call is None or not all(keeps_value(operand, "s8") for operand in call.call.operands[:2]):
        return None
    side = call.call.operands[3:]
    if any(not keeps_value(s, "s8") if element_type == "s8" else s.shape.element_type != "f32" for s in side):
        return None
    editor = Editor(call.call)
    source, weights, *bias = call.call.operands[:3]
    numbers = [editor.convert(value, "s8") for value in (source, weights)]
    return call.clone([*numbers, *bias, *(editor.convert(value, element_type) for value in side)], element_type)


def _as_before(instruction: HloInstruction) -> HloInstruction | None:
    """Turn a call to s32, which cuDNN does not take, into a convolution clone."""
    call = _call_of(instruction, may_be_depthwise=True)
    if call is None or call.result.shape.element_type != "s32" or call.config_value("conv_result_scale") != 1:
        return None
    if call.has_bias or len(call.call.operands) > 3 or call.config_value("activation_mode") not in ("kNone", "kRelu"):
        return None
    editor = Editor(call.call)
    kept = {name: call.call.attrs[name] for name in _KEPT if name in call.call.attrs}
    made = editor.add_with("convolution", call.result.shape, call.call.operands[:2], kept)
    if call.config_value("activation_mode") == "kNone":
        return made
    zeros = editor.broadcast(editor.constant(0, "s32"), made.shape.dims)
    return editor.binary("maximum", made, zeros)


_Rule: TypeAlias = "Callable[[HloInstruction], HloInstruction | None]"
# Biases, side inputs and activations may be before or after the conversion; a bias and a side input are two adds.
_FOLLOWERS: tuple[_Rule, ...] = (_add, _add, _scale_side_input, _relu)
_RULES: tuple[_Rule, ...] = (
    *(_to_float, _scale, *_FOLLOWERS),
    *(_narrow, _narrow_to_integers, *_FOLLOWERS),
    _as_before,
)
