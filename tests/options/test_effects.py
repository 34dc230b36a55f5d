"""Flags without effect are usage errors; every flag acts somewhere."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from hlo_run.options import Options
from hlo_run.options.effects import without_effect

REFUSED: list[tuple[dict[str, object], str]] = [
    ({"save_outputs": "o.npz", "stage": "hlo"}, "--save_outputs has no effect with --stage"),
    ({"seed": 2, "output": "x.hlox"}, "--seed has no effect with --output"),
    ({"seed": 2, "inputs": "a.npz"}, "--seed has no effect with --inputs"),
    ({"v": 1, "list_passes": True}, "--v has no effect with --list_passes"),
    ({"report_html": "r", "stage": "ptx"}, "--report_html has no effect with --stage"),
    ({"report_json": "r", "list_passes": True}, "--report_json has no effect with --list_passes"),
    ({"fail_on_vacuous": True, "reference_platform": ""}, "--fail_on_vacuous has no effect without a comparison"),
    ({"reference_precision": "f64", "expected_output": "o.npz"}, "--reference_precision has no effect with --expected_output"),
    ({"v_format": "diff", "v": 2}, "--v_format has no effect without --v=3"),
    ({"v": 2, "platform": "Interpreter"}, "--v has no effect with --platform=Interpreter"),
    ({"host_engine": "jit", "platform": "CUDA"}, "--host_engine has no effect with --platform=CUDA"),
    ({"print_ir_generic": True}, "--print_ir_generic has no effect without --stage"),
    ({"update_goldens": True}, "--update_goldens has no effect without --golden_dir"),
    ({"sizes": "8"}, "--sizes has no effect on 'x.hlo', which is not a module of the gpu dialect"),
    ({"seed": 2, "golden_dir": "g"}, "--seed has no effect with --golden_dir"),
    ({"jobs": 2, "one_process": True}, "--jobs has no effect with --one_process"),
    ({"output_machine_code": True}, "--output_machine_code has no effect without --output"),
    ({"input_scale": 2.0, "use_large_float_range": True}, "--input_scale has no effect with --use_large_float_range"),
    ({"run_reference_hlo_passes": False}, "--run_reference_hlo_passes has no effect without --reference_platform=CUDA or Host"),
    ({"run_reference_hlo_passes": False, "reference_platform": "CPU"}, "which gets the module without layouts"),
    (
        {"reference_precision": "f64", "reference_platform": "CPU"},
        "--reference_precision has no effect with --reference",
    ),
]
ACCEPTED: list[dict[str, object]] = [
    {"golden_dir": "g", "update_goldens": True, "report_json": "r"},
    {"seed": 2, "stage": "hlo", "check_each_pass": True},
    {"seed": 2, "output": "x.hlox", "isolate_fusion": "f"},
    {"reference_platform": ""},
    {"platform": "Host", "reference_platform": "", "stage": "ptx"},
    {"run_reference_hlo_passes": False, "reference_platform": "cuda"},
    {"xla_gpu_deterministic_ops": True, "stage": "ptx"},
    {"num_partitions": 2, "stage": "hlo"},
    {"report_json": "r", "xla_diff": "emitters"},
    {"print_ir_generic": True, "xla_dump_to": "d"},
    {"cache": "off", "platform": "Interpreter"},
    {"timeout": 5.0, "platform": "Interpreter"},
]


@pytest.mark.parametrize(("given", "message"), REFUSED)
def test_flags_without_effect(given: dict[str, object], message: str) -> None:
    files = [] if "list_passes" in given else ["x.hlo"]
    name, reason = next(without_effect(replace(Options(), **given), files))  # pyright: ignore[reportArgumentType]
    assert message in f"--{name} has no effect {reason}"


@pytest.mark.parametrize("given", ACCEPTED)
def test_flags_with_an_effect(given: dict[str, object]) -> None:
    assert not list(without_effect(replace(Options(), **given), ["x.hlo"]))  # pyright: ignore[reportArgumentType]


def test_files_that_are_compiled_already() -> None:
    assert dict(without_effect(Options(target="a100"), ["x.hlox"])) == {"target": "on 'x.hlox', which is compiled already"}


def test_every_flag_names_known_uses() -> None:
    known = "run compile file arguments random range comparison reference choice device host checks text log output golden"
    known += " localize processes dump passes mode returned times page mlir"
    for field in fields(Options):
        assert set((field.metadata["acts"] or "").split()) <= set(known.split()), field.name
