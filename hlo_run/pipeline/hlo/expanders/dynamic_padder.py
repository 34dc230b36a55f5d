"""Give dynamic dimensions their bounds as static sizes, and keep what lies past their run-time sizes out of results.

    d = f32[<=8] set-dimension-size(x, n), dimensions={0}
    r = f32[] reduce(d, zero), dimensions={0}, to_apply=add     =>   reduce(select(iota < n, x, zero), zero), ..

The size of each dimension is followed from instruction to instruction; `get-dimension-size` becomes it. Where elements past the
size would count (reductions, products, sorts, windows) they are replaced, where they would stand in the way (concatenate,
reverse) the others move. Raises Unsupported for parameters, results and loops of dynamic sizes. Leaves no dynamic dimension
in executed computations. XLA's `dynamic_padder.cc` and `dynamic_dimension_inference.cc`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from hlo_run.analysis.elementwise import ELEMENTWISE
from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.errors import Unsupported
from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.shape import Shape
from hlo_run.pipeline.dynamic_sizes import Sizes, fixed_shape, is_dynamic, mask, pad_sizes, reshape_sizes, window_sizes
from hlo_run.pipeline.hlo_comparators import with_flags
from hlo_run.pipeline.passes import PassContext

_SOURCES = ("get-dimension-size", "set-dimension-size", "dynamic-reshape")
_POINTWISE = frozenset((*ELEMENTWISE, "copy", "reduce-precision", "bitcast-convert", "opt-barrier"))


@dataclass(frozen=True)
class DynamicPadder:
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "dynamic_padder"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit the executed computations in place."""
        del ctx
        dynamic_parameters = [parameter for parameter in module.entry.parameters if is_dynamic(parameter.shape)]
        if dynamic_parameters:
            raise _refused(dynamic_parameters[0], "a parameter of dynamic size")
        if not module.instructions_of(*_SOURCES):
            return
        for computation in executed_computations(module):
            _Padder(module, computation).run()


def _refused(instruction: HloInstruction, what: str) -> Unsupported:
    hint = "--platform=Interpreter, the numpy reference, follows dynamic sizes everywhere"
    return Unsupported(f"{what}: %{instruction.name} of shape {instruction.shape}", instruction.where, hint=hint)


def _dimension(instruction: HloInstruction) -> int:
    """Return the one dimension of the attribute `dimensions`."""
    dimensions: tuple[int, ...] = instruction.attrs["dimensions"]
    return dimensions[0]


class _Padder:
    """Follows the sizes through one computation."""

    def __init__(self, module: HloModule, computation: HloComputation) -> None:
        self._module = module
        self._computation = computation
        # Of an array or a tuple's element: the size of each dimension, None where it is static.
        self._sizes: dict[tuple[HloInstruction, int], Sizes] = {}
        self._replaced: dict[HloInstruction, None] = {}

    def run(self) -> None:
        """Edit the computation."""
        for instruction in self._computation.post_order():
            touched = instruction.opcode in _SOURCES or is_dynamic(instruction.shape)
            if touched or any(self._sizes_of(operand) for operand in instruction.operands):
                self._pad(instruction)
        self._computation.remove_all(self._replaced)
        root = self._computation.root
        if is_dynamic(root.shape) or any(self._sizes_of(root)):
            raise _refused(root, "a result of dynamic size")

    def _replace(self, old: HloInstruction, new: HloInstruction) -> None:
        self._module.replace(old, new)
        self._replaced[old] = None

    def _sizes_of(self, value: HloInstruction, index: int = 0) -> Sizes:
        return self._sizes.get((value, index), ())

    def _pad(self, instruction: HloInstruction) -> None:
        opcode = instruction.opcode
        rule = _RULES.get(opcode)
        if opcode in _POINTWISE and instruction.shape.is_array:
            rule = _Padder.pointwise
        if rule is None:
            raise _refused(instruction, f"'{opcode}' of dynamic sizes")
        rule(self, instruction)

    def keep(self, instruction: HloInstruction, sizes: Sizes, index: int = 0) -> None:
        """Note the sizes of an array and make its shape static."""
        if any(sizes):
            self._sizes[instruction, index] = sizes
        if not index and is_dynamic(instruction.shape):
            instruction.shape = fixed_shape(instruction.shape)

    def masked(self, editor: Editor, value: HloInstruction, fill: HloInstruction, dims: tuple[int, ...]) -> HloInstruction:
        """Return a value with `fill`, a scalar, for what lies past its sizes in these dimensions."""
        sizes = self._sizes_of(value)
        flags = mask(editor, value.shape.dims, {dim: size for dim in dims if sizes and (size := sizes[dim]) is not None})
        return value if flags is None else editor.select(flags, value, editor.broadcast(fill, value.shape.dims))

    # ---- where sizes come from and go to --------------------------------------------------------------------------

    def set_size(self, instruction: HloInstruction) -> None:
        value, size = instruction.operands
        dim = _dimension(instruction)
        made = Editor(instruction).add("copy", fixed_shape(value.shape), [value])
        old = self._sizes_of(value) or (None,) * value.shape.rank
        whole = size.opcode == "constant" and int(size.attrs["literal"]) == value.shape.dims[dim]
        self.keep(made, (*old[:dim], None if whole else size, *old[dim + 1 :]))
        self._replace(instruction, made)

    def get_size(self, instruction: HloInstruction) -> None:
        (value,) = instruction.operands
        dim = _dimension(instruction)
        sizes = self._sizes_of(value)
        size = sizes[dim] if sizes else None
        made = size if size is not None else Editor(instruction).constant(value.shape.dims[dim], "s32")
        self._replace(instruction, made)

    def pointwise(self, instruction: HloInstruction) -> None:
        """Operands of different sizes meet in the smallest."""
        editor = Editor(instruction)
        found: list[HloInstruction | None] = [None] * instruction.shape.rank
        for operand in instruction.operands:
            for dim, size in enumerate(self._sizes_of(operand)):
                known = found[dim]
                if size is not None and known is not None and known is not size:
                    size = editor.binary("minimum", known, size)
                found[dim] = size or known
        self.keep(instruction, tuple(found))

    def tuple(self, instruction: HloInstruction) -> None:
        for index, operand in enumerate(instruction.operands):
            if is_dynamic(operand.shape) and operand.shape.is_tuple:
                raise _refused(instruction, "a tuple in a tuple of dynamic sizes")
            self.keep(instruction, self._sizes_of(operand), index + 1)
        instruction.shape = Shape.make_tuple(tuple(operand.shape for operand in instruction.operands))

    def element(self, instruction: HloInstruction) -> None:
        self.keep(instruction, self._sizes_of(instruction.operands[0], instruction.attrs["index"] + 1))

    # ---- moved elements -------------------------------------------------------------------------------------------

    def broadcast(self, instruction: HloInstruction) -> None:
        found: list[HloInstruction | None] = [None] * instruction.shape.rank
        for dim, size in zip(instruction.attrs["dimensions"], self._sizes_of(instruction.operands[0]), strict=False):
            found[dim] = size
        self.keep(instruction, tuple(found))

    def transpose(self, instruction: HloInstruction) -> None:
        sizes = self._sizes_of(instruction.operands[0])
        order: tuple[int, ...] = instruction.attrs["dimensions"]
        self.keep(instruction, tuple(sizes[dim] for dim in order))

    def reshape(self, instruction: HloInstruction) -> None:
        (value,) = instruction.operands
        sizes = reshape_sizes(Editor(instruction), value.shape.dims, self._sizes_of(value), instruction.shape.dims)
        if sizes is None:
            raise _refused(instruction, "a reshape that moves elements of dynamic sizes")
        self.keep(instruction, sizes)

    def slice(self, instruction: HloInstruction) -> None:
        """A dimension that is kept whole keeps its size."""
        value = instruction.operands[0]
        dims = zip(self._sizes_of(value), value.shape.dims, instruction.shape.dims, strict=True)
        self.keep(instruction, tuple(size if before == after else None for size, before, after in dims))

    def pad(self, instruction: HloInstruction) -> None:
        value, fill = instruction.operands
        editor, sizes = Editor(instruction), self._sizes_of(value)
        instruction.operands = (self.masked(editor, value, fill, tuple(range(value.shape.rank))), fill)
        self.keep(instruction, pad_sizes(editor, sizes, instruction.attrs["padding"]))

    def reverse(self, instruction: HloInstruction) -> None:
        """What counts stands at the end then: bring it to the front."""
        value, editor = instruction.operands[0], Editor(instruction)
        sizes, dims = self._sizes_of(value), value.shape.dims
        made = editor.add("reverse", fixed_shape(instruction.shape), [value], dimensions=instruction.attrs["dimensions"])
        moved = {dim for dim in instruction.attrs["dimensions"] if sizes[dim] is not None}
        zero = editor.constant(0, "s32")
        starts = [
            zero if dim not in moved or size is None else editor.binary("subtract", editor.constant(dims[dim], "s32"), size)
            for dim, size in enumerate(sizes)
        ]
        if moved:
            fill = editor.constant(0, value.shape.element_type)
            wide = editor.pad(made, fill, [(0, dims[dim] if dim in moved else 0, 0) for dim in range(len(dims))])
            made = editor.add("dynamic-slice", made.shape, [wide, *starts], dynamic_slice_sizes=dims)
        self.keep(made, sizes)
        self._replace(instruction, made)

    def concatenate(self, instruction: HloInstruction) -> None:
        """Write one operand after the other: the next one covers what lies past the size of the one before."""
        joined = _dimension(instruction)
        editor = Editor(instruction)
        kept: list[HloInstruction | None] = [None] * instruction.shape.rank
        zero = editor.constant(0, "s32")
        place = zero
        result = editor.broadcast(editor.constant(0, instruction.shape.element_type), instruction.shape.dims)
        for operand in instruction.operands:
            sizes = self._sizes_of(operand) or (None,) * instruction.shape.rank
            starts = [place if dim == joined else zero for dim in range(instruction.shape.rank)]
            result = editor.add("dynamic-update-slice", result.shape, [result, operand, *starts])
            size = sizes[joined] or editor.constant(operand.shape.dims[joined], "s32")
            place = editor.binary("add", place, size)
            kept = [mine or other for mine, other in zip(kept, sizes, strict=True)]
        kept[joined] = place
        self.keep(result, tuple(kept))
        self._replace(instruction, result)

    # ---- elements that would count ----------------------------------------------------------------------------------

    def reduce(self, instruction: HloInstruction) -> None:
        editor, count = Editor(instruction), len(instruction.operands) // 2
        reduced: tuple[int, ...] = instruction.attrs["dimensions"]
        arrays, inits = instruction.operands[:count], instruction.operands[count:]
        sizes = next(found for array in arrays if (found := self._sizes_of(array)))
        for array in arrays:
            self._sizes.setdefault((array, 0), sizes)
        filled = [self.masked(editor, array, init, reduced) for array, init in zip(arrays, inits, strict=True)]
        instruction.operands = (*filled, *inits)
        self._keep_leaves(instruction, tuple(size for dim, size in enumerate(sizes) if dim not in reduced))

    def reduce_window(self, instruction: HloInstruction) -> None:
        if len(instruction.operands) != 2:
            raise _refused(instruction, "windows of several arrays of dynamic sizes")
        editor, (array, init) = Editor(instruction), instruction.operands
        sizes = self._sizes_of(array)
        instruction.operands = (self.masked(editor, array, init, tuple(range(array.shape.rank))), init)
        self.keep(instruction, window_sizes(editor, sizes, instruction.attrs["window"]))

    def dot(self, instruction: HloInstruction) -> None:
        editor = Editor(instruction)
        operands: list[HloInstruction] = []
        batch: list[HloInstruction | None] = []
        free: list[HloInstruction | None] = []
        for side, operand in zip(("lhs", "rhs"), instruction.operands, strict=True):
            contracting = instruction.attrs.get(f"{side}_contracting_dims", ())
            leading: tuple[int, ...] = instruction.attrs.get(f"{side}_batch_dims", ())
            zero = editor.constant(0, operand.shape.element_type)
            operands.append(self.masked(editor, operand, zero, tuple(contracting)))
            sizes = self._sizes_of(operand) or (None,) * operand.shape.rank
            own = [sizes[dim] for dim in leading]
            batch = [mine or other for mine, other in zip(batch, own, strict=True)] if batch else own
            free += [size for dim, size in enumerate(sizes) if dim not in (*contracting, *leading)]
        instruction.operands = operands
        self.keep(instruction, (*batch, *free))

    def sort(self, instruction: HloInstruction) -> None:
        """Elements past the size come last: a flag per element takes part in the sort."""
        dim = _dimension(instruction)
        sizes = next(found for operand in instruction.operands if (found := self._sizes_of(operand)))
        editor, size = Editor(instruction), sizes[dim]
        made = instruction
        if size is not None:
            flags = mask(editor, instruction.operands[0].shape.dims, {dim: size})
            assert flags is not None, "there is a size"
            operands = [*instruction.operands, flags]
            comparator = self._module.add_computation(with_flags(instruction.called["to_apply"][0]))
            shape = Shape.make_tuple(tuple(fixed_shape(operand.shape) for operand in operands))
            attributes = {key: instruction.attrs[key] for key in ("dimensions", "is_stable") if key in instruction.attrs}
            ordered = editor.add("sort", shape, operands, {"to_apply": (comparator,)}, **attributes)
            parts = [editor.element(ordered, number) for number in range(len(operands) - 1)]
            made = editor.tuple(parts) if instruction.shape.is_tuple else parts[0]
            self._replace(instruction, made)
        self._keep_leaves(made, sizes)

    def _keep_leaves(self, instruction: HloInstruction, sizes: Sizes) -> None:
        """Note the sizes of an array, or of each element of a tuple."""
        if not instruction.shape.is_tuple:
            self.keep(instruction, sizes)
            return
        for index in range(len(instruction.shape.tuple_shapes)):
            self.keep(instruction, sizes, index + 1)
        instruction.shape = Shape.make_tuple(tuple(map(fixed_shape, instruction.shape.tuple_shapes)))


_RULES: dict[str, Callable[[_Padder, HloInstruction], None]] = {
    "set-dimension-size": _Padder.set_size,
    "get-dimension-size": _Padder.get_size,
    "tuple": _Padder.tuple,
    "get-tuple-element": _Padder.element,
    "broadcast": _Padder.broadcast,
    "transpose": _Padder.transpose,
    "reshape": _Padder.reshape,
    "slice": _Padder.slice,
    "pad": _Padder.pad,
    "reverse": _Padder.reverse,
    "concatenate": _Padder.concatenate,
    "reduce": _Padder.reduce,
    "reduce-window": _Padder.reduce_window,
    "dot": _Padder.dot,
    "sort": _Padder.sort,
}
