"""Quality of the transpose example's kernel: coalesced, one barrier, no bank conflicts, no races, no spills."""

from __future__ import annotations

from pathlib import Path

import pytest

import hlo_run
from hlo_run.artifact import Executable
from hlo_run.backends.host.backend import HostBackend
from hlo_run.codegen.llvm.ptxas import assemble, find_ptxas
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import compile_module
from hlo_run.records import replace
from hlo_run.reference.arguments.fake_arguments import make_fake_arguments
from hlo_run.reference.compare.agreement import disagreements
from hlo_run.reference.evaluate.evaluate import evaluate
from hlo_run.target import preset

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "transpose.hlo"
# A warp touches 128 bytes: 4 sectors of 32 bytes, 5 if they do not begin at a sector.
MOST_SECTORS = 5


@pytest.fixture(scope="module")
def executable() -> Executable:
    module = hlo_run.parse(EXAMPLE.read_text(encoding="utf-8"), EXAMPLE.name)
    return compile_module(PassContext(preset("h100"), Options()), module)


def test_launch_and_tile(executable: Executable) -> None:
    (kernel,) = executable.kernels
    assert (kernel.grid, kernel.block, kernel.shared_bytes) == ((960, 1, 1), (128, 1, 1), 32 * 33 * 4)
    assert kernel.ptx.count("bar.sync") == 1


def test_memory_accesses(executable: Executable) -> None:
    module = hlo_run.parse(EXAMPLE.read_text(encoding="utf-8"), EXAMPLE.name)
    arguments = make_fake_arguments(module, 11)
    backend = HostBackend(checks=("race", "statistics"))
    actual = backend.run(executable, arguments)
    assert not disagreements(evaluate(module, arguments), actual, module.entry.root.shape)
    (statistics,) = backend.statistics
    assert statistics.bank_conflicts == 0
    accesses = statistics.of("global")
    assert {access.kind for access in accesses} == {"load", "store"}
    assert max(access.worst for access in accesses) <= MOST_SECTORS


def test_an_unpadded_tile_would_have_bank_conflicts(executable: Executable) -> None:
    (kernel,) = executable.kernels
    # The row pitch of the tile is the only 33 in the kernel.
    assert kernel.ptx.count(", 33, ") == 2
    unpadded = kernel.ptx.replace(", 33, ", ", 32, ")
    module = hlo_run.parse(EXAMPLE.read_text(encoding="utf-8"), EXAMPLE.name)
    backend = HostBackend(checks=("statistics",))
    changed = replace(executable, kernels=(replace(kernel, ptx=unpadded),))
    backend.run(changed, make_fake_arguments(module, 11))
    assert backend.statistics[0].bank_conflicts > 0


@pytest.mark.skipif(find_ptxas() is None, reason="no ptxas on this machine")
def test_no_spills(executable: Executable) -> None:
    (report,) = assemble(executable.kernels[0].ptx)
    assert (report.spill_store_bytes, report.spill_load_bytes, report.stack_bytes) == (0, 0, 0)
    assert report.shared_bytes == 32 * 33 * 4
