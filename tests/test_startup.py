"""A command imports only the modules that it uses. The tests count modules, not seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ADD = """HloModule m

ENTRY e {
  p = f32[4] parameter(0)
  ROOT a = f32[4] add(p, p)
}
"""
_PROGRAM = """
import json, sys
from hlo_run.cli import run
try:
    code = run(sys.argv[1:])
except SystemExit as end:
    code = end.code
assert not code, code
sys.stderr.write(json.dumps(sorted(sys.modules)))
"""
# Parts of the package that only compile, run or compare.
_COMPILER = ("hlo_run.codegen", "hlo_run.dialects", "hlo_run.runtime", "hlo_run.analysis.fusion", "hlo_run.hlo_passes.fusion")
_REFERENCE = ("hlo_run.reference", "hlo_run.execution.iterations")


def _imported(*arguments: str) -> list[str]:
    """Return the modules that a process has imported after a command line."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *arguments], capture_output=True, text=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stderr.splitlines()[-1])


def _of(modules: list[str], *parts: str) -> list[str]:
    return [name for name in modules if name in parts or name.startswith(tuple(f"{part}." for part in parts))]


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "add.hlo"
    path.write_text(ADD, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_imports_the_flags_only(flag: str) -> None:
    modules = _imported(flag)
    assert _of(modules, "numpy", "xdsl", "llvmlite", "rich", "ml_dtypes") == []
    ours = _of(
        modules,
        "hlo_run.cli",
        "hlo_run.colours",
        "hlo_run.errors",
        "hlo_run.garbage_collection",
        "hlo_run.loading",
        "hlo_run.options",
        "hlo_run.records",
        "hlo_run.version",
    )
    assert _of(modules, "hlo_run") == ["hlo_run", *ours]


def test_a_read_module_needs_no_compiler(file: str) -> None:
    modules = _imported("--stage=hlo-input", file)
    assert _of(modules, "xdsl", "llvmlite", "rich", *_COMPILER, *_REFERENCE, "hlo_run.artifact") == []
    assert _of(modules, "importlib.metadata", "tempfile", "multiprocessing") == []


def test_the_table_of_xlas_flags_is_read_for_other_flags_only(file: str) -> None:
    table = "hlo_run.options.debug_options"
    assert table not in _imported("--stage=hlo-input", "--xla_allow_excess_precision=false", file)
    assert table in _imported("--stage=hlo-input", "--xla_gpu_autotune_level=0", file)


def test_the_optimised_module_needs_no_kernels(file: str) -> None:
    modules = _imported("--stage=hlo", "--cache=off", file)
    assert _of(modules, "xdsl", "llvmlite", "hlo_run.codegen", "hlo_run.dialects", "hlo_run.backends.host") == []
    kinds = ("convolutions", "dots", "expanders", "indexed", "library", "linalg", "rng", "scans", "sorts")
    passes = _of(modules, *(f"hlo_run.hlo_passes.{kind}" for kind in kinds))
    assert len(passes) < 20, "a module of one add expands nothing and calls no library"


def test_ptx_needs_no_reference(file: str) -> None:
    modules = _imported("--stage=ptx", "--cache=off", file)
    assert _of(modules, "xdsl", "llvmlite"), "it was compiled"
    assert _of(modules, "hlo_run.reference.evaluate.evaluate", "hlo_run.execution.iterations", "hlo_run.backends.host") == []
    assert _of(modules, "hlo_run.dialects.parse", "hlo_run.dialects.printer") == [], "no kernel is read or printed"
    assert _of(modules, "hlo_run.builder", "hlo_run.hlo_passes.dots.gemm") == [], "it has neither sizes to find nor products"


def test_a_stage_that_was_printed_before_needs_no_compiler(file: str, tmp_path: Path) -> None:
    command = ("--stage=ptx", f"--cache={tmp_path / 'cache'}", file)
    assert _of(_imported(*command), "xdsl")
    assert _of(_imported(*command), "xdsl", "llvmlite", *_COMPILER, *_REFERENCE) == []


def test_a_run_that_was_compiled_before_needs_no_compiler(file: str, tmp_path: Path) -> None:
    command = ("--platform=Host", f"--cache={tmp_path / 'cache'}", file)
    assert _of(_imported(*command), "xdsl")
    modules = _imported(*command)
    assert _of(modules, "hlo_run.reference.evaluate.evaluate"), "it was compared"
    compiler = [name for name in _of(modules, "xdsl", "llvmlite", *_COMPILER) if not name.startswith("hlo_run.analysis")]
    assert compiler == []
    assert _of(modules, "hlo_run.processes.partners", "concurrent.futures") == [], "one process and one device wait for no others"


def test_a_verdict_needs_no_masked_arrays(file: str) -> None:
    modules = _imported("--platform=Host", "--cache=off", file)
    assert _of(modules, "hlo_run.kernel_checks.checks", "hlo_run.reference.sensitivity.measure"), "the kernels were judged"
    assert _of(modules, "numpy.ma") == []
