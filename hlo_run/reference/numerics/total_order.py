"""The total order of floats (`order=TOTAL`): -NaN < -inf < .. < -0 < +0 < .. < +inf < +NaN."""

from __future__ import annotations

import numpy as np

from hlo_run.hlo.values.dtype import DType
from hlo_run.reference.values import Array


def total_order_key(x: Array, dtype: DType) -> Array:
    """Return ints that compare as the floats do in the total order; keys are equal only if all bits are.

    A key is the bits as a signed int, with the bits below the sign flipped in negative numbers. f8e8m0fnu has no sign:
    its bits compare unsigned.
    """
    item_bits = 8 * x.dtype.itemsize
    bits = x.view(np.dtype(f"i{x.dtype.itemsize}"))
    if dtype.name == "f8e8m0fnu":
        return bits.view(np.uint8)
    if dtype.bits < item_bits:
        unused = bits.dtype.type(item_bits - dtype.bits)
        bits = (bits << unused) >> unused
    highest = bits.dtype.type((1 << (dtype.bits - 1)) - 1)
    keys = np.where(bits < 0, bits ^ highest, bits)
    if dtype.name.endswith("fnuz"):
        # The only NaN of these types has the bits of -0. It is the smallest, and negative numbers begin one above it.
        least = np.array(np.iinfo(bits.dtype).min, bits.dtype)
        keys = np.where(bits < 0, np.where(bits == least, least, least - bits), bits)
    return keys.astype(bits.dtype)
