"""The PTX reader: parse the text of a module into `syntax.Module`.

The parser knows the grammar, not the instructions: `instruction_set.decode` checks opcodes later. It skips `.loc`, `.file`,
`.pragma` and `.section`. If an inner `{ }` declares a register under a name that is taken, the register is renamed, so that names
are unique in a function.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct, field

from hlo_run.backends.host.ptx.syntax import (
    TYPE_BYTES,
    Float,
    Function,
    Guard,
    Instruction,
    Integer,
    Label,
    Module,
    Register,
    Relocation,
    Statement,
    Variable,
)
from hlo_run.backends.host.ptx.text import OperandParser, Source, parse_number

_SPACE = re.compile(r"\s*")
_HEADER = re.compile(r"\.(version|target|address_size)\s+([^\n]*)")
_USED_BYTES = re.compile(r'\.pragma\s+"used_bytes_mask\s+(0x[0-9a-fA-F]+)"\s*;')
_SKIPPED = re.compile(r"\.(?:file|loc)\b[^\n]*|\.(?:pragma|alias)\b[^;]*;|\.section\b[^{]*\{[^}]*\}")
_FUNCTION = re.compile(
    r"((?:\.(?:visible|weak|extern)\s+)*)\.(entry|func)\b\s*(?:\(([^)]*)\))?\s*([\w$]+)\s*(?:\(([^)]*)\))?([^{;()]*)([{;])"
)
_DECLARATION = re.compile(
    r"((?:\.(?:visible|weak|extern|common)\s+)*)\.(reg|const|global|local|param|shared)\b((?:\s*\.[a-z]\w*(?:\s+\d+\b)?)*)\s*([^;]*);"
)
_PARAMETER = re.compile(r"\s*\.(reg|param)\b((?:\s*\.[a-z]\w*(?:\s+\d+\b)?)*)\s*([\w$%]+)((?:\[\d*\])*)\s*$", re.ASCII)
_ATTRIBUTE = re.compile(r"\.([a-z]\w*)(?:\s+(\d+))?", re.ASCII)
_DECLARATOR = re.compile(r"\s*([\w$%]+)(?:<(\d+)>)?((?:\s*\[\d*\])*)\s*(?:=\s*(\{[^;]*\}|[^,;]+))?\s*(?:,|$)", re.ASCII)
_LIMITS = re.compile(r"\.(reqntid|maxntid)\s+(\d+(?:\s*,\s*\d+)*)", re.ASCII)
_STATEMENT = re.compile(
    r"\s*(?:(?P<brace>[{}])|(?P<label>[A-Za-z_$%][\w$]*)\s*:(?!:)|(?P<directive>\.)"
    r"|(?:@(?P<negated>!?)(?P<guard>[\w$%]+)\s+)?(?P<opcode>[a-z][\w.:]*)(?P<operands>[^;]*);|(?P<empty>;))"
)
_TARGETS = re.compile(r"\.(?:branchtargets|calltargets|callprototype)\b([^;]*);")
_MAX_REGISTERS = 10_000_000
_MAX_BYTES = 1 << 40
# Python refuses to convert texts of some thousand digits. A cut number is as much too large as the whole one.
_MOST_DIGITS = 30


def parse_module(text: str, file: str = "<ptx>") -> Module:
    """Return the module in `text`. Raises ParseError with the position in `file`."""
    return _ModuleParser(Source(text, file)).parse()


class _Body(Struct):
    """The parts of a function's body. `scopes` map names in the text to unique names, innermost last."""

    registers: dict[str, str] = field(default_factory=dict[str, str])
    variables: list[Variable] = field(default_factory=list[Variable])
    targets: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    statements: list[Statement] = field(default_factory=list[Statement])
    scopes: list[dict[str, str]] = field(default_factory=lambda: [{}])
    used_bytes: int | None = None  # of the next instruction, see `Instruction.used_bytes`

    def lookup(self, name: str) -> str | None:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return None

    def declare_register(self, name: str, type_name: str) -> None:
        unique, number = name, 1
        while unique in self.registers:
            number += 1
            unique = f"{name}'{number}"
        self.registers[unique] = type_name
        self.scopes[-1][name] = unique


class _ModuleParser:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._text = source.text
        self._header: dict[str, str] = {}
        self._variables: dict[str, Variable] = {}
        self._functions: dict[str, Function] = {}

    def parse(self) -> Module:
        position = self._skip_space(0)
        while position < len(self._text):
            position = self._skip_space(self._item(position))
        if "version" not in self._header:
            raise self._source.error("a PTX module begins with .version", 0)
        version = re.match(r"(\d{1,4})\.(\d{1,4})\b", self._header["version"])
        if not version:
            raise self._source.error(f"bad .version '{self._header['version']}'", 0)
        address_bits = self._header.get("address_size", "32")
        if address_bits not in ("32", "64"):
            raise self._source.error(f".address_size is 32 or 64, got '{address_bits}'", 0)
        return Module(
            version=(int(version.group(1)), int(version.group(2))),
            target=self._header.get("target", "").split(",")[0].strip(),
            address_bits=int(address_bits),
            variables=self._variables,
            functions=self._functions,
        )

    def _skip_space(self, position: int) -> int:
        match = _SPACE.match(self._text, position)
        assert match, "the pattern matches the empty text"
        return match.end()

    def _item(self, position: int) -> int:
        """Read one item of module scope and return the offset of its end."""
        if match := _HEADER.match(self._text, position):
            self._header[match.group(1)] = match.group(2).strip()
            return match.end()
        if match := _SKIPPED.match(self._text, position):
            return match.end()
        if match := _FUNCTION.match(self._text, position):
            return self._function(match)
        if match := _DECLARATION.match(self._text, position):
            for variable in self._declared_variables(match):
                self._variables[variable.name] = variable
            return match.end()
        word = self._text[position:].split(None, 1)[0]
        raise self._source.error(f"expected a directive, a variable or a function, found '{word[:40]}'", position)

    # ---- declarations -------------------------------------------------------------------------------------------

    def _declared_variables(self, match: re.Match[str]) -> Iterator[Variable]:
        """Yield the variables of one declaration. `_directive` handles `.reg`."""
        type_name, alignment, width = self._attributes(match.group(3), match.start())
        if type_name not in TYPE_BYTES:
            raise self._source.error(f"a variable cannot have type '.{type_name}'", match.start())
        for name, _, dims, initial in self._declarators(match):
            count = width * _product(dims)
            self._check_size(type_name, count, match.start())
            line = self._source.line(match.start())
            data: bytes | None = None
            relocations: tuple[Relocation, ...] = ()
            if initial is not None:
                values = [value for value in re.split(r"[{},\s]+", initial.replace("( ", "(")) if value]
                count = max(count, len(values)) if count == 0 else count
                data, relocations = self._initial_bytes(values, type_name, count * TYPE_BYTES[type_name], match.start())
            is_extern = ".extern" in match.group(1)
            align = alignment or TYPE_BYTES[type_name] * width
            yield Variable(name, match.group(2), type_name, count, align, line, data, relocations, is_extern)

    def _check_size(self, type_name: str, count: int, position: int) -> None:
        """Raise ParseError for a variable of predicates, which has no size, or of more bytes than addresses."""
        if type_name == "pred":
            raise self._source.error("only a register can be a predicate", position)
        if count * TYPE_BYTES[type_name] > _MAX_BYTES:
            raise self._source.error("the variable is too large", position)

    def _attributes(self, text: str, position: int) -> tuple[str, int, int]:
        """Return (type, alignment or 0, vector width) of a declaration's attributes."""
        type_name, alignment, width = "", 0, 1
        for name, number in _ATTRIBUTE.findall(text):
            if name == "align":
                alignment = int(number[:_MOST_DIGITS] or 0)
                if alignment <= 0 or alignment & (alignment - 1):
                    raise self._source.error(f"an alignment must be a power of two, got '{number}'", position)
            elif name in TYPE_BYTES or name == "pred":
                type_name = name
            elif name in ("v2", "v4", "v8"):
                width = int(name[1])
            elif name not in ("ptr", "global", "const", "local", "shared", "param"):
                raise self._source.error(f"unknown attribute '.{name}' in a declaration", position)
        if not type_name:
            raise self._source.error("a declaration needs a type", position)
        return type_name, alignment, width

    def _declarators(self, match: re.Match[str]) -> Iterator[tuple[str, int | None, str, str | None]]:
        """Yield (name, N of `<N>`, dims text, initialiser text) for each declared name."""
        text, position = match.group(4), 0
        while position < len(text):
            found = _DECLARATOR.match(text, position)
            if not found or found.end() == position:
                raise self._source.error("cannot read the declaration", match.start())
            name, count, dims, initial = found.groups()
            yield name, None if count is None else int(count[:_MOST_DIGITS]), dims, initial
            position = found.end()

    def _initial_bytes(
        self, values: list[str], type_name: str, size_bytes: int, position: int
    ) -> tuple[bytes, tuple[Relocation, ...]]:
        """Return the bytes of an initialiser, padded with zeros, and the addresses in it."""
        width = TYPE_BYTES[type_name]
        data = bytearray()
        relocations: list[Relocation] = []
        for value in values:
            number = parse_number(value)
            match number:
                case Integer():
                    data += (number.value & ((1 << 8 * width) - 1)).to_bytes(width, "little")
                case Float() if number.width == 8 * width:
                    data += number.bits.to_bytes(width, "little")
                case _:
                    found = re.fullmatch(r"(?:generic\()?([A-Za-z_$%][\w$]*)\)?(?:\+(\d+))?", value)
                    if not found or width != 8:
                        raise self._source.error(f"cannot read the initial value '{value}'", position)
                    relocations.append(Relocation(len(data), found.group(1), int(found.group(2) or 0)))
                    data += bytes(8)
        if len(data) > size_bytes:
            raise self._source.error("more initial values than elements", position)
        return bytes(data) + bytes(size_bytes - len(data)), tuple(relocations)

    def _parameters(self, text: str | None, position: int) -> tuple[Variable, ...]:
        parameters: list[Variable] = []
        for part in (text or "").split(","):
            if not part.strip():
                continue
            match = _PARAMETER.match(part)
            if not match:
                raise self._source.error(f"cannot read the parameter '{part.strip()}'", position)
            space, attributes, name, dims = match.groups()
            type_name, alignment, width = self._attributes(attributes, position)
            if type_name not in TYPE_BYTES:
                raise self._source.error(f"a parameter cannot have type '.{type_name}'", position)
            count = width * _product(dims)
            if space == "param":
                self._check_size(type_name, count, position)
            parameters.append(
                Variable(name, space, type_name, count, alignment or TYPE_BYTES.get(type_name, 1), self._source.line(position))
            )
        return tuple(parameters)

    # ---- functions ----------------------------------------------------------------------------------------------

    def _function(self, match: re.Match[str]) -> int:
        linkage, kind, returns, name, parameters, tail, opening = match.groups()
        del linkage
        body, end = (None, match.end()) if opening == ";" else self._body(match.end(), returns, parameters, match.start())
        limits = {
            key: tuple(int(part.strip()[:_MOST_DIGITS]) for part in value.split(",")) for key, value in _LIMITS.findall(tail)
        }
        earlier = self._functions.get(name)
        if body is None and earlier is not None:
            return end  # a declaration after the definition is redundant
        self._functions[name] = Function(
            name=name,
            is_entry=kind == "entry",
            returns=self._parameters(returns, match.start()),
            parameters=self._parameters(parameters, match.start()),
            registers=body.registers if body else {},
            variables=tuple(body.variables) if body else (),
            branch_targets=body.targets if body else {},
            body=tuple(body.statements) if body else None,
            reqntid=limits.get("reqntid", ()),
            maxntid=limits.get("maxntid", ()),
            line=self._source.line(match.start()),
        )
        return end

    def _body(self, position: int, returns: str | None, parameters: str | None, start: int) -> tuple[_Body, int]:
        """Read statements up to the function's closing brace. Return them and the offset behind it."""
        body = _Body()
        operands = OperandParser(self._source, body.lookup)
        for variable in (*self._parameters(returns, start), *self._parameters(parameters, start)):
            if variable.space == "reg":
                body.declare_register(variable.name, variable.type)
        label = ""
        while True:
            match = _STATEMENT.match(self._text, position)
            if not match:
                raise self._source.error("cannot read the statement", self._skip_space(position))
            position = match.end()
            match match.lastgroup:
                case "brace" if match.group("brace") == "{":
                    body.scopes.append({})
                case "brace":
                    body.scopes.pop()
                    operands.scope_changed()
                    if not body.scopes:
                        return body, position
                case "label":
                    label = match.group("label")
                    body.statements.append(Label(label, self._source.line(match.start("label"))))
                case "directive":
                    position = self._directive(match.start("directive"), body, label)
                    operands.scope_changed()
                case "operands":
                    body.statements.append(self._instruction(match, body, operands))
                case _:
                    pass

    def _directive(self, position: int, body: _Body, label: str) -> int:
        """Read a directive inside a body and return the offset of its end."""
        if match := _USED_BYTES.match(self._text, position):
            body.used_bytes = int(match.group(1), 16)
            return match.end()
        if match := _SKIPPED.match(self._text, position):
            return match.end()
        if match := _TARGETS.match(self._text, position):
            body.targets[label] = tuple(name.strip() for name in match.group(1).split(","))
            return match.end()
        match = _DECLARATION.match(self._text, position)
        if not match:
            raise self._source.error("unknown directive", position)
        if match.group(2) != "reg":
            body.variables.extend(self._declared_variables(match))
            return match.end()
        type_name, _, width = self._attributes(match.group(3), position)
        if width != 1:
            raise self._source.error("vector registers are not supported", position)
        for name, count, _, _ in self._declarators(match):
            if count is not None and count > _MAX_REGISTERS:
                raise self._source.error(f"{count} registers are too many", position)
            for full_name in [name] if count is None else [f"{name}{number}" for number in range(count)]:
                body.declare_register(full_name, type_name)
        return match.end()

    def _instruction(self, match: re.Match[str], body: _Body, operands: OperandParser) -> Instruction:
        guard: Guard | None = None
        if written := match.group("guard"):
            register = body.lookup(written)
            if register is None:
                raise self._source.error(f"undeclared register '{written}'", match.start("guard"))
            guard = Guard(Register(register), match.group("negated") == "!")
        opcode, *modifiers = match.group("opcode").split(".")
        offset = match.start("opcode")
        parsed = operands.parse(match.group("operands"), offset)
        used_bytes, body.used_bytes = body.used_bytes, None
        return Instruction(opcode, tuple(modifiers), parsed, guard, self._source.line(offset), used_bytes)


def _product(dims: str) -> int:
    """Return the element count of `[33][32]`. It is 0 for `[]` and 1 for the empty text."""
    count = 1
    for size in re.findall(r"\[(\d*)\]", dims):
        count *= int(size[:_MOST_DIGITS] or 0)
    return count
