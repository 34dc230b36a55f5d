"""Flags that change XLA's result for the module at hand and do nothing here are named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hlo_run.cli import run, run_opt
from hlo_run.execution.flag_notes import module_words, note_silent_flags
from hlo_run.ops.parse import parse
from hlo_run.options import Options
from hlo_run.options.debug_options import debug_options

ROOT = Path(__file__).resolve().parent.parent.parent
MODULES = ROOT / "scripts" / "flag_modules"
PRODUCT = """HloModule product
ENTRY e {
  a = f32[8,8] parameter(0)
  ROOT d = f32[8,8] dot(a, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
SUM = "HloModule sum\nENTRY e { a = f32[8] parameter(0) ROOT s = f32[8] add(a, a) }\n"


def _recorded() -> Iterator[tuple[str, str, list[str]]]:
    for line in (ROOT / "tests" / "data" / "flag_effects.tsv").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            name, value, modules = line.split("\t")
            yield name, value, modules.split(",") if modules else []


def test_the_table_knows_the_modules_that_a_flag_changes() -> None:
    words = {path.stem: module_words(parse(path.read_text(encoding="utf-8"), path.name)) for path in MODULES.glob("*.hlo")}
    found = {
        name: [module for other, _, modules in _recorded() if other == name for module in modules] for name, _, _ in _recorded()
    }
    for name, modules in found.items():
        option = debug_options()[name]
        if option.verdict != "acts":
            assert bool(option.changes) == bool(modules), name
            assert not [module for module in modules if words[module].isdisjoint(option.changes)], name


def _notes(text: str, noted: set[str], **flags: str) -> list[str]:
    said: list[str] = []
    note_silent_flags(Options(other_xla_flags=tuple(flags.items())), parse(text), noted, said.append)
    return said


def test_a_silent_flag_is_named_once_and_only_for_a_module_that_it_concerns() -> None:
    noted = set[str]()
    assert _notes(SUM, noted, xla_gpu_experimental_gemm_fusion_v2="false") == []
    (line,) = _notes(PRODUCT, noted, xla_gpu_experimental_gemm_fusion_v2="false")
    assert "--xla_gpu_experimental_gemm_fusion_v2=false changes what XLA makes of 'product', and does nothing here" in line
    assert _notes(PRODUCT, noted, xla_gpu_experimental_gemm_fusion_v2="false") == []
    assert _notes(PRODUCT, set(), xla_gpu_experimental_gemm_fusion_v2="true") == [], "the default"
    assert _notes(PRODUCT, set(), xla_gpu_enable_triton_gemm="false") == [], "what hlo-run makes anyway"


def test_with_strict_flags_it_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_experimental_gemm_fusion_v2=false")
    file = tmp_path / "product.hlo"
    file.write_text(PRODUCT, encoding="utf-8")
    for program in (run, run_opt):
        assert program(["--strict_flags", str(file)]) == 2
        assert "does nothing here" in capsys.readouterr().err
