"""Find registers that a thread can compute again at any time, and the facts about their values.

A register is *pure* if its only definition is integer arithmetic on constants, parameters, special registers and pure registers.
Many are *affine*: a sum of multiples of a lane, a warp, a block coordinate or another pure register, without overflow. Memory
accesses at affine addresses need no check while the kernel runs. LLVM also sees that neighbouring threads access neighbouring
addresses, even if the PTX computes them with masks and shifts.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import assert_never

from hlo_run.backends.host.emulator.memory import LOCAL_NUMBER, NUMBER_SHIFT, SHARED_NUMBER
from hlo_run.backends.host.jit.affine_sum import Affine, Interval, constant, fits, fits_type, monotonic
from hlo_run.backends.host.ptx.control_flow import KernelGraph, single_definitions
from hlo_run.backends.host.ptx.instruction_set import Operation
from hlo_run.backends.host.ptx.specs import (
    Compare,
    ConvertAddress,
    ConvertInteger,
    ExtractBits,
    Load,
    Logic,
    Move,
    Product,
    Shift,
    Sum,
    Unary,
    is_integer,
)
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

_PURE_OPCODES = frozenset(
    "mov add sub mul mad shl shr and or xor not cvt cvta setp selp min max neg abs bfe bfi prmt popc clz brev sad".split()
)
_MAX_CHAIN = 40
_HIGH_PRODUCT = Product("u32", "hi", adds=False, saturates=False, carry_in=False, carry_out=False)
# Special registers that are constant while a thread runs.
_CONSTANT_SPECIAL_REGISTERS = frozenset(("%tid", "%ctaid", "%ntid", "%nctaid", "%laneid", "%warpid", "%nwarpid"))


class PureValues:
    """The facts about the registers of one kernel, launched with given sizes.

    Symbols are `.lane`, `.warp`, `.cta.x` .., `.tid.x` .. (if a block has several dimensions), names of pure registers and
    those of `quotients`. `kept` are registers that must not be computed again, even if they are pure. `addresses` maps symbols to
    (space, address). `.warp` counts groups of `lanes` threads. In a one-dimensional launch only the first `active` threads have
    an effect.
    """

    def __init__(
        self,
        graph: KernelGraph,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        addresses: Mapping[str, tuple[str, int]],
        kept: frozenset[str],
        lanes: int = WARP_THREADS,
        active: int | None = None,
    ) -> None:
        self._registers = graph.registers
        self._addresses = addresses
        self._kept = kept
        self.grid, self.block = grid, block
        self.threads = block[0] * block[1] * block[2]
        self.flat = block[1] * block[2] == 1
        self.lanes = lanes
        self.active = active
        self.ranges: dict[str, Interval] = {".lane": (0, min(lanes, self.threads, active or self.threads) - 1)}
        self.ranges[".warp"] = (0, (self.threads - 1) // lanes)
        for axis, blocks, threads in zip("xyz", grid, block, strict=True):
            self.ranges[f".cta.{axis}"] = (0, blocks - 1)
            self.ranges[f".tid.{axis}"] = (0, threads - 1)
        self.definitions = single_definitions(graph)
        self.quotients: dict[str, tuple[Affine, int]] = {}
        """Maps a symbol with a slash to (dividend, divisor): it is a non-negative affine sum, divided and rounded down."""
        self._pure: dict[str, int] = {}
        self._affine: dict[str, Affine | None] = {}
        factors = {".lane": 1, ".warp": lanes, ".cta.x": self.threads}
        self._numbers = {name: factor for name, factor in factors.items() if self.ranges[name][1] > 0}

    # ---- purity -------------------------------------------------------------------------------------------------

    def is_pure(self, name: str) -> bool:
        """True if the register can be computed again anywhere."""
        return self._chain(name) <= _MAX_CHAIN

    def _chain(self, name: str) -> int:
        """Return the number of operations that compute a register. It exceeds the limit if the register is not pure."""
        known = self._pure.get(name)
        if known is not None:
            return known
        self._pure[name] = impossible = _MAX_CHAIN + 1
        operation = self.definitions.get(name)
        if operation is None or name in self._kept or not self._is_simple(operation):
            return impossible
        length = 1
        for source in operation.operands[1:]:
            length += self._source_chain(operation, source)
        self._pure[name] = min(length, impossible)
        return self._pure[name]

    def _source_chain(self, operation: Operation, source: Operand) -> int:
        match source:
            case Integer() | Symbol():
                return 0
            case SpecialRegister():
                return 0 if source.name.split(".")[0] in _CONSTANT_SPECIAL_REGISTERS else _MAX_CHAIN
            case Register():
                return self._chain(source.name)
            case Address():
                return 0 if operation.opcode == "ld" else _MAX_CHAIN
            case Float() | Vector() | Negated() | Pair() | Sink() | OperandList():
                return _MAX_CHAIN
            case _:
                assert_never(source)

    def _is_simple(self, operation: Operation) -> bool:
        if isinstance(operation.spec, Load):
            return operation.spec.space == "param" and isinstance(operation.operands[0], Register)
        if operation.opcode not in _PURE_OPCODES or "cc" in operation.flags or operation.instruction.guard:
            return False
        integers = all(name == "pred" or is_integer(name) for name in operation.types)
        return integers and isinstance(operation.operands[0], Register)

    # ---- values -------------------------------------------------------------------------------------------------

    def affine_of(self, operand: Operand) -> Affine | None:
        """Return an operand's value as an affine sum; None if it is not affine."""
        match operand:
            case Integer():
                return constant(operand.value)
            case SpecialRegister():
                return self._special(operand.name)
            case Symbol() if operand.name in self._addresses:
                return constant(self._addresses[operand.name][1] + operand.offset)
            case Register() if self.is_pure(operand.name):
                return self._register(operand.name)
            case Register() | Float() | Symbol() | Address() | Vector() | Negated() | Pair() | Sink() | OperandList():
                return None
            case _:
                assert_never(operand)

    def _register(self, name: str) -> Affine:
        known = self._affine.get(name)
        if known is None:
            operation = self.definitions[name]
            found = self._compute(operation) or self._quotient(operation)
            width = self._width(name)
            if found is None or not fits(found, width):
                found = self._symbol(name, self._interval(operation, width))
            known = self._affine[name] = found
        return known

    def _width(self, name: str) -> int:
        type_name = self._registers[name]
        return 1 if type_name == "pred" else int(type_name.lstrip("bsuf"))

    def _symbol(self, name: str, interval: Interval) -> Affine:
        low, high = self.ranges.setdefault(name, interval)
        return constant(low) if low == high else Affine(((name, 1),), 0, low, high)

    def _special(self, name: str) -> Affine | None:
        base, _, axis = name[1:].partition(".")
        index = "xyz".find(axis) if axis else 0
        match base:
            case "tid":
                return self._thread(axis, index)
            case "ctaid":
                return self._symbol(f".cta.{axis}", self.ranges[f".cta.{axis}"])
            case "ntid":
                return constant(self.block[index])
            case "nctaid":
                return constant(self.grid[index])
            case "laneid":
                return self._symbol(".lane", self.ranges[".lane"])
            case "warpid":
                return self._symbol(".warp", self.ranges[".warp"])
            case "nwarpid":
                return constant(self.ranges[".warp"][1] + 1)
            case _:
                return None

    def _thread(self, axis: str, index: int) -> Affine:
        if not self.flat or self.block[index] == 1:
            return self._symbol(f".tid.{axis}", self.ranges[f".tid.{axis}"])
        lane, warp = self._symbol(".lane", self.ranges[".lane"]), self._symbol(".warp", self.ranges[".warp"])
        return self.combine(lane, self._scaled(warp, self.lanes), 1)

    def thread_number(self) -> Affine:
        """Return the number of a thread in its launch. Grid and block must be one-dimensional."""
        block = self._symbol(".cta.x", self.ranges[".cta.x"])
        return self.combine(self._thread("x", 0), self._scaled(block, self.threads), 1)

    def combine(self, a: Affine, b: Affine, sign: int) -> Affine:
        """Return a + sign * b."""
        terms = dict(a.terms)
        for symbol, coefficient in b.terms:
            terms[symbol] = terms.get(symbol, 0) + sign * coefficient
        return self.make(terms, a.constant + sign * b.constant)

    def make(self, terms: Mapping[str, int], constant: int) -> Affine:
        """Return the sum with these coefficients."""
        kept = tuple((symbol, coefficient) for symbol, coefficient in sorted(terms.items()) if coefficient)
        return Affine(kept, constant, *self._bounds(dict(kept), constant))

    def _bounds(self, terms: dict[str, int], constant: int, depth: int = 3) -> Interval:
        """Return bounds of a sum. A quotient in the sum may form a remainder with its dividend: n - d * (n / d) < d."""
        low = high = constant
        for symbol, coefficient in terms.items():
            ends = [coefficient * end for end in self.ranges[symbol]]
            low, high = low + min(ends), high + max(ends)
        if self.active is not None and depth:
            low, high = self._bounds_of_active(terms, constant, depth, low, high)
        for symbol in terms if depth else ():
            if symbol not in self.quotients:
                continue
            dividend, divisor = self.quotients[symbol]
            for times in self._remainders(terms, symbol):
                rest = {**terms, symbol: terms[symbol] + times * divisor}
                for other, coefficient in dividend.terms:
                    rest[other] = rest.get(other, 0) - times * coefficient
                rest = {name: coefficient for name, coefficient in rest.items() if coefficient}
                least, most = self._bounds(rest, constant - times * dividend.constant, depth - 1)
                remainder = times * min(divisor - 1, dividend.high)
                low, high = max(low, least + min(0, remainder)), min(high, most + max(0, remainder))
        return low, high

    def _bounds_of_active(self, terms: dict[str, int], constant: int, depth: int, low: int, high: int) -> Interval:
        """Return tighter bounds of a sum that contains the number of an active thread."""
        assert self.active is not None, "the number of active threads is known"
        number = self._numbers
        if len(number) < 2 or not (times := terms.get(".lane", 0)) or any(terms.get(s) != times * c for s, c in number.items()):
            return low, high
        rest = {name: coefficient for name, coefficient in terms.items() if name not in number}
        least, most = self._bounds(rest, constant, depth - 1)
        ends = (0, times * (self.active - 1))
        return max(low, least + min(ends)), min(high, most + max(ends))

    def depends_on_lane(self, symbol: str) -> bool:
        """True if a symbol may differ between neighbouring threads."""
        if symbol in self.quotients:
            return any(self.depends_on_lane(name) for name, _ in self.quotients[symbol][0].terms)
        return not symbol.startswith((".cta", ".warp"))

    def _remainders(self, terms: Mapping[str, int], symbol: str) -> set[int]:
        """Return the possible multiples of a quotient's remainder in a sum."""
        dividend, divisor = self.quotients[symbol]
        ways = {terms.get(name, 0) // c for name, c in dividend.terms if terms.get(name, 0) % c == 0}
        return {way for way in (*ways, -terms[symbol] // divisor) if way}

    def _scaled(self, a: Affine, factor: int) -> Affine:
        return self.make({symbol: coefficient * factor for symbol, coefficient in a.terms}, a.constant * factor)

    # ---- arithmetic ---------------------------------------------------------------------------------------------

    def _compute(self, operation: Operation) -> Affine | None:
        """Return the value of a pure operation if it is affine. The caller checks its range."""
        spec = operation.spec
        if isinstance(spec, Load):
            address = operation.operands[1]
            assert isinstance(address, Address), "a load has an address"
            return self.affine_of(address.base) if address.offset == 0 and isinstance(address.base, Symbol) else None
        if "pred" in operation.types or isinstance(spec, Compare):
            return None
        sources = [self.affine_of(operand) for operand in operation.operands[1:]]
        match spec:
            case Move():
                return sources[0]
            case ConvertAddress():
                return self._address_space(spec, sources[0])
            case ConvertInteger():
                return self._converted(spec, sources[0], self._width_of_target(operation))
            case Sum():
                a, b = sources
                is_plain = not (spec.saturates or spec.carry_in or spec.carry_out)
                return self.combine(a, b, -1 if spec.subtracts else 1) if a and b and is_plain else None
            case Product():
                return self._product(spec, sources)
            case Shift(is_left=True):
                a, b = sources
                return self._scaled(a, 1 << b.constant) if a and b and not b.terms and 0 <= b.constant < 64 else None
            case Shift():
                return self._shifted(spec, *sources)
            case Logic():
                return self._logic(spec, *sources)
            case ExtractBits():
                return self._field(spec, sources)
            case _:
                return None

    def _address_space(self, spec: ConvertAddress, a: Affine | None) -> Affine | None:
        if a is None or spec.space in ("global", "const"):
            return a
        number = SHARED_NUMBER if spec.space == "shared" else LOCAL_NUMBER
        return self.combine(a, constant(number << NUMBER_SHIFT), -1 if spec.is_inward else 1)

    def _converted(self, spec: ConvertInteger, a: Affine | None, width: int) -> Affine | None:
        if a is None or spec.saturates:
            return None
        fits = fits_type(a, spec.origin) and (fits_type(a, spec.to) or int(spec.to[1:]) >= width)
        return a if fits else None

    def _width_of_target(self, operation: Operation) -> int:
        target = operation.operands[0]
        assert isinstance(target, Register), "pure operations set registers"
        return self._width(target.name)

    def _product(self, spec: Product, sources: list[Affine | None]) -> Affine | None:
        a, b, *rest = sources
        if not a or not b or spec.part == "hi" or spec.saturates:
            return None
        if spec.part == "wide" and not (fits_type(a, spec.type) and fits_type(b, spec.type)):
            return None
        if b.terms:
            a, b = b, a
        if b.terms:
            return None
        product = self._scaled(a, b.constant)
        if not rest:
            return product
        return self.combine(product, rest[0], 1) if rest[0] else None

    def _parts(self, a: Affine, bits: int) -> tuple[Affine, Affine] | None:
        """Split `a` into a sum: (a multiple of 2**bits, a rest in [0, 2**bits)). Return None if the terms do not allow it."""
        unit = 1 << bits
        high = {symbol: coefficient for symbol, coefficient in a.terms if coefficient % unit == 0}
        low = {symbol: coefficient for symbol, coefficient in a.terms if coefficient % unit}
        rest = self.make(low, a.constant % unit)
        return (self.make(high, a.constant - a.constant % unit), rest) if rest.low >= 0 and rest.high < unit else None

    def _shifted(self, spec: Shift, a: Affine | None, b: Affine | None) -> Affine | None:
        if not a or not b or b.terms or not 0 <= b.constant < 64 or not fits_type(a, spec.type):
            return None
        parts = self._parts(a, b.constant)
        if parts is None:
            return None
        unit = 1 << b.constant
        return self.make({symbol: c // unit for symbol, c in parts[0].terms}, parts[0].constant // unit)

    def _logic(self, spec: Logic, a: Affine | None, b: Affine | None) -> Affine | None:
        if not a or not b:
            return None
        if spec.operation != "and":
            for upper, lower in ((a, b), (b, a)):
                if lower.low >= 0 and upper.low >= 0 and upper.multiple_of(1 << lower.high.bit_length()):
                    return self.combine(upper, lower, 1)
            return None
        if not a.terms:
            a, b = b, a
        if b.terms:
            return None
        mask = b.constant & ((1 << int(spec.type[1:])) - 1)
        ones = mask.bit_length()
        if mask == (1 << ones) - 1:
            parts = self._parts(a, ones)
            return parts[1] if parts else None
        zeros = (mask & -mask).bit_length() - 1
        if mask == (1 << int(spec.type[1:])) - (1 << zeros):
            parts = self._parts(a, zeros)
            return parts[0] if parts and a.low >= 0 else None
        return None

    def _field(self, spec: ExtractBits, sources: list[Affine | None]) -> Affine | None:
        a, start, count = sources
        if not a or not start or not count or start.terms or count.terms or spec.type[0] != "u" or a.low < 0:
            return None
        shifted = self._parts(a, start.constant) if 0 <= start.constant < 64 else None
        if shifted is None or not 0 < count.constant < 64:
            return None
        unit = 1 << start.constant
        upper = self.make({symbol: c // unit for symbol, c in shifted[0].terms}, shifted[0].constant // unit)
        parts = self._parts(upper, count.constant)
        return parts[1] if parts else None

    # ---- division by constants ----------------------------------------------------------------------------------

    def _quotient(self, operation: Operation) -> Affine | None:
        """Return the value of a division that was compiled to a multiplication: multiples of the divisor plus a symbol."""
        found = self._reciprocal(operation)
        if found is None:
            return None
        dividend, factor, shift = found
        divisor = -(-(1 << shift) // factor) if factor else 0
        # The quotient is exact while the error of the rounded-up factor stays below one unit.
        if dividend.low < 0 or not factor or (factor * divisor - (1 << shift)) * dividend.high >= 1 << shift:
            return None
        whole = {name: c // divisor for name, c in dividend.terms if c % divisor == 0}
        rest = {name: c for name, c in dividend.terms if c % divisor}
        part = self.make(rest, dividend.constant % divisor)
        if part.low < 0 or part.high >= 1 << 32:
            whole, part = {}, dividend
        quotient = self.make(whole, (dividend.constant - part.constant) // divisor)
        if part.high < divisor:
            return quotient
        unit = gcd(divisor, *(coefficient for _, coefficient in part.terms))
        reduced = self.make({name: c // unit for name, c in part.terms}, part.constant // unit)
        return self.combine(quotient, self._divided(reduced, divisor // unit), 1)

    def _divided(self, dividend: Affine, divisor: int) -> Affine:
        """Return the symbol of a quotient. All registers with this value share it."""
        name = f"/{divisor} {dividend.constant} {dividend.terms}"
        self.quotients[name] = dividend, divisor
        return self._symbol(name, (dividend.low // divisor, dividend.high // divisor))

    def _reciprocal(self, operation: Operation) -> tuple[Affine, int, int] | None:
        """Return (x, f, s) if the operation computes x * f >> s in unsigned 32-bit arithmetic."""
        shift = 32
        if operation.spec in (Shift("u32", is_left=False), Shift("b32", is_left=False)):
            source, count = operation.operands[1], self.affine_of(operation.operands[2])
            if not isinstance(source, Register) or not count or count.terms or not 0 <= count.constant < 32:
                return None
            shift, inner = 32 + count.constant, self.definitions.get(source.name)
            if inner is None or not self.is_pure(source.name):
                return None
            operation = inner
        if operation.spec != _HIGH_PRODUCT:
            return None
        x, factor = (self.affine_of(operand) for operand in operation.operands[1:])
        if not x or not factor or factor.terms or not fits_type(x, "u32"):
            return None
        return x, factor.constant & 0xFFFFFFFF, shift

    # ---- bounds of values that are not affine -------------------------------------------------------------------

    def _interval(self, operation: Operation, width: int) -> Interval:
        """Return bounds of the register's bits as an unsigned number."""
        everything = (0, (1 << width) - 1)
        spec = operation.spec
        if isinstance(spec, Load | Compare) or "pred" in operation.types:
            return everything
        sources = [self.affine_of(operand) for operand in operation.operands[1:]]
        if isinstance(spec, Logic) and spec.operation == "and":
            highs = [source.high for source in sources if source and source.low >= 0]
            return (0, min(highs)) if highs else everything
        if isinstance(spec, ExtractBits) and spec.type[0] == "u" and sources[2] and not sources[2].terms:
            return 0, (1 << min(width, sources[2].constant & 255)) - 1
        if isinstance(spec, Unary) and spec.operation in ("popc", "clz"):
            return 0, 64
        # The other operations are monotonic if neither operand can be negative.
        known = [source for source in sources[:2] if source and source.low >= 0 and fits_type(source, operation.type)]
        return (monotonic(operation, known[0], known[1]) if len(known) == 2 else None) or everything
