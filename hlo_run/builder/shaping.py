"""Builder methods of parameters, constants and opcodes that move elements."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.builder.core import BuilderCore, ComputationLike, HloValue
from hlo_run.builder.values import ShapeLike, TypeLike, shape_of, type_of
from hlo_run.hlo.values.shape import Shape

Ints = Sequence[int]


class ShapingMethods(BuilderCore):
    """`dimensions` are dimension numbers, `sizes` are the sizes of all dimensions."""

    def parameter(self, number: int, shape: ShapeLike, name: str | None = None) -> HloValue:
        """Add parameter `number` (from 0) of this computation."""
        value = self.leaf("parameter", shape_of(shape), {"parameter_number": number})
        return value.annotate(name=name or f"p{number}")

    def constant(self, value: object, element_type: TypeLike | None = None) -> HloValue:
        """Add a constant: an array, a number, nested lists of numbers, or a tuple of these.

        Python numbers become pred, s32, f32 or c64 by default. Raises UsageError for a value that the type cannot represent.
        """
        return self.constant_of(value, None if element_type is None else type_of(element_type))

    def iota(self, shape: ShapeLike, iota_dimension: int = 0) -> HloValue:
        """Return an array that counts from 0 along a dimension."""
        return self.instruction("iota", [], shape, iota_dimension=iota_dimension)

    def broadcast(self, operand: HloValue, sizes: Ints, dimensions: Ints = ()) -> HloValue:
        """Broadcast to `sizes`; operand dimension i becomes dimension `dimensions[i]` (XlaBuilder's BroadcastInDim)."""
        shape = Shape.array(operand.shape.element_type, tuple(sizes))
        return self.instruction("broadcast", [operand], shape, dimensions=dimensions)

    def reshape(self, operand: HloValue, sizes: Ints, inferred_dimension: int | None = None) -> HloValue:
        """Reshape to `sizes`; with dynamic sizes, the size of `inferred_dimension` follows from the others."""
        shape = Shape.array(operand.shape.element_type, tuple(sizes))
        return self.instruction("reshape", [operand], shape, inferred_dimension=inferred_dimension)

    def dynamic_reshape(self, operand: HloValue, sizes: Sequence[HloValue], shape: ShapeLike) -> HloValue:
        """Reshape to `shape`, whose dimensions are bounds, with run-time sizes from scalars."""
        return self.instruction("dynamic-reshape", [operand, *sizes], shape)

    def bitcast(self, operand: HloValue, shape: ShapeLike) -> HloValue:
        """View the bytes as another shape and layout."""
        return self.instruction("bitcast", [operand], shape)

    def transpose(self, operand: HloValue, dimensions: Ints) -> HloValue:
        """Transpose: dimension i of the result is dimension `dimensions[i]` of the operand."""
        return self.instruction("transpose", [operand], dimensions=dimensions)

    def reverse(self, operand: HloValue, dimensions: Ints) -> HloValue:
        """Reverse the order of the elements along `dimensions`. The result has the operand's shape."""
        return self.instruction("reverse", [operand], dimensions=dimensions)

    def shuffle(self, operand: HloValue, dimensions: Ints, shifts: Ints, mode: str = "rotate") -> HloValue:
        """Rotate the elements along each of `dimensions` by its number of places in `shifts`. The operand's shape stays."""
        return self.instruction("shuffle", [operand], dimensions=dimensions, mode=mode, shifts=shifts)

    def concatenate(self, operands: Sequence[HloValue], dimension: int) -> HloValue:
        """Join the operands along `dimension`. They have one element type, and equal sizes in the other dimensions."""
        return self.instruction("concatenate", operands, dimensions=[dimension])

    def slice(self, operand: HloValue, ranges: Sequence[Ints]) -> HloValue:
        """Return a part: `ranges` has (start, limit) or (start, limit, stride) per dimension; limits are exclusive."""
        return self.instruction("slice", [operand], slice=ranges)

    def dynamic_slice(self, operand: HloValue, starts: Sequence[HloValue], sizes: Ints) -> HloValue:
        """Return a part that begins at `starts`, scalars, one per dimension."""
        shape = Shape.array(operand.shape.element_type, tuple(sizes))
        return self.instruction("dynamic-slice", [operand, *starts], shape, dynamic_slice_sizes=sizes)

    def dynamic_update_slice(self, operand: HloValue, update: HloValue, starts: Sequence[HloValue]) -> HloValue:
        """Return `operand` with `update` written over it from `starts` on.

        `starts` are integer scalars of one type, one per dimension. They are clamped so that `update`, which has the operand's
        rank and type, and is not larger in any dimension, fits.
        """
        return self.instruction("dynamic-update-slice", [operand, update, *starts], operand.shape)

    def pad(self, operand: HloValue, padding_value: HloValue, padding: Sequence[Ints] | str) -> HloValue:
        """Add elements; `padding` has (low, high) or (low, high, interior) per dimension; low and high may be negative."""
        return self.instruction("pad", [operand, padding_value], padding=padding)

    def gather(
        self,
        operand: HloValue,
        indices: HloValue,
        *,
        offset_dims: Ints,
        collapsed_slice_dims: Ints,
        start_index_map: Ints,
        index_vector_dim: int,
        slice_sizes: Ints,
        operand_batching_dims: Ints = (),
        start_indices_batching_dims: Ints = (),
        indices_are_sorted: bool = False,
    ) -> HloValue:
        """Return slices of `operand`, one per index vector in `indices` (HLO's gather).

        - `index_vector_dim`: the dimension of the integer array `indices` along which an index vector lies. If it is the rank
          of `indices`, each element is a vector.
        - `start_index_map`: the operand dimension of each element of a vector. A slice starts at 0 in the other dimensions.
        - `slice_sizes`: the sizes of a slice, one per operand dimension. Starts are clamped so that the slice fits.
        - `collapsed_slice_dims`: operand dimensions of slice size 0 or 1, which the result omits, in ascending order.
        - `operand_batching_dims`, `start_indices_batching_dims`: pairs of dimensions of `operand` and `indices`. A slice starts
          at the position of its vector, and the result omits the operand's dimension, of slice size 0 or 1.
        - `offset_dims`: the result's dimensions that come from a slice, in ascending order. The other ones come from `indices`,
          without `index_vector_dim`.
        - `indices_are_sorted`: promises index vectors in ascending order.
        """
        return self.instruction(
            "gather",
            [operand, indices],
            offset_dims=offset_dims,
            collapsed_slice_dims=collapsed_slice_dims,
            start_index_map=start_index_map,
            operand_batching_dims=operand_batching_dims or None,
            start_indices_batching_dims=start_indices_batching_dims or None,
            index_vector_dim=index_vector_dim,
            slice_sizes=slice_sizes,
            indices_are_sorted=indices_are_sorted or None,
        )

    def scatter(
        self,
        operands: HloValue | Sequence[HloValue],
        indices: HloValue,
        updates: HloValue | Sequence[HloValue],
        to_apply: ComputationLike,
        *,
        update_window_dims: Ints,
        inserted_window_dims: Ints,
        scatter_dims_to_operand_dims: Ints,
        index_vector_dim: int,
        input_batching_dims: Ints = (),
        scatter_indices_batching_dims: Ints = (),
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
    ) -> HloValue:
        """Update `operand` at the index vectors; `to_apply` takes the old elements of all operands, then the updates."""
        arrays, changes = values_of(operands), values_of(updates)
        return self.instruction(
            "scatter",
            [*arrays, indices, *changes],
            called={"to_apply": [self.computation_of(to_apply, scalars_of([*arrays, *changes]), "scatter_computation")]},
            update_window_dims=update_window_dims,
            inserted_window_dims=inserted_window_dims,
            scatter_dims_to_operand_dims=scatter_dims_to_operand_dims,
            input_batching_dims=input_batching_dims or None,
            scatter_indices_batching_dims=scatter_indices_batching_dims or None,
            index_vector_dim=index_vector_dim,
            indices_are_sorted=indices_are_sorted or None,
            unique_indices=unique_indices or None,
        )

    def get_dimension_size(self, operand: HloValue, dimension: int) -> HloValue:
        """Return the run-time size as s32."""
        return self.instruction("get-dimension-size", [operand], dimensions=[dimension])

    def set_dimension_size(self, operand: HloValue, size: HloValue, dimension: int) -> HloValue:
        """Return the array with the dynamic size `size` (an s32 scalar) in a dimension."""
        return self.instruction("set-dimension-size", [operand, size], dimensions=[dimension])


def values_of(values: HloValue | Sequence[HloValue]) -> list[HloValue]:
    """Return one value or several as a list."""
    return [values] if isinstance(values, HloValue) else list(values)


def scalars_of(values: Sequence[HloValue]) -> list[Shape]:
    """Return the scalar shape of each value's elements, for the parameters of a reducer."""
    return [Shape.array(value.shape.element_type, ()) for value in values]
