"""Reads cubins, the ELF files that ptxas writes: the number of machine (SASS) instructions of each kernel."""

from __future__ import annotations

import struct
from collections.abc import Iterator

# The ELF header's places of the section table: its offset in the file; a section's size, their number, the section of names.
_TABLE_OFFSET, _TABLE_SIZES = (struct.Struct("<Q"), 40), (struct.Struct("<HHH"), 58)
# A section: place of its name, type, flags, address, offset, size, link, info, alignment, entry size.
_SECTION = struct.Struct("<IIQQQQIIQQ")
_MAGIC = b"\x7fELF"
_CODE = ".text."
# Since sm_70 an instruction has 16 bytes, with its opcode in the lowest 12 bits. ptxas fills up a kernel's last line with NOPs.
_INSTRUCTION_BYTES = 16
_NOP = 0x918


def sass_instructions(cubin: bytes) -> dict[str, int]:
    """Return the number of SASS instructions per kernel, without NOPs. `cubin` is for sm_70 or later.

    Raises ValueError if it is no ELF file, or not a whole one.
    """
    if not cubin.startswith(_MAGIC):
        raise ValueError("no ELF file")
    try:
        return _counted(cubin)
    except (struct.error, IndexError, OverflowError) as error:
        raise ValueError("not a whole ELF file") from error


def _counted(cubin: bytes) -> dict[str, int]:
    return {name.removeprefix(_CODE): _instructions(code) for name, code in _sections(cubin) if name.startswith(_CODE)}


def _sections(cubin: bytes) -> Iterator[tuple[str, memoryview]]:
    (table,) = _TABLE_OFFSET[0].unpack_from(cubin, _TABLE_OFFSET[1])
    size, count, of_names = _TABLE_SIZES[0].unpack_from(cubin, _TABLE_SIZES[1])
    headers = [_SECTION.unpack_from(cubin, table + number * size) for number in range(count)]
    names = headers[int(of_names)][4] if headers else 0
    for header in headers:
        start = names + header[0]
        yield cubin[start : cubin.index(0, start)].decode(), memoryview(cubin)[header[4] : header[4] + header[5]]


def _instructions(code: memoryview) -> int:
    opcodes = (int.from_bytes(code[at : at + 2], "little") & 0xFFF for at in range(0, len(code), _INSTRUCTION_BYTES))
    return sum(opcode != _NOP for opcode in opcodes)
