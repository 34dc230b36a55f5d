"""Pipelines that programs build, and passes that other packages register."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import ClassVar

import pytest
from processes import run_program

import hlo_run
from hlo_run import HloModule, HloPassPipeline
from hlo_run.errors import PluginError, UsageError
from hlo_run.pass_support.hlo_pass import PassContext

TEXT = """HloModule m
ENTRY e {
  a = f32[4]{0} parameter(0)
  b = f32[4]{0} negate(a)
  c = f32[4]{0} negate(a)
  ROOT r = f32[4]{0} add(b, c)
}
"""
# A package with a pass that turns each negate into an abs, and its entry point.
PASS = """
class AbsoluteValues:
    name = "absolute-values"

    def apply(self, ctx, module):
        for computation in module.computations:
            for instruction in list(computation.instructions):
                if instruction.opcode == "negate":
                    new = type(instruction)(instruction.name + ".abs", "abs", instruction.shape, instruction.operands)
                    module.replace(instruction, computation.add(new, before=instruction))
"""
ENTRY_POINTS = "[hlo_run.passes]\nabsolute-values = their_passes:AbsoluteValues\n"


class _Rename:
    name: ClassVar[str] = "rename"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        del ctx
        module.entry.root.name = "renamed"


class _Break:
    name: ClassVar[str] = "break"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        del ctx
        module.entry.root.shape = hlo_run.Shape.array("f32", (5,))


def test_passes_run_in_the_order_in_which_they_are_added() -> None:
    module = hlo_run.parse(TEXT, "m")
    pipeline = HloPassPipeline("mine").add_pass("cse").add_pass(_Rename())
    assert pipeline.passes == ["cse", "rename"]
    assert pipeline.run(module)
    assert [i.name for i in module.entry.instructions] == ["a", "b", "renamed"]
    assert not HloPassPipeline().add_pass("cse").add_pass("dce").run(module)


def test_unknown_and_wrong_passes() -> None:
    with pytest.raises(UsageError) as raised:
        HloPassPipeline().add_pass("algsimpl")
    assert "algsimp" in raised.value.hint
    with pytest.raises(PluginError, match=r"the pass 'break' .* made an invalid module"):
        HloPassPipeline().add_pass(_Break()).run(hlo_run.parse(TEXT, "m"))


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "their_passes.py").write_text(PASS)
    info = tmp_path / "their_passes-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-passes\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (tmp_path / "m.hlo").write_text(TEXT)
    return tmp_path


def _run(package: Path, main: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.path.insert(0, {str(package)!r}); from hlo_run.cli import {main}; {main}()"
    return run_program(package, code, *arguments)


def test_a_package_adds_a_pass(package: Path) -> None:
    file = str(package / "m.hlo")
    done = _run(package, "opt_main", "--passes=absolute-values", file)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("abs(") == 2
    assert "add(%b.abs, %c.abs)" in done.stdout
    done = _run(package, "main", "--insert_passes=absolute-values:before:priority-fusion", "--stage=hlo", file)
    assert done.returncode == 0, done.stderr
    assert "abs(" in done.stdout
    assert "negate" not in done.stdout
    # The pass changes the result, and the comparison with the given module says so.
    done = _run(package, "main", "--insert_passes=absolute-values:after:cse", "--platform=Host", file)
    assert done.returncode == 1, done.stderr


def test_insertions_that_do_not_fit(package: Path) -> None:
    for flag, message in (
        ("absolute-values", "is not an insertion"),
        ("absolute-value:after:cse", "no package registers a pass 'absolute-value'"),
        ("absolute-values:after:csee", "no HLO row or pipeline is called 'csee'"),
    ):
        done = _run(package, "main", f"--insert_passes={flag}", "--stage=hlo", str(package / "m.hlo"))
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr
