"""Rewrite instructions to the default layout: permute their dimensions to the physical order, with bitcasts around them.

    n = f32[4,3]{0,1} negate(f32[4,3]{0,1} p)   =>   bitcast(f32[3,4]{1,0} negate(f32[3,4]{1,0} bitcast(p)))
    c = f32[4,3]{1,0} copy(f32[4,3]{0,1} p)     =>   f32[4,3]{1,0} transpose(f32[3,4]{1,0} bitcast(p)), dimensions={1,0}

The dimensions of convolutions are renumbered, those of a broadcast may come out unsorted (`broadcast_canonicalizer`). Dots,
other library calls, reductions (`reduction-layout-normalizer`), gathers, fusions and reshapes that move bytes stay as they are.
The window dimensions of a scatter may come out unsorted (`scatter_simplifier`). XLA's `LayoutNormalization`. Needs layouts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeAlias

import numpy as np
from msgspec import Struct, field

from hlo_run.analysis.bitcast_kind import reshape_is_bitcast
from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.analysis.layout.convolution_layouts import is_convolution_call, renumbered
from hlo_run.hlo.edit import Editor, Leftovers, copy_instruction
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.opcodes.traits import ELEMENTWISE
from hlo_run.hlo.values.attribute_values import AttributeValue
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.views.slices import DynamicSlice
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pass_support.observer import UNREPORTED
from hlo_run.records import replace

Changes: TypeAlias = "dict[str, AttributeValue]"


class LayoutNormalization(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "layout_normalization"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit the executed computations in place."""
        version, is_reported = module.version, False
        for computation in executed_computations(module):
            is_reported |= _Normalizer(module).run(computation)
        if module.version != version and not is_reported:
            ctx.note(UNREPORTED, lambda: self.name, if_wanted=True)


def _order(shape: Shape) -> list[int]:
    """Return the logical dimensions in physical order, major to minor."""
    return list(reversed(shape.minor_to_major))


def _normal(shape: Shape) -> Shape:
    extra = shape.layout.extra if shape.layout else ""
    made = Shape.array(shape.element_type, tuple(shape.dims[d] for d in _order(shape)))
    if any(shape.dynamic_dims):
        made = replace(made, dynamic_dims=tuple(shape.dynamic_dims[d] for d in _order(shape)))
    return replace(made, layout=replace(made.layout, extra=extra)) if extra and made.layout else made


def _plain(value: HloInstruction) -> Editor:
    """Return an editor whose instructions have no metadata."""
    return Editor(value, derives=False)


class _Normalizer(Struct):
    """Rewrites one computation; `_normal_of` maps a value in another layout to its bitcast in the default layout."""

    module: HloModule
    _normal_of: dict[HloInstruction, HloInstruction] = field(default_factory=dict[HloInstruction, HloInstruction])
    _done: set[HloInstruction] = field(default_factory=set[HloInstruction])
    _is_reported: bool = False

    def run(self, computation: HloComputation) -> bool:
        """Replace the instructions to normalise, in XLA's order: also a bitcast that is new when its user asks for operands.

        Return False if only unused bitcasts were added.
        """
        ordered = {p for i in computation.instructions for p in i.control_predecessors}
        alone = [i for i in computation.instructions if not i.users and i is not computation.root and i not in ordered]
        unused, entered = Leftovers(), set[HloInstruction]()
        for start in (*alone, computation.root):
            stack = [start]
            while stack:
                top = stack[-1]
                if top in self._done or top in unused:
                    stack.pop()
                elif top in entered:
                    stack.pop()
                    self._done.add(top)
                    for old in self._normalized(top):
                        self._is_reported = True
                        unused.add(old)
                else:
                    entered.add(top)
                    stack += [i for i in reversed((*top.operands, *top.control_predecessors)) if i not in self._done]
        unused.remove()
        return self._is_reported

    def _normalized(self, instruction: HloInstruction) -> list[HloInstruction]:
        """Normalise an instruction; return those that it replaced."""
        if is_convolution_call(instruction):
            return self._convolution(instruction)
        new = self._new(instruction) if _is_to_do(instruction) else None
        if new is None:
            self._there_and_back(instruction)
            return []
        if new is instruction:
            return []
        self._done.add(new)
        back = _plain(instruction).bitcast(new, instruction.shape)
        self._normal_of[back] = new
        self.module.replace(instruction, back)
        return [instruction]

    def _there_and_back(self, value: HloInstruction) -> None:
        """Let users of a value in another layout read a bitcast of its bitcast to the default layout."""
        if not value.users or not value.shape.is_array or value.shape.has_default_layout:
            return
        self._is_reported = True
        users = list(value.users)
        normal = _plain(value).bitcast(value, _normal(value.shape))
        back = _plain(value).bitcast(normal, value.shape)
        self._normal_of[back] = normal
        self._done.add(normal)
        for user in users:
            user.replace_operand(value, back)

    def _convolution(self, call: HloInstruction) -> list[HloInstruction]:
        """Replace a call if an array of it is not in the default layout; return the instructions that are now unused."""
        result = call.shape.tuple_shapes[0]
        shapes = [*(operand.shape for operand in call.operands[:2]), result]
        plain = _plain(call)
        # As in XLA, also bitcasts that change nothing, and those of a call that stays: `dce` removes them.
        inputs = [plain.add("bitcast", _normal(operand.shape), [operand]) for operand in call.operands]
        self._done.update(inputs)
        if all(shape.has_default_layout for shape in (*shapes, *(operand.shape for operand in call.operands))):
            return []
        labels = renumbered(call, [_order(shape) for shape in shapes])
        # XLA names it like a new call first, then like the old one.
        made = copy_instruction(call, inputs, Shape.make_tuple(tuple(map(_normal, call.shape.tuple_shapes))), call.opcode)
        made.attrs["dim_labels"] = labels
        plain.computation.add(made)
        made.name = self.module.unique_instruction_name(call.name)
        self._done.add(made)
        parts: list[HloInstruction] = []
        for number, shape in enumerate(call.shape.tuple_shapes):
            element = plain.element(made, number)
            parts.append(plain.add("bitcast", shape, [element]))
            self._done |= {element, parts[-1]}
        self.module.replace(call, plain.tuple(parts))
        return [call]

    def _input(self, value: HloInstruction) -> HloInstruction:
        """Return `value` in the default layout."""
        if value.shape.has_default_layout:
            return value
        if value not in self._normal_of:
            self._normal_of[value] = _plain(value).bitcast(value, _normal(value.shape))
        return self._normal_of[value]

    def _new(self, instruction: HloInstruction) -> HloInstruction | None:
        # As in XLA, only the bitcast that replaces an instruction gets its sharding.
        editor, opcode = Editor(instruction, keeps_sharding=False), instruction.opcode
        if opcode in ("copy", "transpose"):
            return self._as_transpose(editor, instruction)
        if opcode == "broadcast":
            return self._broadcast(editor, instruction)
        if opcode == "constant":
            return self._constant(instruction)
        if opcode == "scatter":
            return self._scatter(editor, instruction)
        change = _CHANGES.get(opcode)
        if change is None and (opcode not in ELEMENTWISE or opcode == "map"):
            return None
        operands = instruction.operands
        if opcode in ("dynamic-slice", "dynamic-update-slice"):
            operands = _with_permuted_indices(instruction)
        attributes = dict(instruction.attrs) | (change(instruction) if change else {})
        attributes.pop("metadata", None)
        inputs = [self._input(operand) for operand in operands]
        called = {name: list(group) for name, group in instruction.called.items()}
        made = editor.add_with(opcode, _normal(instruction.shape), inputs, attributes, called)
        if opcode in _MADE_ANEW and instruction.shape.rank == instruction.operands[0].shape.rank:
            made.attrs.pop("frontend_attributes", None)
        return made

    def _broadcast(self, editor: Editor, instruction: HloInstruction) -> HloInstruction:
        """Return a broadcast whose dimensions may descend: its operand keeps its order."""
        dims, result = instruction.dimensions, _order(instruction.shape)
        places = [result.index(dims[d]) for d in _order(instruction.operands[0].shape)]
        value = self._input(instruction.operands[0])
        return editor.add("broadcast", _normal(instruction.shape), [value], dimensions=tuple(places))

    def _scatter(self, editor: Editor, scatter: HloInstruction) -> HloInstruction:
        """Return a scatter with renumbered dimensions: the window dimensions come in the order of the result's."""
        count = len(scatter.operands) // 2
        order, rows, updates = (_order(scatter.operands[number].shape) for number in (0, count, count + 1))
        kept = iter(scatter.update_window_dims)
        inserted = scatter.inserted_window_dims
        windows = [None if dim in inserted else updates.index(next(kept)) for dim in range(len(order))]
        moved = [windows[dim] for dim in order]
        changes: Changes = {
            "update_window_dims": tuple(dim for dim in moved if dim is not None),
            "inserted_window_dims": tuple(place for place, dim in enumerate(moved) if dim is None),
            "scatter_dims_to_operand_dims": tuple(map(order.index, scatter.scatter_dims_to_operand_dims)),
            "index_vector_dim": rows.index(scatter.index_vector_dim),
        }
        attributes = dict(scatter.attrs) | changes
        attributes.pop("metadata", None)
        inputs = [self._input(operand) for operand in scatter.operands]
        return editor.add_with("scatter", _normal(scatter.shape), inputs, attributes, {"to_apply": [scatter.to_apply]})

    def _constant(self, constant: HloInstruction) -> HloInstruction:
        """Give a constant the default layout, and its users a bitcast of it."""
        shape, users = constant.shape, list(constant.users)
        constant.attrs["literal"] = np.transpose(constant.constant_array, _order(shape))
        constant.shape = _normal(shape)
        back = _plain(constant).bitcast(constant, shape)
        self._normal_of[back] = constant
        for user in users:
            user.replace_operand(constant, back)
        if constant.is_root and constant.parent is not None:
            constant.parent.root = back
        return constant

    def _as_transpose(self, editor: Editor, instruction: HloInstruction) -> HloInstruction:
        """Return a copy or transpose as a transpose of default layouts, or its input if no byte moves."""
        source = instruction.operands[0].shape
        permutation = instruction.ints("dimensions") or tuple(range(source.rank))
        order = _order(source)
        dimensions = [order.index(permutation[d]) for d in _order(instruction.shape)]
        value = self._input(instruction.operands[0])
        made = editor.transpose(value, dimensions)
        if made is not value:
            made.shape = _normal(instruction.shape)
            made.attrs.pop("sharding", None)  # as in XLA, which derives it from the bitcast
        return made


def _is_to_do(instruction: HloInstruction) -> bool:
    if instruction.opcode == "scatter":
        return _is_scatter_to_do(instruction)
    shapes = [instruction.shape, *(operand.shape for operand in instruction.operands)]
    if not all(shape.is_array for shape in shapes) or instruction.control_predecessors:
        return False
    if all(shape.has_default_layout for shape in shapes):
        return False
    if instruction.opcode == "copy":
        return instruction.shape.minor_to_major != shapes[1].minor_to_major
    if instruction.opcode == "bitcast-convert" and instruction.shape.rank != shapes[1].rank:
        return _parts_lie_together(*shapes)
    if instruction.opcode == "reshape":
        return reshape_is_bitcast(shapes[1], instruction.shape)
    full = [shape for shape in shapes if shape.rank == instruction.shape.rank]
    # The operands' elements correspond one to one, so one dimension order must hold for all of them.
    return instruction.opcode in _OF_SEVERAL_ORDERS or len({shape.minor_to_major for shape in full}) == 1


def _is_scatter_to_do(scatter: HloInstruction) -> bool:
    """Return True for a scatter of one array with one dimension of rows, as `scatter_simplifier` leaves it, in another layout."""
    updates = scatter.operands[-1].shape
    return (
        scatter.shape.is_array
        and scatter.shape.minor_to_major == scatter.operands[0].shape.minor_to_major
        and updates.rank - len(scatter.update_window_dims) <= 1
        and scatter.index_vector_dim < scatter.operands[1].shape.rank
        and not scatter.input_batching_dims
        and not all(operand.shape.has_default_layout for operand in scatter.operands)
    )


def _parts_lie_together(one: Shape, other: Shape) -> bool:
    """Return True if the dimension that splits elements is innermost, and the other dimensions have the same order in both."""
    split, whole = (one, other) if one.rank > other.rank else (other, one)
    return split.minor_to_major == (split.rank - 1, *whole.minor_to_major)


# The attributes of these opcodes relate the dimensions of result and operand.
# XLA makes these without the frontend attributes of the old ones, but if a bitcast-convert splits or joins elements.
_MADE_ANEW = (ELEMENTWISE - opcode_set("clamp select")) | opcode_set(
    "bitcast-convert broadcast dynamic-slice dynamic-update-slice reduce-window reshape slice"
)
_OF_SEVERAL_ORDERS: frozenset[Opcode] = frozenset(("broadcast", "convolution", "iota", "transpose"))


def _with_permuted_indices(instruction: HloInstruction) -> tuple[HloInstruction, ...]:
    starts = DynamicSlice.of(instruction).starts
    arrays = instruction.operands[: len(instruction.operands) - len(starts)]
    return (*arrays, *(starts[d] for d in _order(instruction.shape)))


def _slice_sizes(instruction: HloInstruction) -> Changes:
    return {"dynamic_slice_sizes": tuple(instruction.dynamic_slice_sizes[d] for d in _order(instruction.shape))}


def _padding(instruction: HloInstruction) -> Changes:
    return {"padding": tuple(instruction.padding[d] for d in _order(instruction.shape))}


def _slice(instruction: HloInstruction) -> Changes:
    return {"slice": tuple(instruction.slice_ranges[d] for d in _order(instruction.shape))}


def _numbers(name: str) -> Callable[[HloInstruction], Changes]:
    """Return a function that renumbers an attribute that lists dimensions."""
    return lambda instruction: {name: _renumbered(instruction, name)}


def _renumbered(instruction: HloInstruction, name: str) -> tuple[int, ...]:
    return tuple(_order(instruction.shape).index(d) for d in instruction.ints(name))


def _convolution_labels(instruction: HloInstruction) -> Changes:
    shapes = [*(operand.shape for operand in instruction.operands), instruction.shape]
    return {"dim_labels": renumbered(instruction, [_order(shape) for shape in shapes])}


def _iota(instruction: HloInstruction) -> Changes:
    return {"iota_dimension": _order(instruction.shape).index(instruction.iota_dimension)}


def _window(instruction: HloInstruction) -> Changes:
    window = instruction.window
    if not window.dims:
        return {}
    return {"window": replace(window, dims=tuple(window.dims[d] for d in _order(instruction.shape)))}


_CHANGES: dict[Opcode, Callable[[HloInstruction], Changes]] = {
    "concatenate": _numbers("dimensions"),
    "convolution": _convolution_labels,
    "dynamic-slice": _slice_sizes,
    "dynamic-update-slice": lambda instruction: {},
    "iota": _iota,
    "pad": _padding,
    "reduce-window": _window,
    "reshape": lambda instruction: {},
    "reverse": lambda instruction: {"dimensions": tuple(sorted(_renumbered(instruction, "dimensions")))},
    "slice": _slice,
}
