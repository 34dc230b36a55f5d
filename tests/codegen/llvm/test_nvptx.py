"""The GPU and PTX version of a kernel, and modules that LLVM rejects."""

from __future__ import annotations

from pathlib import Path

import pytest

from hlo_run.codegen.llvm.nvptx import Isa, Module, isa_of
from hlo_run.commands.target_choice import choose_target
from hlo_run.errors import InternalError, UsageError
from hlo_run.options import CompileOptions
from hlo_run.records import replace
from hlo_run.target import PRESETS, preset, to_text_proto


@pytest.mark.parametrize(
    ("name", "sm", "ptx_version"),
    [("v100", 70, 86), ("a100", 80, 86), ("h100", 90, 86), ("h200", 90, 86), ("b200", 100, 86), ("rtx6000pro", 120, 87)],
)
def test_presets_have_the_oldest_ptx_version_that_does(name: str, sm: int, ptx_version: int) -> None:
    assert isa_of(preset(name)) == Isa(sm, ptx_version)


def test_every_preset_has_an_isa() -> None:
    assert {isa_of(target).cpu for target in PRESETS.values()} <= {"sm_70", "sm_80", "sm_90", "sm_100", "sm_120"}


@pytest.mark.parametrize(("capability", "sm"), [((9, 9), 90), ((13, 0), 121), ((8, 6), 86)])
def test_a_card_llvm_does_not_know_gets_the_newest_older_one(capability: tuple[int, int], sm: int) -> None:
    target = replace(preset("h100"), compute_capability=capability)
    assert isa_of(target).sm == sm


def test_a_card_before_volta_is_refused() -> None:
    pascal = replace(preset("h100"), name="p100", compute_capability=(6, 0))
    with pytest.raises(UsageError, match=r"'p100' has compute capability 6\.0; kernels can be compiled for 7\.0 or newer"):
        isa_of(pascal)


def test_a_description_of_a_card_before_volta_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "p100.txtpb"
    file.write_text(to_text_proto(replace(preset("h100"), compute_capability=(6, 0))))
    with pytest.raises(UsageError, match=r"capability 6\.0"):
        choose_target(CompileOptions(xla_gpu_target_config_filename=str(file)))


def test_a_newer_toolkit_brings_wide_vectors_on_blackwell_only() -> None:
    assert isa_of(replace(preset("b200"), toolkit_version=(12, 9))).ptx_version == 88
    assert isa_of(replace(preset("h100"), toolkit_version=(12, 9))).ptx_version == 86


def test_accelerated_instructions_are_those_of_one_card() -> None:
    assert isa_of(preset("b200"), accelerated=True).cpu == "sm_100a"
    assert isa_of(preset("rtx6000pro"), accelerated=True) == Isa(120, 87, accelerated=True)


def test_text_that_is_no_llvm_ir() -> None:
    with pytest.raises(InternalError, match="cannot parse") as caught:
        Module.from_text("define void @f( {")
    assert any("expected" in note for note in caught.value.notes)


def test_ir_that_does_not_verify() -> None:
    text = "define i32 @f(i1 %c) {\n  br i1 %c, label %a, label %b\na:\n  %x = add i32 1, 2\n  br label %b\nb:\n  ret i32 %x\n}\n"
    with pytest.raises(InternalError, match="verifier rejects") as caught:
        Module.from_text(text).verify()
    assert any("dominate" in note for note in caught.value.notes)
