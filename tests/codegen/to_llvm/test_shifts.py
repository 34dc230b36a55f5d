"""64-bit shifts by amounts whose lower 32 bits alone are in range, which LLVM's NVPTX target folds wrongly."""

from __future__ import annotations

import numpy as np
import pytest

import hlo_run


@pytest.mark.parametrize("opcode", ["shift-left", "shift-right-logical", "shift-right-arithmetic"])
@pytest.mark.parametrize("element_type", ["u64", "s64"])
def test_all_bits_of_an_amount_count(opcode: str, element_type: str) -> None:
    kind = {"u64": np.uint64, "s64": np.int64}[element_type]
    amounts = np.array([0, 1, 63, 64, 65, 2**32, 2**32 + 1, 2**40 + 3, 2**63 - 1], kind)
    values = np.random.default_rng(5).integers(2**40, 2**62, amounts.size, dtype=np.int64).astype(kind)
    values[1::2] = ~values[1::2]
    module = hlo_run.parse(f"""HloModule m
        ENTRY e {{
          a = {element_type}[9] parameter(0)
          b = {element_type}[9] parameter(1)
          ROOT r = {element_type}[9] {opcode}(a, b)
        }}""")
    signed = values.astype(np.int64)
    expected: list[int] = []
    for value, amount in zip(signed.tolist(), amounts.tolist(), strict=True):
        pattern = value & (2**64 - 1)
        match opcode:
            case "shift-left":
                expected.append(pattern << amount & (2**64 - 1) if amount < 64 else 0)
            case "shift-right-logical":
                expected.append(pattern >> amount if amount < 64 else 0)
            case _:
                expected.append(value >> min(amount, 63) & (2**64 - 1))
    for target in ("v100", "h100"):
        found = np.asarray(hlo_run.run(module, values, amounts, platform="Host", target=target))
        assert found.view(np.uint64).tolist() == expected
    assert np.asarray(hlo_run.evaluate(module, values, amounts)).view(np.uint64).tolist() == expected
