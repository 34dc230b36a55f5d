"""The instructions of a PTX kernel, and what their results reach: stored values, addresses or branches."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

_LINE = re.compile(r"^\s*(?P<guard>@!?%\w+\s+)?(?P<op>[a-z][\w.:]*)(?:\s+(?P<operands>[^;]*))?;\s*(?://.*)?$")
_LABEL = re.compile(r"^\s*(\$\w+):")
_REGISTER = re.compile(r"%[a-zA-Z_]\w*")
_FLOAT = re.compile(r"\.(?:bf16|f16|f32|f64)(?:x2)?$")
_PARAMETER = re.compile(r"\[\w+_param_(\d+)\]")


@dataclass(frozen=True)
class Instruction:
    """One instruction in one line of PTX. `number` is the index of the line, `guard` such as `@!%p1` or empty."""

    number: int
    guard: str
    op: str
    operands: tuple[str, ...]

    @property
    def parts(self) -> list[str]:
        """The mnemonic without its modifiers, then the modifiers."""
        return self.op.split(".")

    @property
    def is_float(self) -> bool:
        """True if the last type of the mnemonic is that of floats."""
        return _FLOAT.search(self.op) is not None

    @property
    def bits(self) -> int:
        """The bits of the last type of the mnemonic; 0 if it has none."""
        found = re.search(r"\.b?[bfsu](8|16|32|64)(x2)?$", self.op)
        return 0 if found is None else int(found[1]) * (2 if found[2] else 1)

    @property
    def has_result(self) -> bool:
        """True if the first operand is a result."""
        return self.parts[0] not in ("st", "red", "bra", "bar", "barrier", "ret", "exit", "membar", "fence", "call", "trap")

    @property
    def results(self) -> list[str]:
        """The registers that it writes."""
        return _REGISTER.findall(self.operands[0]) if self.has_result and self.operands else []

    @property
    def sources(self) -> list[str]:
        """The registers that it reads, without the guard and the addresses."""
        given = self.operands[1:] if self.has_result else self.operands
        return [name for operand in given if "[" not in operand for name in _REGISTER.findall(operand)]

    @property
    def addresses(self) -> list[str]:
        """The registers of its addresses."""
        return [name for operand in self.operands if "[" in operand for name in _REGISTER.findall(operand)]

    def text(self, op: str | None = None, *operands: str) -> str:
        """Return the line with another mnemonic and other operands."""
        guard = f"{self.guard} " if self.guard else ""
        return f"\t{guard}{op or self.op} \t{', '.join(operands or self.operands)};"


def split_operands(text: str) -> tuple[str, ...]:
    """Return the operands of an instruction: commas inside of braces and brackets do not separate them."""
    found: list[str] = [""]
    depth = 0
    for letter in text:
        depth += (letter in "{[(") - (letter in "}])")
        if letter == "," and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return tuple(part.strip() for part in found if part.strip())


class KernelText:
    """The lines of a kernel's PTX, and its instructions."""

    def __init__(self, ptx: str) -> None:
        self.lines = ptx.splitlines()
        self.body = self.lines.index("{") + 1
        entry = re.search(r"\.entry\s+([\w$]+)\(", ptx)
        assert entry is not None, "a kernel has an entry"
        self.entry = entry[1]
        self.instructions: list[Instruction] = []
        self.labels: dict[str, int] = {}
        for number, line in enumerate(self.lines):
            label, found = _LABEL.match(line), _LINE.match(line)
            if label is not None:
                self.labels[label[1]] = number
            elif found is not None and number >= self.body:
                guard = (found["guard"] or "").strip()
                self.instructions.append(Instruction(number, guard, found["op"], split_operands(found["operands"] or "")))

    @cached_property
    def _makers(self) -> dict[str, list[Instruction]]:
        found: dict[str, list[Instruction]] = {}
        for instruction in self.instructions:
            for name in instruction.results:
                found.setdefault(name, []).append(instruction)
        return found

    def _reaching(self, names: Iterable[str]) -> set[str]:
        """Return the registers that these depend on, with themselves. Addresses of loads do not count."""
        found = set(names)
        waiting = list(found)
        while waiting:
            for maker in self._makers.get(waiting.pop(), ()):
                new = set(maker.sources) - found
                found |= new
                waiting += new
        return found

    @cached_property
    def stored(self) -> set[str]:
        """The registers whose values reach a store or an atomic operation as its value."""
        stores = (i for i in self.instructions if i.parts[0] in ("st", "red", "atom"))
        return self._reaching(name for store in stores for name in store.sources)

    @cached_property
    def steering(self) -> set[str]:
        """The registers whose values reach an address or a guard."""
        addresses = {name for i in self.instructions for name in i.addresses}
        guards = {i.guard.lstrip("@!") for i in self.instructions if i.guard}
        return self._reaching(addresses | guards)

    def is_data(self, instruction: Instruction) -> bool:
        """True if a result of the instruction reaches a stored value, and is a float or reaches no address and no guard."""
        results = set(instruction.results)
        return bool(results & self.stored) and (instruction.is_float or not results & self.steering)

    @cached_property
    def loops(self) -> list[tuple[int, int]]:
        """The first and the last line of every loop: a branch back to a label."""
        found: list[tuple[int, int]] = []
        for instruction in self.instructions:
            start = self.labels.get(instruction.operands[-1]) if instruction.parts[0] == "bra" else None
            if start is not None and start <= instruction.number:
                found.append((start, instruction.number))
        return found

    def is_carried(self, instruction: Instruction) -> bool:
        """True if the result is the first value of a register that a loop after the instruction reads and writes."""
        (name, *_) = instruction.results
        for first, last in self.loops:
            if instruction.number >= first:
                continue
            inside = [i for i in self.instructions if first <= i.number <= last]
            if any(name in i.results for i in inside) and any(name in i.sources for i in inside):
                return True
        return False

    def parameters_of(self, register: str) -> set[int]:
        """Return the numbers of the kernel's parameters that an address is made from."""
        found: set[int] = set()
        for name in self._reaching([register]):
            for maker in self._makers.get(name, ()):
                if maker.op.startswith("ld.param"):
                    found |= {int(number) for number in _PARAMETER.findall(maker.operands[1])}
        return found

    def with_lines(self, number: int, lines: Iterable[str]) -> str:
        """Return the PTX with other lines in the place of one, and with registers for faults (`%mutant_..`)."""
        return self.with_changes({number: list(lines)})

    def with_changes(self, changes: dict[int, list[str]], first: Iterable[str] = ()) -> str:
        """Return the PTX with some lines replaced, `first` at the beginning of the body, and registers for faults."""
        out = self.lines[: self.body]
        out += [f"\t.reg .b{width} \t{name}<{LANES}>;" for width, name in FAULT_REGISTERS.items()]
        out += [f"\t.reg .pred \t%mutant_p<{2 * LANES}>;"]
        declared = list(first)
        for number, line in enumerate(self.lines[self.body :], self.body):
            if declared and line.strip() and not line.strip().startswith((".", "//")):
                out += declared
                declared = []
            out += changes.get(number, [line])
        return "\n".join([*out, ""])


LANES = 16
FAULT_REGISTERS = {16: "%mutant_h", 32: "%mutant_r", 64: "%mutant_d"}
