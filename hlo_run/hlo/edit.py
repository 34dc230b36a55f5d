"""Edits shared by the passes: add instructions in place of an old one, bypass it, remove unused ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from hlo_run.errors import Where
from hlo_run.hlo.async_ops import async_start
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.opcodes.traits import COLLECTIVE, CONTROL_FLOW, SIDE_EFFECT
from hlo_run.hlo.values.attribute_values import AttributeValue
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.values.shape import Layout, Shape
from hlo_run.records import replace
from hlo_run.walks import walk

# Without an effect unless they are on a channel; a start always has one.
_COLLECTIVES = COLLECTIVE - SIDE_EFFECT - opcode_set("ragged-all-to-all")

# (low, high, interior) per dimension, in elements.
Edges: TypeAlias = "Sequence[tuple[int, int, int]]"


class InstructionMaker:
    """Makes instructions. A method makes one opcode and infers the shape from the operands.

    The layout is the default one, or that of the operand if the op keeps elements in place (elementwise, slice, pad,
    concatenate). New instructions come last in `computation` (None: they are in no computation), at the place `where`, and
    have `attributes` besides their own. A subclass overrides `_inherit` and `_put`, and nothing else makes instructions.
    """

    def __init__(
        self,
        computation: HloComputation | None = None,
        where: Where | None = None,
        attributes: Mapping[str, AttributeValue] | None = None,
    ) -> None:
        self._computation = computation
        self._where = where
        self._attributes = attributes

    @property
    def computation(self) -> HloComputation:
        """The computation that gets the instructions."""
        assert self._computation is not None, "the maker adds to a computation"
        return self._computation

    def _inherit(self, opcode: Opcode, shape: Shape, attributes: dict[str, AttributeValue]) -> None:
        """Add the attributes of every new instruction to its own `attributes`."""
        if self._attributes is not None:
            attributes.update(self._attributes)

    def _put(self, made: HloInstruction) -> HloInstruction:
        """Put a new instruction into its computation, and return it."""
        made.where = self._where
        return made if self._computation is None else self._computation.add(made)

    def add(
        self,
        opcode: Opcode,
        shape: Shape,
        operands: Sequence[HloInstruction] = (),
        called: Mapping[str, Sequence[HloComputation]] | None = None,
        name: str = "",
        **attributes: AttributeValue,
    ) -> HloInstruction:
        """Make an instruction of any opcode; its default name is the opcode."""
        return self._made(opcode, shape, operands, attributes, called, name)

    def add_with(
        self,
        opcode: Opcode,
        shape: Shape,
        operands: Sequence[HloInstruction],
        attributes: Mapping[str, AttributeValue],
        called: Mapping[str, Sequence[HloComputation]] | None = None,
        name: str = "",
    ) -> HloInstruction:
        """Make an instruction as `add` does, with the attributes of a mapping."""
        return self._made(opcode, shape, operands, dict(attributes), called, name)

    def _made(
        self,
        opcode: Opcode,
        shape: Shape,
        operands: Sequence[HloInstruction],
        attributes: dict[str, AttributeValue],
        called: Mapping[str, Sequence[HloComputation]] | None,
        name: str,
    ) -> HloInstruction:
        self._inherit(opcode, shape, attributes)
        groups = {key: tuple(group) for key, group in called.items()} if called else None
        return self._put(HloInstruction(name or opcode, opcode, shape, operands, attributes, groups))

    def parameter(self, number: int, shape: Shape, name: str = "") -> HloInstruction:
        """Make parameter `number`."""
        return self.add("parameter", shape, name=name, parameter_number=number)

    def constant(self, value: object, element_type: str) -> HloInstruction:
        """Make a constant; `value` is a number or an array."""
        literal = np.asarray(value).astype(DTYPES[element_type].numpy)
        return self.add("constant", Shape.array(element_type, literal.shape), literal=literal)

    def filled(self, scalar: HloInstruction, like: Shape) -> HloInstruction:
        """Broadcast a scalar to the dimensions and layout of `like`."""
        return self.add("broadcast", like.with_element_type(scalar.shape.element_type), [scalar], dimensions=())

    def zeros(self, shape: Shape) -> HloInstruction:
        """Make zeros: a constant for a scalar, else its broadcast."""
        zero = self.constant(0, shape.element_type)
        return self.filled(zero, shape) if shape.dims else zero

    def iota(self, element_type: str, dims: Sequence[int], dimension: int = 0) -> HloInstruction:
        """Make an iota of shape `dims` that counts along `dimension`."""
        return self.add("iota", Shape.array(element_type, tuple(dims)), iota_dimension=dimension)

    def unary(self, opcode: Opcode, value: HloInstruction) -> HloInstruction:
        """Make an elementwise instruction of one operand, whose shape is the result's."""
        return self.add(opcode, value.shape, [value])

    def binary(self, opcode: Opcode, one: HloInstruction, two: HloInstruction) -> HloInstruction:
        """Make an elementwise instruction of two operands of one shape, which is the result's."""
        return self.add(opcode, one.shape, [one, two])

    def compare(self, one: HloInstruction, two: HloInstruction, direction: str) -> HloInstruction:
        """Compare, with a pred of the operands' shape as result; `direction` is EQ, NE, GE, GT, LE or LT."""
        return self.add("compare", one.shape.with_element_type("pred"), [one, two], direction=direction)

    def select(self, chosen: HloInstruction, one: HloInstruction, two: HloInstruction) -> HloInstruction:
        """Take `one` where the pred `chosen` is true, otherwise `two`."""
        return self.add("select", one.shape, [chosen, one, two])

    def convert(self, value: HloInstruction, element_type: str) -> HloInstruction:
        """Convert to `element_type`; return the value itself if it has that type."""
        if value.shape.element_type == element_type:
            return value
        return self.add("convert", value.shape.with_element_type(element_type), [value])

    def reshape(self, value: HloInstruction, dims: Sequence[int]) -> HloInstruction:
        """Reshape to `dims`, in the default layout; return the value itself if it has these dimensions."""
        if value.shape.dims == tuple(dims):
            return value
        return self.add("reshape", Shape.array(value.shape.element_type, tuple(dims)), [value])

    def bitcast(self, value: HloInstruction, shape: Shape) -> HloInstruction:
        """View the bytes as another shape; return the value itself if it has that shape."""
        return value if value.shape == shape else self.add("bitcast", shape, [value])

    def transpose(self, value: HloInstruction, dimensions: Sequence[int]) -> HloInstruction:
        """Transpose: dimension i of the result is `dimensions[i]` of the operand. The identity returns the value itself."""
        if list(dimensions) == list(range(len(dimensions))):
            return value
        shape = Shape.array(value.shape.element_type, tuple(value.shape.dims[d] for d in dimensions))
        return self.add("transpose", shape, [value], dimensions=tuple(dimensions))

    def transpose_view(self, value: HloInstruction, dimensions: Sequence[int]) -> HloInstruction:
        """Transpose as `transpose` does, to the layout in which no byte moves (XLA's `MakeTransposeHlo`)."""
        if list(dimensions) == list(range(len(dimensions))):
            return value
        order = tuple(list(dimensions).index(d) for d in value.shape.minor_to_major)
        sizes = tuple(value.shape.dims[d] for d in dimensions)
        extra = value.shape.layout.extra if value.shape.layout else ""
        shape = replace(value.shape, dims=sizes, layout=Layout(order, extra))
        return self.add("transpose", shape, [value], dimensions=tuple(dimensions))

    def broadcast(self, value: HloInstruction, dims: Sequence[int], dimensions: Sequence[int] = ()) -> HloInstruction:
        """Broadcast to `dims`; dimension i of the operand becomes dimension `dimensions[i]` of the result."""
        shape = Shape.array(value.shape.element_type, tuple(dims))
        return self.add("broadcast", shape, [value], dimensions=tuple(dimensions))

    def slice(
        self, value: HloInstruction, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int] = ()
    ) -> HloInstruction:
        """Take the elements from `starts` up to `limits`, exclusive, by default with stride 1."""
        ranges = tuple(zip(starts, limits, strides or [1] * len(starts), strict=True))
        dims = tuple(-(-(limit - start) // stride) for start, limit, stride in ranges)
        return self.add("slice", replace(value.shape, dims=dims), [value], slice=ranges)

    def dynamic_slice(self, value: HloInstruction, starts: Sequence[HloInstruction], dims: Sequence[int]) -> HloInstruction:
        """Take `dims` elements from `starts`, which are scalars."""
        shape = replace(value.shape, dims=tuple(dims))
        return self.add("dynamic-slice", shape, [value, *starts], dynamic_slice_sizes=tuple(dims))

    def pad(self, value: HloInstruction, fill: HloInstruction, edges: Edges) -> HloInstruction:
        """Pad; `edges` has (low, high, interior) per dimension."""
        dims = tuple(
            low + high + size + interior * max(size - 1, 0)
            for size, (low, high, interior) in zip(value.shape.dims, edges, strict=True)
        )
        return self.add("pad", replace(value.shape, dims=dims), [value, fill], padding=tuple(edges))

    def concatenate(self, values: Sequence[HloInstruction], dimension: int) -> HloInstruction:
        """Concatenate values along `dimension`; return a single value itself."""
        if len(values) == 1:
            return values[0]
        dims = list(values[0].shape.dims)
        dims[dimension] = sum(value.shape.dims[dimension] for value in values)
        return self.add("concatenate", replace(values[0].shape, dims=tuple(dims)), values, dimensions=(dimension,))

    def copy(self, value: HloInstruction) -> HloInstruction:
        """Copy a value."""
        return self.add("copy", value.shape, [value])

    def tuple(self, values: Sequence[HloInstruction]) -> HloInstruction:
        """Make a tuple of the values."""
        return self.add("tuple", Shape.make_tuple(tuple(value.shape for value in values)), values)

    def element(self, value: HloInstruction, index: int) -> HloInstruction:
        """Return an element of a tuple: the operand of a `tuple` instruction, or a new get-tuple-element."""
        return value.operands[index] if value.opcode == "tuple" else self.get_tuple_element(value, index)

    def get_tuple_element(self, value: HloInstruction, index: int, name: str = "") -> HloInstruction:
        """Make a get-tuple-element, even of a `tuple`."""
        return self.add("get-tuple-element", value.shape.tuple_shapes[index], [value], name=name, index=index)


DETACHED = InstructionMaker()
"""The maker of instructions outside of any computation."""
# Their dimensions are others than those of what they derive from.
_WITHOUT_SHARDING: tuple[Opcode, ...] = ("bitcast", "reshape", "transpose")


class Editor(InstructionMaker):
    """Makes instructions in the computation of `origin`, with its source location.

    With `derives`, they get the metadata of `origin`, and unless `keeps_frontend_attributes` or `keeps_sharding` is false its
    frontend attributes and, if the rank fits, its sharding (bitcasts, reshapes and transposes get none, as in XLA).
    """

    def __init__(
        self, origin: HloInstruction, derives: bool = True, keeps_sharding: bool = True, keeps_frontend_attributes: bool = True
    ) -> None:
        super().__init__()
        self.origin = origin
        self.derives = derives
        self.keeps_sharding = keeps_sharding
        self.keeps_frontend_attributes = keeps_frontend_attributes

    @property
    def computation(self) -> HloComputation:
        """The computation of `origin`, which must not have been removed."""
        assert self.origin.parent is not None, f"{self.origin.name} was removed"
        return self.origin.parent

    def _inherit(self, opcode: Opcode, shape: Shape, attributes: dict[str, AttributeValue]) -> None:
        origin = self.origin
        if not self.derives:
            return
        if "metadata" in origin.attrs:
            attributes["metadata"] = origin.attrs["metadata"]
        if self.keeps_frontend_attributes and "frontend_attributes" in origin.attrs:
            attributes.setdefault("frontend_attributes", origin.attrs["frontend_attributes"])
        if (
            self.keeps_sharding
            and opcode not in _WITHOUT_SHARDING
            and "sharding" in origin.attrs
            and shape.is_array
            and origin.shape.is_array
            and shape.rank == origin.shape.rank
        ):
            attributes.setdefault("sharding", origin.attrs["sharding"])

    def _put(self, made: HloInstruction) -> HloInstruction:
        made.where = self.origin.where
        return self.computation.add(made)

    def reduce_again(
        self, reduce: HloInstruction, inputs: Sequence[HloInstruction], dimensions: Sequence[int], shapes: Sequence[Shape] = ()
    ) -> list[HloInstruction]:
        """Reduce other inputs with the computation and init values of `reduce`; return one result per input.

        `shapes` are the results' shapes; by default they have the kept dimensions in the default layout.
        """
        kept = tuple(size for d, size in enumerate(inputs[0].shape.dims) if d not in dimensions)
        results = list(shapes) or [Shape.array(value.shape.element_type, kept) for value in inputs]
        shape = Shape.make_tuple(tuple(results)) if reduce.shape.is_tuple else results[0]
        operands = (*inputs, *reduce.operands[len(inputs) :])
        made = self.add("reduce", shape, operands, {"to_apply": reduce.called["to_apply"]}, dimensions=tuple(dimensions))
        return [self.element(made, n) for n in range(len(inputs))] if reduce.shape.is_tuple else [made]

    def joined(self, values: Sequence[HloInstruction], like: HloInstruction) -> HloInstruction:
        """Return a tuple of the values if `like` returns a tuple, else the only value.

        All elements of one tuple are that tuple again; get-tuple-elements that have no other user are removed.
        """
        if not like.shape.is_tuple:
            return values[0]
        whole = values[0].operands[0] if values[0].opcode == "get-tuple-element" else None
        if whole is None or [(v.opcode, *v.operands) for v in values] != [("get-tuple-element", whole)] * len(values):
            return self.tuple(values)
        if [v.tuple_index for v in values] != list(range(len(whole.shape.tuple_shapes))):
            return self.tuple(values)
        for value in values:
            if not value.users and not value.is_root:
                self.computation.remove(value)
        return whole


def copy_instruction(
    old: HloInstruction,
    operands: Sequence[HloInstruction],
    shape: Shape | None = None,
    name: str = "",
    called: dict[str, tuple[HloComputation, ...]] | None = None,
) -> HloInstruction:
    """Return a copy with other operands (and shape), outside any computation.

    It calls the same computations, unless `called` names others.
    """
    groups = dict(old.called) if called is None else called
    return HloInstruction(name or old.name, old.opcode, shape or old.shape, operands, dict(old.attrs), groups, old.where)


def has_side_effect(instruction: HloInstruction) -> bool:
    """True if the instruction does more than return a value (XLA's `HasSideEffect`). An async chain has its start's effects."""
    instruction = async_start(instruction) or instruction
    if instruction.opcode in SIDE_EFFECT:
        return True
    if instruction.opcode == "custom-call":
        return instruction.has_side_effect
    if instruction.opcode in CONTROL_FLOW:
        return any(has_side_effect(inner) for c in instruction.called_computations for inner in c.instructions)
    if instruction.opcode not in _COLLECTIVES:
        return False
    # On a channel it may meet an instruction of another program, but not of a partition, which runs the same one. A layout that
    # is pinned is one for others to rely on.
    module = instruction.parent.module if instruction.parent is not None else None
    is_partitioned = module is not None and module.num_partitions != 1
    return ("channel_id" in instruction.attrs and not is_partitioned) or instruction.constrains_layout


def scalar_reducer(
    name: str, opcode: Opcode, shape: Shape, parameters: tuple[str, str] = ("x", "y"), where: Where | None = None
) -> HloComputation:
    """Return a computation that combines two values of a shape by an elementwise opcode; it is in no module yet."""
    made = InstructionMaker(HloComputation(name, where))
    one, two = (made.parameter(number, shape, parameter) for number, parameter in enumerate(parameters))
    made.computation.root = made.binary(opcode, one, two)
    return made.computation


def scalar_adder(element_type: str) -> HloComputation:
    """Return a computation that adds two scalars, with XLA's names; it is in no module yet."""
    shape = Shape.array(element_type, ())
    return scalar_reducer("scalar_add_computation", "add", shape, ("scalar_lhs", "scalar_rhs"))


def next_channel_id(module: HloModule) -> int:
    """Return the channel after the largest one of the module; 1 without channels."""
    return 1 + max((instruction.channel_id or 0 for instruction in module.instructions), default=0)


def is_removable(instruction: HloInstruction) -> bool:
    """True if an instruction may be removed once it has no users.

    False for a parameter, a root, an instruction with side effects or with control predecessors.
    """
    if instruction.is_root or instruction.opcode == "parameter" or instruction.control_predecessors:
        return False
    return not has_side_effect(instruction)


def bypass(module: HloModule, old: HloInstruction, inherits: bool = True) -> None:
    """Replace `old` by its only operand, whose value it returns, and remove `old` even if it has side effects.

    Instructions that ran after `old` still run after the operand and after the control predecessors of `old`. The operand
    inherits what it lacks (`HloModule.replace`), unless `inherits` is false.
    """
    (source,) = old.operands
    assert old.parent is not None, "the instruction is in a computation"
    first = old.control_predecessors
    for other in old.parent.instructions:
        if old in other.control_predecessors:
            kept = (q for p in other.control_predecessors for q in ((source, *first) if p is old else (p,)))
            other.control_predecessors = list(dict.fromkeys(kept))
        elif first and old in other.operands:
            other.control_predecessors = list(dict.fromkeys((*other.control_predecessors, *first)))
    (module.replace if inherits else module.replace_uses)(old, source)
    old.control_predecessors = []
    old.parent.remove(old)


def remove_unused(candidates: Iterable[HloInstruction]) -> None:
    """Remove the candidates without users, then instructions that only they used; keep instructions that are not removable."""
    waiting = [candidate for candidate in candidates if candidate.parent is not None]
    ordered = {p for c in {i.parent for i in waiting if i.parent} for i in c.instructions for p in i.control_predecessors}
    left: dict[HloInstruction, int] = {}
    gone: dict[HloComputation, dict[HloInstruction, None]] = {}
    while waiting:
        instruction = waiting.pop()
        parent = instruction.parent
        users = left.get(instruction, len(instruction.users))
        if parent is None or users or instruction in gone.get(parent, {}):
            continue
        if instruction in ordered or not is_removable(instruction):
            continue
        gone.setdefault(parent, {})[instruction] = None
        for operand in dict.fromkeys(instruction.operands):
            left[operand] = left.get(operand, len(operand.users)) - 1
            waiting.append(operand)
    for computation, instructions in gone.items():
        computation.remove_all(instructions)


def has_order(instruction: HloInstruction) -> bool:
    """True if control dependencies order the instruction before or after others."""
    computation = instruction.parent
    others = () if computation is None else computation.instructions
    return bool(instruction.control_predecessors) or any(instruction in other.control_predecessors for other in others)


def remove_replaced(old: HloInstruction) -> None:
    """Remove an instruction without users, though it may have an effect, then instructions that only it used."""
    computation, operands = old.parent, dict.fromkeys(old.operands)
    assert computation is not None, "the instruction is in a computation"
    computation.remove(old)
    remove_unused(operands)


class Leftovers:
    """Unused instructions of one or more computations that no longer use their operands, to be removed together.

    Users are listed in an order that depends on when an instruction ceases to use its operand, and passes may take the first one.
    """

    def __init__(self) -> None:
        self._gone: dict[HloComputation, set[HloInstruction]] = {}
        self._ordered: dict[HloComputation, set[HloInstruction]] = {}

    def __contains__(self, instruction: HloInstruction) -> bool:
        return instruction.parent is not None and instruction in self._gone.get(instruction.parent, ())

    def add(self, instruction: HloInstruction) -> None:
        """Detach an unused instruction, then operands that only it used, if they are removable."""
        waiting = [instruction]
        for gone in waiting:  # grows while we walk
            if gone.users or gone in self or gone.parent is None or not is_removable(gone) or gone in self._first(gone.parent):
                continue
            self._gone.setdefault(gone.parent, set()).add(gone)
            waiting += dict.fromkeys(gone.operands)
            gone.operands, gone.called = (), {}

    def _first(self, computation: HloComputation) -> set[HloInstruction]:
        """Return the control predecessors of other instructions."""
        if computation not in self._ordered:
            self._ordered[computation] = {p for i in computation.instructions for p in i.control_predecessors}
        return self._ordered[computation]

    def remove(self) -> None:
        """Remove the instructions from their computations."""
        for computation, instructions in self._gone.items():
            computation.remove_all(instructions)
        self._gone = {}


def replace_each(module: HloModule, olds: Iterable[HloInstruction], made: Callable[[HloInstruction], HloInstruction]) -> None:
    """Replace each instruction by the result of `made`; remove it, with operands that only it used, before the next."""
    unused = Leftovers()
    for old in olds:
        module.replace(old, made(old))
        unused.add(old)
    unused.remove()


def remove_dead(module: HloModule) -> None:
    """Remove unused instructions and uncalled computations.

    Users go before operands, the last ones first, as in XLA's `HloDCE`: the order in which other users are listed depends on it.
    """
    for computation in module.computations:
        if any(not i.users and is_removable(i) for i in computation.instructions):
            _remove_dead_of(computation)
    remove_uncalled(module)


def _remove_dead_of(computation: HloComputation) -> None:
    first = {p for i in computation.instructions for p in i.control_predecessors}
    gone: dict[HloInstruction, None] = {}
    for unused in reversed(computation.post_order()):
        waiting = [unused]
        for instruction in waiting:  # grows while we walk
            if instruction in gone or instruction.users or instruction in first or not is_removable(instruction):
                continue
            gone[instruction] = None
            waiting += instruction.operands
            instruction.operands = ()
    computation.remove_all(gone)


def remove_uncalled(module: HloModule) -> None:
    """Remove computations that the entry does not call, directly or indirectly."""
    reached = set(walk([module.entry], lambda c: [called for i in c.instructions for called in i.called_computations]))
    dead = [computation for computation in module.computations if computation not in reached]
    for computation in dead:
        for instruction in computation.instructions:
            instruction.called = {}
    for computation in dead:
        module.remove_computation(computation)


def descending(shape: Shape) -> Shape:
    """Return the shape with the default (descending) order; the rest of its layout is unchanged."""
    order = tuple(reversed(range(shape.rank)))
    if shape.layout is not None and shape.layout.minor_to_major == order:
        return shape
    return replace(shape, layout=Layout(order, shape.layout.extra if shape.layout else ""))


def clone_computation(module: HloModule, computation: HloComputation, suffix: str = "clone") -> HloComputation:
    """Add a copy named `NAME.clone`, or with another suffix, that calls the same computations, and return it.

    The copy gets the schedule of the original, if it has one.
    """
    clone = HloComputation(f"{computation.name}.{suffix}", computation.where)
    clone.execution_thread = computation.execution_thread
    made: dict[HloInstruction, HloInstruction] = {}
    for old in computation.instructions:
        made[old] = clone.add(copy_instruction(old, ()), is_root=old.is_root)
    for old, new in made.items():
        new.operands = tuple([made[operand] for operand in old.operands])
        new.control_predecessors = [made[predecessor] for predecessor in old.control_predecessors]
    for old, new in made.items():
        new.order_users(made[user] for user in old.users)
    if module.schedule is not None and computation in module.schedule:
        module.schedule[clone] = [made[instruction] for instruction in module.schedule[computation]]
    return module.add_computation(clone)


def clone_with_fusions(module: HloModule, computation: HloComputation, suffix: str = "clone") -> HloComputation:
    """Clone a computation and, with the same suffix, the callees of its fusions, custom calls and async starts, as XLA does."""
    clone = clone_computation(module, computation, suffix)
    for instruction in clone.instructions:
        clone_called(module, instruction, suffix)
    return clone


def clone_called(module: HloModule, copy: HloInstruction, suffix: str = "clone") -> None:
    """Give a copied fusion, custom call or start of an async pair its own computations; others share theirs."""
    if copy.opcode in ("fusion", "custom-call", "async-start") and copy.called:
        copy.called = {
            name: tuple(clone_with_fusions(module, computation, suffix) for computation in group)
            for name, group in copy.called.items()
        }
