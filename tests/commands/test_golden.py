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
from processes import hlo_run

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
STAGES = "hlo,fusion-analysis,thunks,buffer-assignment,numbers"


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
    expected = ["buffer-assignment.txt", "fusion-analysis.txt", "hlo.txt", "made_with.txt", "numbers.txt", "source.txt"]
    expected.append("thunks.txt")
    assert sorted(path.name for path in folder.iterdir()) == expected
    assert "kernels       1\n" in (folder / "numbers.txt").read_text()
    assert "bytes-written 48000\n" in (folder / "numbers.txt").read_text()
    assert _golden(MODULE) == 0
    assert "softplus: 0 of 5 stages differ" in capsys.readouterr().out


def test_a_directory_without_goldens_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert _golden(MODULE) == 2
    assert not Path("goldens").exists()
    assert "the directory 'goldens' does not exist\nhint: --update_goldens writes" in capsys.readouterr().err
    Path("goldens").mkdir()
    assert _golden(MODULE) == 2
    assert "the directory 'goldens' holds no goldens" in capsys.readouterr().err


def test_missing_goldens_have_their_bucket(capsys: pytest.CaptureFixture[str]) -> None:
    assert _golden(MODULE, "--update_goldens", stages="hlo") == 0
    assert _golden(MODULE, "--report_junit=r.xml", stages="hlo,numbers") == 1
    said = capsys.readouterr()
    assert "numbers: no golden\nsoftplus: 0 of 2 stages differ, 1 without a golden" in said.out
    assert "golden: 'softplus' has no golden of numbers\nhint: --update_goldens writes them" in said.err
    assert _cases() == {"m.hlo: hlo": "", "m.hlo: numbers": "golden: missing"}
    # Another module is not compiled. The file tells that it was renamed.
    renamed = MODULE.replace("HloModule softplus", "HloModule soft")
    assert _golden(renamed, "--report_junit=r.xml", "--report_json=r.json", stages="hlo,numbers") == 1
    said = capsys.readouterr()
    assert "soft: no goldens\n" in said.out
    assert "'soft' has no goldens in 'goldens'" in said.err
    assert "goldens of a module in m.hlo are in 'goldens/softplus': if the module was renamed" in said.err
    assert set(_cases().values()) == {"golden: missing"}
    assert json.loads(Path("r.json").read_text())["buckets"] == [{"bucket": "golden: missing", "files": ["m.hlo"]}]
    assert _golden(renamed, "--update_goldens", stages="hlo") == 0
    assert "'goldens/softplus': remove them if the module was renamed" in capsys.readouterr().err


def test_a_renamed_file_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert _golden(MODULE, "--update_goldens", stages="hlo") == 0
    assert _golden(MODULE, stages="hlo", file="other.hlo") == 1
    hint = "goldens of a module 'softplus' in m.hlo are in 'goldens/softplus': if the file was renamed, change its name"
    assert hint in capsys.readouterr().err
    Path("goldens/softplus/source.txt").write_text("other.hlo\n")
    assert _golden(MODULE, stages="hlo", file="other.hlo") == 0


def _cases(file: str = "r.xml") -> dict[str, str]:
    """Return the names of a JUnit file's cases with the bucket of each failure."""
    root = ET.parse(file).getroot()
    cases = root.findall(".//testcase")
    assert root.attrib["tests"] == str(len(cases))
    assert root.attrib["failures"] == str(len(root.findall(".//failure")))
    return {case.attrib["name"]: "".join(p.attrib["value"] for p in case.iter("property")) for case in cases}


def test_a_difference(capsys: pytest.CaptureFixture[str]) -> None:
    assert _golden(MODULE, "--update_goldens") == 0
    other = MODULE.replace("exponential(p)", "tanh(p)")
    assert _golden(other, "--report_json=r.json", "--report_junit=r.xml") == 1
    said = capsys.readouterr()
    assert "opcode: exponential -> tanh" in said.out
    assert "golden: 'softplus' differs in hlo\n" in said.err
    record = json.loads(Path("r.json").read_text())["files"][0]
    assert (record["outcome"], record["exit_code"], record["golden"]["module"]) == ("mismatch", 1, "softplus")
    stages = {stage["name"]: stage for stage in record["golden"]["stages"]}
    assert stages["hlo"]["differs"]
    assert not stages["numbers"]["differs"]
    assert stages["hlo"]["module"]["changes"]
    assert record["signature"]["bucket"] == "golden: hlo differs"
    assert _cases() == {f"m.hlo: {stage}": "golden: hlo differs" * (stage == "hlo") for stage in STAGES.split(",")}
    failure = ET.parse("r.xml").getroot().find(".//failure")
    assert failure is not None
    assert "opcode: exponential -> tanh" in (failure.text or "")
    assert _golden(other, "--update_goldens") == 0
    assert _golden(other) == 0


def test_other_names_are_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    stages = f"{STAGES},ptx,cse,emit-kernels"
    assert _golden(MODULE, "--update_goldens", stages=stages) == 0
    other = MODULE.replace(" p = ", " q = ").replace("(p)", "(q)").replace("ROOT z", "ROOT log_of_y")
    assert _golden(other, stages=stages) == 0
    said = capsys.readouterr().out
    assert "have other names" in said
    assert "buffer-assignment: same; 1 name differs" in said
    assert "fusion-analysis: same; 1 name differs" in said


def test_a_long_difference_ends_with_the_path_of_the_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert _golden(MODULE, "--update_goldens", stages="ptx") == 0
    golden = Path("goldens/softplus/ptx.txt")
    text = golden.read_text()
    golden.write_text(text + "// old\n" * 100)
    assert _golden(MODULE, "--report_json=r.json", stages="ptx") == 1
    whole = Path("golden_differences/softplus/ptx.txt")
    said = capsys.readouterr()
    assert f"more lines; all of them: {whole}\n" in said.out
    assert "golden: 'softplus' differs in ptx" in said.err
    assert whole.read_text().startswith("ptx: 100 lines removed, 0 added\n")
    assert whole.read_text().count("-// old\n") == 100
    assert json.loads(Path("r.json").read_text())["files"][0]["golden"]["stages"][0]["whole"] == str(whole)
    golden.write_text(text)
    assert _golden(MODULE, stages="ptx") == 0
    assert not whole.exists()


def test_another_target_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert _golden(MODULE, "--update_goldens", stages="hlo") == 0
    Path("other.hlo").write_text(MODULE.replace("softplus", "other"), encoding="utf-8")
    assert run(["--golden_dir=goldens", "--golden_stages=hlo", "--update_goldens", "--target=a100", "other.hlo"]) == 0
    capsys.readouterr()
    assert run(["--golden_dir=goldens", "--golden_stages=hlo", "--target=b200", "m.hlo", "other.hlo"]) == 2
    said = capsys.readouterr()
    assert not said.out
    assert "the goldens in 'goldens' are for a100_sxm_80 (sm_80, 108 SMs) and h100_sxm (sm_90, 132 SMs), and this" in said.err
    assert "hint: --target=a100_sxm_80 compares with them" in said.err
    # Of some modules only.
    assert run(["--golden_dir=goldens", "--golden_stages=hlo", "m.hlo", "other.hlo"]) == 1
    said = capsys.readouterr()
    assert (
        "golden: the goldens of 'other' are for a100_sxm_80 (sm_80, 108 SMs), and this command compiles for h100_sxm" in said.err
    )
    assert "other: " not in said.out
    # No directory gets stages of two targets.
    assert run(["--golden_dir=goldens", "--golden_stages=numbers", "--update_goldens", "other.hlo"]) == 2
    assert "also has goldens of hlo for a100_sxm_80" in capsys.readouterr().err


def test_other_versions_and_flags_are_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    level = "--xla_backend_optimization_level=1"
    assert _golden(MODULE, "--update_goldens", level, stages="hlo,ptx") == 0
    made = Path("goldens/softplus/made_with.txt")
    lines = made.read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["target", "hlo-run", "llvmlite", level]
    made.write_text(made.read_text().replace(lines[2], "llvmlite 0.1"))
    assert _golden(MODULE, level, stages="hlo,ptx") == 0
    assert f"warning: the goldens in 'goldens' were made with llvmlite 0.1, this is {lines[2]}\n" in capsys.readouterr().err
    Path("goldens/softplus/ptx.txt").write_text("// old\n")
    assert _golden(MODULE, stages="hlo,ptx") == 1
    said = capsys.readouterr()
    about = next(line for line in said.out.splitlines() if line.startswith("ptx: "))
    assert f"; the golden was made with llvmlite 0.1, this is {lines[2]}; all " in about
    assert about.endswith(" lines: golden_differences/softplus/ptx.txt")
    assert said.out.splitlines()[-2:] == [about, "softplus: 1 of 2 stages differ"]
    assert f"note: the goldens were made with {level}, which this command lacks" in said.err
    # LLVM does not decide about the module.
    Path("goldens/softplus/hlo.txt").write_text("// old\n")
    assert _golden(MODULE, stages="hlo") == 1
    assert "made with" not in capsys.readouterr().out


def test_the_page_of_goldens() -> None:
    assert _golden(MODULE, "--update_goldens", stages="hlo,ptx") == 0
    assert _golden(MODULE, "--report_html=same.html", stages="hlo,ptx") == 0
    assert 'data-outcome="same as the goldens"' in Path("same.html").read_text()
    assert _golden(MODULE.replace("exponential(p)", "tanh(p)"), "--report_html=r.html", stages="hlo,ptx") == 1
    page = Path("r.html").read_text()
    assert 'data-outcome="differ"' in page
    assert "opcode: exponential -&gt; tanh" in page
    assert 'data-part="kernels"' in page


def test_a_module_that_does_not_compile_is_one_case() -> None:
    assert _golden(MODULE, "--update_goldens", stages="hlo,ptx") == 0
    assert _golden(MODULE.replace("300,40] add", "300,41] add"), "--report_junit=r.xml", stages="hlo,ptx") == 3
    assert list(_cases()) == ["m.hlo"]


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
    written = ["hlo.txt", "made_with.txt", "numbers.txt", "source.txt"]
    assert sorted(path.name for path in Path("goldens/same").iterdir()) == written
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


def _in_this_process(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    code = run(arguments)
    printed = capsys.readouterr()
    assert code == 0, printed.err
    return printed.out


def test_goldens_have_the_same_bytes_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert hlo_run(tmp_path, *flags, "--platform=Host", "--reference_platform=", file).returncode == 0
    assert list(cache.rglob("*"))
    _process(there, str(tmp_path / "two"), "--update_goldens", *flags, file, **two)
    first = {path.name: path.read_bytes() for path in (here / "one" / "four").iterdir()}
    assert len(first) > 12
    assert first["ptx.txt"].count(b"// kernel: ") > 2
    assert first == {path.name: path.read_bytes() for path in (tmp_path / "two" / "four").iterdir()}
    # Without stages of kernel IR, processes compile the kernels.
    monkeypatch.chdir(there)
    assert "four: 0 of 6 " in _in_this_process(
        capsys, f"--golden_dir={here / 'one'}", "--cache=off", "--compile_processes=2", file
    )


def test_goldens_do_not_depend_on_the_number_of_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two files hold modules of one name, so that the order of the files decides about a directory."""
    other = MODULE.replace("softplus", "other").replace("log(y)", "sqrt(y)")
    for name, text in (("a", other), ("b", MODULE), ("c", MODULE), ("d", MODULE.replace("300", "30"))):
        (tmp_path / "modules" / f"{name}.hlo").parent.mkdir(exist_ok=True)
        (tmp_path / "modules" / f"{name}.hlo").write_text(text, encoding="utf-8")
    cache = f"--cache={tmp_path / 'cache'}"
    flags = (f"--golden_stages={STAGES},ptx", "--update_goldens")
    roots = one, two = tmp_path / "one", tmp_path / "two"
    assert hlo_run(tmp_path, f"--golden_dir={one}", *flags, "--cache=off", "--jobs=1", "modules").returncode == 0
    elsewhere = {"PYTHONHASHSEED": "2", "TZ": "Asia/Kolkata", "HOME": str(tmp_path)}
    _hlo_run(tmp_path / "modules", f"--golden_dir={two}", *flags, cache, "--jobs=3", ".", **elsewhere)
    written = [{path.relative_to(root): path.read_bytes() for path in root.rglob("*.txt")} for root in roots]
    assert {path.parts[0] for path in written[0]} == {"other", "softplus", "softplus.c", "softplus.d"}
    assert written[0] == written[1]
    compared = _in_this_process(capsys, "--golden_dir=one", "--golden_stages=hlo", "--jobs=2", "modules")
    assert compared.count(": 0 of ") == 4
