"""Builder methods of collectives."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.builder.core import BuilderCore, ComputationLike, HloValue
from hlo_run.builder.shaping import Ints, scalars_of, values_of
from hlo_run.errors import UsageError
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.shape import Shape

# Lists of device numbers, or text in any of XLA's forms; empty means one group of all devices.
Groups = Sequence[Ints] | str
_Values = HloValue | Sequence[HloValue]


class CollectiveMethods(BuilderCore):
    """`replica_groups` are lists, or text such as `[2,4]<=[8]`. Several operands make a tuple of results.

    Options of reducing collectives: `channel_id`, `constrain_layout`, `use_global_device_ids`.
    """

    def replica_id(self) -> HloValue:
        """Return the number of this device's replica, a u32 scalar."""
        return self.instruction("replica-id")

    def partition_id(self) -> HloValue:
        """Return the number of this device's partition, a u32 scalar."""
        return self.instruction("partition-id")

    def all_reduce(
        self, operands: _Values, to_apply: ComputationLike, replica_groups: Groups = (), **options: object
    ) -> HloValue:
        """Reduce each operand over the devices of a group, with options as in the class's docstring."""
        return self._reducing("all-reduce", operands, to_apply, replica_groups, options)

    def all_reduce_start(
        self, operands: _Values, to_apply: ComputationLike, replica_groups: Groups = (), **options: object
    ) -> HloValue:
        """Start an all-reduce. The result has the shape of `all_reduce`'s; pass it to `all_reduce_done`."""
        return self._reducing("all-reduce-start", operands, to_apply, replica_groups, options)

    def all_reduce_done(self, start: HloValue) -> HloValue:
        """Wait for an all-reduce and return its result, of the shape of `start`."""
        return self.instruction("all-reduce-done", [start], start.shape)

    def reduce_scatter(
        self,
        operands: _Values,
        dimension: int,
        to_apply: ComputationLike,
        replica_groups: Groups = (),
        shard_count: int | None = None,
        **options: object,
    ) -> HloValue:
        """Reduce over a group, and give each device its part along `dimension`, whose size is divided by the group's.

        `shard_count` is the size of a group; it is required if `replica_groups` are text or empty. Raises UsageError without
        it, or if an operand lacks the dimension.
        """
        count = _shard_count(replica_groups, shard_count)
        shapes = [_resized(value, dimension, 1, count) for value in values_of(operands)]
        return self._reducing(
            "reduce-scatter", operands, to_apply, replica_groups, {**options, "dimensions": [dimension]}, _one_or_tuple(shapes)
        )

    def all_gather(
        self,
        operands: _Values,
        dimension: int,
        replica_groups: Groups = (),
        shard_count: int | None = None,
        **options: object,
    ) -> HloValue:
        """Concatenate the operands of a group along `dimension`, whose size is multiplied by the group's.

        `shard_count` is the size of a group; it is required if `replica_groups` are text or empty. Raises UsageError without
        it, or if an operand lacks the dimension.
        """
        count = _shard_count(replica_groups, shard_count)
        shape = _one_or_tuple([_resized(value, dimension, count, 1) for value in values_of(operands)])
        given = {"dimensions": [dimension], "replica_groups": replica_groups, **options}
        return self._instruction("all-gather", values_of(operands), given, shape)

    def all_gather_start(
        self,
        operands: _Values,
        dimension: int,
        replica_groups: Groups = (),
        shard_count: int | None = None,
        **options: object,
    ) -> HloValue:
        """Start an all-gather with the arguments of `all_gather`, and return the tuple (operands, results).

        Raises UsageError as `all_gather` does.
        """
        count = _shard_count(replica_groups, shard_count)
        results = [_resized(value, dimension, count, 1) for value in values_of(operands)]
        sources = [value.shape for value in values_of(operands)]
        shape = Shape.make_tuple((_one_or_tuple(sources), _one_or_tuple(results)))
        given = {"dimensions": [dimension], "replica_groups": replica_groups, **options}
        return self._instruction("all-gather-start", values_of(operands), given, shape)

    def all_gather_done(self, start: HloValue) -> HloValue:
        """Wait for an all-gather and return its result, element 1 of `start`.

        Raises UsageError if `start` is not a tuple of at least 2 elements.
        """
        return self.instruction("all-gather-done", [start], _result_of_start(start))

    def all_to_all(
        self, operands: _Values, dimension: int | None = None, replica_groups: Groups = (), **options: object
    ) -> HloValue:
        """Exchange the parts of one operand along `dimension`; without it, the operands and results are the parts."""
        values = values_of(operands)
        shapes = [value.shape for value in values]
        shape = shapes[0] if dimension is not None and len(shapes) == 1 else Shape.make_tuple(tuple(shapes))
        dims = None if dimension is None else [dimension]
        return self._instruction("all-to-all", values, {"dimensions": dims, "replica_groups": replica_groups, **options}, shape)

    def ragged_all_to_all(
        self,
        operand: HloValue,
        output: HloValue,
        input_offsets: HloValue,
        send_sizes: HloValue,
        output_offsets: HloValue,
        recv_sizes: HloValue,
        replica_groups: Groups = (),
        channel_id: int | None = None,
    ) -> HloValue:
        """Send rows (slices along dimension 0) of `operand` to the devices of the group; return the updated `output`.

        The two offsets and two sizes are integer arrays of one shape, [devices] or [devices, n]. Entry i sends `send_sizes[i]`
        rows from `input_offsets[i]` to member i of the group, which writes them from row `output_offsets[i]` of its output on.
        `recv_sizes[i]` is the number of rows that member i sends to this device. Rows that no member writes keep the values of
        `output`.
        """
        operands = [operand, output, input_offsets, send_sizes, output_offsets, recv_sizes]
        return self.instruction("ragged-all-to-all", operands, output.shape, replica_groups=replica_groups, channel_id=channel_id)

    def collective_broadcast(self, operands: _Values, replica_groups: Groups = (), **options: object) -> HloValue:
        """Copy from the first device of each group to the others; options: `channel_id`, `has_dynamic_root`."""
        values = values_of(operands)
        given = {"replica_groups": replica_groups, **options}
        return self._instruction("collective-broadcast", values, given, _shape_of_all(values))

    def collective_reduce(
        self, operands: _Values, to_apply: ComputationLike, replica_groups: Groups = (), **options: object
    ) -> HloValue:
        """Reduce each operand to one device of a group; options as in the class's docstring, and `has_dynamic_root`.

        With `has_dynamic_root`, the last operand has that device's number for each other operand.
        """
        values = values_of(operands)
        shape = _shape_of_all(values[:-1] if options.get("has_dynamic_root") else values)
        return self._reducing("collective-reduce", values, to_apply, replica_groups, options, shape)

    def collective_permute(
        self, operands: _Values, source_target_pairs: Sequence[Ints], channel_id: int | None = None
    ) -> HloValue:
        """Send the operands from the first to the second device of each pair. The result has the operands' shape.

        A device to which no pair sends gets zeros. A device is a source at most once, and a target at most once. Devices are
        replica numbers, with `channel_id` partition numbers.
        """
        values = values_of(operands)
        return self.instruction(
            "collective-permute", values, _shape_of_all(values), source_target_pairs=source_target_pairs, channel_id=channel_id
        )

    def collective_permute_start(
        self, operands: _Values, source_target_pairs: Sequence[Ints], channel_id: int | None = None
    ) -> HloValue:
        """Start a permute with the arguments of `collective_permute`, and return the tuple (operands, results).

        Raises UsageError as `all_gather` does.
        """
        values = values_of(operands)
        both = Shape.make_tuple((_shape_of_all(values), _shape_of_all(values)))
        return self.instruction(
            "collective-permute-start", values, both, source_target_pairs=source_target_pairs, channel_id=channel_id
        )

    def collective_permute_done(self, start: HloValue) -> HloValue:
        """Wait for a permute and return its result, element 1 of `start`.

        Raises UsageError if `start` is not a tuple of at least 2 elements.
        """
        return self.instruction("collective-permute-done", [start], _result_of_start(start))

    def _reducing(
        self,
        opcode: Opcode,
        operands: _Values,
        to_apply: ComputationLike,
        groups: Groups,
        options: dict[str, object],
        shape: Shape | None = None,
    ) -> HloValue:
        values = values_of(operands)
        scalar = scalars_of(values[:1])[0]
        called = {"to_apply": [self.computation_of(to_apply, [scalar, scalar], "reducer")]}
        options = {name: value if value is not False else None for name, value in options.items()}
        return self._instruction(opcode, values, {"replica_groups": groups, **options}, shape or _shape_of_all(values), called)


def _shard_count(groups: Groups, given: int | None) -> int:
    if given is not None:
        return given
    if isinstance(groups, str) or not groups:
        raise UsageError("the replica groups do not show the size of a group", hint="give shard_count")
    return len(groups[0])


def _resized(value: HloValue, dimension: int, factor: int, divisor: int) -> Shape:
    """Return the shape with the size of a dimension times factor / divisor."""
    shape = value.shape
    if not 0 <= dimension < shape.rank:
        raise UsageError(f"'{value.name}' of shape {shape.to_string(layout=False)} has no dimension {dimension}")
    dims = list(shape.dims)
    dims[dimension] = dims[dimension] * factor // divisor
    return Shape.array(shape.element_type, tuple(dims))


def _one_or_tuple(shapes: Sequence[Shape]) -> Shape:
    return shapes[0] if len(shapes) == 1 else Shape.make_tuple(tuple(shapes))


def _shape_of_all(values: Sequence[HloValue]) -> Shape:
    return _one_or_tuple([value.shape for value in values])


def _result_of_start(start: HloValue) -> Shape:
    if len(start.shape.tuple_shapes) < 2:
        raise UsageError(f"'{start.name}' of shape {start.shape.to_string(layout=False)} is not the start of a collective")
    return start.shape.tuple_shapes[1]
