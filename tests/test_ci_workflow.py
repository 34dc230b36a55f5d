"""The workflow of docs/ci.md works: its scripts run as GitHub runs them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULE = """HloModule m

ENTRY e {
  p = f32[300,40]{1,0} parameter(0)
  ROOT x = f32[300,40]{1,0} exponential(p)
}
"""


def _scripts() -> dict[str, str]:
    """Return the scripts of the workflow's named steps."""
    workflow = re.search(r"```yaml\n(.*?)\n```\n", (ROOT / "docs" / "ci.md").read_text(encoding="utf-8"), re.DOTALL)
    assert workflow is not None
    found = re.finditer(r"- name: (.*)\n(?:        if: .*\n)?        run: \|\n((?:          .*\n)+)", workflow[1] + "\n")
    return {step[1]: textwrap.dedent(step[2]) for step in found}


@pytest.mark.skipif(shutil.which("bash") is None, reason="GitHub runs the scripts with bash")
def test_the_scripts_compare_and_show(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, code in (("hlo-run", "from hlo_run.cli import main"), ("hlo-tool", "from hlo_run.tool import main")):
        (programs / name).write_text(f"#!{sys.executable}\n{code}\nmain()\n", encoding="utf-8")
        (programs / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
    }
    environment.pop("XLA_FLAGS", None)

    def bash(script: str) -> int:
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False).returncode

    module = tmp_path / "modules" / "m.hlo"
    module.parent.mkdir()
    module.write_text(MODULE, encoding="utf-8")
    assert bash("hlo-run --golden_dir=goldens --update_goldens modules/*.hlo") == 0
    compare, show = (_scripts()[name] for name in ("Compare with the goldens", "Show the differences"))
    assert bash(compare) == 0
    module.write_text(MODULE.replace("exponential", "tanh"), encoding="utf-8")
    assert bash(compare) == 1
    assert ET.parse(tmp_path / "reports" / "goldens.xml").getroot().get("failures") == "2"  # hlo and ptx
    assert bash(show) == 0
    assert "opcode: exponential -> tanh" in (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert "<table" in (tmp_path / "reports" / "diff.html").read_text(encoding="utf-8")
