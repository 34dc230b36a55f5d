"""`--golden_dir`: what is written, what differs, and what the reports say."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from hlo_run.cli import run

MODULE = """HloModule softplus

ENTRY e {
  p = f32[300,40] parameter(0)
  x = f32[300,40] exponential(p)
  one = f32[] constant(1)
  ones = f32[300,40] broadcast(one), dimensions={}
  y = f32[300,40] add(x, ones)
  ROOT z = f32[300,40] log(y)
}
"""
FOUR_KERNELS = """HloModule four

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

largest {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] maximum(a, b)
}

ENTRY e {
  p = f32[300,40] parameter(0)
  zero = f32[] constant(0)
  x = f32[300,40] exponential(p)
  rows = f32[300] reduce(x, zero), dimensions={1}, to_apply=sum
  columns = f32[40] reduce(p, zero), dimensions={0}, to_apply=largest
  t = f32[40,300] transpose(p), dimensions={1,0}
  ROOT o = (f32[300], f32[40], f32[40,300]) tuple(rows, columns, t)
}
"""
STAGES = "hlo,fusion-analysis,thunks,buffers,numbers"


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.chdir(tmp_path)


def _golden(text: str, *flags: str, file: str = "m.hlo", stages: str = STAGES) -> int:
    Path(file).write_text(text, encoding="utf-8")
    return run(["--golden_dir=goldens", f"--golden_stages={stages}", *flags, file])


def test_what_is_written_is_the_same_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert _golden(MODULE, "--update_goldens") == 0
    folder = Path("goldens/softplus")
    expected = ["buffer-assignment.txt", "fusion-analysis.txt", "hlo.txt", "numbers.txt", "source.txt", "thunks.txt"]
    assert sorted(path.name for path in folder.iterdir()) == expected
    assert "kernels       1\n" in (folder / "numbers.txt").read_text()
    assert "bytes-written 48000\n" in (folder / "numbers.txt").read_text()
    assert _golden(MODULE) == 0
    assert "softplus: 0 of 5 stages differ" in capsys.readouterr().out


def test_a_missing_golden_differs(capsys: pytest.CaptureFixture[str]) -> None:
    assert _golden(MODULE) == 1
    assert not Path("goldens").exists()
    said = capsys.readouterr()
    assert "hlo: no golden" in said.out
    assert "hlo (no golden)" in said.err


def test_a_difference(capsys: pytest.CaptureFixture[str]) -> None:
    assert _golden(MODULE, "--update_goldens") == 0
    other = MODULE.replace("exponential(p)", "tanh(p)")
    assert _golden(other, "--report_json=r.json", "--report_junit=r.xml") == 1
    said = capsys.readouterr()
    assert "opcode: exponential -> tanh" in said.out
    assert "differs from its golden in hlo" in said.err
    record = json.loads(Path("r.json").read_text())["files"][0]
    assert (record["outcome"], record["exit_code"], record["golden"]["module"]) == ("mismatch", 1, "softplus")
    stages = {stage["name"]: stage for stage in record["golden"]["stages"]}
    assert stages["hlo"]["differs"]
    assert not stages["numbers"]["differs"]
    assert stages["hlo"]["module"]["changes"]
    failure = ET.parse("r.xml").getroot().find(".//failure")
    assert failure is not None
    assert "hlo:" in (failure.text or "")
    assert _golden(other, "--update_goldens") == 0
    assert _golden(other) == 0


def test_other_names_are_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert _golden(MODULE, "--update_goldens", stages="hlo") == 0
    assert _golden(MODULE.replace(" p = ", " q = ").replace("(p)", "(q)"), stages="hlo") == 0
    assert "have other names" in capsys.readouterr().out


def test_figures_have_tolerances(capsys: pytest.CaptureFixture[str]) -> None:
    assert _golden(MODULE, "--update_goldens", stages="numbers") == 0
    larger = MODULE.replace("300", "303")
    assert _golden(larger, stages="numbers") == 1
    assert "+480 (+1.0%)" in capsys.readouterr().out
    assert _golden(larger, "--golden_tolerance=bytes=1%,memory=1%", stages="numbers") == 0
    assert "within 1%" in capsys.readouterr().out
    assert _golden(larger, "--golden_tolerance=bytes=1%,memory=0.9%", stages="numbers") == 1


def test_the_kernel_stages_name_their_kernels() -> None:
    assert _golden(MODULE, "--update_goldens", stages="emit-kernels,gpu-dialect,llvm,ptx,cse,kernel/cse") == 0
    texts = {path.stem: path.read_text() for path in Path("goldens/softplus").iterdir()}
    assert all(texts[name].startswith("// kernel: ") for name in ("emit-kernels", "llvm", "ptx", "kernel_cse"))
    assert ".visible .entry" in texts["ptx"]
    assert "gpu.launch" in texts["gpu-dialect"]
    assert "HloModule" in texts["cse"]


def test_two_files_with_one_module_name() -> None:
    Path("b.hlo").write_text(MODULE.replace("log(y)", "sqrt(y)"), encoding="utf-8")
    assert _golden(MODULE, "--update_goldens", "b.hlo", stages="hlo", file="a.hlo") == 0
    assert sorted(path.name for path in Path("goldens").iterdir()) == ["softplus", "softplus.a"]
    # Each file finds its own, alone and in any order.
    assert run(["--golden_dir=goldens", "--golden_stages=hlo", "b.hlo"]) == 0
    assert run(["--golden_dir=goldens", "--golden_stages=hlo", "b.hlo", "a.hlo"]) == 0


def test_a_module_without_kernels_and_stdin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = "HloModule same\n\nENTRY e {\n  ROOT p = f32[4] parameter(0)\n}\n"
    assert _golden(text, "--update_goldens", stages="hlo,ptx,numbers") == 0
    assert sorted(path.name for path in Path("goldens/same").iterdir()) == ["hlo.txt", "numbers.txt", "source.txt"]
    assert _golden(text, stages="hlo,ptx,numbers") == 0
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert run(["--golden_dir=goldens", "--golden_stages=hlo", "-"]) == 0
    Path("goldens/same/ptx.txt").write_text("old", encoding="utf-8")
    assert _golden(text, stages="hlo,ptx") == 1
    assert "ptx: only the golden has this text" in capsys.readouterr().out
    assert _golden(text, "--update_goldens", stages="hlo,ptx") == 0
    assert not Path("goldens/same/ptx.txt").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--golden_dir=g", "--golden_stages=nothing"], "no stage is called 'nothing'"),
        (["--golden_dir=g", "--golden_stages="], "--golden_stages names no stage"),
        (["--golden_dir=g", "--golden_tolerance=speed=1"], "'speed=1' is not a tolerance"),
        (["--golden_dir=m.hlo"], "is not a directory"),
        (["--golden_dir=g", "--stage=hlo"], "--stage and --golden_dir cannot be used together"),
        (["--update_goldens"], "--update_goldens has no effect without --golden_dir"),
    ],
)
def test_bad_uses(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("m.hlo").write_text(MODULE, encoding="utf-8")
    assert run([*flags, "m.hlo"]) == 2
    assert message in capsys.readouterr().err


def _process(folder: Path, golden: str, *arguments: str, **environment: str) -> str:
    return _hlo_run(folder, f"--golden_dir={golden}", "--golden_stages=all", *arguments, **environment)


def _hlo_run(folder: Path, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "hlo_run", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_goldens_have_the_same_bytes_everywhere(tmp_path: Path) -> None:
    """Neither the hash seed, time zone, language, home, working directory, cache nor number of processes reaches a golden."""
    here, there, cache = tmp_path / "here", tmp_path / "there", tmp_path / "cache"
    for folder in (here, there):
        folder.mkdir()
    (here / "m.hlo").write_text(FOUR_KERNELS, encoding="utf-8")
    one = {"PYTHONHASHSEED": "1", "TZ": "UTC", "LANG": "C"}
    two = {"PYTHONHASHSEED": "2", "TZ": "Asia/Kolkata", "LANG": "de_DE.UTF-8", "HOME": str(there)}
    _process(here, "one", "--update_goldens", "--cache=off", "--compile_processes=1", "m.hlo", **one)
    # An absolute path, and a cache that holds the kernels and the executable.
    file, flags = str(here / "m.hlo"), (f"--cache={cache}", "--compile_processes=2")
    _hlo_run(there, *flags, "--platform=Host", "--reference_platform=", file)
    assert list(cache.rglob("*"))
    _process(there, str(tmp_path / "two"), "--update_goldens", *flags, file, **two)
    first = {path.name: path.read_bytes() for path in (here / "one" / "four").iterdir()}
    assert len(first) > 12
    assert first["ptx.txt"].count(b"// kernel: ") > 2
    assert first == {path.name: path.read_bytes() for path in (tmp_path / "two" / "four").iterdir()}
    # Without stages of kernel IR, processes compile the kernels.
    assert "four: 0 of 6 " in _hlo_run(there, f"--golden_dir={here / 'one'}", "--cache=off", "--compile_processes=2", file)


def test_goldens_do_not_depend_on_the_number_of_jobs(tmp_path: Path) -> None:
    """Two files hold modules of one name, so that the order of the files decides about a directory."""
    for name, text in (("a", FOUR_KERNELS), ("b", MODULE), ("c", MODULE), ("d", MODULE.replace("300", "30"))):
        (tmp_path / "modules" / f"{name}.hlo").parent.mkdir(exist_ok=True)
        (tmp_path / "modules" / f"{name}.hlo").write_text(text, encoding="utf-8")
    cache = f"--cache={tmp_path / 'cache'}"
    runs = {
        "one": (".", "modules", "--cache=off", "--jobs=1", {"PYTHONHASHSEED": "1"}),
        "two": ("modules", ".", cache, "--jobs=3", {"PYTHONHASHSEED": "2", "TZ": "Asia/Kolkata", "HOME": str(tmp_path)}),
    }
    stages = f"--golden_stages={STAGES},gpu-dialect,ptx"
    for golden, (folder, files, *flags, environment) in runs.items():
        golden_flags = (f"--golden_dir={tmp_path / golden}", stages, "--update_goldens")
        _hlo_run(tmp_path / folder, *golden_flags, *flags, files, **environment)
    written = [
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*.txt")} for root in map(tmp_path.joinpath, runs)
    ]
    assert {path.parts[0] for path in written[0]} == {"four", "softplus", "softplus.c", "softplus.d"}
    assert written[0] == written[1]
    assert _hlo_run(tmp_path, "--golden_dir=one", "--golden_stages=hlo", "--jobs=2", "modules").count(": 0 of ") == 4
