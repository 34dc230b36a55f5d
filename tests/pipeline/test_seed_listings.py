"""The document's own example, gelu, through all rows: every listing of the document is met by the row that it shows."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from listing_match import missing_line

from hlo_run.dialects.context import make_context
from hlo_run.dialects.parse import parse_module
from hlo_run.dialects.printer import print_module
from hlo_run.options import Options
from hlo_run.pipeline.kernel_table import KERNEL_PIPELINE, KernelContext
from hlo_run.target import DEFAULT_TARGET, preset

_LISTINGS_FILE = Path(__file__).resolve().parent.parent / "data" / "gelu_listings.txt"
_SHOWN_BY = {
    "inliner": "inliner",
    "scf": "lower-xla-gpu-to-scf",
    "flatten": "flatten-tensors",
    "vectorization": "vectorize-loads-stores",
    "unrolling": "optimize-loops",
    "llvm": "lower-to-llvm-gpu",
}


@cache
def _listings() -> dict[str, str]:
    _, *parts = re.split(r"^== (\w+)$", _LISTINGS_FILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _complete_input() -> str:
    """Return the first listing with what the document leaves out: the kernel's attributes and the width of an index."""
    text = _listings()["conversion"]
    aliases, _, functions = text.partition("func.func @main")
    functions = functions.replace("%input: tensor<6x512x4096xbf16>", "%input: tensor<6x512x4096xbf16> {xla.invariant}", 1)
    functions = functions.replace("-> tensor<6x512x4096xbf16> {", "-> tensor<6x512x4096xbf16> attributes {xla.entry} {", 1)
    spec = "module attributes {dlti.dl_spec = #dlti.dl_spec<index = 32 : i32>} {"
    return f"{aliases}{spec}\nfunc.func @main{functions}}}\n"


@cache
def _texts_by_row() -> dict[str, str]:
    """Return the module's text after each row of the kernel table."""
    module = parse_module(_complete_input())
    ctx = KernelContext(preset(DEFAULT_TARGET), Options())
    texts = {"conversion": print_module(module)}
    for row in KERNEL_PIPELINE:
        if row.runs(ctx):
            row.make(ctx).apply(make_context(), module)
            module.verify()
            texts[row.name] = print_module(module)
    return texts


def test_the_first_listing_reads_and_prints_as_it_stands() -> None:
    assert missing_line(_listings()["conversion"], _texts_by_row()["conversion"]) is None


@pytest.mark.parametrize("listing", _SHOWN_BY)
def test_row_meets_its_listing(listing: str) -> None:
    text = _texts_by_row()[_SHOWN_BY[listing]]
    missing = missing_line(_listings()[listing], text)
    assert missing is None, f"not found in its place: {missing}\n{text}"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("arith.addf %extracted, %2", "arith.addf %2, %extracted"),  # operands in another order
        ("%iter[%dim0, %dim1, %dim2]", "%iter[%dim1, %dim0, %dim2]"),  # names that stand for others
        ("math.tanh %4", "math.tanh %3"),
        (": bf16\n    %7", ": f32\n    %7"),
        ("    %5 = math.tanh %4 : bf16\n", "    %5 = math.tanh %4 : bf16\n    %9 = math.tanh %5 : bf16\n"),  # one line more
    ],
)
def test_a_changed_listing_is_not_met(old: str, new: str) -> None:
    listing = _listings()["inliner"]
    assert old in listing
    assert missing_line(listing.replace(old, new, 1), _texts_by_row()["inliner"]) is not None


def test_a_loop_over_vector_elements_is_called_vector_index() -> None:
    text = _texts_by_row()["inliner"].replace("%vector_index", "%i")
    assert missing_line(_listings()["inliner"], text) is not None
