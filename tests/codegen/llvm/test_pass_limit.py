"""`--llvm_opt_bisect_limit`: LLVM runs only its first passes, in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import hlo_run

_MODULE = "HloModule m\nENTRY e { a = f32[64]{0} parameter(0) ROOT b = f32[64]{0} add(a, a) }\n"


@pytest.mark.parametrize("limit", [0, 3])
def test_only_the_first_passes_run(tmp_path: Path, limit: int) -> None:
    file = tmp_path / "m.hlo"
    file.write_text(_MODULE, encoding="utf-8")
    done = hlo_run(tmp_path, f"--llvm_opt_bisect_limit={limit}", "--stage=ptx", str(file))
    assert done.returncode == 0
    assert ".entry" in done.stdout
    assert done.stderr.count("BISECT: running pass") == limit
    assert "BISECT: NOT running pass" in done.stderr
