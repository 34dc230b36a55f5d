"""Lower dynamic dimensions to static ones with their bounds as sizes, and mask elements beyond the run-time sizes.

    d = f32[<=8] set-dimension-size(x, n), dimensions={0}
    r = f32[] reduce(d, zero), dimensions={0}, to_apply=add     =>   reduce(select(iota < n, x, zero), zero), ..

The pass propagates the size of each dimension; `get-dimension-size` is replaced by it. Elements beyond the size are replaced
where they would change results (reductions, dots, sorts, windows). Where they would be between valid elements (concatenate,
reverse, a reshape across dimensions), valid elements are moved. `dynamic/ops.py` handles convolutions, scatters and reshapes.
Loops, branches and calls get the sizes as additional elements of their operands and results. A custom call `PadToStatic`
splits an entry parameter into array and sizes, and `SliceToDynamic` makes a dynamic result; other instructions of executed
computations have no dynamic dimensions afterwards. Raises Unsupported for ops without a rule. XLA's `dynamic_padder.cc` and
`dynamic_dimension_inference.cc`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, copy_instruction
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.opcodes.traits import DYNAMIC_SIZE, ELEMENTWISE, FORWARDING, SYNC_CONTROL_FLOW
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.views.dots import dot_side
from hlo_run.hlo_passes.dynamic import ops as dynamic_ops
from hlo_run.hlo_passes.dynamic.ops import refused
from hlo_run.hlo_passes.dynamic.sizes import (
    Sizes,
    fixed_shape,
    is_dynamic,
    mask,
    pad_sizes,
    reshape_sizes,
    window_sizes,
)
from hlo_run.hlo_passes.dynamic.values import SizedValues
from hlo_run.pass_support.call_graph import give_each_its_own
from hlo_run.pass_support.hlo_pass import PassContext

_POINTWISE = ELEMENTWISE | opcode_set("opt-barrier")
_DYNAMIC_AFTERWARDS: frozenset[Opcode] = frozenset(("parameter", "custom-call", "tuple", "get-tuple-element"))


class DynamicPadder(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "dynamic_padder"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit the executed computations in place."""
        del ctx
        parameters = any(not _is_taken_apart(p) for p in module.entry.parameters)
        if parameters or module.instructions_of(*DYNAMIC_SIZE) or _has_dynamic_results(module):
            give_each_its_own(module)
            _Padder(module, module.entry).run_entry()


def _is_taken_apart(parameter: HloInstruction) -> bool:
    """Return True if only `PadToStatic` calls use the dynamic parts of a parameter: the pass has run before."""
    return not is_dynamic(parameter.shape) or all(
        _is_taken_apart(user) if user.opcode == "get-tuple-element" else user.custom_call_target == "PadToStatic"
        for user in parameter.users
    )


def _has_dynamic_results(module: HloModule) -> bool:
    """Return True if the text declares a result as dynamic, though nothing sets its size; the size is then the bound.

    After the pass has run, only parameters, calls of `SliceToDynamic`, and tuples of them are dynamic.
    """
    bodies = (computation for computation in module.computations if not computation.is_fusion)
    return any(is_dynamic(i.shape) and i.opcode not in _DYNAMIC_AFTERWARDS for body in bodies for i in body.instructions)


def _runs_dynamic_ops(instruction: HloInstruction) -> bool:
    """True for a loop, branch or call in which sizes are set or read, though it may neither take nor give dynamic arrays."""
    return instruction.opcode in SYNC_CONTROL_FLOW and any(
        inner.opcode in DYNAMIC_SIZE or is_dynamic(inner.shape) or _runs_dynamic_ops(inner)
        for computation in instruction.called_computations
        for inner in computation.instructions
    )


def _dimension(instruction: HloInstruction) -> int:
    """Return the only dimension of the attribute `dimensions`."""
    dimensions = instruction.dimensions
    return dimensions[0]


class _Padder(SizedValues):
    """Propagates the sizes through one computation."""

    def __init__(self, module: HloModule, computation: HloComputation) -> None:
        self._module = module
        self._computation = computation
        super().__init__()
        self._replaced: dict[HloInstruction, None] = {}

    def run_entry(self) -> None:
        """Edit the entry and the computations that it calls."""
        for parameter in self._computation.parameters:
            if is_dynamic(parameter.shape):
                users = list(parameter.users)
                self._redirect(parameter, users, self.taken_apart(Editor(parameter), parameter))
        shape = self._computation.root.shape
        self._run()
        root = self._computation.root
        if is_dynamic(shape):
            self._computation.root = self.made_dynamic(Editor(root), root, root, shape)
        elif self.sizes.get(root):
            raise refused(root, "a result of dynamic size")

    def take(self, parameter: HloInstruction, shape: Shape, packed: Shape) -> None:
        """Change a parameter to the packed form: a tuple of a value of `shape` and its sizes."""
        users = list(parameter.users)
        parameter.shape = packed
        self._redirect(parameter, users, self.unpacked(Editor(parameter), parameter, shape))

    def run(self, returned: Shape | None) -> None:
        """Edit a called computation; its result becomes packed if it has dynamic sizes."""
        self._run()
        root = self._computation.root
        if returned is not None and is_dynamic(returned):
            self._computation.root = self.packed_with_sizes(Editor(root), root, returned)
        elif self.sizes.get(root):
            raise refused(root, "a result of dynamic size")

    def _run(self) -> None:
        for instruction in self._computation.post_order():
            if instruction in self.of_parameters or instruction.opcode == "parameter":
                continue
            touched = instruction.opcode in DYNAMIC_SIZE or is_dynamic(instruction.shape) or _runs_dynamic_ops(instruction)
            if touched or any(self.sizes.get(operand) for operand in instruction.operands):
                self._pad(instruction)
        self._computation.remove_all(self._replaced)

    def _redirect(self, old: HloInstruction, users: list[HloInstruction], new: HloInstruction) -> None:
        for user in dict.fromkeys(users):
            user.operands = tuple(new if operand is old else operand for operand in user.operands)
        if old.is_root:
            self._computation.root = new

    def _replace(self, old: HloInstruction, new: HloInstruction) -> None:
        self._module.replace(old, new)
        self._replaced[old] = None

    def _pad(self, instruction: HloInstruction) -> None:
        opcode = instruction.opcode
        rule = _RULES.get(opcode)
        if opcode in _POINTWISE and instruction.shape.is_array:
            rule = _Padder.pointwise
        if rule is None:
            raise refused(instruction, f"'{opcode}' of dynamic sizes")
        rule(self, instruction)

    # ---- where sizes come from and go to --------------------------------------------------------------------------

    def set_size(self, instruction: HloInstruction) -> None:
        value, size = instruction.operands
        dim = _dimension(instruction)
        made = Editor(instruction).add("copy", fixed_shape(value.shape), [value])
        old = self.sizes_by_dim(value)
        whole = size.opcode == "constant" and int(size.constant_array) == value.shape.dims[dim]
        self.keep(made, (*old[:dim], None if whole else size, *old[dim + 1 :]))
        self._replace(instruction, made)

    def get_size(self, instruction: HloInstruction) -> None:
        (value,) = instruction.operands
        dim = _dimension(instruction)
        sizes = self.sizes_of(value)
        size = sizes[dim] if sizes else None
        if size is None:
            size = Editor(instruction).constant(value.shape.dims[dim], "s32")
            size.name = self._module.unique_instruction_name(instruction.name)
        self._replace(instruction, size)

    def pointwise(self, instruction: HloInstruction) -> None:
        """The result's size is the minimum of the operands' sizes."""
        editor = Editor(instruction)
        found: list[HloInstruction | None] = [None] * instruction.shape.rank
        for operand in instruction.operands:
            for dim, size in enumerate(self.sizes_of(operand)):
                known = found[dim]
                if size is not None and known is not None and known is not size:
                    size = editor.binary("minimum", known, size)
                found[dim] = size or known
        self.keep(instruction, tuple(found))

    def tuple(self, instruction: HloInstruction) -> None:
        for index, operand in enumerate(instruction.operands):
            for path, sizes in self.sizes.get(operand, {}).items():
                self.keep(instruction, sizes, (index, *path))
        instruction.shape = Shape.make_tuple(tuple(operand.shape for operand in instruction.operands))

    def element(self, instruction: HloInstruction) -> None:
        index = instruction.tuple_index
        self.keep(instruction, ())
        for path, sizes in self.sizes.get(instruction.operands[0], {}).items():
            if path[0] == index:
                self.keep(instruction, sizes, path[1:])

    def same(self, instruction: HloInstruction) -> None:
        """The result has the sizes of operand 0."""
        self.keep(instruction, ())
        for path, sizes in self.sizes.get(instruction.operands[0], {}).items():
            self.keep(instruction, sizes, path)

    # ---- computations that others call --------------------------------------------------------------------------

    def loop(self, instruction: HloInstruction) -> None:
        self._call(instruction, [(group[0], [0]) for group in (instruction.called["body"], instruction.called["condition"])], 1)

    def branch(self, instruction: HloInstruction) -> None:
        called = instruction.called
        branches = called.get("branch_computations") or (*called["true_computation"], *called["false_computation"])
        self._call(instruction, [(branch, [number + 1]) for number, branch in enumerate(branches)], len(branches))

    def call(self, instruction: HloInstruction) -> None:
        self._call(instruction, [(instruction.to_apply, list(range(len(instruction.operands))))], 1)

    def _call(self, instruction: HloInstruction, called: list[tuple[HloComputation, list[int]]], returning: int) -> None:
        """Pass sizes to computations, each with its operand numbers, and return them; the first `returning` give the result."""
        editor, shape = Editor(instruction), instruction.shape
        before = [operand.shape for operand in instruction.operands]
        for computation, numbers in called:
            for parameter, number in zip(computation.parameters, numbers, strict=True):
                before[number] = parameter.shape
        operands = [
            self.packed_with_sizes(editor, operand, old) if is_dynamic(old) else operand
            for operand, old in zip(instruction.operands, before, strict=True)
        ]
        for place, (computation, numbers) in enumerate(called):
            padder = _Padder(self._module, computation)
            for parameter, number in zip(computation.parameters, numbers, strict=True):
                if is_dynamic(before[number]):
                    padder.take(parameter, before[number], operands[number].shape)
            padder.run(shape if place < returning else None)
        made = copy_instruction(instruction, operands, called[0][0].root.shape)
        self._computation.add(made)
        self._replace(instruction, self.unpacked(editor, made, shape) if is_dynamic(shape) else made)

    # ---- moved elements -------------------------------------------------------------------------------------------

    def broadcast(self, instruction: HloInstruction) -> None:
        found: list[HloInstruction | None] = [None] * instruction.shape.rank
        for dim, size in zip(instruction.dimensions, self.sizes_of(instruction.operands[0]), strict=False):
            found[dim] = size
        self.keep(instruction, tuple(found))

    def transpose(self, instruction: HloInstruction) -> None:
        sizes = self.sizes_by_dim(instruction.operands[0])
        order = instruction.dimensions
        self.keep(instruction, tuple(sizes[dim] for dim in order))

    def reshape(self, instruction: HloInstruction) -> None:
        (value,) = instruction.operands
        sizes = reshape_sizes(Editor(instruction), value.shape.dims, self.sizes_by_dim(value), instruction.shape.dims)
        if sizes is None:
            self._replace(instruction, dynamic_ops.static_reshape(self, instruction))
        else:
            self.keep(instruction, sizes)

    def dynamic_reshape(self, instruction: HloInstruction) -> None:
        self._replace(instruction, dynamic_ops.dynamic_reshape(self, instruction))

    def slice(self, instruction: HloInstruction) -> None:
        """A dimension that is sliced whole keeps its size."""
        value = instruction.operands[0]
        if any(self.sizes_of(other) for other in instruction.operands[1:]):
            raise refused(instruction, f"'{instruction.opcode}' of dynamic sizes")
        dims = zip(self.sizes_by_dim(value), value.shape.dims, instruction.shape.dims, strict=True)
        self.keep(instruction, tuple(size if before == after else None for size, before, after in dims))

    def gather(self, instruction: HloInstruction) -> None:
        """The batch dimensions have the sizes of the indices; the window dimensions are static."""
        sizes, vector_dim = self.sizes_of(instruction.operands[1]), instruction.index_vector_dim
        batch = iter([size for dim, size in enumerate(sizes) if dim != vector_dim])
        offsets = instruction.offset_dims
        self.keep(instruction, tuple(None if dim in offsets else next(batch, None) for dim in range(instruction.shape.rank)))

    def pad(self, instruction: HloInstruction) -> None:
        value, fill = instruction.operands
        editor, sizes = Editor(instruction), self.sizes_by_dim(value)
        instruction.operands = (self.masked(editor, value, fill, tuple(range(value.shape.rank))), fill)
        self.keep(instruction, pad_sizes(editor, sizes, instruction.padding))

    def reverse(self, instruction: HloInstruction) -> None:
        """Valid elements are at the end after a reverse: move them to the front."""
        value, editor = instruction.operands[0], Editor(instruction)
        sizes, dims = self.sizes_by_dim(value), value.shape.dims
        made = editor.add("reverse", fixed_shape(instruction.shape), [value], dimensions=instruction.dimensions)
        moved = {dim for dim in instruction.dimensions if sizes[dim] is not None}
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
        """Write the operands one after another: each one overwrites the invalid elements of the one before."""
        joined = _dimension(instruction)
        editor = Editor(instruction)
        kept: list[HloInstruction | None] = [None] * instruction.shape.rank
        zero = editor.constant(0, "s32")
        place = zero
        result = editor.broadcast(editor.constant(0, instruction.shape.element_type), instruction.shape.dims)
        for operand in instruction.operands:
            sizes = self.sizes_by_dim(operand)
            starts = [place if dim == joined else zero for dim in range(instruction.shape.rank)]
            result = editor.add("dynamic-update-slice", result.shape, [result, operand, *starts])
            size = sizes[joined] or editor.constant(operand.shape.dims[joined], "s32")
            place = editor.binary("add", place, size)
            kept = [mine or other for mine, other in zip(kept, sizes, strict=True)]
        kept[joined] = place
        self.keep(result, tuple(kept))
        self._replace(instruction, result)

    # ---- elements that must be masked ----------------------------------------------------------------------------------

    def reduce(self, instruction: HloInstruction) -> None:
        editor, count = Editor(instruction), len(instruction.operands) // 2
        reduced = instruction.dimensions
        arrays, inits = instruction.operands[:count], instruction.operands[count:]
        # Without sizes, only the text of the result says that it is dynamic: its size is the bound.
        sizes = next((found for array in arrays if (found := self.sizes_of(array))), (None,) * arrays[0].shape.rank)
        for array in arrays:
            self.sizes.setdefault(array, {}).setdefault((), sizes)
        filled = [self.masked(editor, array, init, reduced) for array, init in zip(arrays, inits, strict=True)]
        instruction.operands = (*filled, *inits)
        self._keep_leaves(instruction, tuple(size for dim, size in enumerate(sizes) if dim not in reduced))

    def reduce_window(self, instruction: HloInstruction) -> None:
        if len(instruction.operands) != 2:
            raise refused(instruction, "windows of several arrays of dynamic sizes")
        editor, (array, init) = Editor(instruction), instruction.operands
        sizes = self.sizes_by_dim(array)
        instruction.operands = (self.masked(editor, array, init, tuple(range(array.shape.rank))), init)
        self.keep(instruction, window_sizes(editor, sizes, instruction.window))

    def dot(self, instruction: HloInstruction) -> None:
        editor = Editor(instruction)
        operands: list[HloInstruction] = []
        batch: list[HloInstruction | None] = []
        free: list[HloInstruction | None] = []
        for number, operand in enumerate(instruction.operands[:2]):
            side = dot_side(instruction, number)
            zero = editor.constant(0, operand.shape.element_type)
            operands.append(self.masked(editor, operand, zero, side.contracting))
            sizes = self.sizes_by_dim(operand)
            own = [sizes[dim] for dim in side.batch]
            batch = [mine or other for mine, other in zip(batch, own, strict=True)] if batch else own
            free += [sizes[dim] for dim in side.free]
        instruction.operands = tuple(operands)
        self.keep(instruction, (*batch, *free))

    def sort(self, instruction: HloInstruction) -> None:
        """Elements beyond the size come last: a flag per element takes part in the comparison."""
        from hlo_run.hlo_passes.subgraphs.comparators import with_flags  # imports the builder, and every module runs this pass

        dim = _dimension(instruction)
        known = (found for operand in instruction.operands if (found := self.sizes_of(operand)))
        sizes = next(known, (None,) * instruction.operands[0].shape.rank)
        editor, size = Editor(instruction), sizes[dim]
        made = instruction
        if size is not None:
            flags = mask(editor, instruction.operands[0].shape.dims, {dim: size})
            assert flags is not None, "a mask exists, since a size is dynamic"
            operands = [*instruction.operands, flags]
            comparator = self._module.add_computation(with_flags(instruction.to_apply))
            shape = Shape.make_tuple(tuple(fixed_shape(operand.shape) for operand in operands))
            attributes = {key: instruction.attrs[key] for key in ("dimensions", "is_stable") if key in instruction.attrs}
            ordered = editor.add_with("sort", shape, operands, attributes, {"to_apply": (comparator,)})
            parts = [editor.element(ordered, number) for number in range(len(operands) - 1)]
            made = editor.tuple(parts) if instruction.shape.is_tuple else parts[0]
            self._replace(instruction, made)
        self._keep_leaves(made, sizes)

    def _keep_leaves(self, instruction: HloInstruction, sizes: Sizes) -> None:
        """Record the sizes of an array, or of each element of a tuple."""
        if not instruction.shape.is_tuple:
            self.keep(instruction, sizes)
            return
        for index in range(len(instruction.shape.tuple_shapes)):
            self.keep(instruction, sizes, (index,))
        instruction.shape = Shape.make_tuple(tuple(map(fixed_shape, instruction.shape.tuple_shapes)))


_SAME: frozenset[Opcode] = FORWARDING - opcode_set("bitcast") | opcode_set("copy")
_RULES: dict[Opcode, Callable[[_Padder, HloInstruction], None]] = {
    "set-dimension-size": _Padder.set_size,
    "get-dimension-size": _Padder.get_size,
    "tuple": _Padder.tuple,
    "get-tuple-element": _Padder.element,
    **dict.fromkeys(_SAME, _Padder.same),
    "while": _Padder.loop,
    "conditional": _Padder.branch,
    "call": _Padder.call,
    "gather": _Padder.gather,
    "dynamic-slice": _Padder.slice,
    "dynamic-update-slice": _Padder.slice,
    "broadcast": _Padder.broadcast,
    "transpose": _Padder.transpose,
    "reshape": _Padder.reshape,
    "slice": _Padder.slice,
    "pad": _Padder.pad,
    "reverse": _Padder.reverse,
    "concatenate": _Padder.concatenate,
    "reduce": _Padder.reduce,
    "reduce-window": _Padder.reduce_window,
    "convolution": dynamic_ops.convolution,
    "scatter": dynamic_ops.scatter,
    "dynamic-reshape": _Padder.dynamic_reshape,
    "dot": _Padder.dot,
    "sort": _Padder.sort,
}
