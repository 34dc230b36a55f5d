"""Collects the text tests: every section of a `.hlo` or `.mlir` file is a test."""

from __future__ import annotations

import gc
import importlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from mlir_sections import run_mlir
from processes import at_exit
from ptx_checks import PtxChecks
from text_sections import Section, SectionFailure, check_error, check_output, read_sections, update_golden
from xla_converter import Converter

from hlo_run import cache as hlo_cache
from hlo_run.codegen.llvm import nvptx, ptxas
from hlo_run.codegen.llvm.emit_ptx import CompiledPtx, compile_llvm
from hlo_run.errors import HloRunError
from hlo_run.parallel import share_cores
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline import executable_cache
from hlo_run.pipeline.kernel_cache import KernelCache
from hlo_run.target import TargetSpec


def _run_hlo(section: Section, folder: Path) -> str:
    # Imported late: it loads the whole pipeline, which most tests do without.
    from hlo_sections import run_hlo

    return run_hlo(section, folder)


RUNNERS: dict[str, Callable[[Section, Path], str]] = {".mlir": lambda section, folder: run_mlir(section), ".hlo": _run_hlo}


# Examples are the same in every run, and no time of a machine counts.
settings.register_profile("tests", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")
# Nor do the tests before: Hypothesis would also draw the constants in the source of all loaded modules, which takes it seconds.
_providers: Any = importlib.import_module("hypothesis.internal.conjecture.providers")
if hasattr(_providers, "_local_constants"):
    _providers._get_local_constants = lambda: _providers._local_constants


# Tests of one text are neighbours. To keep all texts would take some hundred megabytes, which each fork of a test pays for.
_KEPT = 256


def _compiled_once() -> Callable[..., CompiledPtx]:
    """Return a `compile_llvm` that compiles each text once, as long as LLVM has no limit of passes, which is not an argument."""
    known = lru_cache(_KEPT)(compile_llvm)

    def compiled(ir_text: str, target: TargetSpec, **settings: Any) -> CompiledPtx:
        is_limited = nvptx._limit.passes is not None  # pyright: ignore[reportPrivateUsage]
        return (compile_llvm if is_limited else known)(ir_text, target, **settings)

    return compiled


def _folder_of_session(prefix: str) -> Path:
    """Make a folder that is removed when this process ends. A fork that ends in the usual way does not remove it."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    at_exit(lambda: shutil.rmtree(folder, ignore_errors=True))
    return folder


_ptx_checks = PtxChecks(_folder_of_session("hlo-run-ptx-"))
_converter = Converter()
_patches = pytest.MonkeyPatch()
_crashes = _folder_of_session("hlo-run-crashes-")


def pytest_sessionstart() -> None:
    """LLVM and ptxas compile each text once, and one process converts all modules with XLA. What a pass makes is never kept.

    This is no fixture, since the sections of text tests have none.
    """
    _patches.setenv("HLO_RUN_CRASH_DIR", str(_crashes))
    _patches.setattr("hlo_run.formats.xla.run_command", _converter)
    _patches.setattr("hlo_run.pipeline.llvm_ahead.compile_llvm", _compiled_once())
    _patches.setattr("hlo_run.codegen.llvm.ptxas._run", lru_cache(_KEPT)(ptxas._run))  # pyright: ignore[reportPrivateUsage]
    _patches.setattr("hlo_run.pipeline.kernels.check_with_ptxas", _ptx_checks.check)


def pytest_sessionfinish() -> None:
    _patches.undo()
    _converter.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """A function that changes a pass must not get what was made without the change, so functions have no caches.

    A hook costs a tenth of a fixture that ten thousand tests share.
    """
    _ptx_checks.test = item.nodeid
    if isinstance(item, TextSection):
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        # A command line of an earlier test may have chosen another directory.
        patch.setattr(hlo_cache, "_chosen", "")
        patch.setattr(KernelCache, "open", _no_cache)
        patch.setattr(executable_cache, "open_for", _no_cache)
        return (yield)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Have ptxas check the kernels of the tests so far, if they are many or these are all."""
    if nextitem is None or _ptx_checks.are_many:
        _ptx_checks.run()


def pytest_configure(config: pytest.Config) -> None:
    """Keep the user's cache out of the tests: they share one of their own, which later runs find again. A test has one core."""
    os.environ.pop("HLO_RUN_CACHE", None)
    # Other tests use the other cores, and results of tests must not depend on their number.
    share_cores(os.cpu_count() or 1)
    os.environ["XDG_CACHE_HOME"] = str(config.rootpath / ".pytest_cache" / "xdg")
    # Without its bytecode each of some hundred commands would compile the package again, and each run the tests.
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give neighbouring tests to one process, so that each fixture of a module and each compilation is made in one of them."""
    if config.getoption("dist") != "load":
        return None
    return importlib.import_module("xdist.scheduler").WorkStealingScheduling(config, log)


def pytest_collection_finish() -> None:
    """Let the garbage collector look past the thousands of tests and modules, which stay. No test thaws them."""
    gc.freeze()
    _patches.setattr(gc, "unfreeze", lambda: None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the // GOLDEN blocks of text tests")


def pytest_collect_file(parent: pytest.Collector, file_path: Path) -> pytest.Collector | None:
    if file_path.suffix in RUNNERS and "data" not in file_path.parts:
        return TextFile.from_parent(parent, path=file_path)  # pyright: ignore[reportUnknownMemberType] - untyped in pytest
    return None


class TextFile(pytest.File):
    def collect(self) -> Iterator[TextSection]:
        for number, section in enumerate(read_sections(self.path)):
            name = f"section-{number}"
            yield TextSection.from_parent(self, name=name, section=section)  # pyright: ignore[reportUnknownMemberType] - untyped in pytest


class TextSection(pytest.Item):
    def __init__(self, *, section: Section, name: str, parent: TextFile) -> None:
        super().__init__(name, parent)  # pyright: ignore[reportUnknownMemberType] - untyped in pytest
        self.section = section

    def runtest(self) -> None:
        section = self.section
        try:
            with tempfile.TemporaryDirectory() as folder:
                output = RUNNERS[section.path.suffix](section, Path(folder))
        except HloRunError as error:
            check_error(section, error)
            return
        if section.golden is not None and self.config.getoption("--update-golden"):
            update_golden(section, output)
        else:
            check_output(section, output)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:
        if isinstance(excinfo.value, SectionFailure):
            return f"{self.section.path}:{self.section.line}\n{excinfo.value}"
        return str(excinfo.getrepr(style="short"))

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.section.line - 1, f"{self.path.name} {self.name}"


def _no_cache(ctx: PassContext) -> None:
    del ctx
