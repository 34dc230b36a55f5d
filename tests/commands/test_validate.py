"""A command line is checked once, in one place; the table of modes has a function for each mode."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from hlo_run.cli import run
from hlo_run.commands import dispatch
from hlo_run.commands.dispatch import MODE_FUNCTIONS, mode_function
from hlo_run.commands.validate import check_flags_of_executable, check_flags_of_gpu_module, row_warnings, validate
from hlo_run.errors import UsageError
from hlo_run.options import Options
from hlo_run.options.modes import MODES, chosen_modes, mode_of

REFUSED: list[tuple[dict[str, object], list[str], str]] = [
    ({"list_passes": True}, ["x.hlo"], "'x.hlo' is not read with --list_passes"),
    ({}, [], "no input file"),
    ({"seed": 2, "stage": "hlo"}, ["x.hlo"], "--seed has no effect with --stage=hlo|--seed has no effect with --stage"),
    ({"input_literals_file": "a", "inputs": "b"}, ["x.hlo"], "--input_literals_file and --inputs cannot be used together"),
    ({"num_nodes": 2, "task_id": 1, "address": "h:1", "jobs": 2}, ["x.hlo"], "--jobs=2: 2 processes share each file"),
    ({"num_nodes": 2, "task_id": 1, "address": "h:1", "check_each_pass": True}, ["x.hlo"], "runs in one process"),
    ({"stage": "nothing"}, ["x.hlo"], "no stage is called 'nothing'"),
    ({"stage": "hlo", "explain": "fusion"}, ["x.hlo"], "--stage and --explain cannot be used together"),
    ({"explain": "time"}, ["x.hlo"], "--explain=time is unknown"),
    ({"output_file": "f"}, ["x.hlo"], "--output_file needs --stage"),
    ({"output_file": "f", "stage": "hlo"}, ["x.hlo", "y.hlo"], "--output_file needs exactly one input file"),
    ({"output": "f"}, ["x.hlo"], "--output=FILE.hlox needs exactly one input file"),
    ({"output_format": "pb", "stage": "ptx"}, ["x.hlo"], "--output_format=pb needs a stage that is an HLO module"),
    ({"dump_output_literal_to": "f"}, ["x.hlo"], "--dump_output_literal_to=f must end in .txt"),
    ({"xla_early_exit_with_layouts": True}, ["x.hlo"], "stops before it has made what could run"),
    ({"enable_mock_nccl": True}, ["x.hlo"], "--enable_mock_nccl: "),
    ({"gpu_client_mem_fraction": 1.0}, ["x.hlo"], "must be between 0 and 1"),
    ({"force_auto_layout": True}, ["x.hlo"], "--force_auto_layout: "),
    ({"execution_options_path": "f"}, ["x.hlo"], "does not read an ExecutionOptions message"),
    ({"platform": "TPU"}, ["x.hlo"], "unknown platform 'TPU'"),
    ({"reference_platform": "TPU"}, ["x.hlo"], "unknown reference platform 'TPU'"),
    ({"abs_error_bound": -1.0}, ["x.hlo"], "--abs_error_bound=-1 is not a bound"),
    ({"input_scale": 0.0}, ["x.hlo"], "--input_scale must be > 0"),
    ({"report_json": "/no/such/f"}, ["x.hlo"], "directory '/no/such' does not exist"),
    ({"golden_dir": "g", "golden_stages": ""}, ["x.hlo"], "--golden_stages names no stage"),
]


@pytest.mark.parametrize(("given", "files", "message"), REFUSED)
def test_refused_command_lines(given: dict[str, object], files: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        validate(replace(Options(), **given), files)  # pyright: ignore[reportArgumentType]
    assert any(part in caught.value.message for part in message.split("|"))


def test_the_smallest_values() -> None:
    for field in fields(Options):
        least: float | None = field.metadata["least"]
        if least is None:
            continue
        for value in (least - 1, float("nan")):
            with pytest.raises(UsageError, match=f"--{field.name} must be >= {least:g}"):
                validate(replace(Options(), **{field.name: value}), ["x.hlo"])  # pyright: ignore[reportArgumentType]


def test_flags_that_select_rows() -> None:
    for given in (
        {"xla_enable_hlo_passes_only": "cse", "xla_disable_hlo_passes": "dce"},
        {"enable_kernel_passes_only": "inliner", "disable_kernel_passes": "cse"},
    ):
        with pytest.raises(UsageError, match="cannot be used together"):
            row_warnings(replace(Options(), **given))
    assert row_warnings(Options(xla_disable_hlo_passes="csee")) == (
        "--xla_disable_hlo_passes: no HLO row is called 'csee'; did you mean cse?",
    )
    assert validate(Options(), ["x.hlo"]) == ()


def test_flags_of_other_kinds_of_files() -> None:
    with pytest.raises(UsageError, match=r"'x\.hlox' is an executable"):
        check_flags_of_executable(Options(stage="hlo"), "x.hlox")
    with pytest.raises(UsageError, match=r"--explain needs an HLO module, and 'x\.mlir' is"):
        check_flags_of_gpu_module(Options(explain="fusion"), "x.mlir")
    with pytest.raises(UsageError, match="is compared with its interpretation"):
        check_flags_of_gpu_module(Options(reference_platform="Host"), "x.mlir")
    check_flags_of_gpu_module(Options(stage="ptx", reference_platform="Host"), "x.mlir")


def test_a_process_after_the_first_writes_no_reports() -> None:
    shared = Options(num_nodes=2, task_id=1, address="h:1", report_json="/no/such/f", dump_output_literal_to="f")
    assert validate(shared, ["x.hlo", "y.hlo"]) == ()


def test_a_command_line_is_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    seen: list[tuple[str, ...]] = []

    def counting(options: Options, files: tuple[str, ...]) -> tuple[str, ...]:
        seen.append(files)
        return validate(options, files)

    monkeypatch.setattr(dispatch, "validate", counting)
    files = tuple(str(tmp_path / name) for name in ("a.hlo", "b.hlo"))
    for file in files:
        Path(file).write_text("HloModule m\nENTRY e { ROOT p = f32[4] parameter(0) }", encoding="utf-8")
    assert run(["--stage=hlo-input", *files]) == 0
    assert seen == [files]


def test_every_mode_has_its_function() -> None:
    assert set(MODE_FUNCTIONS) == {*(mode.flag for mode in MODES), "check_each_pass", ""}
    for flag in MODE_FUNCTIONS:
        assert callable(mode_function(flag))
        options = replace(Options(), **({flag: True} if flag else {}))
        assert mode_of(options).flag == flag
        assert chosen_modes(options) == [flag for mode in MODES if mode.flag == flag]
