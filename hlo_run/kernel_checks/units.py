"""Finds the units to judge alone: the thunks of one instruction that run one after the other, with the memory of its operands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from msgspec import Struct

from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.artifact import (
    ArraySpec,
    ArrayTree,
    BufferSlice,
    CollectiveThunk,
    CommandBufferThunk,
    CopyThunk,
    CustomCallThunk,
    Executable,
    KernelThunk,
    LibraryWork,
    MemsetThunk,
    RngSeedThunk,
    RngStateThunk,
    SequentialThunk,
    SlicedProductThunk,
    SortThunk,
    Thunk,
    WhileThunk,
    accesses,
    nested_sequences,
    tree_slices,
)
from hlo_run.backends.library.matrix_calls import is_user_function
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.isolate import isolate_instruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.printer import FULL, module_to_string
from hlo_run.hlo.values.shape import Shape
from hlo_run.kernel_checks.written_arrays import overlap, spec_at, written_leaves
from hlo_run.reference.evaluate.perturbed import term_count
from hlo_run.walks import walk

_DYNAMIC_SLICES = "kDynamicSliceFusion"
# What an instruction costs the reference, in elements.
_INSTRUCTION_ELEMENTS = 2048
# Sums for which numpy takes less time than for as many elements of an elementwise op.
_FAST_SUMS: frozenset[Opcode] = frozenset(("dot", "convolution", "reduce", "custom-call"))
_PRODUCTS_AT_ONCE = 16


class Unit(Struct, frozen=True, eq=False):
    """The thunks of one instruction, and the memory of its operands and results.

    `leaves` are the (shape index, shape) of the arrays that the thunks write. `in_place` are the operands, by number, that share
    memory with something written. `loops` are the loops around, outermost first.
    `kernels` are the names of its kernels.
    """

    instruction: HloInstruction
    thunks: tuple[Thunk, ...]
    operands: tuple[ArrayTree, ...]
    result: ArrayTree
    leaves: tuple[tuple[tuple[int, ...], Shape], ...]
    in_place: frozenset[int]
    loops: tuple[WhileThunk, ...]
    kernels: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the instruction."""
        return self.instruction.name

    @property
    def overwritten(self) -> list[BufferSlice]:
        """The memory of the results without any operand's: the thunks write it whole, whatever its old content."""
        read = [piece for tree in self.operands for piece in tree_slices(tree)]
        results = [piece for path, _ in self.leaves for piece in tree_slices(spec_at(self.result, path))]
        return [piece for piece in results if not any(overlap(piece, other) for other in read)]

    def depends_on_operands(self, path: Sequence[int]) -> bool:
        """True if the array of the result with a shape index may be another one with other operands."""
        if self.instruction.opcode != "fusion":
            return bool(self.operands)
        part = self.instruction.fused_computation.root
        if path and part.opcode == "tuple":
            part = part.operands[path[0]]
        return any(inner.opcode == "parameter" for inner in walk([part], lambda inner: inner.operands))

    @property
    def shows_alone(self) -> bool:
        """True if the thunks depend on their operands only, so that they can run on other operands, in separate memory."""
        return all(isinstance(thunk, KernelThunk | CopyThunk | MemsetThunk) or _is_product(thunk) for thunk in self.thunks)


def find_units(module: HloModule, executable: Executable) -> list[Unit]:
    """Return the units to judge, in the order of the thunks. `module` is the optimised one."""
    arrays = {value.name: value.arrays for value in executable.values}
    named = {i.name: i for c in executed_computations(module) for i in c.instructions}
    # The thunks of a fused sort have the name of the sort.
    roots = {i.fused_computation.root.name: i for i in named.values() if i.opcode == "fusion"}
    units: list[Unit] = []
    for thunks, loops in _runs(executable.thunks, ()):
        name = thunks[0].name
        instruction = named.get(name) or roots.get(name)
        if instruction is not None and all(map(_computes, thunks)) and (unit := _unit(instruction, thunks, loops, arrays)):
            units.append(unit)
    # Thunks of an instruction with others between them are not one unit.
    counts: dict[HloInstruction, int] = {}
    for unit in units:
        counts[unit.instruction] = counts.get(unit.instruction, 0) + 1
    return [unit for unit in units if counts[unit.instruction] == 1]


def _runs(thunks: Sequence[Thunk], loops: tuple[WhileThunk, ...]) -> Iterator[tuple[tuple[Thunk, ...], tuple[WhileThunk, ...]]]:
    """Yield the thunks that run one after the other and have one name, with the loops around them."""
    waiting: list[Thunk] = []
    for thunk in _flat(thunks):
        is_whole = not nested_sequences(thunk) or thunk.kind == _DYNAMIC_SLICES
        if waiting and (not is_whole or waiting[0].name != thunk.name):
            yield tuple(waiting), loops
            waiting = []
        if is_whole:
            waiting.append(thunk)
            continue
        sequences = nested_sequences(thunk)
        around = (*loops, thunk) if isinstance(thunk, WhileThunk) else loops
        # With a known trip count, the condition does not run.
        for inner in sequences[1:] if isinstance(thunk, WhileThunk) and thunk.trip_count is not None else sequences:
            yield from _runs(inner, around)
    if waiting:
        yield tuple(waiting), loops


def _flat(thunks: Iterable[Thunk]) -> Iterator[Thunk]:
    for thunk in thunks:
        if isinstance(thunk, CommandBufferThunk):
            yield from _flat(thunk.thunks)
        else:
            yield thunk


def _computes(thunk: Thunk) -> bool:
    """True if a thunk's result depends on its operands only: it exchanges nothing with other devices or the host."""
    if isinstance(thunk, CollectiveThunk | RngStateThunk | RngSeedThunk):
        return False
    return not nested_sequences(thunk) or isinstance(thunk, SequentialThunk | SlicedProductThunk)


def _unit(
    instruction: HloInstruction, thunks: tuple[Thunk, ...], loops: tuple[WhileThunk, ...], arrays: dict[str, ArrayTree]
) -> Unit | None:
    if not any(
        isinstance(thunk, KernelThunk | LibraryWork | SortThunk | SequentialThunk | SlicedProductThunk | CustomCallThunk)
        for thunk in thunks
    ):
        return None  # copies and fills alone
    if any(isinstance(thunk, CustomCallThunk) and is_user_function(thunk) for thunk in thunks):
        return None  # the reference calls the same function
    operands = tuple(arrays[operand.name] for operand in instruction.operands if operand.name in arrays)
    result = arrays.get(instruction.name)
    if result is None or len(operands) != len(instruction.operands):
        return None
    trees = zip((*operands, result), (*(operand.shape for operand in instruction.operands), instruction.shape), strict=True)
    if not all(_fits(tree, shape) for tree, shape in trees):
        return None  # the executable is not of this module
    written = [piece for thunk in thunks for piece in accesses(thunk).writes]
    leaves = tuple(written_leaves(instruction.shape, result, written))
    if not leaves:
        return None
    in_place = frozenset(
        number for number, tree in enumerate(operands) if any(overlap(a, b) for a in tree_slices(tree) for b in written)
    )
    kernels = tuple(dict.fromkeys(thunk.kernel for thunk in thunks if isinstance(thunk, KernelThunk)))
    return Unit(instruction, thunks, operands, result, leaves, in_place, loops, kernels)


def _fits(tree: ArrayTree, shape: Shape) -> bool:
    """True if a tree has the structure, types and dimensions of a shape."""
    if isinstance(tree, ArraySpec):
        return shape.is_array and (tree.dtype, tree.dims) == (shape.element_type, shape.dims)
    parts = shape.tuple_shapes if shape.is_tuple else ()
    return not shape.is_array and len(parts) == len(tree) and all(map(_fits, tree, parts))


def _is_product(thunk: Thunk) -> bool:
    return thunk.kind in ("kGemm", "kCublasLtMatmul", "kConvolution", "kFft")


# ---- equal units ----------------------------------------------------------------------------------------------------


def equal_units(units: Sequence[Unit], executable: Executable) -> dict[Unit, Unit]:
    """Return the first unit that equals each: with equal kernels, an equal instruction on equal shapes, and equal aliases."""
    texts = {k.name: f"{k.grid} {k.block} {k.ptx.replace(k.name, 'kernel')}" for k in executable.kernels}
    similar: dict[tuple[object, ...], list[Unit]] = {}
    for unit in units:
        i = unit.instruction
        shapes = tuple(operand.shape for operand in i.operands)
        kinds = tuple(thunk.kind for thunk in unit.thunks)
        similar.setdefault((i.opcode, i.shape, shapes, kinds, *(texts[kernel] for kernel in unit.kernels)), []).append(unit)
    first: dict[Unit, Unit] = {}
    for group in similar.values():
        keys: dict[str, Unit] = {}
        for unit in group:
            first[unit] = unit if len(group) == 1 else keys.setdefault(_key_of(unit), unit)
    return first


def _key_of(unit: Unit) -> str:
    """Return a text of the instruction and its thunks without names."""
    alone = isolate_instruction(unit.instruction)
    alone.name = "unit"
    named: dict[str, str] = {}
    for computation in alone.computations:
        for instruction in computation.instructions:
            named.setdefault(instruction.name, f"i{len(named)}")
            instruction.name = named[instruction.name]
            instruction.attrs.pop("metadata", None)
        computation.name = f"c{len(named)}"
    places: dict[BufferSlice, int] = {}
    thunks = tuple(_without_names(thunk, places) for thunk in unit.thunks)
    return f"{module_to_string(alone, FULL)}\n{thunks!r}"


def _without_names(value: object, places: dict[BufferSlice, int]) -> object:
    """Return a record of a thunk without its name, and with numbers for its slices."""
    if isinstance(value, BufferSlice):
        return places.setdefault(value, len(places))
    if isinstance(value, tuple):
        return tuple(_without_names(part, places) for part in cast("tuple[object, ...]", value))
    if isinstance(value, Struct):
        named = ("name", "kernel")
        fields = {name: _without_names(getattr(value, name), places) for name in value.__struct_fields__ if name not in named}
        return (type(value).__name__, *fields.items())
    return value


# ---- costs ----------------------------------------------------------------------------------------------------------


def cost_elements(unit: Unit) -> int:
    """Return about how much the reference computes for a unit, in elements, where a sum counts its terms."""
    known: dict[HloComputation, int] = {}

    def of_computation(computation: HloComputation) -> int:
        if computation not in known:
            known[computation] = sum(of_instruction(inner, _leaves_of(inner.shape)) for inner in computation.instructions)
        return known[computation]

    def of_instruction(inner: HloInstruction, leaves: Iterable[Shape]) -> int:
        elements = sum(leaf.element_count for leaf in leaves)
        terms = elements * term_count(inner)
        own = max(elements, terms // _PRODUCTS_AT_ONCE) if inner.opcode in _FAST_SUMS else terms
        called = inner.called_computations if inner.opcode in ("fusion", "call", "while", "conditional") else ()
        return _INSTRUCTION_ELEMENTS + own + sum(map(of_computation, called))

    return of_instruction(unit.instruction, [leaf for _, leaf in unit.leaves])


def _leaves_of(shape: Shape) -> list[Shape]:
    return [leaf for _, leaf in shape.leaves() if leaf.is_array]
