"""The proof on a GPU, rehearsed: compiled into a bundle, run on a stand-in for the driver, a fault, and the page of it."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from host_cuda import HostCudaError, HostDriver, install_stand_ins

from hlo_run.backends.cuda import device, graphs, libraries
from hlo_run.errors import HloRunError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def scripts() -> Iterator[Path]:
    """The folder of the scripts, importable."""
    folder = ROOT / "scripts"
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def bundle(scripts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Any = importlib.import_module("gpu.bundle")
    path = tmp_path_factory.mktemp("proof") / "proof.zip"
    files = [(ROOT / "tests/data/emitters/gpu__transpose__side_outputs.hlo", made.FUSION)]
    files += [(ROOT / f"tests/data/cuda/{name}.hlo", made.LIBRARY) for name in ("product_chain", "transform")]
    files += [(ROOT / "tests/data/cuda/solve.hlo", made.MODEL)]
    assert made.make_bundle(path, files, "h200", 1)["entries"] == 4
    bundle = made.Bundle(path)
    for file, kind in files:
        assert file.stem in bundle.names(kind)
        assert not (entry := bundle.entry(file.stem)).refused, entry.refused
    return path


class _Here:
    """A pool that works in this process. That the scripts' pools start processes is seen where the bundle is made."""

    def __init__(self, jobs: int, mp_context: object) -> None:
        del jobs, mp_context

    def __enter__(self) -> _Here:
        return self

    def __exit__(self, *error: object) -> None:
        del error

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*arguments))
        except HloRunError as error:
            future.set_exception(error)
        return future


@pytest.fixture
def driver(scripts: Path, monkeypatch: pytest.MonkeyPatch) -> HostDriver:
    monkeypatch.setattr(importlib.import_module("gpu.values"), "ProcessPoolExecutor", _Here)
    for module, name in ((device, "device_problem"), (device, "load_driver"), (graphs, "load_cuda")):
        monkeypatch.setattr(module, name, getattr(module, name))
    for name in ("load_binding", "load_cudnn"):
        monkeypatch.setattr(libraries, name, getattr(libraries, name))
    return install_stand_ins()


def _run(section: str, bundle: Path, folder: Path) -> tuple[int, list[dict[str, Any]]]:
    sections: Any = importlib.import_module("gpu.sections")
    proof: Any = importlib.import_module("gpu_proof")
    rows = folder / f"{section}.jsonl"
    code = sections.run_section(section, bundle, rows, float("inf"))
    return code, proof._rows(rows, "")


def test_every_section_agrees_and_has_its_figures(bundle: Path, driver: HostDriver, tmp_path: Path) -> None:
    report: dict[str, Any] = {"date": "2026-01-01", "rehearsal": True, "sections": {}}
    for name in ("environment", "libraries", "fusions", "models"):
        code, rows = _run(name, bundle, tmp_path)
        assert code == 0
        assert rows
        assert {row["status"] for row in rows} == {"agrees"}, rows
        report["sections"][name] = {"rows": rows, "seconds": 1.0, "problem": ""}
    (fusion,) = report["sections"]["fusions"]["rows"]
    assert fusion["ours_us"] > 0
    assert fusion["bytes"] == 69120
    chain = next(row for row in report["sections"]["libraries"]["rows"] if row["name"] == "product_chain")
    assert (chain["graphs"], chain["refused"]) == (1, []), "one command buffer holds the products and the kernels"
    assert not driver.blocks, "device memory leaked"
    text = importlib.import_module("gpu.page").page(report, [])
    assert "A rehearsal on stand-ins" in text
    assert "| libraries | 2 | 0 | 0 | 0 | 1.0 |" in text


def test_a_fault_costs_one_row(bundle: Path, driver: HostDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = HostDriver.launch

    def fault(self: HostDriver, ptx: str, name: str, *pointers: Any, **how: Any) -> None:
        if "tanh" in name:
            raise HostCudaError("an illegal memory access was encountered")
        launch(self, ptx, name, *pointers, **how)

    monkeypatch.setattr(HostDriver, "launch", fault)
    code, rows = _run("libraries", bundle, tmp_path)
    assert code == 3, "the section's process ends, and the next goes on behind the fault"
    assert [(row["name"], row["status"]) for row in rows] == [("product_chain", "failed")]
    code, rows = _run("libraries", bundle, tmp_path)
    assert code == 0
    assert [(row["name"], row["status"]) for row in rows] == [("product_chain", "failed"), ("transform", "agrees")]


def test_a_wrong_kernel_differs(bundle: Path, driver: HostDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = HostDriver.launch

    def wrong(self: HostDriver, ptx: str, name: str, *pointers: Any, **how: Any) -> None:
        launch(self, ptx, name, *pointers, **how)
        self.view(int(pointers[-1]), 16)[...] ^= 0x55

    monkeypatch.setattr(HostDriver, "launch", wrong)
    _, rows = _run("fusions", bundle, tmp_path)
    assert [row["status"] for row in rows] == ["differs"]


def test_a_piece_without_a_row_ended_its_process(scripts: Path, tmp_path: Path) -> None:
    proof: Any = importlib.import_module("gpu_proof")
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(map(json.dumps, ({"begin": "a"}, {"name": "a", "status": "agrees"}, {"begin": "b"}))) + "\n")
    assert [(row["name"], row["status"]) for row in proof._rows(rows, "signal 11")] == [("a", "agrees"), ("b", "failed")]
