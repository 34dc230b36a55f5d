"""A dumped module is compiled for the GPU whose description XLA left beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hlo_run.cli import run, run_opt
from hlo_run.target import preset, to_text_proto

MODULE = "HloModule m\nENTRY e { a = f32[64] parameter(0) ROOT b = f32[64] exponential(a) }\n"


@pytest.mark.parametrize(
    ("name", "flags", "expected"),
    [
        ("module_0001.m.before_optimizations.txt", (), "sm_80"),
        ("17000.module_0001.m.before_optimizations.txt", (), "sm_80"),
        ("module_0001.m.before_optimizations.txt", ("--target=h100",), "sm_90"),
        ("module_0001.mm.before_optimizations.txt", (), "sm_90"),
        ("m.txt", (), "sm_90"),
    ],
)
def test_target_of_a_dump(
    name: str, flags: tuple[str, ...], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "module_0001.m.gpu_target_config.pbtxt").write_text(to_text_proto(preset("a100")))
    file = tmp_path / name
    file.write_text(MODULE)
    assert run([str(file), "--stage=ptx", *flags]) == 0
    assert f".target {expected}" in capsys.readouterr().out
    assert run_opt([str(file), "--platform=gpu", "--stage=ptx", *flags]) == 0
    assert f".target {expected}" in capsys.readouterr().out
