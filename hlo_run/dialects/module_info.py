"""Reads and writes the bit width of `index`, which an IR module holds in its data layout attribute."""

from __future__ import annotations

from functools import cache
from typing import Final, TypeGuard

from xdsl.dialects import dlti
from xdsl.dialects.builtin import IndexType, IntegerAttr, ModuleOp, i32

_SPEC: Final = "dlti.dl_spec"


def index_bits(module: ModuleOp) -> int:
    """Return the bit width that `index` is lowered to: 32 or 64. Without the attribute it is 64, MLIR's default."""
    spec = module.attributes.get(_SPEC)
    if not isinstance(spec, dlti.DataLayoutSpecAttr):
        return 64
    for entry in spec.entries:
        if isinstance(entry.key, IndexType) and _is_integer(entry.value):
            return entry.value.value.data
    return 64


def _is_integer(value: object) -> TypeGuard[IntegerAttr]:
    return isinstance(value, IntegerAttr)


def set_index_bits(module: ModuleOp, bits: int) -> None:
    """Record that `index` is lowered to an integer of `bits` (32 or 64) bits."""
    assert bits in (32, 64), "index is lowered to i32 or i64"
    module.attributes[_SPEC] = _layout(bits)


@cache
def _layout(bits: int) -> dlti.DataLayoutSpecAttr:
    return dlti.DataLayoutSpecAttr({IndexType(): IntegerAttr(bits, i32)})
