"""The sizes from which CUB sorts, compared with real XLA:GPU (jaxlib 0.10.2) for an H100; the tables of other GPUs."""

from __future__ import annotations

import pytest

from hlo_run.hlo.text.parser import parse_module
from hlo_run.hlo_passes.sorts.radix_sort import radix_order
from hlo_run.target import preset


def is_rewritten(kind: str, rows: int, elements: int, target: str = "h100", value: str = "") -> bool:
    dims = f"{rows},{elements}"
    pair = f"\n  c = {value}[] parameter(2)\n  d = {value}[] parameter(3)" if value else ""
    shape = f"({kind}[{dims}], {value}[{dims}])" if value else f"{kind}[{dims}]"
    operands = f"  x = {kind}[{dims}] parameter(0)" + (f"\n  y = {value}[{dims}] parameter(1)" if value else "")
    text = f"""HloModule m
less {{
  a = {kind}[] parameter(0)
  b = {kind}[] parameter(1){pair}
  ROOT r = pred[] compare(a, b), direction=LT }}
ENTRY e {{
{operands}
  ROOT s = {shape} sort(x{", y" if value else ""}), dimensions={{1}}, to_apply=less }}
"""
    return radix_order(parse_module(text).entry.root, preset(target)) is not None


# As real XLA's `sort-rewriter` decided on a module with all of these sorts.
@pytest.mark.parametrize(
    ("kinds", "small", "large"),
    [
        (("u16", "bf16", "f16"), 400, 600),
        (("u32", "f32", "s32"), 22000, 22001),
        (("u64", "f64", "s64"), 131072, 131073),
    ],
)
def test_one_row_on_h100(kinds: tuple[str, ...], small: int, large: int) -> None:
    for kind in kinds:
        assert not is_rewritten(kind, 1, small)
        assert is_rewritten(kind, 1, large)


@pytest.mark.parametrize("elements", [2, 100, 200000])
def test_bytes_always_and_pred_never(elements: int) -> None:
    assert is_rewritten("u8", 1, elements)
    assert is_rewritten("s8", 1, elements)
    assert not is_rewritten("pred", 1, elements)


@pytest.mark.parametrize(
    ("kind", "rows", "elements", "target", "expected"),
    [
        ("s32", 2, 200000, "h100", False),
        ("s32", 27, 131073, "h100", True),
        ("s32", 53, 8193, "h100", True),
        ("s32", 53, 8192, "h100", False),
        ("s32", 132, 4097, "h100", True),
        ("s32", 133, 4097, "h100", False),
        ("s64", 264, 16385, "h100", True),
        ("s64", 265, 16385, "h100", False),
        ("s64", 355, 16385, "h100", True),
        ("s8", 5, 1301, "h100", True),
        ("s8", 5, 26000, "h100", False),
        ("s8", 5, 1300, "h100", False),
        ("s32", 1, 32768, "a100", False),
        ("s32", 1, 32769, "a100", True),
        ("s16", 1, 65536, "a100", False),
        ("s16", 1, 4095, "b200", False),
        ("s16", 1, 4096, "b200", True),
        ("s32", 100, 4096, "b200", True),
        ("s32", 128, 4096, "b200", False),
        ("s8", 1, 1024, "b200", False),
        ("s8", 1, 1025, "b200", True),
        ("s8", 2, 8192, "v100", False),
        ("s8", 3, 8192, "v100", True),
        ("s8", 3, 0, "h100", False),
    ],
)
def test_sizes(kind: str, rows: int, elements: int, target: str, expected: bool) -> None:
    assert is_rewritten(kind, rows, elements, target) is expected


def test_pairs_of_wide_keys_on_blackwell() -> None:
    assert is_rewritten("u64", 1, 20000, "b200")
    assert not is_rewritten("u64", 1, 20000, "b200", "s32")
