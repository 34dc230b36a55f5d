"""Machine code in saved executables: used on its own processor, ignored on others, rejected if it is not object code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hlo_run
from hlo_run.artifact import Executable, MachineCode, ObjectCode
from hlo_run.artifact.file import load, save
from hlo_run.backends.host.backend import HostBackend
from hlo_run.backends.host.jit import llvm
from hlo_run.cli import run
from hlo_run.errors import UsageError
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import compile_module
from hlo_run.records import replace
from hlo_run.target import preset

MODULE = """HloModule doubled
ENTRY e { x = f32[40,50] parameter(0)
  y = f32[40,50] add(x, x)
  ROOT t = f32[50,40] transpose(y), dimensions={1,0} }
"""
X = np.random.default_rng(3).standard_normal((40, 50)).astype(np.float32)

# A driver for which kernels do nothing: enough to load and launch.
PYCUDA = """
import itertools
_addresses = itertools.count(4096, 65536)
launches = []
class Error(Exception): pass
class device_attribute:
    MULTIPROCESSOR_COUNT = MAX_THREADS_PER_MULTIPROCESSOR = CLOCK_RATE = L2_CACHE_SIZE = 132
class Device:
    def __init__(self, number): pass
    count = staticmethod(lambda: 1)
    def name(self): return "Stand-in"
    def compute_capability(self): return 9, 0
    def get_attribute(self, attribute): return attribute
    def total_memory(self): return 1 << 30
    def retain_primary_context(self): return self
    def push(self): pass
    def pop(self): pass
class Event:
    def record(self, stream=None): pass
    def query(self): return True
    def synchronize(self): pass
class Stream:
    handle = 1
    def synchronize(self): pass
class _Block(int):
    def free(self): pass
class _Module:
    def __init__(self, ptx): assert b".entry" in ptx
    def get_function(self, name): return lambda *a, **k: launches.append(name)
module_from_buffer = _Module
def init(): pass
def mem_get_info(): return 1 << 30, 1 << 30
def mem_alloc(size): return _Block(next(_addresses))
def memset_d8_async(*a): pass
def memcpy_htod(*a): pass
def memcpy_dtoh(data, address): data[...] = 0
"""
RUN = """
import sys
from hlo_run.cli import run
code = run(sys.argv[1:])
print(code, sorted({name.split(".")[0] for name in sys.modules} & {"xdsl", "llvmlite", "pycuda"}))
"""


@pytest.fixture(scope="module")
def program() -> Executable:
    return compile_module(PassContext(preset("h100"), Options()), hlo_run.parse(MODULE))


@pytest.fixture(scope="module")
def code(program: Executable) -> MachineCode:
    return HostBackend().machine_code(program)


@pytest.fixture(autouse=True)
def nothing_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llvm, "OFFERED", {})


def run_and_look(tmp_path: Path, *arguments: str) -> str:
    """Run hlo-run in a child process that finds the driver above; returns the exit code and the imported packages."""
    folder = tmp_path / "packages" / "pycuda"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("", encoding="utf-8")
    (folder / "driver.py").write_text(PYCUDA, encoding="utf-8")
    path = [str(folder.parent), str(Path(hlo_run.__file__).parents[1])]
    environment = {"PYTHONPATH": ":".join(path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": ""}
    command = [sys.executable, "-c", RUN, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


def test_it_is_saved_with_the_executable(program: Executable, code: MachineCode) -> None:
    whole = replace(program, machine_code=code)
    assert code.objects
    assert load(save(whole), "m.hlox") == whole
    assert save(whole) == save(replace(program, machine_code=HostBackend().machine_code(program)))


def test_host_runs_it_and_compiles_nothing(
    program: Executable, code: MachineCode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(texts: list[str], _kernels: list[str]) -> list[bytes]:
        assert not texts, "all code is there"
        return []

    monkeypatch.setattr(llvm, "compile_objects", refuse)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    result = HostBackend().run(replace(program, machine_code=code), [X])
    np.testing.assert_array_equal(result, (X + X).T)


def test_another_processor_makes_its_own(program: Executable, code: MachineCode) -> None:
    foreign = MachineCode("z900", "+vector", tuple(ObjectCode(item.key, b"no code at all") for item in code.objects))
    for engine in ("auto", "jit"):
        result = HostBackend(engine=engine).run(replace(program, machine_code=foreign), [X])
        np.testing.assert_array_equal(result, (X + X).T)


def test_code_of_other_kernels_is_not_taken(program: Executable, code: MachineCode) -> None:
    others = replace(code, objects=tuple(ObjectCode(item.key[::-1], item.data) for item in code.objects))
    np.testing.assert_array_equal(HostBackend().run(replace(program, machine_code=others), [X]), (X + X).T)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="object files elsewhere are not ELF")
@pytest.mark.parametrize("change", ["text", "another machine", "cut off"])
def test_what_is_no_code_of_this_processor_is_refused(program: Executable, code: MachineCode, change: str) -> None:
    def changed(data: bytes) -> bytes:
        if change == "another machine":
            return data[:18] + b"\x08\x00" + data[20:]  # MIPS
        return b"machine code" if change == "text" else data[:20]

    wrong = replace(code, objects=tuple(ObjectCode(item.key, changed(item.data)) for item in code.objects))
    with pytest.raises(UsageError, match="machine code is not this processor's"):
        HostBackend().run(replace(program, machine_code=wrong), [X])
    # Without native code the machine code is not checked.
    np.testing.assert_array_equal(HostBackend(engine="emulator").run(replace(program, machine_code=wrong), [X]), (X + X).T)


def test_records_of_another_kind_are_refused(program: Executable, code: MachineCode) -> None:
    wrong: list[Any] = [replace(code, processor=None), replace(code, objects=(("k", b"d"),)), code.objects[0]]
    wrong += [replace(code, objects=(ObjectCode("key", "data"),)), "x86"]  # pyright: ignore[reportArgumentType]
    for value in wrong:
        with pytest.raises(UsageError, match="not a valid executable"):
            load(save(replace(program, machine_code=value)), "m.hlox")


def test_neither_xdsl_nor_llvmlite_are_needed_on_cuda(program: Executable, tmp_path: Path) -> None:
    file = tmp_path / "m.hlox"
    file.write_bytes(save(replace(program, source_text=MODULE)))
    assert run_and_look(tmp_path, "--platform=CUDA", "--reference_platform=", str(file)) == "0 ['pycuda']"


def test_the_command_line_saves_it_and_host_does_without_xdsl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, file = tmp_path / "m.hlo", tmp_path / "m.hlox"
    source.write_text(MODULE, encoding="utf-8")
    assert run(["--output_machine_code", str(source)]) == 2
    assert "without --output" in capsys.readouterr().err
    assert run([f"--output={file}", "--output_machine_code", str(source)]) == 0
    assert run_and_look(tmp_path, "--platform=Host", "--trust_machine_code", str(file)) == "0 ['llvmlite']"
    assert not (tmp_path / "cache").exists(), "nothing was compiled"


def test_machine_code_runs_only_if_it_is_trusted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, file = tmp_path / "m.hlo", tmp_path / "m.hlox"
    source.write_text(MODULE, encoding="utf-8")
    assert run([f"--output={file}", "--output_machine_code", str(source)]) == 0
    offered: list[object] = []
    monkeypatch.setattr(llvm, "offer", offered.append)
    monkeypatch.setattr(llvm, "OFFERED", {})
    capsys.readouterr()
    for engine in ("auto", "jit", "emulator"):
        assert run(["--platform=Host", f"--host_engine={engine}", str(file)]) == 0
        assert "does not run without --trust_machine_code; its PTX is compiled instead" in capsys.readouterr().err
    assert offered == []
    assert run(["--platform=Host", "--trust_machine_code", str(file)]) == 0
    assert len(offered) == 1
