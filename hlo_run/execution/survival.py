"""Checks that a format keeps a module: reads a converted module back, and names the first instruction that lost something.

XLA's conversion to StableHLO drops attributes that StableHLO lacks without a word, and writes ops that it cannot read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hlo_run.errors import HloRunError, Unsupported
from hlo_run.formats import protos, xla
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.hlo.opcodes.table import OPCODES
from hlo_run.hlo.print_options import FULL
from hlo_run.hlo.printer import module_to_string
from hlo_run.hlo.values.metadata import OpMetadata
from hlo_run.ops.parse import parse

# StableHLO has them as types, regions or constants of other instructions.
_STRUCTURE = opcode_set("parameter constant tuple get-tuple-element call after-all domain")
# They say nothing about the values.
_NOTES = frozenset("metadata frontend_attributes statistics origin sharding original_value".split())
_FOREIGN = re.compile(r'"mhlo\.\w+".* loc\((?:(#\w+)|"([^"]*)"[^)]*)\)$', re.MULTILINE)
_HINT = "HLO text and protos (hlo-tool convert --format=pb) keep every instruction"
_TAG = re.compile(r"hlo-run[:_](\d+)(?:\.\d+)*")
_PLACE = re.compile(r'^(#\w+) = loc\("([^"]*)"', re.MULTILINE)


def check_survival(module: HloModule, data: bytes, form: str) -> None:
    """Raise Unsupported if `data`, the module in the format `form`, cannot be read back or lacks a part of an instruction."""
    if form == "stablehlo":
        _check_stablehlo(module)
        return
    text = data.decode() if form == "hlo" else ""
    if form == "pb":
        text = xla.proto_to_text(protos.read_binary(data, module.name).module, module.name)
    elif form == "pbtxt":
        text = xla.proto_to_text(protos.read_text(data.decode(), module.name).module, module.name)
    found = {instruction.name: instruction for instruction in _read(module, text, form, None).instructions}
    for instruction in module.instructions:
        other = found.get(instruction.name)
        # XLA reads old spellings of an instruction as others.
        if other is not None and other.opcode == instruction.opcode:
            _compare(instruction, [other], form)


def _check_stablehlo(module: HloModule) -> None:
    """Compare a copy in which the `op_name` of each instruction is its number, by which the instruction is found again."""
    copy = module.clone()
    originals: dict[str, HloInstruction] = {}
    for number, (original, instruction) in enumerate(zip(module.instructions, copy.instructions, strict=True)):
        instruction.attrs["metadata"] = OpMetadata(op_name=f"hlo-run:{number}")
        originals[f"hlo-run:{number}"] = original
    written = xla.text_to_stablehlo(module_to_string(copy, FULL), module.name)
    foreign = _foreign(written, originals)
    try:
        text = xla.mlir_to_text(written.encode(), module.name)
    except HloRunError as error:
        raise _lost(module, foreign, f"cannot be read back: {_named(error.message, originals)}", "stablehlo") from None
    found: dict[str, list[HloInstruction]] = {}
    for instruction in _read(module, text, "stablehlo", originals).instructions:
        metadata = instruction.metadata
        if metadata is not None:
            found.setdefault(metadata.op_name, []).append(instruction)
    for name, instruction in originals.items():
        if instruction.opcode not in _STRUCTURE:
            _compare(instruction, [i for i in found.get(name, ()) if i.opcode == instruction.opcode], "stablehlo")


def _foreign(written: str, originals: Mapping[str, HloInstruction]) -> HloInstruction | None:
    """Return the first instruction that is written as an op of MHLO, which XLA may not read."""
    places = dict(_PLACE.findall(written))
    for place, name in _FOREIGN.findall(written):
        if (found := originals.get(places.get(place, name))) is not None:
            return found
    return None


def _read(module: HloModule, text: str, form: str, originals: Mapping[str, HloInstruction] | None) -> HloModule:
    try:
        return parse(text, module.name)
    except HloRunError as error:
        line = error.where.source_line if error.where is not None else ""
        name = re.search(r'op_name="([^"]*)"', line) if originals else None
        culprit = originals.get(name[1]) if originals and name else None
        raise _lost(module, culprit, f"cannot be read back: {_named(error.message, originals or {})}", form) from None


def _named(message: str, originals: Mapping[str, HloInstruction]) -> str:
    """Return a message about the copy with the names of the module, and without metadata."""
    plain = re.sub(r', metadata=\{op_name="hlo-run:\d+"\}', "", message)
    return _TAG.sub(lambda tag: originals[f"hlo-run:{tag[1]}"].name if f"hlo-run:{tag[1]}" in originals else tag[0], plain)


def _compare(instruction: HloInstruction, others: Sequence[HloInstruction], form: str) -> None:
    """Refuse an instruction if no other has an attribute of it, or if all others lost a dynamic dimension."""
    if not others:
        return
    defaults = OPCODES[instruction.opcode].defaults
    for name, value in instruction.attrs.items():
        if value is False or (name in defaults and value == defaults[name]):
            continue  # XLA does not print it
        # Elsewhere it is a hint of passes, such as the trip count of a loop.
        is_hint = name == "backend_config" and instruction.opcode not in ("custom-call", "fusion")
        if name not in _NOTES and not is_hint and all(name not in other.attrs for other in others):
            raise _lost(instruction, instruction, f"loses '{name}'", form)
    same = [other for other in others if other.shape.compatible(instruction.shape)]
    if same and not any(other.shape.covers_dynamic_dims(instruction.shape) for other in same):
        raise _lost(instruction, instruction, "loses a dynamic dimension", form)


def _lost(module: HloModule | HloInstruction, culprit: HloInstruction | None, what: str, form: str) -> Unsupported:
    if culprit is None:
        return Unsupported(f"'{module.name}' in the format {form} {what}", hint=_HINT if form == "stablehlo" else "")
    message = f"'{culprit.name}' ({culprit.opcode}) in the format {form} {what}"
    return Unsupported(message, culprit.where, hint=_HINT if form == "stablehlo" else "")
