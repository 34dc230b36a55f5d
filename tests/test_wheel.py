"""The wheel holds every file of the package, and each kind of feature works where only the wheel and its dependencies are."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LOOP = """HloModule scaled

ENTRY e {
  p = f32[32,16]{1,0} parameter(0)
  c = f32[] constant(2)
  b = f32[32,16]{1,0} broadcast(c), dimensions={}
  m = f32[32,16]{1,0} multiply(p, b)
  ROOT t = f32[32,16]{1,0} tanh(m)
}
"""
SHARDED = """HloModule sharded, num_partitions=2

add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT s = f32[] add(a, b) }

ENTRY e {
  p = f32[16,8]{1,0} parameter(0), sharding={devices=[2,1]<=[2]}
  z = f32[] constant(0)
  ROOT r = f32[8]{0} reduce(p, z), dimensions={0}, to_apply=add, sharding={replicated}
}
"""
# Each line is one command; FILE is the loop, SHARDED the divided sum.
COMMANDS = """
hlo-run --platform=Host --host_engine=jit --profile --report_html=a.html --report_json=a.json FILE
hlo-run --platform=Host --report_junit=a.xml --report_jsonl=a.jsonl FILE
hlo-run --platform=Host --output=saved.hlox FILE
hlo-run --platform=Host saved.hlox
hlo-run --stage=ptx FILE
hlo-run --stage=fusion-analysis --target=b200 FILE
hlo-run --v=5 --xla_dump_to=dumps --xla_dump_hlo_as_dot --xla_dump_hlo_as_html FILE
hlo-run --golden_dir=goldens --update_goldens FILE
hlo-run --platform=Host --num_partitions=2 SHARDED
hlo-run --platform=Host --xla_gpu_enable_latency_hiding_scheduler --stage=hlo SHARDED
hlo-run --list_passes
hlo-opt --passes=algsimp,dce FILE
hlo-tool convert FILE --output=scaled.pb
hlo-tool cost FILE
hlo-tool diff FILE FILE
hlo-tool completion bash
hlo-fuzz --count=1 --seed=3
"""


def _dependencies(target: Path) -> None:
    """Link everything installed beside the tests into `target`, without hlo-run itself."""
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "hlo_run" not in entry.name:
            (target / entry.name).symlink_to(entry)


def _take_bytecode(site: Path) -> None:
    """Give the files of the wheel the bytecode of their equals in the tree. To compile the package takes seconds."""
    for file in (ROOT / "hlo_run").rglob("*.py"):
        other = site / file.relative_to(ROOT)
        compiled = Path(importlib.util.cache_from_source(str(file)))
        if compiled.exists() and other.exists() and other.read_bytes() == file.read_bytes():
            os.utime(other, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
            (other.parent / "__pycache__").mkdir(exist_ok=True)
            shutil.copy(compiled, other.parent / "__pycache__")


@pytest.fixture(scope="module", name="wheel")
def _wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # What pip does in the end.
    build = f"from setuptools.build_meta import build_wheel\nbuild_wheel({str(folder)!r})"
    # A copy, since setuptools writes beside the sources.
    source = folder / "source"
    source.mkdir()
    for name in ("hlo_run", "README.md", "LICENSE", "pyproject.toml"):
        (source / name).symlink_to(ROOT / name)
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, stdout=subprocess.DEVNULL)
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    files = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "hlo_run").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert sorted(files - names) == []


@pytest.mark.skipif(os.name == "nt", reason="the dependencies are linked")
def test_features_work_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    _dependencies(site)
    # What pip does with a wheel of pure Python.
    zipfile.ZipFile(wheel).extractall(site)
    _take_bytecode(site)
    (tmp_path / "scaled.hlo").write_text(LOOP)
    (tmp_path / "sharded.hlo").write_text(SHARDED)
    commands = COMMANDS.replace("FILE", "scaled.hlo").replace("SHARDED", "sharded.hlo")
    (tmp_path / "commands.txt").write_text(commands)
    (tmp_path / "sample.py").write_text(_SAMPLE)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "XLA_"))}
    environment["HLO_RUN_CACHE"] = str(tmp_path / "cache")
    # -I -S: neither the checkout nor the environment of the tests is on the path.
    sample = [sys.executable, "-I", "-S", "sample.py", str(site)]
    done = subprocess.run(sample, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["all end with 0"], done.stdout[-3000:] + done.stderr[-3000:]


_SAMPLE = """
import sys
sys.path.insert(0, sys.argv[1])
import hlo_run
assert hlo_run.__file__.startswith(sys.argv[1]), hlo_run.__file__
from hlo_run import cli, tool
PROGRAMS = {"hlo-run": cli.main, "hlo-opt": cli.opt_main, "hlo-tool": tool.main, "hlo-fuzz": tool.fuzz_main}
# All commands run in forks of this process, so it runs one itself: then the forks have the modules.
cli.run(["--platform=Host", "--cache=off", "--check_each_pass", "scaled.hlo"])
failed = 0
for line in open("commands.txt"):
    if line.split():
        sys.argv = line.split()
        try:
            PROGRAMS[sys.argv[0]]()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        if code:
            failed += 1
            print(f"{line.strip()}: exit code {code}", flush=True)
print(f"{failed} fail" if failed else "all end with 0")
"""
