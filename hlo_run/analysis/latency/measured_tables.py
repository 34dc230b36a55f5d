"""Tables of measured speeds that the user gives: XLA's `DeviceHloInstructionProfiles` as text.

    entries { key: "sm_90" value { entries { instruction { opcode: "all-reduce" shape { .. } .. }
                                             network_throughput_bytes_per_sec: 100000000 } } }

The nearest measurement counts: of a collective by bytes and devices, of a permutation by bytes, of a product by the bytes of its
sides.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from hlo_run.errors import UsageError
from hlo_run.hlo.values.dtype import DTYPES

_TOKEN = re.compile(r'\s+|#[^\n]*|("(?:[^"\\\n]|\\.)*"|[{}]|[-\w.+]+)\s*:?|[,;:]')
_WRAP = 1 << 31

_Message: TypeAlias = "dict[str, list[_Message | str]]"
_Point: TypeAlias = tuple[int, ...]
_Points: TypeAlias = "list[tuple[_Point, float]]"


class MeasuredTable(Struct, frozen=True):
    """The measurements of a GPU as points with a speed, in bytes or operations per second, in the order of the file.

    `collectives` has by opcode points (bytes, devices), `exact` by opcode, groups, devices and type points (bytes,), and
    `permutations` by kind points (bytes,). The points of `products` are (b, m, k, n), the sides in bytes of the result's type.
    """

    collectives: dict[str, _Points]
    exact: dict[tuple[str, int, int, str], _Points]
    permutations: dict[str, _Points]
    products: _Points


def nearest(points: _Points, point: _Point) -> float:
    """Return the speed of the nearest of some points, the first of equals. As in XLA, coordinates are of 32 bits."""
    return min(points, key=lambda known: sum((_wrapped(a) - b) ** 2 for a, b in zip(known[0], point, strict=True)))[1]


def _wrapped(value: int) -> int:
    return (value + _WRAP) % (2 * _WRAP) - _WRAP


def read_table(path: str, key: str, clock_ghz: float, devices_per_host: int) -> MeasuredTable | None:
    """Return the measurements of the GPU `key`, `sm_90` for example; None if the file has none for it.

    Raises UsageError if the file cannot be read or is not such a table.
    """
    try:
        entries = _messages(_parsed(Path(path).read_text(encoding="utf-8")), "entries")
        found = next((entry for entry in entries if _text(entry, "key") == key), None)
        if found is None:
            return None
        table = MeasuredTable({}, {}, {}, [])
        for entry in _messages(_message(found, "value"), "entries"):
            _add(table, entry, clock_ghz, devices_per_host)
        return table
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the table of speeds '{path}': {error}") from None
    except (ValueError, KeyError, RecursionError) as error:
        raise UsageError(f"'{path}' is not a table of measured speeds: {error}") from None


def read_table_of(path: str, key: str, clock_ghz: float, devices_per_host: int) -> MeasuredTable:
    """Return the measurements of the GPU `key`. Raises UsageError as `read_table`, and if the file has none for it."""
    table = read_table(path, key, clock_ghz, devices_per_host)
    if table is None:
        raise UsageError(f"'{path}' has no speeds of {key}", hint=f'entries {{ key: "{key}" value {{ .. }} }}')
    return table


def permutation_kind(pairs: Sequence[Sequence[int]]) -> str:
    """Return the kind of a permutation: devices send or receive alone, do both, or exchange their arrays."""
    known = {(pair[0], pair[1]) for pair in pairs}
    if not {source for source, _ in known} & {target for _, target in known}:
        return "one-way"
    return "mutual" if all((target, source) in known for source, target in known) else "two-way"


def _add(table: MeasuredTable, entry: _Message, clock_ghz: float, devices_per_host: int) -> None:
    instruction = _message(entry, "instruction")
    opcode, size, element_type = _text(instruction, "opcode"), *_array(instruction)
    speed = float(_text(entry, "network_throughput_bytes_per_sec") or 0)
    if opcode == "dot":
        point = _sides(instruction, [_message(operand, "shape") for operand in _messages(entry, "operands")])
        nanoseconds = int(float(_text(entry, "clock_cycles") or 0) / clock_ghz)
        if nanoseconds <= 0:
            raise ValueError("a product without clock_cycles")
        table.products.append((point, 2 * math.prod(point) * 1e9 / nanoseconds))
    elif opcode == "collective-permute":
        given = _messages(instruction, "source_target_pairs")
        pairs = [(int(_text(pair, "source") or 0), int(_text(pair, "target") or 0)) for pair in given]
        if not any(source // devices_per_host != target // devices_per_host for source, target in pairs):
            table.permutations.setdefault(permutation_kind(pairs), []).append(((size,), speed))
    else:
        groups = _message(instruction, "iota_collective_device_list")
        count, devices = int(_text(groups, "num_replica_groups") or 1), int(_text(groups, "num_devices_per_group") or 1)
        size *= devices if opcode == "reduce-scatter" else 1
        if count * devices <= devices_per_host:
            table.collectives.setdefault(opcode, []).append(((size, devices), speed))
        table.exact.setdefault((opcode, count, devices, element_type), []).append(((size,), speed))


def _array(message: _Message) -> tuple[int, str]:
    """Return the bytes and the type of the `shape` of a message."""
    shape = _message(message, "shape")
    element_type = _text(shape, "element_type").lower()
    return math.prod(_numbers(shape, "dimensions")) * max(DTYPES[element_type].bits // 8, 1), element_type


def _sides(dot: _Message, operands: Sequence[_Message]) -> _Point:
    if len(operands) != 2:
        raise ValueError("a product without two operands")
    lhs, rhs = (_numbers(shape, "dimensions") for shape in operands)
    numbers = _message(dot, "dot_dimension_numbers")
    batch, inner = _numbers(numbers, "lhs_batch_dimensions"), _numbers(numbers, "lhs_contracting_dimensions")
    other = _numbers(numbers, "rhs_batch_dimensions") + _numbers(numbers, "rhs_contracting_dimensions")
    element_bytes = max(DTYPES[_array(dot)[1]].bits // 8, 1)
    rows = math.prod(size for dim, size in enumerate(lhs) if dim not in batch + inner)
    columns = math.prod(size for dim, size in enumerate(rhs) if dim not in other)
    depth = math.prod(lhs[dim] for dim in inner)
    return math.prod(lhs[dim] for dim in batch), rows * element_bytes, depth * element_bytes, columns * element_bytes


# ---- text protos ----------------------------------------------------------------------------------------------------


def _parsed(text: str) -> _Message:
    return _fields(_tokens(text), "")


def _tokens(text: str) -> Iterator[str]:
    place = 0
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            raise ValueError(f"unexpected text in line {text.count(chr(10), 0, place) + 1}")
        place = found.end()
        if found[1]:
            yield found[1]


def _fields(tokens: Iterator[str], end: str) -> _Message:
    message: _Message = {}
    for name in tokens:
        if name == end:
            return message
        value = next(tokens, "}")
        if value == "}" or name in "{}":
            raise ValueError(f"'{name}' has no value")
        message.setdefault(name, []).append(_fields(tokens, "}") if value == "{" else value.strip('"'))
    if end:
        raise ValueError("it is cut off")
    return message


def _messages(message: _Message, name: str) -> list[_Message]:
    return [value for value in message.get(name, ()) if isinstance(value, dict)]


def _message(message: _Message, name: str) -> _Message:
    found = _messages(message, name)
    return found[0] if found else {}


def _text(message: _Message, name: str) -> str:
    return next((value for value in message.get(name, ()) if isinstance(value, str)), "")


def _numbers(message: _Message, name: str) -> list[int]:
    return [int(value) for value in message.get(name, ()) if isinstance(value, str)]
