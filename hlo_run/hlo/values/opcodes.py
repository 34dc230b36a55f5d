"""The opcodes of HLO: number of operands, and attributes in printing order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from hlo_run.hlo.values.replica_groups import ReplicaGroups

DefaultValue: TypeAlias = "bool | tuple[int, ...] | ReplicaGroups"

# Attributes of every instruction, after those of the opcode, in printing order.
COMMON_ATTRIBUTES = (
    "sharding",
    "frontend_attributes",
    "control-predecessors",
    "parameter_replication",
    "statistics",
    "origin",
    "metadata",
    "backend_config",
)


@dataclass(frozen=True, slots=True)
class Opcode:
    """One opcode. `arity` None means any number of operands. `attributes` are those of the opcode, in printing order.

    `can_infer_shape` says whether text may leave the shape out (XLA's `CanInferShape`).
    """

    name: str
    arity: int | None
    attributes: tuple[str, ...] = ()
    required: frozenset[str] = frozenset()
    can_infer_shape: bool = False
    defaults: dict[str, DefaultValue] = field(default_factory=dict[str, "DefaultValue"])

    @property
    def allowed(self) -> list[str]:
        """All attributes of the opcode, sorted."""
        return sorted((*self.attributes, *COMMON_ATTRIBUTES))


_INFERABLE = frozenset(
    """after-all add-dependency batch-norm-training batch-norm-inference batch-norm-grad broadcast call cholesky clamp compare
    complex concatenate conditional convolution copy divide domain dot erf fft gather get-dimension-size set-dimension-size
    get-tuple-element map pad partition-id replica-id ragged-dot scaled-dot reduce reduce-window reverse scan
    scatter select select-and-scatter sort topk transpose triangular-solve tuple while
    abs ceil floor not negate sign real imag is-finite popcnt count-leading-zeros round-nearest-afz round-nearest-even
    acos acosh asin asinh atanh cbrt cosine cosh exponential exponential-minus-one log log-plus-one logistic rsqrt sine sinh
    sqrt tan tanh add subtract multiply mulhi remainder power maximum minimum and or xor shift-left shift-right-arithmetic
    shift-right-logical atan2""".split()
)

_GROUPS = "channel_id replica_groups constrain_layout use_global_device_ids"
_DOT = "lhs_batch_dims lhs_contracting_dims rhs_batch_dims rhs_contracting_dims"
_PRECISION = "operand_precision algorithm"

# opcodes | arity (- is any) | attributes in printing order, `!` marks required ones
_TABLE = f"""
abs ceil floor not negate sign real imag is-finite popcnt count-leading-zeros round-nearest-afz round-nearest-even | 1 |
copy opt-barrier bitcast convert bitcast-convert | 1 |
acos acosh asin asinh atanh cbrt cosine cosh erf exponential exponential-minus-one log log-plus-one | 1 | result_accuracy
logistic rsqrt sine sinh sqrt tan tanh | 1 | result_accuracy
add subtract multiply mulhi divide remainder power maximum minimum and or xor atan2 complex stochastic-convert | 2 |
shift-left shift-right-arithmetic shift-right-logical | 2 |
compare | 2 | direction! type
select clamp | 3 |
parameter constant | 0 |
iota | 0 | iota_dimension!
broadcast | 1 | dimensions
reshape | 1 | inferred_dimension
dynamic-reshape | - |
transpose reverse | 1 | dimensions!
concatenate | - | dimensions!
slice | 1 | slice!
dynamic-slice | - | dynamic_slice_sizes!
dynamic-update-slice | - |
pad | 2 | padding!
reduce | - | dimensions! to_apply!
reduce-window | - | window to_apply!
select-and-scatter | 3 | window select! scatter!
map | - | dimensions to_apply!
sort | - | dimensions! is_stable to_apply!
topk | 1 | k! largest is_stable
scan | - | dimensions! num_carries! is_reverse is_associative to_apply!
dot | - | {_DOT} {_PRECISION}
ragged-dot | 3 | {_DOT} lhs_ragged_dims rhs_group_dims operand_precision
scaled-dot | 4 | {_DOT} {_PRECISION}
convolution | 2 | window dim_labels! feature_group_count batch_group_count operand_precision sparsity_config \
convolution_kind
gather | 2 | offset_dims! collapsed_slice_dims! start_index_map! operand_batching_dims start_indices_batching_dims \
index_vector_dim! slice_sizes! indices_are_sorted
scatter | - | update_window_dims! inserted_window_dims! scatter_dims_to_operand_dims! input_batching_dims \
scatter_indices_batching_dims index_vector_dim! indices_are_sorted unique_indices to_apply!
fft | 1 | fft_type! fft_length!
triangular-solve | 2 | left_side lower unit_diagonal transpose_a
cholesky | 1 | lower
batch-norm-training | 3 | epsilon! feature_index!
batch-norm-inference batch-norm-grad | 5 | epsilon! feature_index!
reduce-precision | 1 | exponent_bits! mantissa_bits!
rng | - | distribution!
rng-bit-generator | - | algorithm!
rng-get-and-update-state | 0 | delta!
tuple | - |
get-tuple-element | 1 | index!
while | 1 | condition! body!
conditional | - | true_computation false_computation branch_computations
call | - | to_apply! is_composite
fusion | - | kind! output_to_operand_aliasing calls!
custom-call | - | window dim_labels feature_group_count batch_group_count operand_precision padding_type custom_call_target! \
operand_layout_constraints custom_call_has_side_effect literal output_to_operand_aliasing schedule api_version to_apply \
called_computations
infeed | 1 | infeed_config
outfeed | 2 | outfeed_shape outfeed_config
send | 2 | channel_id is_host_transfer
recv send-done recv-done | 1 | channel_id is_host_transfer
after-all | - |
add-dependency | 2 |
partition-id replica-id | 0 |
domain | 1 | domain!
get-dimension-size | 1 | dimensions!
set-dimension-size | 2 | dimensions!
all-reduce all-reduce-start | - | {_GROUPS} mode to_apply!
reduce-scatter | - | {_GROUPS} mode dimensions! to_apply!
all-gather all-gather-start | - | channel_id replica_groups constrain_layout dimensions! use_global_device_ids
all-to-all | - | channel_id replica_groups constrain_layout dimensions
ragged-all-to-all | - | channel_id replica_groups dimensions
collective-broadcast | - | channel_id replica_groups has_dynamic_root
collective-permute collective-permute-start | - | channel_id source_target_pairs! slice_sizes
all-reduce-done all-gather-done collective-permute-done copy-done | 1 |
copy-start | 1 | cross_program_prefetch_index
async-start | - | output_to_operand_aliasing async_execution_thread calls!
async-update | - | async_execution_thread calls
async-done | 1 | async_execution_thread calls
"""

_GROUPED = """all-reduce all-reduce-start reduce-scatter all-gather all-gather-start all-to-all ragged-all-to-all
    collective-broadcast""".split()
# Attributes that are set, and printed, even if the text omits them.
_DEFAULTS: dict[str, dict[str, DefaultValue]] = {
    "topk": {"largest": True},
    "scan": {"is_associative": False},
    **{name: {"lhs_contracting_dims": (), "rhs_contracting_dims": ()} for name in ("dot", "ragged-dot", "scaled-dot")},
    **{name: {"replica_groups": ReplicaGroups()} for name in _GROUPED},
}


def _read_table() -> dict[str, Opcode]:
    opcodes: dict[str, Opcode] = {}
    for row in _TABLE.strip().splitlines():
        names, arity, attributes = (part.split() for part in row.split("|"))
        plain = tuple(name.rstrip("!") for name in attributes)
        required = frozenset(name.rstrip("!") for name in attributes if name.endswith("!"))
        for name in names:
            count = None if arity[0] == "-" else int(arity[0])
            defaults = _DEFAULTS.get(name, {})
            opcodes[name] = Opcode(name, count, plain, required, name in _INFERABLE, defaults)
    return opcodes


OPCODES: dict[str, Opcode] = _read_table()
