"""The check that a profile has the times of all instructions."""

from __future__ import annotations

from pathlib import Path

import pytest

from hlo_run import parse
from hlo_run.errors import UsageError
from hlo_run.hlo_passes.scheduling.pgle_accuracy_checker import PgleAccuracyChecker
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.target import preset


def test_a_missing_instruction_is_an_error(tmp_path: Path) -> None:
    module = parse("HloModule m ENTRY e { p = f32[4] parameter(0) a = f32[4] negate(p) ROOT b = f32[4] tanh(a) }")
    file = tmp_path / "p.pbtxt"
    ctx = PassContext(preset("h100"), Options(xla_gpu_pgle_profile_file_or_directory_path=str(file)))
    file.write_text('costs { name: "a" cost_us: 1 }')
    with pytest.raises(UsageError, match=r"lacks 1 instructions: b$"):
        PgleAccuracyChecker().apply(ctx, module)
    file.write_text('costs { name: "a" cost_us: 1 } costs { name: "b" cost_us: 1 }')
    PgleAccuracyChecker().apply(ctx, module)
