"""Track the dynamic sizes of values in HLO, and pass them along with values between computations."""

from __future__ import annotations

from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.dynamic.sizes import Sizes, fixed_shape, is_dynamic, mask

_SIZE = Shape.array("s32", ())


class SizedValues:
    """The sizes of a computation's values: for each array in a value, by shape index, the size of each dimension.

    `of_parameters` are the values that stay dynamic: parameters of the entry and their elements.
    """

    def __init__(self) -> None:
        self.sizes: dict[HloInstruction, dict[tuple[int, ...], Sizes]] = {}
        self.of_parameters: dict[HloInstruction, None] = {}

    def keep(self, instruction: HloInstruction, sizes: Sizes, path: tuple[int, ...] = ()) -> None:
        """Record the sizes of the array at `path`, and make the instruction's shape static."""
        if any(sizes):
            self.sizes.setdefault(instruction, {})[path] = sizes
        if is_dynamic(instruction.shape):
            instruction.shape = instruction.shape.map_leaves(fixed_shape)

    def sizes_of(self, value: HloInstruction) -> Sizes:
        """Return the size of each dynamic dimension of an array as an s32 scalar, None for static ones; () if all are static."""
        return self.sizes.get(value, {}).get((), ())

    def sizes_by_dim(self, value: HloInstruction) -> Sizes:
        """Return the same with one entry per dimension, also if all are static."""
        return self.sizes_of(value) or (None,) * value.shape.rank

    def masked(self, editor: Editor, value: HloInstruction, fill: HloInstruction, dims: tuple[int, ...]) -> HloInstruction:
        """Return a value with elements beyond its sizes in dimensions `dims` replaced by `fill`, a scalar."""
        sizes = self.sizes_of(value)
        flags = mask(editor, value.shape.dims, {dim: size for dim in dims if sizes and (size := sizes[dim]) is not None})
        return value if flags is None else editor.select(flags, value, editor.broadcast(fill, value.shape.dims))

    def taken_apart(self, editor: Editor, value: HloInstruction) -> HloInstruction:
        """Return a parameter, or an element of it, as a value of static shape (the bounds), and record its sizes."""
        shape = value.shape
        if shape.is_tuple:
            self.of_parameters[value] = None
            parts = [self.taken_apart(editor, editor.element(value, index)) for index in range(len(shape.tuple_shapes))]
            made = editor.tuple(parts)
            for index, part in enumerate(parts):
                for path, sizes in self.sizes.get(part, {}).items():
                    self.keep(made, sizes, (index, *path))
            return made
        if not is_dynamic(shape):
            return value
        self.of_parameters[value] = None
        result = Shape.make_tuple((fixed_shape(shape), *(_SIZE,) * shape.rank))
        call = editor.add("custom-call", result, [value], custom_call_target="PadToStatic")
        made = editor.element(call, 0)
        sizes = [editor.element(call, dim + 1) if is_open else None for dim, is_open in enumerate(shape.dynamic_dims)]
        self.keep(made, tuple(sizes))
        return made

    def made_dynamic(
        self, editor: Editor, root: HloInstruction, value: HloInstruction, shape: Shape, path: tuple[int, ...] = ()
    ) -> HloInstruction:
        """Return a result, or the element of the root at `path`, as a value of its dynamic shape."""
        if shape.is_tuple:
            parts = enumerate(shape.tuple_shapes)
            return editor.tuple(
                [self.made_dynamic(editor, root, editor.element(value, index), part, (*path, index)) for index, part in parts]
            )
        if not is_dynamic(shape):
            return value
        sizes = self._all_sizes(editor, root, path, shape)
        return editor.add("custom-call", shape, [value, *sizes], custom_call_target="SliceToDynamic")

    def _all_sizes(self, editor: Editor, value: HloInstruction, path: tuple[int, ...], shape: Shape) -> list[HloInstruction]:
        """Return the sizes of all dimensions of an array, static ones as constants."""
        sizes = self.sizes.get(value, {}).get(path) or (None,) * shape.rank
        return [size or editor.constant(bound, "s32") for size, bound in zip(sizes, shape.dims, strict=True)]

    def packed_with_sizes(self, editor: Editor, value: HloInstruction, shape: Shape) -> HloInstruction:
        """Return a tuple of a value (a tuple's elements) followed by the sizes of its dynamic dimensions."""
        is_tuple = shape.is_tuple
        parts = [editor.element(value, index) for index in range(len(shape.tuple_shapes))] if is_tuple else [value]
        for path, leaf in shape.leaves():
            if any(leaf.dynamic_dims):
                sizes = self._all_sizes(editor, value, path, leaf)
                parts += [size for size, is_open in zip(sizes, leaf.dynamic_dims, strict=True) if is_open]
        return editor.tuple(parts)

    def unpacked(self, editor: Editor, packed: HloInstruction, shape: Shape) -> HloInstruction:
        """Return the value of a tuple that `packed_with_sizes` made, and record its sizes."""
        count = len(shape.tuple_shapes) if shape.is_tuple else 1
        parts = [editor.element(packed, index) for index in range(len(packed.shape.tuple_shapes))]
        value = editor.tuple(parts[:count]) if shape.is_tuple else parts[0]
        remaining = iter(parts[count:])
        for path, leaf in shape.leaves():
            if any(leaf.dynamic_dims):
                self.keep(value, tuple(next(remaining) if is_open else None for is_open in leaf.dynamic_dims), path)
        return value
