"""docs/passes.md agrees with the pass tables."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent.parent.parent / "scripts" / "pass_table.py"


def test_the_page_is_up_to_date() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"python3 scripts/venv.py python scripts/pass_table.py writes it anew\n{done.stderr}"


def test_no_reason_is_given_for_a_pass_that_is_there() -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import pass_table; print(*pass_table.unknown_notes())"
    done = subprocess.run([sys.executable, "-c", code, str(SCRIPT.parent)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
