"""The modules of docs/findings.md: hlo-run compiles and runs them, and real XLA of that release fails as the page says."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from hlo_run.errors import UsageError
from hlo_run.formats.xla_cpu import XlaCpu
from hlo_run.formats.xla_gpu import find_plugin
from hlo_run.fuzz.arguments import draw_arguments
from hlo_run.fuzz.case import flat
from hlo_run.fuzz.check import check_every_draw, options_of
from hlo_run.fuzz.defined import open_part
from hlo_run.fuzz.judges import Judges
from hlo_run.fuzz.subjects import Subject
from hlo_run.ops.parse import parse

DOCS = Path(__file__).resolve().parents[2] / "docs"
FILES = sorted((DOCS / "findings").glob("*.hlo"))
RELEASE = "0.10.2"
# File -> the judge, and a part of the bucket.
FAULTS = {
    "scatter_of_one_array_twice": ("xla-cpu", "mismatch: wrong values"),
    "scatter_without_indices": ("xla-cpu", "mismatch: wrong values"),
    "dot_4_bit_wide_result": (
        "xla-cpu",
        "refusal: during context [hlo verifier]: The XLA CPU/GPU backend does not support custom",
    ),
    "concatenate_2_bit": ("xla-cpu", "crash: Check failed: bit_offset != nullptr"),
    "associative_scan": ("xla-cpu", "crash: Check failed: operand_maps.size()"),
    "dot_s8_f32_result": ("xla-gpu-compile", "crash: SIGSEGV"),
    "compare_of_reshape_to_s4": ("xla-gpu-compile", "refusal: XLA:GPU does not compile it: during context [hlo verifier]"),
    "random_bits_of_a_signed_type": ("xla-gpu-compile", "refusal: XLA:GPU does not compile it: during context [hlo verifier]"),
}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_hlo_run_agrees_with_the_reference(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    outcome = check_every_draw(Subject(3, text), options_of(3), Judges(["reference", "host"]).all)
    assert outcome.kind == "ok", outcome.faults
    assert not open_part(parse(text), in_range=False)


def test_the_page_lists_every_file() -> None:
    page = (DOCS / "findings.md").read_text(encoding="utf-8")
    assert [file.name for file in FILES if f"findings/{file.name}" not in page or f"## {file.stem}\n" not in page] == []
    divided = (DOCS / "findings" / "divided").glob("*.hlo")
    assert [file.name for file in divided if f"findings/divided/{file.name}" not in page] == []


def _needs(package: str) -> None:
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    if version != RELEASE:
        pytest.skip(f"the page is about {package} {RELEASE}, and {version} is installed")


@pytest.mark.parametrize("name", FAULTS)
def test_xla_fails_as_the_page_says(name: str) -> None:
    judge, bucket = FAULTS[name]
    _needs("jaxlib")
    if judge == "xla-gpu-compile":
        _needs("jax-cuda13-pjrt")
        try:
            find_plugin()
        except UsageError as missing:
            pytest.skip(missing.message)
    text = (DOCS / "findings" / f"{name}.hlo").read_text(encoding="utf-8")
    judges = Judges([judge], 5000.0)
    try:
        outcome = check_every_draw(Subject(0, text), options_of(0), judges.all)
    finally:
        judges.stop()
    (fault,) = outcome.faults
    assert f"{judge}: {bucket}" in fault.signature.bucket


def test_the_conversion_crashes_on_an_alias() -> None:
    _needs("jaxlib")
    text = (DOCS / "findings" / "alias_of_tuple_element.hlo").read_text(encoding="utf-8")
    with XlaCpu(5000.0) as xla:
        answer = xla.run(text, list(flat(draw_arguments(parse(text), 0, 0))))
    assert (answer.problem, "return_shape->IsTuple()" in answer.message) == ("crash", True)
