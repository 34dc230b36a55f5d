"""Compile a kernel's blocks to Python functions over numpy arrays, once for all its launches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, TypeAlias, assert_never

import ml_dtypes
import numpy as np
from msgspec import Struct

from hlo_run.arrays import Array, NumpyType
from hlo_run.backends.host.emulator import atomics, code_float, code_integer, code_memory, code_move, warps
from hlo_run.backends.host.emulator.code_writer import NUMPY_OF_FORM, CodeWriter, Constants, Value, bits_form
from hlo_run.backends.host.emulator.lanes import Lanes
from hlo_run.backends.host.emulator.memory import NUMBER_SHIFT, VARIABLE_NUMBER
from hlo_run.backends.host.emulator.pointers import local_pointer, mixed_or_single, shared_pointer
from hlo_run.backends.host.numerics import (
    approximations,
    conversions,
    exact_numerics,
    float_functions,
    float_numerics,
    integer_numerics,
)
from hlo_run.backends.host.ptx.control_flow import (
    EFFECTS,
    Block,
    Branch,
    Invoke,
    KernelGraph,
    Switch,
    build_graph,
    used_results,
)
from hlo_run.backends.host.ptx.instruction_set import CARRY, WRONG_OPERANDS, Operation
from hlo_run.backends.host.ptx.purity import block_changes_memory, pure_functions
from hlo_run.backends.host.ptx.specs import Barrier, Move
from hlo_run.backends.host.ptx.syntax import (
    Address,
    Float,
    Integer,
    Module,
    Negated,
    OperandList,
    Pair,
    Register,
    Sink,
    SpecialRegister,
    Symbol,
    Variable,
    Vector,
)
from hlo_run.errors import Unsupported

Registers: TypeAlias = "list[Array | None]"
BlockFunction: TypeAlias = Callable[[Lanes, Registers], "Array | None"]

EMITTERS: Mapping[type[Struct], code_integer.Emit] = {
    **code_integer.EMITTERS,
    **code_float.EMITTERS,
    **code_move.EMITTERS,
    **code_memory.EMITTERS,
}
"""The emulator's instruction table: the record of what an instruction does to the function that writes its code."""


class Meeting(Struct, frozen=True):
    """The threads that must meet before the block is entered: all of the `block`, or the members of the `warp`.

    `members` is the mask, or the slot of the register that holds it.
    """

    scope: str
    members: int
    members_in_slot: bool
    line: int


class PureCall(Struct, frozen=True):
    """The call of a pure function: the slots of the registers that it gets and sets."""

    function: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class CompiledBlock(Struct, frozen=True):
    """A compiled block. `function` returns the condition of its branch or switch; `live_slots` are the registers it may read.

    If the block ends in a call, `kept_slots` are the registers that are read behind it, and `unset` those that the function may
    read before it sets them, with their types. If the function is pure, `call` has its name, arguments and results.
    `changes_memory` is True if the results of pure functions may change.
    """

    function: BlockFunction
    block: Block
    meeting: Meeting | None
    live_slots: tuple[int, ...]
    kept_slots: tuple[int, ...] = ()
    unset: tuple[tuple[int, NumpyType], ...] = ()
    call: PureCall | None = None
    changes_memory: bool = False


class Program(Struct, frozen=True):
    """One kernel of one PTX text. `variables` maps region numbers to its global and constant variables."""

    graph: KernelGraph
    blocks: tuple[CompiledBlock, ...]
    slot_count: int
    variables: Mapping[int, Variable]
    source: str
    unset: tuple[tuple[int, NumpyType], ...]

    def initial_registers(self) -> Registers:
        """Return the registers at the start. A register that is read before it is set is 0."""
        registers: Registers = [None] * self.slot_count
        set_to_zero(registers, self.unset)
        return registers


def set_to_zero(registers: Registers, unset: Iterable[tuple[int, NumpyType]]) -> None:
    """Give registers their initial value."""
    for slot, dtype in unset:
        registers[slot] = np.zeros((1, 1), dtype)


def compile_program(module: Module, entry_name: str) -> Program:
    """Return the program of a kernel. Raises Unsupported for an unknown instruction, DeviceError for an unknown kernel."""
    return compile_graph(build_graph(module, entry_name))


def compile_graph(graph: KernelGraph) -> Program:
    """Return the program of a kernel's graph. Raises Unsupported for an unknown instruction."""
    try:
        return _Compiler(graph).compile()
    except Unsupported as error:
        note = f"in kernel '{graph.entry.name}'"
        raise Unsupported(error.message, error.where, error.hint, (*error.notes, note)) from error


def numbered_variables(graph: KernelGraph) -> dict[int, Variable]:
    """Return a kernel's global and constant variables by region number."""
    return {VARIABLE_NUMBER + number: variable for number, variable in enumerate(graph.variables.values())}


class _Compiler:
    def __init__(self, graph: KernelGraph) -> None:
        self._graph = graph
        self._constants = Constants()
        names = {name for block in graph.blocks for name in (*block.live_in, *block.live_out)}
        self._slots = {name: number for number, name in enumerate(sorted(names))}
        self._registers = {**graph.registers, CARRY: "pred"}
        self._variables = numbered_variables(graph)
        globals_ = {variable.name: number << NUMBER_SHIFT for number, variable in self._variables.items()}
        self._symbols = graph.addresses(range(len(graph.entry.parameters)), globals_)
        self._fixed = self._fixed_registers()
        self._pure = pure_functions(graph)

    def compile(self) -> Program:
        sources = [self._function_source(block) for block in self._graph.blocks]
        source = "\n".join(sources)
        namespace: dict[str, Any] = {**_NAMESPACE, **self._constants.arrays}
        exec(compile(source, f"<{self._graph.entry.name}>", "exec"), namespace)
        blocks = tuple(self._compiled(block, namespace[f"block_{block.index}"]) for block in self._graph.blocks)
        return Program(self._graph, blocks, len(self._slots), self._variables, source, self._unset(0))

    def _compiled(self, block: Block, function: BlockFunction) -> CompiledBlock:
        kept, unset, call = (), (), None
        match block.terminator:
            case Invoke(name, entry, following):
                called = self._graph.functions[name]
                outputs = {self._slots[name] for name in called.outputs}
                kept = tuple(slot for slot in self._live_slots(following) if slot not in outputs)
                unset = self._unset(entry, called.inputs)
                if name in self._pure:
                    live = self._graph.blocks[entry].live_in
                    inputs = tuple(self._slots[each] for each in live if each in called.inputs and each not in self._fixed)
                    call = PureCall(name, inputs, tuple(sorted(outputs)))
            case _:
                pass
        changes = block_changes_memory(block)
        return CompiledBlock(function, block, self._meeting(block), self._live_slots(block.index), kept, unset, call, changes)

    def _unset(self, entry: int, inputs: frozenset[str] = frozenset()) -> tuple[tuple[int, NumpyType], ...]:
        """Return the registers that code may read before it sets them, with their types."""
        names = (name for name in self._graph.blocks[entry].live_in if name not in self._fixed and name not in inputs)
        return tuple((self._slots[name], NUMPY_OF_FORM[bits_form(self._registers[name])]) for name in names)

    def _fixed_registers(self) -> dict[str, Value]:
        """Return the registers whose only definition is an immediate: constants of the whole kernel."""
        definitions: dict[str, list[Operation]] = {}
        for block in self._graph.blocks:
            for operation in block.operations:
                for name in operation.writes():
                    definitions.setdefault(name, []).append(operation)
        writer = CodeWriter(self._constants, self._registers, self._slots, {}, self._symbols)
        fixed: dict[str, Value] = {}
        for name, operations in definitions.items():
            operation, spec = operations[0], operations[0].spec
            if len(operations) > 1 or not isinstance(spec, Move) or not isinstance(operation.operands[0], Register):
                continue
            if isinstance(operation.operands[1], Integer | Float | Symbol):
                try:
                    fixed[name] = code_move.immediate_value(writer, spec, operation.operands[1])
                except WRONG_OPERANDS as error:
                    raise operation.unsupported() from error
        return fixed

    def _function_source(self, block: Block) -> str:
        writer = CodeWriter(self._constants, self._registers, self._slots, self._fixed, self._symbols)
        for operation, is_used in zip(block.operations, used_results(block), strict=True):
            if operation.opcode not in EFFECTS and not is_used:
                continue
            if operation.opcode == "mov" and set(operation.writes()) & self._fixed.keys():
                continue
            writer.result_is_used = is_used
            try:
                EMITTERS[type(operation.spec)](writer, operation)
            except WRONG_OPERANDS as error:
                raise operation.unsupported() from error
        result = None
        try:
            if isinstance(block.terminator, Branch):
                result = writer.read(Register(block.terminator.register), "pred")
            elif isinstance(block.terminator, Switch):
                result = writer.read(Register(block.terminator.register), "u32")
            lines = writer.finish(block.live_in, block.live_out, result)
        except WRONG_OPERANDS as error:
            raise Unsupported(f"a register has another type where block {block.index} ends: {error}") from error
        return f"def block_{block.index}(s, R):\n{lines}\n"

    def _meeting(self, block: Block) -> Meeting | None:
        operation = block.meeting
        if operation is None:
            return None
        if isinstance(operation.spec, Barrier) and not operation.spec.is_warp:
            return Meeting("block", 0, False, operation.line)
        members = operation.operands[-1]
        match members:
            case Integer():
                return Meeting("warp", members.value & 0xFFFFFFFF, False, operation.line)
            case Register() if members.name in self._fixed:
                name = self._fixed[members.name].forms["u32"]
                return Meeting("warp", int(self._constants.arrays[name][0, 0]), False, operation.line)
            case Register():
                return Meeting("warp", self._slots[members.name], True, operation.line)
            case SpecialRegister() | Float() | Symbol() | Address() | Vector() | Negated() | Pair() | Sink() | OperandList():
                raise operation.unsupported()
            case _:
                assert_never(members)

    def _live_slots(self, block: int) -> tuple[int, ...]:
        return tuple(self._slots[name] for name in self._graph.blocks[block].live_in if name not in self._fixed)


def _pass_barrier(lanes: Lanes, threads: Array | None, line: int) -> None:
    """Notify the checks of a barrier. Only barriers of whole blocks are supported."""
    if threads is not None and (threads != lanes.chunk.threads).any():
        lanes.launch.fail("a barrier of some threads of a block is not supported", line, lanes.describe(0))
    if lanes.observer is not None:
        lanes.observer.barrier(lanes, "block", line)


def _pass_warp_barrier(lanes: Lanes, line: int) -> None:
    """Notify the checks of a `bar.warp.sync`."""
    if lanes.observer is not None:
        lanes.observer.barrier(lanes, "warp", line)


def _public(module: ModuleType) -> dict[str, object]:
    return {
        name: value
        for name, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", "") == module.__name__ and not name.startswith("_")
    }


_NAMESPACE: dict[str, object] = {
    **_public(float_numerics),
    **_public(float_functions),
    **_public(approximations),
    **_public(exact_numerics),
    **_public(integer_numerics),
    **_public(conversions),
    **{f"{kind}{size}": np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)},
    **{f"f{size}": np.dtype(f"f{size}") for size in (4, 8)},
    "half": np.dtype(np.float16),
    "bfloat": np.dtype(ml_dtypes.bfloat16),
    "np": np,
    "global_pointer": mixed_or_single,
    "shared_pointer": shared_pointer,
    "local_pointer": local_pointer,
    "atomic": atomics.atomic,
    "shuffle": warps.shuffle,
    "vote": warps.vote,
    "match_any": warps.match_any,
    "match_all": warps.match_all,
    "reduce_warp": warps.reduce,
    "elect": warps.elect,
    "active_mask": warps.active_mask,
    "block_reduce": warps.block_reduce,
    "pass_barrier": _pass_barrier,
    "pass_warp_barrier": _pass_warp_barrier,
}
