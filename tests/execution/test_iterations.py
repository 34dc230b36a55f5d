"""Arguments and results from and to files, where they come from and go, and the flags of the comparison."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hlo_run.backends.interpreter import InterpreterBackend
from hlo_run.cli import run
from hlo_run.hlo.feeds import NO_FEEDS, Feeds
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.literal import Literal
from hlo_run.reference.evaluate.evaluate import evaluate
from hlo_run.reference.evaluate.observed import Observer

MODULE = """HloModule pair
ENTRY e {
  p = (f32[3,4], bf16[5]) parameter(0)
  i = s32[] parameter(1)
  x = f32[3,4] get-tuple-element(p), index=0
  b = bf16[5] get-tuple-element(p), index=1
  d = bf16[2] dynamic-slice(b, i), dynamic_slice_sizes={2}
  m = f32[3,4] multiply(x, x)
  ROOT t = (f32[3,4], bf16[2]) tuple(m, d)
}
"""
INTERPRETER = "--platform=Interpreter"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    file = tmp_path / "pair.hlo"
    file.write_text(MODULE)
    return str(file)


def _load(path: Path) -> dict[str, Any]:
    with np.load(path) as data:
        return {key: data[key] for key in data.files}


def test_saved_inputs_give_the_same_run(module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, out = tmp_path / "in.npz", tmp_path / "again.npz", tmp_path / "out.npz"
    assert run([INTERPRETER, "--seed=7", f"--save_inputs={first}", f"--save_outputs={out}", module]) == 0
    assert sorted(_load(first)) == ["arg0", "arg1", "arg1.dtype", "arg2"]
    assert sorted(_load(out)) == ["out0", "out1", "out1.dtype"]
    assert str(_load(out)["out1.dtype"]) == "bfloat16"
    assert run([INTERPRETER, f"--inputs={first}", f"--save_inputs={second}", f"--expected_output={out}", module]) == 0
    assert first.read_bytes() == second.read_bytes()
    assert f"** Results on Interpreter and {out} are close enough. **" in capsys.readouterr().err


def test_an_expected_output_is_what_counts(module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inputs, out = tmp_path / "in.npz", tmp_path / "out.npz"
    run([INTERPRETER, f"--save_inputs={inputs}", f"--save_outputs={out}", module])
    entries = _load(out)
    entries["out0"][1, 2] = 40
    np.savez(tmp_path / "wrong.npz", **entries)
    saved = tmp_path / "saved.npz"
    flags = [f"--inputs={inputs}", f"--expected_output={tmp_path / 'wrong.npz'}", f"--save_outputs={saved}"]
    assert run([INTERPRETER, *flags, module]) == 1
    stdout, stderr = capsys.readouterr()
    assert "expected               40, index {1,2}" in stdout
    assert "nearer to expected at 0, to actual at 1 of the mismatches" in stdout
    assert "1 of 14 elements differ in 1 of 2 arrays" in stderr
    found = _load(saved)
    assert sorted(k for k in found if "." not in k) == ["expected0", "expected1", "mismatch0", "mismatch1", "out0", "out1"]
    assert np.argwhere(found["mismatch0"]).tolist() == [[1, 2]]
    assert float(found["expected0"][1, 2]) == 40
    assert not found["mismatch1"].any()
    assert found["expected1"].view(ml_dtypes.bfloat16).tolist() == found["out1"].view(ml_dtypes.bfloat16).tolist()


def test_npy_files_one_per_array(module: str, tmp_path: Path) -> None:
    arrays = [np.full((3, 4), 3, np.float32), np.arange(5, dtype=np.float32).astype(ml_dtypes.bfloat16), np.int32(2)]
    for number, array in enumerate(arrays):
        np.save(tmp_path / f"{number}.npy", array)
    paths = ",".join(str(tmp_path / f"{number}.npy") for number in range(3))
    out = tmp_path / "out.npz"
    assert run([INTERPRETER, f"--inputs={paths}", f"--save_outputs={out}", module]) == 0
    assert (_load(out)["out0"] == 9).all()
    assert _load(out)["out1"].view(ml_dtypes.bfloat16).astype(float).tolist() == [2, 3]


def test_every_run_of_several_has_its_own_file(module: str, tmp_path: Path) -> None:
    flags = [INTERPRETER, "--reference_platform=", "--iterations=2"]
    assert run([*flags, f"--save_inputs={tmp_path / 'in.npz'}", module, module]) == 0
    names = sorted(path.name for path in tmp_path.glob("in*"))
    assert names == [f"in.{f:04d}.iteration{i}.npz" for f in (0, 1) for i in (1, 2)]
    contents = [path.read_bytes() for path in sorted(tmp_path.glob("in*"))]
    assert contents[0] == contents[2] != contents[1] == contents[3], "one engine per file, which goes on"
    assert run([*flags, f"--inputs={tmp_path / 'in.npz'}", f"--save_inputs={tmp_path / 'two.npz'}", module, module]) == 0
    assert [path.read_bytes() for path in sorted(tmp_path.glob("two*"))] == contents


def test_one_file_serves_all_runs(module: str, tmp_path: Path) -> None:
    file = tmp_path / "in.npz"
    assert run([INTERPRETER, f"--save_inputs={file}", module]) == 0
    assert run([INTERPRETER, "--iterations=2", f"--inputs={file}", f"--save_inputs={tmp_path / 'n.npz'}", module]) == 0
    assert (tmp_path / "n.iteration1.npz").read_bytes() == (tmp_path / "n.iteration2.npz").read_bytes() == file.read_bytes()


BAD_FLAGS: list[tuple[str, str]] = [
    ("--inputs=none.npz", "'none.npz' does not exist"),
    ("--expected_output=none.npz", "'none.npz' does not exist"),
    ("--save_inputs=no/such/in.npz", "directory 'no/such' does not exist"),
    ("--report_json=.", "is a directory"),
    ("--report_junit=no/r.xml", "directory 'no' does not exist"),
    ("--abs_error_bound=-1", "is not a bound"),
    ("--rel_error_bound=nan", "is not a bound"),
    ("--profile=trace.json", "--profile has no effect with --platform=Interpreter"),
    ("--iterations=0", "--iterations must be >= 1, got 0"),
    ("--iterations=-1", "--iterations must be >= 1, got -1"),
    ("--input_scale=nan", "--input_scale must be > 0"),
    ("--timeout=-1", "--timeout must be >= 0"),
    ("--timeout=nan", "--timeout must be >= 0"),
    ("--low_precision_fp_error_spec=f8e4m3fn", "is not of the form TYPE,N"),
    ("--low_precision_fp_error_spec=s32,1", "is not of the form TYPE,N"),
    ("--low_precision_fp_error_spec=f16,-1", "is not of the form TYPE,N"),
]


@pytest.mark.parametrize(("flag", "message"), BAD_FLAGS)
def test_bad_flags_are_usage_errors(flag: str, message: str, module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([INTERPRETER, flag, module]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--inputs=none.npz", "--inputs=in.npz", "--expected_output=none.npz"])
def test_bad_files_are_reported_before_the_compilation(flag: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(module).parent)
    np.savez("in.npz", arg0=np.zeros((3, 4), np.float32))

    def compile_nothing(*_: object) -> None:
        raise AssertionError("compiled before the files were read")

    monkeypatch.setattr("hlo_run.pipeline.compile.compile_module", compile_nothing)
    assert run(["--platform=Host", flag, module]) == 2


def test_files_of_later_iterations_are_missed_before_the_first_runs(module: str, tmp_path: Path) -> None:
    out = tmp_path / "out.npz"
    assert run([INTERPRETER, f"--save_inputs={tmp_path / 'in.iteration1.npz'}", module]) == 0
    flags = ["--iterations=2", f"--inputs={tmp_path / 'in.npz'}", f"--save_outputs={out}"]
    assert run([INTERPRETER, *flags, module]) == 2
    assert not list(tmp_path.glob("out*"))


def test_a_result_may_be_saved_over_the_expected_one(module: str, tmp_path: Path) -> None:
    file = tmp_path / "out.npz"
    np.savez(file, out0=np.full((3, 4), 7, np.float32), out1=np.zeros(2, ml_dtypes.bfloat16))
    assert run([INTERPRETER, f"--expected_output={file}", f"--save_outputs={file}", module]) == 1
    assert (_load(file)["expected0"] == 7).all()


def test_an_array_that_does_not_fit_names_the_parameter(module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "in.npz"
    np.savez(file, arg0=np.zeros((3, 4), np.float32), arg1=np.zeros(5, np.float32), arg2=np.int32(0))
    assert run([INTERPRETER, f"--inputs={file}", module]) == 2
    assert f"arg1 of '{file}' is f32[5], parameter 0 (%p){{1}} is bf16[5]" in capsys.readouterr().err


NANS = """HloModule nans
ENTRY e {
  x = f32[4] parameter(0)
  ROOT n = f32[4] negate(x)
}
"""


@pytest.mark.parametrize(
    ("flag", "expected", "code"),
    [
        ("--v=0", [-1, -2, np.nan, -4], 1),
        ("--relaxed_nans", [-1, -2, np.nan, -4], 0),
        ("--fewer_infs_ok", [-1, -2, -3, 3.4028235e38], 1),
        ("--v=0", [-1, -2, -3, -4.1], 1),
        ("--rel_error_bound=0.1", [-1, -2, -3, -4.1], 0),
        ("--abs_error_bound=0.2", [-1, -2, -3, -4.1], 0),
        ("--low_precision_fp_error_spec=bf16,3", [-1, -2, -3, -4.1], 0),
        ("--low_precision_fp_error_spec=bf16,2", [-1, -2, -3, -4.1], 1),
    ],
)
def test_flags_of_the_comparison(flag: str, expected: list[float], code: int, tmp_path: Path) -> None:
    (tmp_path / "n.hlo").write_text(NANS)
    np.save(tmp_path / "x.npy", np.array([1, 2, 3, 4], np.float32))
    np.savez(tmp_path / "e.npz", out0=np.array(expected, np.float32))
    files = [f"--inputs={tmp_path / 'x.npy'}", f"--expected_output={tmp_path / 'e.npz'}"]
    assert run([INTERPRETER, *files, flag, str(tmp_path / "n.hlo")]) == code


RNG = """HloModule draw
ENTRY e {
  a = f32[] constant(0)
  b = f32[] constant(1)
  ROOT r = f32[50] rng(a, b), distribution=rng_uniform
}
"""


def test_module_seeds_are_42_or_the_iteration(tmp_path: Path) -> None:
    (tmp_path / "r.hlo").write_text(RNG)
    for name, flags in (("same", []), ("other", ["--different_random_seeds"])):
        out = f"--save_outputs={tmp_path / name}.npz"
        assert run([INTERPRETER, "--iterations=2", out, *flags, str(tmp_path / "r.hlo")]) == 0
    draws = {p.name: _load(p)["out0"].tolist() for p in tmp_path.glob("*.npz")}
    assert draws["same.iteration1.npz"] == draws["same.iteration2.npz"]
    assert len({tuple(draws[f"other.iteration{i}.npz"]) for i in (1, 2)} | {tuple(draws["same.iteration1.npz"])}) == 3


def _broken(
    self: InterpreterBackend,
    module: HloModule,
    arguments: Sequence[Literal],
    seed: int = 42,
    precision: str = "native",
    feeds: Feeds = NO_FEEDS,
    roundings: int | None = None,
    observe: Observer | None = None,
) -> Literal:
    del roundings, observe
    value: Any = evaluate(module, arguments, precision, seed, feeds)
    return (value[0] + np.float32(0.5), value[1]) if precision == "f64" else value


@pytest.fixture
def reports(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], ET.Element]:
    """Run four files, one of each outcome, and return both reports."""
    monkeypatch.chdir(tmp_path)
    out, inputs = tmp_path / "out.npz", tmp_path / "in.npz"
    run([INTERPRETER, f"--save_inputs={inputs}", f"--save_outputs={out}", module])
    entries = _load(out)
    np.savez(tmp_path / "expected.0000.npz", **entries)
    entries["out0"][:, 3] = np.nan
    np.savez(tmp_path / "expected.0001.npz", **entries)
    (tmp_path / "odd.hlo").write_text(
        'HloModule odd\nENTRY e {\n  p = f32[3] parameter(0)\n  ROOT r = f32[3] custom-call(p), custom_call_target="mine"\n}'
    )
    (tmp_path / "bad\x01.hlo").write_text("HloModule bad\nENTRY e {\n  ROOT r = f32[3] frobnicate()\n}")
    inputs.rename(tmp_path / "in.0000.npz")
    (tmp_path / "in.0001.npz").write_bytes((tmp_path / "in.0000.npz").read_bytes())
    np.savez(tmp_path / "in.0002.npz", arg0=np.zeros(3, np.float32))
    np.savez(tmp_path / "expected.0002.npz", out0=np.zeros(3, np.float32))
    flags = ["--inputs=in.npz", "--expected_output=expected.npz", "--report_json=r.json", "--report_junit=r.xml"]
    assert run([INTERPRETER, *flags, "pair.hlo", "pair.hlo", "odd.hlo", "bad\x01.hlo"]) == 1
    return json.loads((tmp_path / "r.json").read_text()), ET.parse(tmp_path / "r.xml").getroot()


def test_json_of_several_files(reports: tuple[dict[str, Any], ET.Element]) -> None:
    record = reports[0]
    assert record["schema"] == 1
    assert record["exit_code"] == 1
    assert record["counts"] == {"passed": 1, "mismatch": 1, "unsupported": 1, "error": 1}
    assert [(f["file"], f["module"], f["outcome"], f["exit_code"]) for f in record["files"]] == [
        ("pair.hlo", "pair", "passed", 0),
        ("pair.hlo", "pair", "mismatch", 1),
        ("odd.hlo", "odd", "unsupported", 4),
        ("bad\x01.hlo", "", "error", 3),
    ]
    assert record["files"][3]["error"]["where"]["line"] == 3
    assert record["files"][0]["error"] is None
    (iteration,) = record["files"][1]["iterations"]
    assert iteration["arguments"] == "in.0001.npz"
    found = iteration["comparison"]
    assert (found["elements"], found["mismatches"], found["agrees"]) == (14, 3, False)
    first, second = found["arrays"]
    assert first["special_values"]["nan_expected_only"] == 3
    assert first["worst"]["abs"]["error"] == "inf"
    assert first["first"]["expected"] == "nan"
    assert first["top_mismatches"][0]["index"] == [0, 3]
    assert first["suggested_bounds"] == []
    assert first["patterns"][0].startswith("all mismatches are at index 3 of dimension 1 (size 4)")
    assert "top_mismatches" not in second
    assert second["agrees"]


def test_json_has_the_keys_that_the_documentation_lists(reports: tuple[dict[str, Any], ET.Element]) -> None:
    keys = _keys(reports[0])
    counted = {name for name in keys if name.startswith(("nan_", "infinity_", "same_", "opposite_"))}
    assert not keys - _documented_keys() - counted


def _documented_keys() -> set[str]:
    text = (Path(__file__).resolve().parent.parent.parent / "docs" / "report.md").read_text(encoding="utf-8")
    return set(re.findall(r"`([a-z_0-9]+)(?:\[\])?`", text))


def _keys(record: dict[str, Any]) -> set[str]:
    return set(re.findall(r'"([a-z_0-9]+)":', json.dumps(record)))


def test_junit_of_several_files(reports: tuple[dict[str, Any], ET.Element]) -> None:
    root = reports[1]
    assert {name: root.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4",
        "failures": "1",
        "errors": "1",
        "skipped": "1",
    }
    cases = list(root.iter("testcase"))
    assert [case.get("name") for case in cases] == ["pair.hlo", "pair.hlo", "odd.hlo", "bad\\x01.hlo"]
    failed = ["properties", "failure", "system-out", "properties", "skipped", "properties", "error"]
    assert [child.tag for case in cases for child in case] == ["system-out", *failed]
    buckets = [entry.get("value") for case in cases[1:] if (entry := case.find("properties/property")) is not None]
    assert buckets[0] == "compare: mismatch: NaN"
    assert len(buckets) == 3
    failure = cases[1].find("failure")
    assert failure is not None
    assert "Mismatch count 3 (25.0000%) in shape f32[3,4]" in (failure.text or "")
    error = cases[3].find("error")
    assert error is not None
    assert error.get("type") == "ParseError"


def test_counts_of_the_launches_are_in_the_json(tmp_path: Path) -> None:
    file, out = tmp_path / "t.hlo", tmp_path / "r.json"
    file.write_text("HloModule t\nENTRY e { x = f32[64,96] parameter(0) ROOT t = f32[96,64] transpose(x), dimensions={1,0} }")
    assert run(["--platform=Host", "--host_check=statistics", f"--report_json={out}", str(file)]) == 0
    record = json.loads(out.read_text())
    (launch,) = record["files"][0]["launches"]
    assert launch["kernel"].endswith("transpose")
    # Every byte once in, once out, in whole sectors; rows of a tile and of its transpose meet each bank once.
    assert launch["global"]["transactions"] == launch["global"]["ideal"] == 2 * 64 * 96 * 4 // 32
    assert launch["shared"]["requests"] > 0
    assert launch["shared"]["transactions"] == launch["shared"]["ideal"]
    assert sum(item["transactions"] for item in launch["accesses"] if item["space"] == "global") == 2 * 64 * 96 * 4 // 32
    assert sum(item["count"] for item in launch["thread_instructions"]) > 64 * 96
    assert _keys(record) <= _documented_keys()
    assert run(["--platform=Host", f"--report_json={out}", str(file)]) == 0
    assert json.loads(out.read_text())["files"][0]["launches"] == []


def test_reports_are_the_same_twice(module: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        flags = [f"--report_json={tmp_path / name}.json", f"--report_junit={tmp_path / name}.xml"]
        assert run([INTERPRETER, "--iterations=2", *flags, module]) == 0
    for ending in ("json", "xml"):
        assert (tmp_path / f"a.{ending}").read_bytes() == (tmp_path / f"b.{ending}").read_bytes()


def test_the_float64_value_is_asked_for_only_when_something_differs(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def watched(
        self: InterpreterBackend,
        module: HloModule,
        arguments: Sequence[Literal],
        seed: int = 42,
        precision: str = "native",
        feeds: Feeds = NO_FEEDS,
        roundings: int | None = None,
        _observe: Observer | None = None,
    ) -> Literal:
        asked.append(precision if roundings is None else "rounded")
        return _broken(self, module, arguments, seed, precision, feeds)

    monkeypatch.setattr(InterpreterBackend, "run_module", watched)
    report = tmp_path / "r.json"
    assert run([INTERPRETER, module]) == 0
    assert asked == ["native", "native"]
    np.savez(tmp_path / "e.npz", out0=np.full((3, 4), 7, np.float32), out1=np.zeros(2, ml_dtypes.bfloat16))
    assert run([INTERPRETER, f"--expected_output={tmp_path / 'e.npz'}", f"--report_json={report}", module]) == 1
    assert asked[2:5] == ["native", "rounded", "f64"]
    assert asked[5:] == ["rounded"] * (len(asked) - 5)
    first = json.loads(report.read_text())["files"][0]["iterations"][0]["comparison"]["arrays"][0]
    assert first["float64"] == {"nearer_to_expected": 0, "nearer_to_actual": 12, "expected_out_of_bounds": 12}
    top = first["top_mismatches"][0]
    assert top["float64"] == pytest.approx(top["actual"] + 0.5, rel=1e-6)
    assert "Float64 values: nearer to expected at 0, to actual at 12" in capsys.readouterr().out


ROUNDED = """HloModule rounded
ENTRY e {
  x = f32[50] parameter(0)
  narrow = f8e4m3fn[50] convert(x)
  wide = f32[50] convert(narrow)
  ROOT sum = f32[50] add(wide, x)
}
"""


def test_a_rounding_that_was_left_out_is_said_to_be_possible(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rounded.hlo"
    file.write_text(ROUNDED)
    assert run(["--platform=Host", "--fixed_bounds", str(file)]) == 1
    assert "--xla_allow_excess_precision=false keeps them all" in capsys.readouterr().err
    assert run(["--platform=Host", str(file)]) == 0
    assert "beyond the bounds are within the rounding of the module's types" in capsys.readouterr().err
    assert run(["--platform=Host", "--xla_allow_excess_precision=false", str(file)]) == 0
    file.write_text(ROUNDED.replace("f8e4m3fn", "s8"))
    wrong = tmp_path / "wrong.npz"
    np.savez(wrong, out0=np.zeros(50, np.float32))
    capsys.readouterr()
    assert run(["--platform=Host", f"--expected_output={wrong}", str(file)]) == 1
    assert "excess_precision" not in capsys.readouterr().err
