"""The attributes of an instruction: by name, and by typed accessors for the attributes that passes read."""

from __future__ import annotations

from collections.abc import Hashable, ItemsView, Iterator, KeysView, MutableMapping, ValuesView
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

from hlo_run.hlo.values.attribute_values import AttributeValue, DimLabels, FftType, FrontendAttributes, OperandAliasing, Window
from hlo_run.hlo.values.literal import Array, Literal
from hlo_run.hlo.values.metadata import OpMetadata
from hlo_run.hlo.values.replica_groups import IntLists, ReplicaGroups
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import Sharding

if TYPE_CHECKING:
    from hlo_run.artifact.division import FedArray

_T = TypeVar("_T")
_NO_WINDOW = Window()
_ALL_IN_ONE_GROUP = ReplicaGroups()
_NO_ALIASES = OperandAliasing()


class _Edited(Protocol):
    def touch(self) -> None: ...


class Attributes(MutableMapping[str, AttributeValue]):
    """An instruction's attributes by XLA's attribute name; to write one counts as an edit of the module."""

    # `stored` is for the typed accessors, which only read. They know the type of the attribute that they name.
    # `frozen` is what `analysis/value_keys.py` made of the attributes; None after they were written.
    __slots__ = ("_owner", "frozen", "stored")
    stored: dict[str, Any]
    frozen: tuple[tuple[str, Hashable], ...] | None

    def __init__(self, owner: _Edited, values: dict[str, AttributeValue]) -> None:
        self._owner = owner
        self.stored = values
        self.frozen = None

    def __getitem__(self, key: str) -> AttributeValue:
        return self.stored[key]

    def __setitem__(self, key: str, value: AttributeValue) -> None:
        self.stored[key] = value
        self.frozen = None
        self._owner.touch()

    def __delitem__(self, key: str) -> None:
        del self.stored[key]
        self.frozen = None
        self._owner.touch()

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)

    def __contains__(self, key: object) -> bool:
        return key in self.stored

    # Faster than MutableMapping's versions, which call __getitem__ for each key.

    @overload
    def get(self, key: str, default: None = None) -> AttributeValue | None: ...
    @overload
    def get(self, key: str, default: AttributeValue) -> AttributeValue: ...
    @overload
    def get(self, key: str, default: _T) -> AttributeValue | _T: ...
    def get(self, key: str, default: object = None) -> object:
        """Return an attribute's value, or `default` if the instruction has no such attribute."""
        return self.stored.get(key, default)

    def keys(self) -> KeysView[str]:
        """Return the attributes' names."""
        return self.stored.keys()

    def values(self) -> ValuesView[AttributeValue]:
        """Return the attributes' values."""
        return self.stored.values()

    def items(self) -> ItemsView[str, AttributeValue]:
        """Return (name, value) of the attributes."""
        return self.stored.items()


class TypedAttributes:
    """Reads one attribute of an instruction, with its type. An attribute has XLA's name unless the docstring gives it.

    An attribute that its opcode requires raises KeyError on an instruction of another opcode. An optional one returns its
    default, on any instruction. No accessor goes through `Attributes.__getitem__`, which would be another call.
    """

    __slots__ = ()

    attrs: Attributes

    # Required by their opcodes.

    @property
    def dimensions(self) -> tuple[int, ...]:
        """The dimensions of a broadcast, transpose, reduce, concatenate, reverse, sort and others."""
        return self.attrs.stored["dimensions"]

    @property
    def tuple_index(self) -> int:
        """The `index` of a get-tuple-element."""
        return self.attrs.stored["index"]

    @property
    def parameter_number(self) -> int:
        """The position of a parameter, from 0."""
        return self.attrs.stored["parameter_number"]

    @property
    def literal(self) -> Literal:
        """The value of a constant: a numpy array in logical order, or a tuple of such."""
        return self.attrs.stored["literal"]

    @property
    def constant_array(self) -> Array:
        """The value of a constant that is an array: `literal`, in logical order."""
        return self.attrs.stored["literal"]

    @property
    def iota_dimension(self) -> int:
        """The dimension that an iota counts along."""
        return self.attrs.stored["iota_dimension"]

    @property
    def comparison_direction(self) -> str:
        """The `direction` of a compare, one of EQ, NE, GE, GT, LE and LT."""
        return self.attrs.stored["direction"]

    @property
    def slice_ranges(self) -> tuple[tuple[int, int, int], ...]:
        """The `slice` of a slice: (start, limit, stride) per dimension; limits are exclusive."""
        return self.attrs.stored["slice"]

    @property
    def padding(self) -> tuple[tuple[int, int, int], ...]:
        """The (low, high, interior) elements of a pad, per dimension."""
        return self.attrs.stored["padding"]

    @property
    def fusion_kind(self) -> str:
        """The `kind` of a fusion, one of kLoop, kInput, kOutput and kCustom."""
        return self.attrs.stored["kind"]

    @property
    def dim_labels(self) -> DimLabels:
        """The dimension numbers of a convolution."""
        return self.attrs.stored["dim_labels"]

    @property
    def index_vector_dim(self) -> int:
        """The dimension of a gather's or scatter's indices that holds an index vector."""
        return self.attrs.stored["index_vector_dim"]

    @property
    def offset_dims(self) -> tuple[int, ...]:
        """The dimensions of a gather's result that come from a slice."""
        return self.attrs.stored["offset_dims"]

    @property
    def collapsed_slice_dims(self) -> tuple[int, ...]:
        """The dimensions of size 1 of a gather's operand that the result leaves out."""
        return self.attrs.stored["collapsed_slice_dims"]

    @property
    def start_index_map(self) -> tuple[int, ...]:
        """The dimension of a gather's operand for each entry of an index vector."""
        return self.attrs.stored["start_index_map"]

    @property
    def gather_slice_sizes(self) -> tuple[int, ...]:
        """The `slice_sizes` of a gather, the elements of a slice per dimension of the operand."""
        return self.attrs.stored["slice_sizes"]

    @property
    def update_window_dims(self) -> tuple[int, ...]:
        """The dimensions of a scatter's update that come from a window."""
        return self.attrs.stored["update_window_dims"]

    @property
    def inserted_window_dims(self) -> tuple[int, ...]:
        """The dimensions of size 1 of a scatter's operand that the updates leave out."""
        return self.attrs.stored["inserted_window_dims"]

    @property
    def scatter_dims_to_operand_dims(self) -> tuple[int, ...]:
        """The dimension of a scatter's operand for each entry of an index vector."""
        return self.attrs.stored["scatter_dims_to_operand_dims"]

    @property
    def k(self) -> int:
        """The number of elements that a topk returns."""
        return self.attrs.stored["k"]

    @property
    def num_carries(self) -> int:
        """The number of a scan's last operands that are carried from step to step."""
        return self.attrs.stored["num_carries"]

    @property
    def exponent_bits(self) -> int:
        """The bits of the exponent that a reduce-precision keeps."""
        return self.attrs.stored["exponent_bits"]

    @property
    def mantissa_bits(self) -> int:
        """The bits of the mantissa that a reduce-precision keeps."""
        return self.attrs.stored["mantissa_bits"]

    @property
    def feature_index(self) -> int:
        """The dimension of the features of a batch normalisation."""
        return self.attrs.stored["feature_index"]

    @property
    def epsilon(self) -> float:
        """The number that a batch normalisation adds to the variance."""
        return self.attrs.stored["epsilon"]

    @property
    def fft_type(self) -> FftType:
        """The kind of a fft: FFT, IFFT, RFFT or IRFFT."""
        return self.attrs.stored["fft_type"]

    @property
    def fft_length(self) -> tuple[int, ...]:
        """The elements of a transform of a fft, per transformed dimension."""
        return self.attrs.stored["fft_length"]

    @property
    def distribution(self) -> str:
        """The distribution of a rng: rng_uniform or rng_normal."""
        return self.attrs.stored["distribution"]

    @property
    def source_target_pairs(self) -> IntLists:
        """The (source, target) devices of a collective-permute."""
        return self.attrs.stored["source_target_pairs"]

    @property
    def dynamic_slice_sizes(self) -> tuple[int, ...]:
        """The sizes of the result of a dynamic-slice."""
        return self.attrs.stored["dynamic_slice_sizes"]

    @property
    def rng_delta(self) -> int:
        """The `delta` that a rng-get-and-update-state adds to its counter."""
        return self.attrs.stored["delta"]

    @property
    def shuffle_mode(self) -> str:
        """The `mode` of a shuffle: rotate."""
        return self.attrs.stored["mode"]

    @property
    def given_sharding(self) -> Sharding:
        """The `sharding` of an instruction that has one; see `sharding`."""
        return self.attrs.stored["sharding"]

    # Optional: with a default, or None where the absence of the attribute means something.

    def ints(self, name: str) -> tuple[int, ...]:
        """Return an attribute that lists integers, such as `dimensions`; () without it."""
        return self.attrs.stored.get(name, ())

    @property
    def operand_layouts(self) -> tuple[Shape, ...] | None:
        """The `operand_layout_constraints` of a custom call: the shapes, with layouts, that its operands must have."""
        return self.attrs.stored.get("operand_layout_constraints")

    @property
    def outfeed_shape(self) -> Shape | None:
        """The shape, with layouts, that the host gets from an outfeed; None if it is the operand's."""
        return self.attrs.stored.get("outfeed_shape")

    @property
    def fed(self) -> tuple[FedArray, ...]:
        """The whole arrays that an infeed takes, of which each partition keeps tiles; () if it takes its own arrays."""
        return self.attrs.stored.get("fed", ())

    @property
    def in_place_slice_sizes(self) -> IntLists:
        """The `slice_sizes` of a collective-permute that updates its operands in place, a list for each; () for another one."""
        return self.attrs.stored.get("slice_sizes", ())

    @property
    def parameter_replication(self) -> tuple[bool, ...]:
        """For each array of a parameter, whether all replicas have the same value; () if nothing is known."""
        return self.attrs.stored.get("parameter_replication", ())

    @property
    def constrains_layout(self) -> bool:
        """The `constrain_layout` of a collective: passes must keep its layouts."""
        return self.attrs.stored.get("constrain_layout", False)

    @property
    def transpose_a(self) -> str:
        """The form of the matrix of a triangular-solve: NO_TRANSPOSE, TRANSPOSE or ADJOINT."""
        return self.attrs.stored.get("transpose_a", "NO_TRANSPOSE")

    @property
    def custom_call_target(self) -> str:
        """The name of a custom call's function; empty for another opcode."""
        return self.attrs.stored.get("custom_call_target", "")

    @property
    def backend_config(self) -> str:
        """The message of the pass that made an instruction to its backend, for example as JSON; empty without it."""
        return self.attrs.stored.get("backend_config", "")

    @property
    def window(self) -> Window:
        """The window of a reduce-window, convolution or select-and-scatter; without dimensions where the text has none."""
        return self.attrs.stored.get("window", _NO_WINDOW)

    @property
    def feature_group_count(self) -> int:
        """The number of groups of features of a convolution."""
        return self.attrs.stored.get("feature_group_count", 1)

    @property
    def batch_group_count(self) -> int:
        """The number of groups of batches of a convolution."""
        return self.attrs.stored.get("batch_group_count", 1)

    @property
    def lhs_batch_dims(self) -> tuple[int, ...]:
        """The batch dimensions of operand 0 of a dot."""
        return self.attrs.stored.get("lhs_batch_dims", ())

    @property
    def rhs_batch_dims(self) -> tuple[int, ...]:
        """The batch dimensions of operand 1 of a dot."""
        return self.attrs.stored.get("rhs_batch_dims", ())

    @property
    def lhs_contracting_dims(self) -> tuple[int, ...]:
        """The dimensions of operand 0 that a dot sums over."""
        return self.attrs.stored.get("lhs_contracting_dims", ())

    @property
    def rhs_contracting_dims(self) -> tuple[int, ...]:
        """The dimensions of operand 1 that a dot sums over."""
        return self.attrs.stored.get("rhs_contracting_dims", ())

    @property
    def operand_precision(self) -> tuple[str, ...]:
        """The precision of a dot or convolution: default, high or highest per operand; () without any."""
        return self.attrs.stored.get("operand_precision", ())

    @property
    def lhs_ragged_dims(self) -> tuple[int, ...]:
        """The dimension of operand 0 that a ragged-dot cuts into groups; one number."""
        return self.attrs.stored.get("lhs_ragged_dims", ())

    @property
    def rhs_group_dims(self) -> tuple[int, ...]:
        """The dimensions of operand 1 of a ragged-dot that count groups."""
        return self.attrs.stored.get("rhs_group_dims", ())

    @property
    def operand_batching_dims(self) -> tuple[int, ...]:
        """The dimensions of a gather's operand that run along with the indices'."""
        return self.attrs.stored.get("operand_batching_dims", ())

    @property
    def start_indices_batching_dims(self) -> tuple[int, ...]:
        """The dimensions of a gather's indices that run along with the operand's."""
        return self.attrs.stored.get("start_indices_batching_dims", ())

    @property
    def input_batching_dims(self) -> tuple[int, ...]:
        """The dimensions of a scatter's operand that run along with the indices'."""
        return self.attrs.stored.get("input_batching_dims", ())

    @property
    def scatter_indices_batching_dims(self) -> tuple[int, ...]:
        """The dimensions of a scatter's indices that run along with the operand's."""
        return self.attrs.stored.get("scatter_indices_batching_dims", ())

    @property
    def indices_are_sorted(self) -> bool:
        """True if the program promises that the index vectors of a gather or scatter are sorted."""
        return self.attrs.stored.get("indices_are_sorted", False)

    @property
    def unique_indices(self) -> bool:
        """True if the program promises that the windows of a scatter do not overlap."""
        return self.attrs.stored.get("unique_indices", False)

    @property
    def is_stable(self) -> bool:
        """True if equal elements of a sort keep their order."""
        return self.attrs.stored.get("is_stable", False)

    @property
    def is_reverse(self) -> bool:
        """True if a scan begins at the end."""
        return self.attrs.stored.get("is_reverse", False)

    @property
    def is_associative(self) -> bool:
        """True if the steps of a scan may be grouped in any way."""
        return self.attrs.stored.get("is_associative", False)

    @property
    def largest(self) -> bool:
        """True if a topk returns the largest elements, not the smallest."""
        return self.attrs.stored.get("largest", True)

    @property
    def left_side(self) -> bool:
        """True if the matrix of a triangular-solve is on the left of the unknowns."""
        return self.attrs.stored.get("left_side", False)

    @property
    def lower(self) -> bool:
        """True if a triangular-solve or cholesky uses the lower triangle."""
        return self.attrs.stored.get("lower", False)

    @property
    def unit_diagonal(self) -> bool:
        """True if the diagonal of a triangular-solve counts as ones."""
        return self.attrs.stored.get("unit_diagonal", False)

    @property
    def algorithm(self) -> str:
        """The algorithm of a dot, for example dot_bf16_bf16_f32_x3, or unset; of a rng-bit-generator, for example rng_philox."""
        return self.attrs.stored.get("algorithm", "unset")

    @property
    def has_dynamic_root(self) -> bool:
        """True if the last operand of a collective-broadcast or collective-reduce has the number of the root."""
        return self.attrs.stored.get("has_dynamic_root", False)

    @property
    def has_side_effect(self) -> bool:
        """The `custom_call_has_side_effect` of a custom call."""
        return self.attrs.stored.get("custom_call_has_side_effect", False)

    @property
    def schedule(self) -> str:
        """The `schedule` of a custom call: SCHEDULE_EARLIEST, SCHEDULE_LATEST, or empty."""
        return self.attrs.stored.get("schedule", "")

    @property
    def async_execution_thread(self) -> str:
        """The thread of an asynchronous operation; empty without one."""
        return self.attrs.stored.get("async_execution_thread", "")

    @property
    def is_custom_fusion(self) -> bool:
        """True for a fusion of the kind kCustom."""
        return self.attrs.stored.get("kind") == "kCustom"

    @property
    def comparison_order(self) -> str:
        """The `order` of a compare, TOTAL or PARTIAL; empty for its type's default: PARTIAL for floats and complex numbers."""
        return self.attrs.stored.get("order", "")

    @property
    def is_host_transfer(self) -> bool:
        """True if the other side of a send or recv is the host."""
        return self.attrs.stored.get("is_host_transfer", False)

    @property
    def use_global_device_ids(self) -> bool:
        """True if the groups of a collective have numbers of devices, not of replicas."""
        return self.attrs.stored.get("use_global_device_ids", False)

    @property
    def replica_groups(self) -> ReplicaGroups:
        """The groups of devices of a collective."""
        return self.attrs.stored.get("replica_groups", _ALL_IN_ONE_GROUP)

    @property
    def output_to_operand_aliasing(self) -> OperandAliasing:
        """The outputs of a fusion or custom call that share a buffer with an operand."""
        return self.attrs.stored.get("output_to_operand_aliasing", _NO_ALIASES)

    @property
    def channel_id(self) -> int | None:
        """The channel of a collective or transfer; None without one."""
        return self.attrs.stored.get("channel_id")

    @property
    def metadata(self) -> OpMetadata | None:
        """The origin of an instruction in the user's program."""
        return self.attrs.stored.get("metadata")

    @property
    def frontend_attributes(self) -> FrontendAttributes | None:
        """The remarks of a framework about an instruction."""
        return self.attrs.stored.get("frontend_attributes")

    @property
    def sharding(self) -> Sharding | None:
        """The spread of an instruction's value over devices."""
        return self.attrs.stored.get("sharding")
