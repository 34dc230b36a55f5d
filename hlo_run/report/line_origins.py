"""Finds for each line of a kernel's texts its HLO instruction, and hides the parts that only name it.

Kernel IR names it (`hlo.op`). LLVM IR has debug locations, and PTX has `.loc`: both name a file, which is the HLO instruction and
its op in the LLVM dialect (`add.3 llvm.fadd`), and a line, which is the number of that op in the kernel. A line of LLVM IR and a
line of PTX with the same file and line come from the same op. A line without a location has no origin.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from msgspec import Struct

_HLO_OP = re.compile(r'hlo\.op = "((?:[^"\\]|\\.)*)"(?:, )?')
_EMPTY_ATTRIBUTES = re.compile(r" \{\}(?= |$)")
_DBG = re.compile(r",? !dbg !(\d+)")
_NODE = re.compile(r"!(\d+) = (?:distinct )?!(DI\w+)\((.*)\)$")
_LINE = re.compile(r"\bline: (\d+)")
_SCOPE = re.compile(r"\bscope: !(\d+)")
_FILE = re.compile(r"\bfile: !(\d+)")
_FILE_NAME = re.compile(r'\bfilename: "((?:[^"\\]|\\.)*)"')
_PTX_FILE = re.compile(r'\s*\.file\s+(\d+) "((?:[^"\\]|\\.)*)"')
_PTX_LOC = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)\s")
_PTX_LABEL = re.compile(r"\s*\$L__(?:tmp|func_begin|func_end)\d+:\s*$")
_HLO_NAME = re.compile(r"\s*(?:ROOT )?%?([\w.\-]+) = ")


class OriginText(Struct, frozen=True):
    """The lines of a text. `ops` has per line the HLO instruction, `places` the op of the LLVM dialect; both may be ""."""

    lines: list[str]
    ops: list[str]
    places: list[str]


def hlo_origins(text: str) -> OriginText:
    """Return HLO text, in which an instruction is its own origin."""
    lines = text.splitlines()
    found = [_HLO_NAME.match(line) for line in lines]
    return OriginText(lines, [match[1] if match else "" for match in found], [""] * len(lines))


def kernel_ir_origins(text: str) -> OriginText:
    """Return kernel IR without its `hlo.op` attributes."""
    lines, ops = text.splitlines(), list[str]()
    for number, line in enumerate(lines):
        match = _HLO_OP.search(line)
        ops.append(match[1] if match else "")
        lines[number] = _EMPTY_ATTRIBUTES.sub("", _HLO_OP.sub("", line)).rstrip() if match else line
    return OriginText(lines, ops, [""] * len(lines))


def llvm_origins(text: str) -> OriginText:
    """Return LLVM IR without its debug locations."""
    nodes = {match[1]: match[3] for line in text.splitlines() if (match := _NODE.match(line))}
    place_of = _resolver(nodes)
    lines: list[str] = []
    places: list[str] = []
    for line in text.splitlines():
        if _NODE.match(line):
            continue
        match = _DBG.search(line)
        lines.append(_DBG.sub("", line))
        places.append(place_of(match[1]) if match and not line.startswith("define") else "")
    return OriginText(lines, [_op_of(place) for place in places], places)


def ptx_origins(text: str) -> OriginText:
    """Return PTX without `.loc`, `.file`, and the labels and sections of debug information."""
    files = {match[1]: match[2] for line in text.splitlines() if (match := _PTX_FILE.match(line))}
    lines: list[str] = []
    places: list[str] = []
    place = ""
    for line in text.splitlines():
        if match := _PTX_LOC.match(line):
            # Line 0 does not name an op. The first directive of a function names the function.
            place = _place(files[match[1]], match[2]) if " " in files.get(match[1], "") and match[2] != "0" else ""
        elif not (_PTX_FILE.match(line) or _PTX_LABEL.match(line) or line.lstrip().startswith(".section\t.debug")):
            is_code = line.rstrip().endswith(";") and not line.lstrip().startswith(".")
            if line.startswith("}"):
                place = ""
            lines.append(line.expandtabs(4))
            places.append(place if is_code else "")
    return OriginText(lines, [_op_of(place) for place in places], places)


def _resolver(nodes: dict[str, str]) -> Callable[[str], str]:
    def field(number: str, pattern: re.Pattern[str]) -> str:
        match = pattern.search(nodes.get(number, ""))
        return match[1] if match else ""

    def place_of(number: str) -> str:
        name = field(field(field(number, _SCOPE), _FILE), _FILE_NAME)
        line = field(number, _LINE)
        return _place(name, line) if " " in name and line not in ("", "0") else ""

    return place_of


def _place(file: str, line: str) -> str:
    return f"{file} #{line}"


def _op_of(place: str) -> str:
    """Return the HLO instruction of a place (`add.3 llvm.fadd #7`)."""
    return place.split(" ", 1)[0]
