"""Small HLO modules for every opcode and for what belongs to a whole module, and random changes of them.

Every seed is valid. `mutate` changes one to three tokens of the part that may change: a shape, an integer, an operand, a
called computation, an attribute. About half of the results are still valid.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "data" / "verify"

_SHAPE = re.compile(r"\b([a-z]\w*)\[([^\]]*)\](\{[\d,]*\})?")
_NUMBER = re.compile(r"(?<![\w.%\[-])-?\d+(?![\w.])")
_CALLED = re.compile(r"((?:to_apply|calls|condition|body|select|scatter|\w+_computation)=)%?([\w.-]+)")
_ATTRIBUTE = re.compile(r", [a-z_-]+=(?:\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}|\"[^\"]*\"|[^,\s{}]+)")
_OPERANDS = re.compile(r"(?<=[a-z]\()((?:%?[\w.-]+)(?:, %?[\w.-]+)*)(?=\))")
_DEFINED = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = ", re.MULTILINE)
_BLOCK = re.compile(r"^(?:ENTRY )?%?([\w.-]+) .*?\{\n", re.MULTILINE)
_TYPES = "pred s8 s32 s32 u8 u32 u64 f16 bf16 f32 f32 f64 c64 s4 f8e4m3fn".split()

_Change = Callable[[str, str, random.Random], str]


def seeds() -> dict[str, list[str]]:
    """Return the valid modules by what they are about: an opcode, or a name of `modules.hlo`."""
    found: dict[str, list[str]] = {}
    frame = (FOLDER / "frame.hlo").read_text(encoding="utf-8")
    for line in (FOLDER / "instructions.hlo").read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("//"):
            opcode = line.split("|")[0].strip()
            body = "\n".join(f"  {part.strip()}" for part in line.split("|")[1:])
            found.setdefault(opcode, []).append(frame.replace("// HERE", "  // BEGIN\n" + body + "\n  // END"))
    for section in (FOLDER / "modules.hlo").read_text(encoding="utf-8").split("// -----\n"):
        name = section.splitlines()[0].removeprefix("//").strip()
        found.setdefault(name, []).append("// BEGIN\n" + section + "// END\n")
    return found


def case(name: str, texts: list[str], number: int, seed: int) -> str:
    """Return a module about `name`: a seed as it is for a negative number, else one that is changed by chance."""
    if number < 0:
        return texts[number]
    rng = random.Random(f"{seed} {name} {number}")
    return mutate(rng.choice(texts), rng)


def changed_part(text: str) -> str:
    """Return what stands between BEGIN and END."""
    return text[text.index("BEGIN\n") + len("BEGIN\n") : text.rindex("// END")].rstrip()


def mutate(text: str, rng: random.Random) -> str:
    """Return the text with one to three changes between its BEGIN and END."""
    if rng.random() < 0.4:
        text = _mutate_once(text, rng, _GENTLE)
        if rng.random() < 0.6:
            return text
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3))):
        text = _mutate_once(text, rng, _ANYTHING)
    return text


def _mutate_once(text: str, rng: random.Random, changes: tuple[_Change, ...]) -> str:
    begin, end = text.index("BEGIN\n") + len("BEGIN\n"), text.rindex("// END")
    head, part, tail = text[:begin], text[begin:end], text[end:]
    for change in rng.sample(changes, len(changes)):
        changed = change(part, text, rng)
        if changed != part:
            return head + changed + tail
    return text


def _pick(pattern: re.Pattern[str], text: str, rng: random.Random) -> re.Match[str] | None:
    found = list(pattern.finditer(text))
    return rng.choice(found) if found else None


def _put(text: str, match: re.Match[str], new: str) -> str:
    return text[: match.start()] + new + text[match.end() :]


def _shape(part: str, text: str, rng: random.Random) -> str:
    match = _pick(_SHAPE, part, rng)
    return _put(part, match, _changed_shape(*match.groups(""), rng=rng)) if match else part


def _changed_shape(kind: str, dims: str, layout: str, rng: random.Random) -> str:
    sizes = dims.split(",") if dims else []
    choice = rng.randrange(8)
    if choice < 2:
        return f"{rng.choice(_TYPES)}[{dims}]{layout}"
    if choice == 2 and kind != "token":
        return f"({kind}[{dims}]{layout})" if rng.random() < 0.5 else f"({kind}[{dims}], {kind}[{dims}])"
    if choice == 3:
        return f"{kind}[{','.join([*sizes, rng.choice('1246')])}]"
    if choice == 4 and sizes:
        return f"{kind}[{','.join(sizes[:-1])}]"
    if sizes:
        place = rng.randrange(len(sizes))
        size = sizes[place].removeprefix("<=")
        sizes[place] = rng.choice((f"<={size}", "1", *(str(max(0, int(size) + step)) for step in (-1, 1, 2) if size.isdecimal())))
    return f"{kind}[{','.join(sizes)}]{layout}"


def _number(part: str, text: str, rng: random.Random) -> str:
    match = _pick(_NUMBER, part, rng)
    if not match:
        return part
    value = int(match[0])
    return _put(part, match, str(rng.choice((value + 1, value - 1, value + 1, value - 1, 0, 1, 2, -1, value * 2, 100))))


def _list_entry(part: str, text: str, rng: random.Random) -> str:
    match = _pick(re.compile(r"\{(?:\d+(?:,\d+)*)?\}"), part, rng)
    if not match:
        return part
    entries = match[0].strip("{}").split(",") if match[0] != "{}" else []
    if entries and rng.random() < 0.5:
        entries.pop(rng.randrange(len(entries)))
    else:
        entries.insert(rng.randint(0, len(entries)), rng.choice("01123"))
    return _put(part, match, "{" + ",".join(entries) + "}")


def _operand(part: str, text: str, rng: random.Random) -> str:
    match = _pick(_OPERANDS, part, rng)
    if not match or match[0].isdecimal():
        return part
    names = match[0].split(", ")
    # Names of the same computation: the last block that begins before.
    before = text[: text.index(part) + match.start()]
    blocks = [found.start() for found in _BLOCK.finditer(before)]
    scope = _DEFINED.findall(text[blocks[-1] if blocks else 0 : text.index(part) + match.start()])
    if not scope:
        return part
    place, choice = rng.randrange(len(names)), rng.random()
    if choice < 0.15:
        names.pop(place)
    elif choice < 0.3:
        names.insert(place, rng.choice(scope[:-1] or scope))
    else:
        names[place] = rng.choice(scope[:-1] or scope)
    return _put(part, match, ", ".join(names))


def _called(part: str, text: str, rng: random.Random) -> str:
    match = _pick(_CALLED, part, rng)
    return _put(part, match, match[1] + rng.choice(_BLOCK.findall(text))) if match else part


def _drop_attribute(part: str, text: str, rng: random.Random) -> str:
    match = _pick(_ATTRIBUTE, part, rng)
    return _put(part, match, "") if match else part


def _swap_attributes(part: str, text: str, rng: random.Random) -> str:
    """Exchange the values of two lists."""
    found = list(re.finditer(r"(?<==)\{[\d,]*\}", part))
    if len(found) < 2:
        return part
    one, two = sorted(rng.sample(found, 2), key=lambda match: match.start())
    return part[: one.start()] + two[0] + part[one.end() : two.start()] + one[0] + part[two.end() :]


def _flag(part: str, text: str, rng: random.Random) -> str:
    match = _pick(re.compile(r"=(true|false)\b"), part, rng)
    return _put(part, match, "=false" if match[1] == "true" else "=true") if match else part


def _another_everywhere(part: str, text: str, rng: random.Random) -> str:
    """Put another value for one operand wherever it occurs, and leave the shape to inference where the text may."""
    match = _pick(_OPERANDS, part, rng)
    scope = _DEFINED.findall(text[: text.index(part)])
    if not match or match[0].isdecimal() or len(scope) < 2:
        return part
    name = rng.choice(match[0].split(", "))
    return re.sub(rf"(?<=[(, ]){re.escape(name)}(?=[,)])", rng.choice(scope), _no_shape(part, text, rng))


def _no_shape(part: str, text: str, rng: random.Random) -> str:
    return re.sub(r"(ROOT \S+ = )(?:\([^=]*?\)|\S+) ([a-z-]+\()", r"\1\2", part, count=1)


_ANYTHING = (_shape, _shape, _number, _number, _list_entry, _operand, _operand, _called, _drop_attribute, _swap_attributes, _flag)
# What leaves much of an instruction valid: opcode and operands decide.
_GENTLE = (_another_everywhere, _another_everywhere, _no_shape)
