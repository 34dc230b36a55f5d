"""The table of attributes by name: how to parse and print each.

A new opcode with known attributes is a row of `hlo/opcodes/table.py`; a new attribute is a row of `ATTRIBUTES`. The few
names that mean different things to different opcodes have rows in `_OF_OPCODE`. Called computations are read by the parser,
which knows the names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from hlo_run.hlo.attributes.devices import parse_replica_groups
from hlo_run.hlo.attributes.lexer import Lexer
from hlo_run.hlo.attributes.records import (
    parse_block_scaling_config,
    parse_frontend_attributes,
    parse_metadata,
    parse_operand_aliasing,
    parse_origin,
    parse_result_accuracy,
    parse_shaped_literal,
    parse_sparsity_config,
    parse_statistics,
)
from hlo_run.hlo.attributes.sharding import parse_domain, parse_sharding
from hlo_run.hlo.attributes.text import (
    format_bool,
    format_bools,
    format_float,
    format_int_lists,
    format_ints,
    format_shapes,
    format_string,
    format_words,
    parse_bool,
    parse_bools,
    parse_float32,
    parse_int,
    parse_int32,
    parse_int_lists,
    parse_ints,
    parse_shape_value,
    parse_shapes,
    parse_string,
    parse_string_or_json,
    parse_truncated_int,
    parse_words,
    word,
)
from hlo_run.hlo.attributes.windows import (
    format_padding,
    format_slice,
    parse_dim_labels,
    parse_padding,
    parse_pairs,
    parse_slice,
    parse_window,
)
from hlo_run.hlo.values.attribute_values import (
    AttributeValue,
    BlockScalingConfig,
    DimLabels,
    EntryLayout,
    FrontendAttributes,
    OperandAliasing,
    RawText,
    ResultAccuracy,
    SparsityConfig,
    Statistics,
    Window,
    WindowDim,
    string_or_json,
)
from hlo_run.hlo.values.metadata import OpMetadata
from hlo_run.hlo.values.replica_groups import IntLists, ReplicaGroups

__all__ = [
    "ATTRIBUTES",
    "CALLED_ATTRIBUTES",
    "AttributeKind",
    "AttributeValue",
    "DimLabels",
    "EntryLayout",
    "FrontendAttributes",
    "IntLists",
    "OpMetadata",
    "RawText",
    "ReplicaGroups",
    "Window",
    "WindowDim",
    "attribute_kind",
]


def _never(value: object) -> bool:
    return False


class AttributeKind(Struct, frozen=True):
    """The functions that parse and print one attribute.

    `parse` is called with the attribute's name as the current token, so that `lexer.pos` is right after the `=`; it moves
    to the token after the value. `is_hidden` is true for default values, which are not printed.
    """

    parse: Callable[[Lexer], AttributeValue]
    format: Callable[[Any], str] = str
    is_hidden: Callable[[Any], bool] = _never


def _unless(value: AttributeValue) -> Callable[[object], bool]:
    return lambda other: other == value


def _all_default(precisions: tuple[str, ...]) -> bool:
    return all(precision == "default" for precision in precisions)


_INT = AttributeKind(parse_int)
_BOOL = AttributeKind(parse_bool, format_bool)
_FLAG = AttributeKind(parse_bool, format_bool, _unless(False))
_INTS = AttributeKind(parse_ints, format_ints)
_SOME_INTS = AttributeKind(parse_ints, format_ints, _unless(()))
_STRING = AttributeKind(parse_string, format_string)
_SOME_STRING = AttributeKind(parse_string, format_string, _unless(""))


def _words(*choices: str, fold_case: bool = False, hidden: str = "") -> AttributeKind:
    return AttributeKind(word(*choices, fold_case=fold_case), is_hidden=_unless(hidden))


def _each(kind: AttributeKind, names: str) -> dict[str, AttributeKind]:
    return dict.fromkeys(names.split(), kind)


_DOT_ALGORITHMS = """unset dot_any_f8_any_f8_f32 dot_any_f8_any_f8_f32_fast_accum dot_f16_f16_f16 dot_f16_f16_f32
    dot_bf16_bf16_bf16 dot_bf16_bf16_f32 dot_bf16_bf16_f32_x3 dot_bf16_bf16_f32_x6 dot_bf16_bf16_f32_x9 dot_tf32_tf32_f32
    dot_tf32_tf32_f32_x3 dot_f32_f32_f32 dot_f64_f64_f64 dot_bf16_bf16_fp8x3 dot_bf16_bf16_fp8x4""".split()
_API_VERSIONS = """API_VERSION_ORIGINAL API_VERSION_STATUS_RETURNING API_VERSION_STATUS_RETURNING_UNIFIED
    API_VERSION_TYPED_FFI""".split()

ATTRIBUTES: dict[str, AttributeKind] = {
    # Attributes of every instruction.
    "sharding": AttributeKind(parse_sharding),
    "frontend_attributes": AttributeKind(parse_frontend_attributes, is_hidden=_unless(FrontendAttributes())),
    "parameter_replication": AttributeKind(parse_bools, format_bools),
    "statistics": AttributeKind(parse_statistics, is_hidden=lambda value: isinstance(value, Statistics) and not value.values),
    "origin": AttributeKind(parse_origin),
    "metadata": AttributeKind(parse_metadata, is_hidden=lambda value: isinstance(value, OpMetadata) and not value.says_something),
    "backend_config": AttributeKind(parse_string_or_json, string_or_json, _unless("")),
    # Lists of dimensions and the like.
    **_each(_INTS, "dimensions dynamic_slice_sizes offset_dims collapsed_slice_dims start_index_map slice_sizes fft_length"),
    **_each(_INTS, "update_window_dims inserted_window_dims scatter_dims_to_operand_dims lhs_contracting_dims"),
    **_each(_INTS, "rhs_contracting_dims shifts"),
    **_each(_SOME_INTS, "lhs_batch_dims rhs_batch_dims operand_batching_dims start_indices_batching_dims"),
    **_each(_SOME_INTS, "input_batching_dims scatter_indices_batching_dims lhs_ragged_dims rhs_group_dims"),
    # Numbers.
    **_each(_INT, "iota_dimension k num_carries index_vector_dim feature_index delta index"),
    "channel_id": _INT,
    **_each(AttributeKind(parse_truncated_int), "exponent_bits mantissa_bits"),
    "inferred_dimension": AttributeKind(parse_int, is_hidden=_unless(-1)),
    "cross_program_prefetch_index": AttributeKind(parse_int32),
    **_each(AttributeKind(parse_int, is_hidden=_unless(1)), "feature_group_count batch_group_count"),
    "epsilon": AttributeKind(parse_float32, format_float),
    # Yes or no.
    **_each(_FLAG, "is_stable is_reverse indices_are_sorted unique_indices left_side lower unit_diagonal is_composite"),
    **_each(_FLAG, "custom_call_has_side_effect is_host_transfer constrain_layout use_global_device_ids"),
    **_each(_BOOL, "largest is_associative has_dynamic_root"),
    # Words.
    "direction": _words("EQ", "NE", "GE", "GT", "LE", "LT"),
    "order": _words("PARTIAL", "TOTAL"),
    # The older spelling of the order, which the parser replaces.
    "type": _words("FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED"),
    "kind": _words("kLoop", "kInput", "kOutput", "kCustom"),
    "fft_type": _words("FFT", "IFFT", "RFFT", "IRFFT"),
    "transpose_a": _words("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT", "TRANSPOSE_INVALID", hidden="TRANSPOSE_INVALID"),
    "distribution": _words("rng_uniform", "rng_normal", "rng_invalid", fold_case=True),
    "algorithm": _words(*_DOT_ALGORITHMS, fold_case=True, hidden="unset"),
    "convolution_kind": _words("fprop", "wgrad", "dgrad", "unset", hidden="unset"),
    "padding_type": _words("PADDING_SAME", "PADDING_VALID", "PADDING_INVALID", hidden="PADDING_INVALID"),
    "schedule": _words("SCHEDULE_NONE", "SCHEDULE_LATEST", "SCHEDULE_EARLIEST", fold_case=True, hidden="SCHEDULE_NONE"),
    "api_version": _words(*_API_VERSIONS, fold_case=True, hidden="API_VERSION_ORIGINAL"),
    "operand_precision": AttributeKind(parse_words("default", "high", "highest"), format_words, _all_default),
    # Parsed, but not printed: channel_id and use_global_device_ids imply it.
    "mode": AttributeKind(
        word("cross_replica", "cross_partition", "cross_replica_and_partition", "flattened_id"), is_hidden=lambda value: True
    ),
    # Strings.
    "custom_call_target": _STRING,
    **_each(_SOME_STRING, "infeed_config outfeed_config"),
    "async_execution_thread": AttributeKind(parse_string, lambda value: f'"{value}"', _unless("main")),
    # Records.
    "slice": AttributeKind(parse_slice, format_slice),
    "padding": AttributeKind(parse_padding, format_padding),
    "window": AttributeKind(parse_window, is_hidden=_unless(Window())),
    "dim_labels": AttributeKind(parse_dim_labels),
    "sparsity_config": AttributeKind(parse_sparsity_config, is_hidden=_unless(SparsityConfig())),
    "block_scaling_config": AttributeKind(parse_block_scaling_config, is_hidden=_unless(BlockScalingConfig())),
    "replica_groups": AttributeKind(parse_replica_groups),
    "source_target_pairs": AttributeKind(parse_pairs, format_int_lists),
    "output_to_operand_aliasing": AttributeKind(parse_operand_aliasing, is_hidden=_unless(OperandAliasing())),
    "operand_layout_constraints": AttributeKind(parse_shapes, format_shapes),
    "outfeed_shape": AttributeKind(parse_shape_value),
    "literal": AttributeKind(parse_shaped_literal),
    "result_accuracy": AttributeKind(parse_result_accuracy, is_hidden=_unless(ResultAccuracy())),
    "domain": AttributeKind(parse_domain),
}

_OF_OPCODE: dict[tuple[str, str], AttributeKind] = {
    ("rng-bit-generator", "algorithm"): _words("rng_default", "rng_three_fry", "rng_philox", fold_case=True),
    ("topk", "is_stable"): _BOOL,
    ("shuffle", "mode"): _words("rotate"),
    ("custom-call", "window"): AttributeKind(parse_window),
    **dict.fromkeys(
        [(opcode, "slice_sizes") for opcode in ("collective-permute", "collective-permute-start")],
        AttributeKind(parse_int_lists, format_int_lists, _unless(())),
    ),
}


def attribute_kind(opcode: str, name: str) -> AttributeKind:
    """Return the functions that parse and print attribute `name` of `opcode`."""
    return _OF_OPCODE.get((opcode, name)) or ATTRIBUTES[name]


# Attributes that name computations; `branch_computations` and `called_computations` name a list of them.
CALLED_ATTRIBUTES = frozenset(
    """to_apply calls condition body select scatter true_computation false_computation branch_computations
    called_computations""".split()
)
