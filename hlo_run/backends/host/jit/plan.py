"""The decisions about a kernel before its code is written: memory, phases, and which registers are stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from msgspec import Struct

from hlo_run.backends.host.emulator.memory import LOCAL_NUMBER, NUMBER_SHIFT, SHARED_NUMBER, VARIABLE_NUMBER
from hlo_run.backends.host.jit.affine import PureValues
from hlo_run.backends.host.jit.guard import Guard, choose_loops
from hlo_run.backends.host.jit.phases import cut_phases
from hlo_run.backends.host.ptx.control_flow import FunctionBlocks, KernelGraph, single_definitions
from hlo_run.backends.host.ptx.instruction_set import CARRY, Operation
from hlo_run.backends.host.ptx.purity import pure_functions
from hlo_run.backends.host.ptx.specs import ConvertAddress, FloatArithmetic, Load, Move
from hlo_run.backends.host.ptx.syntax import (
    Address,
    Float,
    Integer,
    Negated,
    Operand,
    OperandList,
    Pair,
    Register,
    Sink,
    SpecialRegister,
    Symbol,
    Vector,
)
from hlo_run.target import WARP_THREADS

# The pointers of a worker's state, by index.
FAULT, CANCEL, SHARED, LOCAL, SLOTS, PLACES, CHOSEN, TABLE, FIRST_REGION = range(9)

MIXED = -1
"""Marks a register that may hold addresses of several regions."""

ROW_WORDS = 6
"""Words per row of the table of regions: base, low, high, low and high for word accesses, writable."""

_MOVES_POINTERS = frozenset(("mov", "cvta", "add", "sub", "and", "or", "mad", "selp", "min", "max"))


class RegionSpec(Struct, frozen=True):
    """A piece of memory that accesses are compiled against. Its bounds are as in `memory.Region`, relative to its base.

    `index` is the position of its base in the worker's state. Regions with copies (shared, local memory) have their own bases;
    local memory has `stride` bytes per thread. Regions with the same `alias` may overlap.
    """

    number: int
    index: int
    low: int
    high: int
    word_low: int
    word_high: int
    writable: bool
    stride: int = 0
    alias: int = 0

    def bounds(self, kind: str, size_bytes: int) -> tuple[int, int]:
        """Return the offsets [low, high) that an access must lie in."""
        by_word = kind == "load" or (kind != "store" and size_bytes <= 4)
        return (self.word_low, self.word_high) if by_word else (self.low, self.high)


class LaunchShape(Struct, frozen=True):
    """The launch that code is compiled for: sizes of grid and block, and the memory behind parameters and variables.

    With `concurrent`, other threads run blocks at the same time, so atomics must be atomic. With `interruptible`, loops test
    whether to stop.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    regions: tuple[RegionSpec, ...]
    parameters: tuple[int, ...]
    shared_bytes: int
    concurrent: bool = True
    interruptible: bool = False

    @property
    def threads(self) -> int:
        """The number of threads of a block."""
        return self.block[0] * self.block[1] * self.block[2]

    def aliases(self, space: str) -> str:
        """Return a name shared by all regions that may overlap. `space` is a region's number, shared, local, or ""."""
        if not space.isdigit():
            return space
        return next((f"alias {region.alias}" for region in self.regions if str(region.number) == space), "")


class Plan:
    """The plan of a kernel for a launch shape."""

    def __init__(self, graph: KernelGraph, shape: LaunchShape) -> None:
        self.graph = graph
        self.shape = shape
        self.threads = shape.threads
        self.registers: Mapping[str, str] = {**graph.registers, CARRY: "pred"}
        self.phases = cut_phases(graph)
        names = enumerate(variable.name for variable in graph.variables.values())
        variables = {name: (VARIABLE_NUMBER + number) << NUMBER_SHIFT for number, name in names}
        self.addresses = graph.addresses(shape.parameters, variables)
        self.pure, self.guard = choose_loops(graph, self._pure_values)
        self.local_stride = -(-graph.local.size_bytes // 16) * 16
        self.regions = {region.number: region for region in shape.regions}
        count = len(self.regions)
        self.regions[SHARED_NUMBER] = self._copies(SHARED_NUMBER, SHARED, shape.shared_bytes, 0)
        self.regions[LOCAL_NUMBER] = self._copies(LOCAL_NUMBER, LOCAL, graph.local.size_bytes, self.local_stride)
        self.row_of = {number: row for row, number in enumerate(self.regions)}
        self.state_words = FIRST_REGION + count
        self.provenance = _provenance(graph, self.addresses)
        self.dirty = _dirty_registers(graph)
        self.slots, self.slot_bytes = self._place_slots()
        self.remembered = {name: number for number, name in enumerate(sorted(pure_functions(graph)))}
        """The number of each called function whose last results are kept."""
        self.record_words = max((self._record_words(graph.functions[name]) for name in self.remembered), default=0)

    @property
    def has_cuts(self) -> bool:
        """True if the kernel has more than one phase."""
        return len(self.phases) > 1

    def _pure_values(self, lanes: int, guard: Guard | None) -> PureValues:
        shape, graph = self.shape, self.graph
        active = guard.threads if guard else None
        return PureValues(graph, shape.grid, shape.block, self.addresses, _exchanged(graph), lanes, active)

    @property
    def is_one_loop(self) -> bool:
        """True if one loop covers all threads of a block: `%lane` is the thread's number and `%warp` is 0."""
        return self.pure.lanes >= self.threads

    def width(self, name: str) -> int:
        """Return the bits of a register; 1 for a predicate."""
        type_name = self.registers[name]
        return 1 if type_name == "pred" else max(16, int(type_name.lstrip("bsuf")))

    def inputs(self, function: FunctionBlocks) -> list[tuple[str, int]]:
        """Return the registers that a called function gets, with their bits."""
        live = self.graph.blocks[function.entry].live_in
        return [(name, self.width(name)) for name in live if name in function.inputs and self.is_stored(name)]

    def outputs(self, function: FunctionBlocks) -> list[tuple[str, int]]:
        """Return the registers that a called function returns, with their bits."""
        return [(name, self.width(name)) for name in sorted(function.outputs) if self.is_stored(name)]

    def _record_words(self, function: FunctionBlocks) -> int:
        return len(self.inputs(function)) + len(self.outputs(function))

    def result_type(self, function: FunctionBlocks) -> str:
        """Return the type in LLVM IR of what a called function returns."""
        outputs = self.outputs(function)
        return f"{{ {', '.join(f'i{width}' for _, width in outputs)} }}" if outputs else "void"

    def is_stored(self, name: str) -> bool:
        """True if the register must be kept between blocks, because it cannot be computed again."""
        return not self.pure.is_pure(name)

    def _copies(self, number: int, index: int, size: int, stride: int) -> RegionSpec:
        return RegionSpec(number, index, 0, size, 0, -(-size // 4) * 4, True, stride)

    def _place_slots(self) -> tuple[dict[str, int], int]:
        """Give every register that is live across a meeting, and every meeting's results, an array over the block's threads."""
        padded = -(-self.threads // WARP_THREADS) * WARP_THREADS
        names: dict[str, int] = {}
        for phase in self.phases[1:]:
            for name in self.graph.blocks[phase.entry].live_in:
                if self.is_stored(name):
                    names.setdefault(name, self.width(name))
            for part in (0, 1):
                names[result_slot(phase.number, part)] = 64
        slots: dict[str, int] = {}
        end = 0
        for name, width in names.items():
            slots[name] = end
            end += padded * max(1, width // 8)
            end = -(-end // 64) * 64
        return slots, end


def result_slot(phase: int, part: int) -> str:
    """Return the name of the slot for a result of the meeting that begins a phase."""
    return f"result {phase}.{part}"


def _exchanged(graph: KernelGraph) -> frozenset[str]:
    """Return the registers that other threads read at a meeting. Each thread's value must be kept, unless it is constant."""
    names: set[str] = set()
    for block in graph.blocks:
        if block.cut is not None:
            names.update(block.cut.reads())
    definitions = single_definitions(graph)
    return frozenset(name for name in names if name not in definitions or not _is_constant(definitions[name]))


def _is_constant(operation: Operation) -> bool:
    spec = operation.spec
    return isinstance(spec, Move) and spec.type != "pred" and isinstance(operation.operands[1], Integer)


def _dirty_registers(graph: KernelGraph) -> frozenset[str]:
    """Return the registers that only f32 arithmetic sets. They may hold any NaN between blocks."""
    good: dict[str, bool] = {}
    for block in graph.blocks:
        for operation in block.operations:
            for name in operation.writes():
                good[name] = good.get(name, True) and _sets_f32(operation)
    return frozenset(name for name, is_good in good.items() if is_good)


def _sets_f32(operation: Operation) -> bool:
    """True for operations of f32 whose result may be any NaN: it need not be canonical between blocks."""
    spec = operation.spec
    if not isinstance(spec, FloatArithmetic) or spec.operation in ("neg", "abs"):
        return False
    return spec.format == "f32" and spec.lanes == 1 and isinstance(operation.operands[0], Register)


# ---- the region of a pointer ----------------------------------------------------------------------------------------


def _provenance(graph: KernelGraph, addresses: Mapping[str, tuple[str, int]]) -> dict[str, int]:
    """Return the region whose addresses a 64-bit register holds, or MIXED. Registers without known addresses are left out.

    The region is a guess that selects the check: an access outside of it is a fault in any case.
    """
    found: dict[str, int] = {}
    operations = [operation for block in graph.blocks for operation in block.operations]
    changed = True
    while changed:
        changed = False
        for operation in operations:
            if not isinstance(operation.operands[0] if operation.operands else None, Register):
                continue
            numbers = {number for source in _sources(operation) if (number := _number(source, found, addresses)) is not None}
            number = _with_space(operation, numbers)
            for name in operation.writes() if number is not None else ():
                assert number is not None, "only known regions are propagated"
                joined = number if found.get(name, number) == number else MIXED
                if found.get(name) != joined:
                    found[name] = joined
                    changed = True
    return found


def _sources(operation: Operation) -> tuple[Operand, ...]:
    if isinstance(operation.spec, Load) and operation.spec.space == "param":
        return operation.operands[1:]
    return operation.operands[1:] if operation.opcode in _MOVES_POINTERS else ()


def _number(source: Operand, found: Mapping[str, int], addresses: Mapping[str, tuple[str, int]]) -> int | None:
    base = source.base if isinstance(source, Address) else source
    match base:
        case Register():
            return found.get(base.name)
        case Symbol() if base.name in addresses:
            space, address = addresses[base.name]
            return address >> NUMBER_SHIFT if space in ("param", "global") else None
        case (
            SpecialRegister()
            | Integer()
            | Float()
            | Symbol()
            | Address()
            | Vector()
            | Negated()
            | Pair()
            | Sink()
            | OperandList()
        ):
            return None
        case _:
            assert_never(base)


def _with_space(operation: Operation, numbers: set[int]) -> int | None:
    spec = operation.spec
    if isinstance(spec, ConvertAddress) and spec.space in ("shared", "local"):
        return None if spec.is_inward else SHARED_NUMBER if spec.space == "shared" else LOCAL_NUMBER
    if not numbers:
        return None
    return numbers.pop() if len(numbers) == 1 else MIXED
