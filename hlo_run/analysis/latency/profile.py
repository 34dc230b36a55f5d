"""Estimates from a profile of the program (PGLE): XLA's `ProfileGuidedLatencyEstimator`.

A profile is a `ProfiledInstructionsProto`, as text (`.pbtxt`) or binary (`.pb`): microseconds by the names of instructions. In a
folder, the file is called after the fingerprint of the module before it was scheduled.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from hlo_run.analysis.latency.async_kinds import async_kind, is_collective_done, is_collective_start
from hlo_run.analysis.latency.estimator import FREE, LOW_COST, LatencyEstimator
from hlo_run.errors import UsageError
from hlo_run.hlo.async_ops import async_start
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import TRANSFER

_MESSAGE = re.compile(r'(costs|latencies)\s*:?\s*[{<]((?:"(?:[^"\\]|\\.)*"|[^{}<>"])*)[}>]')
_FIELD = re.compile(r'(\w+)\s*:\s*(?:"((?:[^"\\]|\\.)*)"|([-+\w.]+))')
_REST = re.compile(r"(?:\s|#[^\n]*|[,;])*")
_CLONE = re.compile(r"\.remat\d*$")

Profile: TypeAlias = "dict[str, float]"
"""The microseconds of instructions, by name. XLA does not use the latencies of a profile either, which it filters out."""


def read_profile(path: str, fingerprint: str) -> Profile | None:
    """Return the profile of a file, or of the module's file in a folder; None if the folder has none for it.

    Raises UsageError if the file does not exist, or if it is not a profile.
    """
    file = Path(path)
    if file.is_dir():
        candidates = [file / f"{fingerprint}{suffix}" for suffix in (".pbtxt", ".pb")]
        found = next((candidate for candidate in candidates if candidate.is_file()), None)
        return _filtered(_read(found), fingerprint) if found is not None else None
    if file.suffix not in (".pbtxt", ".pb"):
        raise UsageError(f"--xla_gpu_pgle_profile_file_or_directory_path: '{path}' is neither a folder nor a .pbtxt or .pb file")
    return _filtered(_read(file), fingerprint)


def _read(file: Path) -> Profile:
    try:
        data = file.read_bytes()
        return _from_text(data.decode()) if file.suffix == ".pbtxt" else _from_binary(data)
    except OSError as error:
        raise UsageError(f"cannot read the profile '{file}': {error.strerror}") from None
    except (ValueError, struct.error) as error:
        raise UsageError(f"'{file}' is not a profile of instructions: {error}") from None


def _from_text(text: str) -> Profile:
    profile: Profile = {}
    place = 0
    for found in _MESSAGE.finditer(text):
        if _REST.fullmatch(text, place, found.start()) is None:
            break
        place = found.end()
        fields = {name: quoted or plain for name, quoted, plain in _FIELD.findall(found[2])}
        if found[1] == "costs":
            profile[fields.get("name", "")] = float(fields.get("cost_us", 0))
    if _REST.fullmatch(text, place) is None:
        raise ValueError(f"unexpected text in line {text.count(chr(10), 0, place) + 1}")
    return profile


def _from_binary(data: bytes) -> Profile:
    profile: Profile = {}
    for number, content in _fields(data):
        fields = dict(_fields(content)) if isinstance(content, bytes) else {}
        if number == 1:
            profile[_text(fields.get(1))] = _number(fields.get(2))
    return profile


def _text(value: bytes | float | None) -> str:
    return value.decode() if isinstance(value, bytes) else ""


def _number(value: bytes | float | None) -> float:
    return value if isinstance(value, float) else 0.0


def _fields(data: bytes) -> Iterator[tuple[int, bytes | float]]:
    """Yield (number, value) of the fields of a message; messages and strings are bytes."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        match key & 7:
            case 0:
                value, place = _varint(data, place)
                yield key >> 3, float(value)
            case 1:
                yield key >> 3, struct.unpack_from("<d", data, place)[0]
                place += 8
            case 2:
                size, place = _varint(data, place)
                if place + size > len(data):
                    raise ValueError("it is cut off")
                yield key >> 3, data[place : place + size]
                place += size
            case 5:
                yield key >> 3, float(struct.unpack_from("<f", data, place)[0])
                place += 4
            case _:
                raise ValueError(f"the field at byte {place} has an unknown type")


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if place >= len(data):
            raise ValueError("it is cut off")
        byte = data[place]
        value |= (byte & 0x7F) << shift
        shift, place = shift + 7, place + 1
        if byte < 0x80:
            return value, place


def _filtered(profile: Profile, fingerprint: str) -> Profile:
    """Return the costs of this module, without its prefix. Copies that rematerialisation made count with their original."""
    costs: dict[str, float] = {}
    for name, cost in profile.items():
        module, mark, own = name.partition("::")
        if not mark or module == fingerprint:
            costs[own if mark else name] = cost
    if not any(".remat" in name for name in costs):
        return costs
    joined: dict[str, list[float]] = {}
    for name, cost in costs.items():
        joined.setdefault(_CLONE.sub("", name), []).append(cost)
    return {name: sum(found) / len(found) for name, found in joined.items()}


class ProfileGuided:
    """The times of a profile. `other` estimates instructions that the profile lacks."""

    def __init__(self, profile: Profile, other: LatencyEstimator) -> None:
        self._profile = profile
        self._other = other

    def cost(self, instruction: HloInstruction) -> float:
        """Return the time in the profile. The start and the done of a collective cost 1."""
        if is_collective_start(instruction) or is_collective_done(instruction) or async_kind(instruction).inner in TRANSFER:
            return LOW_COST
        found = self._profile.get(instruction.name)
        return self._other.cost(instruction) if found is None else found

    def latency(self, first: HloInstruction, user: HloInstruction) -> float:
        """Return the time of an asynchronous operation from the start to the done; else the other estimator's latency."""
        one, other = async_kind(first), async_kind(user)
        if (one.phase, other.phase) == ("start", "done") and one.inner == other.inner:
            found = self._profile.get(first.name, self._wrapped(first))
            if found is not None:
                return found
        return self._other.latency(first, user)

    def _wrapped(self, first: HloInstruction) -> float | None:
        """Return the time of the instruction inside an async-start."""
        start = async_start(first)
        return self._profile.get(start.called_computations[0].root.name) if start is not None else None


def missing_instructions(module: HloModule, profile: Profile) -> list[HloInstruction]:
    """Return the instructions of the entry and of loops whose time a profile lacks. XLA's `CheckAccuracy`.

    Copies, loops and instructions that do nothing need no time.
    """
    loops = module.instructions_of("while")
    checked = {module.entry, *(inner for loop in loops for inner in loop.called_computations)}
    return [
        instruction
        for computation in module.computations
        if computation in checked
        for instruction in computation.instructions
        if _is_missing(instruction, profile)
    ]


def _is_missing(instruction: HloInstruction, profile: Profile) -> bool:
    kind = async_kind(instruction)
    if instruction.name in profile:
        return False
    if kind.phase == "start" and any(async_kind(user).phase == "done" for user in instruction.users):
        start = async_start(instruction)
        return start is None or start.called_computations[0].root.name not in profile
    if is_collective_start(instruction) or is_collective_done(instruction) or kind.inner in TRANSFER:
        return False
    return instruction.opcode not in FREE | {"while", "copy"}
