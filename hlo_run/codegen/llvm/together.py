"""Compiles the LLVM IR of several kernels in one module: to set LLVM's code generator up takes longer than a small kernel.

Kernels share nothing, so that each gets the PTX that it gets alone. A text with more than its kernel (other functions, globals,
libdevice, assembly) is left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from hlo_run.codegen.llvm.intrinsics import check_intrinsics, is_accelerated
from hlo_run.codegen.llvm.nvptx import Module, isa_of
from hlo_run.target import TargetSpec

# LLVM needs much longer for a larger kernel than to set its code generator up.
_MOST_CHARACTERS = 10_000
# What `llvm_ir_text` prints of a kernel that needs nothing else: declarations of intrinsics, attributes #0, metadata.
_ALONE = re.compile(
    r"(?P<head>; ModuleID = '[^'\n]*'\nsource_filename = [^\n]*\n(?P<target>(?:target [^\n]*\n)+))"
    r"\n*(?P<kernel>define ptx_kernel void @(?P<name>[\w.$]+)\([^\n]*\) )#0 \{\n(?P<body>(?:[^\n}][^\n]*\n|\n)*)\}\n"
    r"\n*(?P<declared>(?:declare [^\n@]*@llvm\.[^\n]*\n)*)"
    r"\n*attributes #0 = (?P<attributes>[^\n]*)\n"
    r"\n*(?P<metadata>(?:![0-9]+ = [^\n]*\n)*)"
)
_METADATA = re.compile(r"!(\d+)\b")
_ENTRY = re.compile(r"^\t// \.globl\t(\S+)[^\n]*\n\n?", re.MULTILINE)
_HEADER = re.compile(r"\.version [^\n]*\n\.target [^\n]*\n\.address_size [^\n]*\n\n")
_LABEL = re.compile(r"\$L__BB\d+_")


class JoinedKernels(Struct, frozen=True):
    """The LLVM IR of several kernels as one module. `numbers` has their places among the texts, by name."""

    text: str
    numbers: dict[str, int]


def join_kernels(ir_texts: Sequence[str]) -> JoinedKernels | None:
    """Join the small texts that need nothing but their kernel; None for fewer than two."""
    found = {number: match for number, text in enumerate(ir_texts) if (match := _alone(text)) is not None}
    numbers = {match["name"]: number for number, match in found.items()}
    return JoinedKernels(_joined(list(found.values())), numbers) if len(numbers) == len(found) > 1 else None


def compile_together(joined: JoinedKernels, target: TargetSpec, optimization_level: int = 3) -> dict[int, str]:
    """Return the PTX of each kernel by the number of its text; empty if LLVM made more than the kernels, such as a table.

    The arguments are those of `compile_llvm`. Raises InternalError for IR that LLVM rejects.
    """
    isa = isa_of(target)
    level = min(max(optimization_level, 0), 3)
    check_intrinsics(joined.text, isa.sm)
    module = Module.from_text(joined.text)
    module.verify()
    module.optimize(isa, level)
    parts = _parts(module.assemble(isa, level))
    return {joined.numbers[name]: ptx for name, ptx in parts.items()} if parts.keys() == joined.numbers.keys() else {}


def _alone(text: str) -> re.Match[str] | None:
    if len(text) > _MOST_CHARACTERS or " asm " in text or is_accelerated(text):
        return None
    return _ALONE.fullmatch(text)


def _joined(kernels: Sequence[re.Match[str]]) -> str:
    """Return one module. Numbers of attributes and of metadata go on from one kernel to the next."""
    functions: list[str] = []
    attributes: list[str] = []
    metadata: list[str] = []
    declared: dict[str, None] = {}
    for number, kernel in enumerate(kernels):
        first = len(metadata)

        def renumbered(text: str, first: int = first) -> str:
            return _METADATA.sub(lambda found: f"!{int(found[1]) + first}", text) if first else text

        functions.append(f"\n{kernel['kernel']}#{number} {{\n{renumbered(kernel['body'])}}}\n")
        attributes.append(f"attributes #{number} = {kernel['attributes']}\n")
        metadata += renumbered(kernel["metadata"]).splitlines(keepends=True)
        declared.update(dict.fromkeys(kernel["declared"].splitlines(keepends=True)))
    return "".join((kernels[0]["head"], *functions, "\n", *declared, "\n", *attributes, "\n", *metadata))


def _parts(ptx: str) -> dict[str, str]:
    """Return the PTX of each kernel; empty if the module has more than kernels, such as a table that LLVM made."""
    entries = list(_ENTRY.finditer(ptx))
    header = ptx[: entries[0].start()] if entries else ""
    if not _HEADER.fullmatch(header):
        return {}
    ends = [*(entry.start() for entry in entries[1:]), len(ptx)]
    # LLVM puts an empty line before the first function, and numbers labels by function.
    return {
        entry[1]: f"{header}{entry[0].rstrip()}\n\n" + _LABEL.sub("$L__BB0_", ptx[entry.end() : end])
        for entry, end in zip(entries, ends, strict=True)
    }
