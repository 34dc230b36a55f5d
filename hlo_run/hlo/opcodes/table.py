"""The opcodes of HLO, each defined in one row: operands, attributes in the order in which they are printed, traits, elements.

`hlo/opcodes/definition.py` says what the columns and traits mean, `hlo/attributes/table.py` how each attribute is read and
printed. `hlo/opcodes/traits.py` has a set of opcodes for each trait.
"""

from __future__ import annotations

from hlo_run.hlo.opcodes.definition import DefaultValue, OpcodeDefinition, read_rows
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.values.replica_groups import ReplicaGroups

_GROUPS = "channel_id replica_groups constrain_layout use_global_device_ids"
_DOT = "lhs_batch_dims lhs_contracting_dims rhs_batch_dims rhs_contracting_dims"
_PRECISION = "operand_precision algorithm"
_CONFIGS = "sparsity_config block_scaling_config"

# opcodes | arity | attributes | traits | elements; `[..]`: traits of all rows below
_TABLE = f"""
[can_infer_shape elementwise keeps_layout]
abs | 1 | | | signed float complex -> real
negate | 1 | | | signed unsigned float complex
sign | 1 | | | signed float complex
not | 1 | | | pred signed unsigned
popcnt count-leading-zeros | 1 | | | signed unsigned
is-finite | 1 | | | float -> pred
real imag | 1 | | | float complex -> real
ceil floor round-nearest-afz round-nearest-even | 1 | | | float
cbrt erf | 1 | result_accuracy | | float
acos acosh asin asinh atanh cosine cosh sine sinh tan tanh | 1 | result_accuracy | | float complex
exp2 exponential exponential-minus-one log log-plus-one log2 logistic rsqrt sqrt | 1 | result_accuracy | | float complex
add multiply maximum minimum | 2 | | commutative associative | pred signed unsigned float complex
mulhi | 2 | | commutative | pred signed unsigned float complex
and or xor | 2 | | commutative associative | pred signed unsigned
subtract divide remainder power | 2 | | | signed unsigned float complex
shift-left shift-right-arithmetic shift-right-logical | 2 | | | signed unsigned float complex
atan2 | 2 | | | float complex
complex | 2 |
compare | 2 | direction! type order
select clamp | 3 |
map | - | dimensions to_apply!
[elementwise keeps_layout]
convert bitcast-convert | 1 |
stochastic-convert | 2 |
reduce-precision | 1 | exponent_bits! mantissa_bits!
[]
copy | 1 | | can_infer_shape elementwise moves_elements

parameter constant | 0 | | no_code argument
iota | 0 | iota_dimension!
bitcast | 1 | | moves_elements no_code forwards{{}}
broadcast | 1 | dimensions | moves_elements can_infer_shape
reshape | 1 | inferred_dimension | moves_elements
dynamic-reshape | - | | dynamic_size
transpose | 1 | dimensions! | moves_elements can_infer_shape
reverse | 1 | dimensions! | moves_elements can_infer_shape keeps_layout
shuffle | 1 | dimensions! mode! shifts | can_infer_shape keeps_layout
concatenate | - | dimensions! | can_infer_shape keeps_layout
slice | 1 | slice! | moves_elements keeps_layout
dynamic-slice | - | dynamic_slice_sizes! | keeps_layout
dynamic-update-slice | - | | keeps_layout
pad | 2 | padding! | can_infer_shape keeps_layout
get-dimension-size | 1 | dimensions! | can_infer_shape dynamic_size
set-dimension-size | 2 | dimensions! | can_infer_shape dynamic_size keeps_layout

[can_infer_shape]
gather | 2 | offset_dims! collapsed_slice_dims! start_index_map! operand_batching_dims start_indices_batching_dims \
index_vector_dim! slice_sizes! indices_are_sorted
scatter | - | update_window_dims! inserted_window_dims! scatter_dims_to_operand_dims! input_batching_dims \
scatter_indices_batching_dims index_vector_dim! indices_are_sorted unique_indices to_apply! | keeps_layout
reduce | - | dimensions! to_apply!
reduce-window | - | window to_apply! | keeps_layout
select-and-scatter | 3 | window select! scatter! | keeps_layout
sort | - | dimensions! is_stable to_apply! | keeps_layout
topk | 1 | k! largest is_stable
scan | - | dimensions! num_carries! is_reverse is_associative to_apply!

dot | - | {_DOT} {_PRECISION} {_CONFIGS}
ragged-dot | 3 | {_DOT} lhs_ragged_dims rhs_group_dims operand_precision
scaled-dot | 4 | {_DOT} {_PRECISION}
convolution | 2 | window dim_labels! feature_group_count batch_group_count convolution_kind {_PRECISION} \
{_CONFIGS}
fft | 1 | fft_type! fft_length! | keeps_layout
triangular-solve | 2 | left_side lower unit_diagonal transpose_a | keeps_layout
cholesky | 1 | lower | keeps_layout
batch-norm-training | 3 | epsilon! feature_index!
batch-norm-inference batch-norm-grad | 5 | epsilon! feature_index!

[]
rng | - | distribution! | side_effect
rng-bit-generator | - | algorithm!
rng-get-and-update-state | 0 | delta! | side_effect

tuple | - | | no_code can_infer_shape
get-tuple-element | 1 | index! | no_code can_infer_shape
while | 1 | condition! body! | control_flow can_infer_shape
conditional | - | true_computation false_computation branch_computations | control_flow can_infer_shape
call | - | to_apply! is_composite | control_flow can_infer_shape
fusion | - | kind! output_to_operand_aliasing calls!
custom-call | - | window dim_labels feature_group_count batch_group_count operand_precision padding_type custom_call_target! \
operand_layout_constraints custom_call_has_side_effect literal output_to_operand_aliasing schedule api_version to_apply \
called_computations
opt-barrier | 1 | | no_code keeps_layout forwards{{}}
after-all | - | | no_code can_infer_shape
add-dependency | 2 | | no_code can_infer_shape keeps_layout forwards{{}}
domain | 1 | domain! | no_code can_infer_shape forwards{{}}
partition-id replica-id | 0 | | can_infer_shape device_id

infeed | 1 | infeed_config | side_effect
outfeed | 2 | outfeed_shape outfeed_config | side_effect
send | 2 | channel_id is_host_transfer | side_effect async_start
recv | 1 | channel_id is_host_transfer | side_effect async_start
send-done recv-done | 1 | channel_id is_host_transfer | side_effect async_done
copy-start | 1 | cross_program_prefetch_index | side_effect async_start
copy-done | 1 | | side_effect async_done forwards{{0}}
async-start | - | output_to_operand_aliasing async_execution_thread calls! | control_flow async_start
async-update | - | async_execution_thread calls | forwards{{}}
async-done | 1 | async_execution_thread calls | async_done forwards{{1}}

[collective]
all-reduce | - | {_GROUPS} mode to_apply! | keeps_layout
all-reduce-start | - | {_GROUPS} mode to_apply! | side_effect async_start
reduce-scatter | - | {_GROUPS} mode dimensions! to_apply! | keeps_layout
all-gather | - | channel_id replica_groups constrain_layout dimensions! use_global_device_ids | keeps_layout
all-gather-start | - | channel_id replica_groups constrain_layout dimensions! use_global_device_ids | side_effect async_start
all-to-all | - | channel_id replica_groups constrain_layout dimensions | keeps_layout
ragged-all-to-all | - | channel_id replica_groups dimensions
collective-broadcast | - | channel_id replica_groups has_dynamic_root | side_effect
collective-reduce | - | {_GROUPS} has_dynamic_root to_apply! | side_effect
collective-permute | - | channel_id source_target_pairs! slice_sizes | keeps_layout
collective-permute-start | - | channel_id source_target_pairs! slice_sizes | side_effect async_start
[async_done side_effect]
all-reduce-done | 1 | | forwards{{}}
all-gather-done collective-permute-done | 1 | | forwards{{1}}
"""

_GROUPED = opcode_set("""all-reduce all-reduce-start reduce-scatter all-gather all-gather-start all-to-all ragged-all-to-all""")
_DOTS = opcode_set("dot ragged-dot scaled-dot")
# What is there, and prints, whether it is written or not.
_DEFAULTS: dict[Opcode, dict[str, DefaultValue]] = {
    "topk": {"largest": True, "is_stable": True},
    "scan": {"is_associative": False},
    "collective-broadcast": {"has_dynamic_root": False, "replica_groups": ReplicaGroups()},
    "collective-reduce": {"has_dynamic_root": False, "replica_groups": ReplicaGroups()},
    **{name: {"lhs_contracting_dims": (), "rhs_contracting_dims": ()} for name in _DOTS},
    **{name: {"replica_groups": ReplicaGroups()} for name in _GROUPED},
}

OPCODES: dict[Opcode, OpcodeDefinition] = read_rows(_TABLE, _DEFAULTS)
_BY_TEXT: dict[str, OpcodeDefinition] = {**OPCODES}


def definition_of(text: str) -> OpcodeDefinition | None:
    """Return the definition of the opcode that `text` names, or None if it names none."""
    return _BY_TEXT.get(text)
