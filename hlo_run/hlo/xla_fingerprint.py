"""XLA's 128-bit fingerprint of a module, which it writes into the header before it schedules (`fingerprint_before_lhs`)."""

from __future__ import annotations

import re
import struct

from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.highway_hash import highway_hash_128
from hlo_run.hlo.printer import CANONICAL, module_to_string
from hlo_run.hlo.values.backend_config import sorted_config
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.records import replace

_KEY = (0x9E0433B546E065D2, 0x0E7ECAD49E703760, 0x83D29F20DAE229B0, 0x40C1CE3FF9D19A42)
_OPTIONS = replace(CANONICAL, backend_config=True)
# XLA's numbers of element types, and of the shapes without elements.
_TYPES = {**{name: dtype.number for name, dtype in DTYPES.items()}, "opaque": 14, "token": 17}
_SHAPE = re.compile(rb"(?<![\w.\-])(" + "|".join(_TYPES).encode() + rb")\[([\d,<=?]*)\]")
_GROUPS = re.compile(rb"(?<=\breplica_groups=\{)\{[\d,{}]*\}(?=\})")
_CONFIG = re.compile(r"(?<=, backend_config=)\{.*\}$", re.MULTILINE)
_STATIC, _BOUNDED, _UNBOUNDED = range(3)
_UNBOUNDED_SIZE = -(1 << 63)


def xla_fingerprint(module: HloModule) -> str:
    """Return the fingerprint as 32 hexadecimal digits.

    It is the HighwayHash of the canonical text, in which the keys of backend configs are sorted. Every shape is the list of its
    element type and sizes in binary form, and so is every group of devices that is written as a list.
    """
    text = _CONFIG.sub(lambda found: sorted_config(found[0]), module_to_string(module, _OPTIONS))
    data = _GROUPS.sub(_binary_groups, _SHAPE.sub(_binary, text.encode("utf-8", "surrogatepass")))
    low, high = highway_hash_128(data, _KEY)
    return f"{low:016x}{high:016x}"


def _binary(found: re.Match[bytes]) -> bytes:
    sizes = [_size(size) for size in found[2].decode().split(",") if size]
    return _list(_TYPES[found[1].decode()], *sizes)


def _binary_groups(found: re.Match[bytes]) -> bytes:
    groups = found[0].decode().strip("{}").split("},{")
    return b"".join(_list(*map(int, group.split(","))) for group in groups)


def _list(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers) + 1}Q", len(numbers), *numbers)


def _size(text: str) -> int:
    """Return a size and, in the two lowest bits, whether it is dynamic."""
    if text == "?":
        return (_UNBOUNDED_SIZE << 2 | _UNBOUNDED) & ((1 << 63) - 1)
    shifted = int(text.removeprefix("<=")) << 2 | (_BOUNDED if text.startswith("<=") else _STATIC)
    return shifted & ((1 << 64) - 1)  # XLA's 64-bit integers wrap
