"""Attributes by name: one table that parses and prints each, whatever the opcode.

A new opcode with known attributes is a row of `opcodes.py`; a new attribute is a row of `ATTRIBUTES`. Whatever need not
be understood stays `RawText`, exactly as written. Called computations are read by the parser, which knows the names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hlo_run.hlo.attribute_text import (
    format_bool,
    format_float,
    format_int_lists,
    format_ints,
    format_ints_or_lists,
    format_padding,
    format_slice,
    format_window,
    parse_bool,
    parse_float,
    parse_frontend_attributes,
    parse_groups,
    parse_int,
    parse_int_lists,
    parse_ints,
    parse_ints_or_lists,
    parse_padding,
    parse_raw,
    parse_shape_value,
    parse_shaped_literal,
    parse_slice,
    parse_window,
    word,
)
from hlo_run.hlo.attribute_values import AttributeValue, EntryLayout, IntLists, RawText, Window, WindowDim
from hlo_run.hlo.lexer import Lexer

__all__ = [
    "ATTRIBUTES",
    "CALLED_ATTRIBUTES",
    "AttributeKind",
    "AttributeValue",
    "EntryLayout",
    "IntLists",
    "RawText",
    "Window",
    "WindowDim",
]


@dataclass(frozen=True, slots=True)
class AttributeKind:
    """How one attribute is read and printed.

    `parse` is called with the lexer on the attribute's name, so that `lexer.pos` is right after the `=`; it leaves the
    lexer on the token after the value. `omitted` is the value that is not printed.
    """

    parse: Callable[[Lexer], AttributeValue]
    format: Callable[[AttributeValue], str]
    omitted: AttributeValue | None = None


_RAW = AttributeKind(parse_raw, str)
_INT = AttributeKind(parse_int, str)
_BOOL = AttributeKind(parse_bool, format_bool)
_FLAG = AttributeKind(parse_bool, format_bool, omitted=False)
_INTS = AttributeKind(parse_ints, format_ints)
_SOME_INTS = AttributeKind(parse_ints, format_ints, omitted=())
_FLOAT = AttributeKind(parse_float, format_float)
_ANY_WORD = AttributeKind(word(), str)


def _words(*choices: str, fold_case: bool = False) -> AttributeKind:
    return AttributeKind(word(*choices, fold_case=fold_case), str)


def _each(kind: AttributeKind, names: str) -> dict[str, AttributeKind]:
    return dict.fromkeys(names.split(), kind)


# Of dot and convolution, then of rng-bit-generator.
_ALGORITHMS = """unset dot_any_f8_any_f8_f32 dot_any_f8_any_f8_f32_fast_accum dot_f16_f16_f16 dot_f16_f16_f32
    dot_bf16_bf16_bf16 dot_bf16_bf16_f32 dot_bf16_bf16_f32_x3 dot_bf16_bf16_f32_x6 dot_bf16_bf16_f32_x9 dot_tf32_tf32_f32
    dot_tf32_tf32_f32_x3 dot_f32_f32_f32 dot_f64_f64_f64 rng_default rng_three_fry rng_philox""".split()

ATTRIBUTES: dict[str, AttributeKind] = {
    **_each(_RAW, "sharding parameter_replication statistics origin metadata backend_config"),
    **_each(_RAW, "result_accuracy operand_precision sparsity_config output_to_operand_aliasing domain infeed_config"),
    **_each(_RAW, "outfeed_config custom_call_target operand_layout_constraints async_execution_thread"),
    **_each(_INTS, "dimensions dynamic_slice_sizes offset_dims collapsed_slice_dims start_index_map fft_length"),
    **_each(_INTS, "update_window_dims inserted_window_dims scatter_dims_to_operand_dims lhs_ragged_dims rhs_group_dims"),
    **_each(_INTS, "lhs_contracting_dims rhs_contracting_dims"),
    **_each(_SOME_INTS, "lhs_batch_dims rhs_batch_dims operand_batching_dims start_indices_batching_dims"),
    **_each(_SOME_INTS, "input_batching_dims scatter_indices_batching_dims"),
    **_each(_INT, "iota_dimension inferred_dimension k num_carries index_vector_dim feature_index exponent_bits"),
    **_each(_INT, "mantissa_bits delta index channel_id cross_program_prefetch_index"),
    **_each(AttributeKind(parse_int, str, omitted=1), "feature_group_count batch_group_count"),
    **_each(_FLAG, "is_stable is_reverse is_associative indices_are_sorted unique_indices left_side lower unit_diagonal"),
    **_each(_FLAG, "is_composite custom_call_has_side_effect is_host_transfer constrain_layout use_global_device_ids"),
    **_each(_BOOL, "largest has_dynamic_root"),
    "frontend_attributes": AttributeKind(parse_frontend_attributes, str),
    "epsilon": _FLOAT,
    "direction": _words("EQ", "NE", "GE", "GT", "LE", "LT"),
    "type": _words("FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED"),
    "kind": _words("kLoop", "kInput", "kOutput", "kCustom"),
    "fft_type": _words("FFT", "IFFT", "RFFT", "IRFFT"),
    "transpose_a": _words("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"),
    "distribution": _words("rng_uniform", "rng_normal", fold_case=True),
    "convolution_kind": _words("fprop", "wgrad", "dgrad", "unset"),
    "algorithm": _words(*_ALGORITHMS, fold_case=True),
    **_each(_ANY_WORD, "dim_labels padding_type schedule api_version mode"),
    "slice": AttributeKind(parse_slice, format_slice),
    "slice_sizes": AttributeKind(parse_ints_or_lists, format_ints_or_lists),
    "padding": AttributeKind(parse_padding, format_padding),
    "window": AttributeKind(parse_window, format_window, omitted=Window()),
    "replica_groups": AttributeKind(parse_groups, format_int_lists),
    "source_target_pairs": AttributeKind(parse_int_lists, format_int_lists),
    "outfeed_shape": AttributeKind(parse_shape_value, str),
    "literal": AttributeKind(parse_shaped_literal, str),
}

# Attributes that name computations; `branch_computations` and `called_computations` name a list of them.
CALLED_ATTRIBUTES = frozenset(
    """to_apply calls condition body select scatter true_computation false_computation branch_computations
    called_computations""".split()
)
