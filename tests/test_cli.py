"""The command line: where text goes, which code it ends with, and that bad input never shows a traceback."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from hlo_run.backends.interpreter import InterpreterBackend
from hlo_run.cli import run, run_opt
from hlo_run.commands.summary import summary
from hlo_run.hlo.feeds import NO_FEEDS, Feeds
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.literal import Literal
from hlo_run.options.programs import FLAGS, OPT_FLAGS
from hlo_run.options.stages import STAGE_TEXTS
from hlo_run.options.topics import TOPICS
from hlo_run.pass_support.observer import HLO_INPUT, STAGES
from hlo_run.reference.evaluate.evaluate import evaluate
from hlo_run.reference.evaluate.observed import Observer
from hlo_run.tool import run_tool

ROOT = Path(__file__).resolve().parent.parent
SMALL = """HloModule small
ENTRY e {
  p = f32[3,40] parameter(0)
  q = f32[3,40] parameter(1)
  a = f32[3,40] add(p, q)
  ROOT m = f32[3,40] multiply(a, p)
}
"""

RECV = """HloModule recv
ENTRY e {
  t = token[] after-all()
  r = (f32[4], u32[], token[]) recv(t), channel_id=1, is_host_transfer=true
  d = (f32[4], token[]) recv-done(r), channel_id=1, is_host_transfer=true
  ROOT g = f32[4] get-tuple-element(d), index=0
}
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    file = tmp_path / "small.hlo"
    file.write_text(SMALL)
    return str(file)


def test_a_run_says_which_platform_and_ends_with_the_verdict(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--platform=Host", small]) == 0
    out, err = capsys.readouterr()
    assert out == f"\n** Running {small} **\n"
    assert "Running HLO module with runner Host" in err
    assert "** Results on Host and Interpreter are close enough. **" in err
    assert "0/1 runs failed." in err


def test_literals_go_to_stdout(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--platform=Host", "--print_literals", "--iterations=2", small]) == 0
    out, err = capsys.readouterr()
    assert out.count("** Argument 0 **") == 2
    assert out.count("** Result with test runner Host **") == 2
    assert out.count("** Result with reference runner Interpreter **") == 2
    first, second = re.findall(r"\*\* Argument 0 \*\*\n(.*?)\n\*\*", out, re.DOTALL)
    assert first != second, "every iteration draws fresh arguments"
    assert "=== Iteration 2" in err


def test_the_seed_makes_the_arguments(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    texts: list[str] = []
    for seed in (1, 1, 2):
        run(["--platform=Interpreter", "--reference_platform=", "--print_literals", f"--seed={seed}", small])
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]


def test_without_a_reference_nothing_is_compared(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--platform=Host", "--reference_platform=", small]) == 0
    err = capsys.readouterr().err
    assert "Skipping reference runner" in err
    assert "close enough" not in err


@pytest.mark.parametrize(
    "stage", ["hlo-input", "hlo", "emit-kernels", "kernel/cse-2", "llvm-before-optimizations", "llvm", "ptx"]
)
def test_a_stage_is_all_there_is_on_stdout(small: str, stage: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([f"--stage={stage}", small]) == 0
    out, err = capsys.readouterr()
    assert out
    assert "Running" not in out + err


def test_ptx_is_one_module_per_kernel(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(["--stage=ptx", "--xla_disable_hlo_passes=priority-fusion", small])
    out = capsys.readouterr().out
    assert out.startswith(".version 8.6\n")
    assert out.count(".version") == out.count(".entry") == 2


def test_the_target_is_a_flag(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(["--stage=ptx", "--target=a100", small])
    assert ".target sm_80\n" in capsys.readouterr().out
    assert run(["--stage=ptx", "--target=voodoo2", small]) == 2
    assert "choose one of" in capsys.readouterr().err


def test_verbosity_five_shows_every_stage(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--platform=Host", "--v=5", small]) == 0
    out, err = capsys.readouterr()
    assert out.strip() == f"** Running {small} **"
    for row in (
        "priority-fusion",
        "emit-kernels (loop_multiply_fusion)",
        "flatten-tensors (loop_multiply_fusion)",
        "ptx (loop_multiply_fusion)",
    ):
        assert f"Dump After {row} //----- //" in err
    assert err.rstrip().endswith("0/1 runs failed.")


def test_dumps_have_xla_names(small: str, tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    flags = ["--xla_dump_hlo_pass_re=.*", "--xla_dump_emitter_re=mlir"]
    assert run(["--platform=Host", f"--xla_dump_to={folder}", *flags, small]) == 0
    # The number of an HLO dump says how many rows there are before.
    names = {re.sub(r"\.\d{4}\.", ".NNNN.", path.name) for path in folder.iterdir()}
    assert {
        "module_0000.small.before_optimizations.txt",
        "module_0000.small.NNNN.post-fusion_optimization.after_rename_fusions.before_dus-accumulator-zero-init-elimination.txt",
        "module_0000.small.sm_9.0a_gpu_after_optimizations.txt",
        "module_0000.small.loop_multiply_fusion.mlir-passes.log",
    } <= names
    assert not any(name.endswith(".mlir") for name in names)
    assert run(["--platform=Host", f"--xla_dump_to={folder}", "--dump_kernel_rows", small]) == 0
    assert (folder / "module_0000.small.loop_multiply_fusion.000.after_emit-kernels.mlir").exists()
    assert not [name for name in names if name.endswith(".tmp")]


def test_a_dump_has_the_files_of_xla(small: str, tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    assert run(["--platform=Host", f"--xla_dump_to={folder}", small]) == 0
    after = "module_0000.small.sm_9.0a_gpu_after_optimizations"
    buffers = ("buffer-assignment-values", "buffer-assignment", "live-range", "memory-usage-report")
    hlo = ("after_spmd_partitioner.txt", "before_config_assignment.txt", "before_optimizations.txt")
    thunks = ("thunk_metadata.txt", "thunk_sequence.txt")
    settings = ("autotune_results.pbtxt", "config.pbtxt", "debug_options", "gpu_target_config.pbtxt")
    assert {path.name for path in folder.iterdir()} == {
        *(f"module_0000.small.{name}" for name in (*hlo, *thunks, *settings)),
        *(f"{after}-{kind}.txt" for kind in buffers),
        f"{after}.txt",
    }


def test_dumps_to_stdout(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--platform=Host", "--xla_dump_to=-", small]) == 0
    out = capsys.readouterr().out
    assert "*** Begin module_0000.small.before_optimizations.txt ***\nHloModule small" in out
    assert "*** End module_0000.small.before_optimizations.txt ***" in out


def test_required_rows_cannot_be_disabled(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--disable_kernel_passes=flatten-tensors", small]) == 2
    assert "is required" in capsys.readouterr().err


def test_rows_that_do_not_exist_are_a_warning(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--disable_kernel_passes", "--enable_kernel_passes_only"):
        assert run(["--platform=Host", f"{flag}=flaten-tensors", small]) == 0
        assert "no kernel row is called 'flaten-tensors'; did you mean flatten-tensors?" in capsys.readouterr().err
    for flag in ("--disable", "--xla_enable_hlo_passes_only"):
        assert run(["--platform=Host", f"{flag}=flatten-tensors", small]) == 0
        told = "no HLO row is called 'flatten-tensors'; it is a kernel row, for --disable_kernel_passes"
        assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "flag",
    [
        "--disable=cse,algsimp",
        "--only=cse",
        "--xla_disable_all_hlo_passes",
        "--disable_kernel_passes=cse,canonicalize,vectorize-loads-stores",
        "--enable_kernel_passes_only=cse",
    ],
)
def test_optional_rows_change_nothing_in_the_result(small: str, flag: str) -> None:
    assert run(["--platform=Host", "--verify=every", flag, small]) == 0


HLO_PASSES_OFF = (
    "--xla_disable_all_hlo_passes",
    "--run_test_hlo_passes=false",
    "--xla_enable_hlo_passes_only=cse",
    "--xla_disable_hlo_passes=cse,canonicalize,inliner",
)


@pytest.mark.parametrize("flag", HLO_PASSES_OFF)
def test_flags_of_hlo_passes_leave_kernel_passes_alone(small: str, capsys: pytest.CaptureFixture[str], flag: str) -> None:
    def rows(*flags: str) -> list[str]:
        assert run(["--platform=Host", "--time_passes", "--cache=off", *flags, small]) == 0
        return re.findall(r"^kernel +(\S+)", capsys.readouterr().err, re.MULTILINE)

    assert rows(flag) == rows()
    assert "vectorize-loads-stores" in rows(flag)
    assert "vectorize-loads-stores" not in rows("--enable_kernel_passes_only=cse")


def test_passes_are_listed_and_timed(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--list_passes"]) == 0
    listed = capsys.readouterr().out
    assert re.search(r"^kernel +flatten-tensors +required", listed, re.MULTILINE)
    assert run(["--platform=Host", "--time_passes", small]) == 0
    err = capsys.readouterr().err
    assert re.search(r"^kernel +flatten-tensors +1 ", err, re.MULTILINE)


def test_a_mismatch_is_reported_and_is_exit_code_one(
    small: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A reference that is wrong at one element stands for a kernel that is.
    def broken(
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
        value = np.array(evaluate(module, arguments, precision, seed, feeds))
        if precision == "native":
            value[1, 7] += 5
        return value

    monkeypatch.setattr(InterpreterBackend, "run_module", broken)
    assert run(["--platform=Host", small]) == 1
    out, err = capsys.readouterr()
    assert "Mismatch count 1 (0.8333%) in shape f32[3,40] (120 elements)" in out
    assert "index {1,7}" in out
    assert "Float64 values: nearer to expected at 0, to actual at 1 of the mismatches; the expected value itself is" in out
    assert "1/1 runs failed." in err
    assert "mismatch: 1 of 120 elements differ" in err


BAD = {
    "truncated": ("HloModule t\nENTRY e {\n  p = f32[3] parameter(", 3),
    "unknown op": ("HloModule t\nENTRY e {\n  p = f32[3] parameter(0)\n  ROOT r = f32[3] frobnicate(p)\n}", 3),
    "unknown dtype": ("HloModule t\nENTRY e {\n  ROOT p = f33[3] parameter(0)\n}", 3),
    "shape mismatch": ("HloModule t\nENTRY e {\n  p = f32[3] parameter(0)\n  ROOT r = f32[4] negate(p)\n}", 3),
    "operand shapes": (
        "HloModule t\nENTRY e {\n  p = f32[3] parameter(0)\n  q = f32[4] parameter(1)\n  ROOT r = f32[3] add(p, q)\n}",
        3,
    ),
    "recursion": (
        "HloModule t\nf {\n  p = f32[3] parameter(0)\n  ROOT r = f32[3] fusion(p), kind=kLoop, calls=f\n}\n"
        "ENTRY e {\n  p = f32[3] parameter(0)\n  ROOT r = f32[3] fusion(p), kind=kLoop, calls=f\n}",
        3,
    ),
    "deep": ("HloModule t\nENTRY e {\n  ROOT r = " + "(" * 100000 + "f32[]" + ")" * 100000 + " parameter(0)\n}", 3),
    "no text": ("", 3),
    "not supported": (
        "HloModule t\nENTRY e {\n  t = token[] after-all()\n"
        "  s = (f32[3], u32[], token[]) recv(t), channel_id=1, is_host_transfer=true\n"
        "  ROOT r = (f32[3], token[]) recv-done(s), channel_id=1, is_host_transfer=true\n}",
        4,
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_screen_with_a_place(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, code = BAD[name]
    file, dumps = tmp_path / "bad.hlo", tmp_path / "dumps"
    file.write_text(text)
    assert run(["--platform=Host", f"--xla_dump_to={dumps}", str(file)]) == code
    err = capsys.readouterr().err
    assert f"{file}:" in err, "the message names the place"
    assert len(err.splitlines()) <= 24
    assert max(map(len, err.splitlines())) < 400
    assert "Traceback" not in err
    if code == 3:
        assert not dumps.exists(), "nothing is dumped before the module is known to be valid"


@pytest.mark.parametrize("size", ["1000000000000000", "1000000,1000000000", "9223372036854775807"])
def test_absurd_sizes_are_refused_at_once(size: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "huge.hlo"
    file.write_text(f"HloModule t\nENTRY e {{\n  p = f32[{size}] parameter(0)\n  ROOT r = f32[{size}] negate(p)\n}}")
    assert run(["--platform=Host", str(file)]) in (3, 4, 5)
    assert "huge.hlo" in capsys.readouterr().err


def test_what_cannot_fit_is_refused_before_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "large.hlo"
    file.write_text("HloModule t\nENTRY e {\n  p = f32[400000000000] parameter(0)\n  ROOT r = f32[400000000000] negate(p)\n}")
    assert run(["--platform=Host", str(file)]) == 5
    assert "GiB" in capsys.readouterr().err


def test_files_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    binary = tmp_path / "binary.hlo"
    binary.write_bytes(bytes(range(256)) * 4)
    zeros = tmp_path / "zeros.hlo"
    zeros.write_bytes(b"HloModule t\0\0")
    other = tmp_path / "module.xyz"
    other.write_text(SMALL)
    cases = {tmp_path / "missing.hlo": "does not exist", empty: "holds no module", binary: "not a text file"}
    for file, message in {**cases, zeros: "NUL", other: "format 'xyz'"}.items():
        assert run(["--platform=Host", str(file)]) == 2
        assert message in capsys.readouterr().err
    assert run(["--platform=Host", "--input_format=hlo", str(other)]) == 0


def test_the_first_failure_of_several_files_counts(small: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--platform=Host", str(tmp_path / "missing.hlo"), small]) == 2
    assert "close enough" in capsys.readouterr().err, "the other file ran"


def test_stdin_and_module_entry_point(small: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hlo_run", "--stage=hlo-input", "-"],
        input=SMALL,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("HloModule small")


def test_help_needs_no_heavy_imports() -> None:
    code = (
        "import sys; sys.argv=['hlo-run','--help']\nfrom hlo_run.cli import run\ntry: run(['--help'])\nexcept SystemExit: pass\n"
    )
    code += "print('loaded:', [m for m in ('numpy', 'xdsl', 'llvmlite', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert "loaded: []" in done.stdout
    assert "--xla_dump_to" in done.stdout


def test_an_unknown_stage_is_refused_before_anything_runs(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--stage=flatten-tensor", small]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert "did you mean flatten-tensors?" in err


def test_a_stage_without_kernels_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "none.hlo"
    file.write_text("HloModule none\nENTRY e {\n  p = f32[3] parameter(0)\n  ROOT c = f32[3] copy(p)\n}")
    assert run(["--stage=ptx", str(file)]) == 0
    assert "nothing to print: none has no kernel; all of it is copies: 1 kCopy" in capsys.readouterr().err
    dot = "HloModule product\nENTRY e {\n  p = f32[64,64] parameter(0)\n"
    dot += "  ROOT d = f32[64,64] dot(p, p), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n}"
    file.write_text(dot, encoding="utf-8")
    assert run(["--stage=ptx", str(file)]) == 0
    assert "product has no kernel; all of it is library calls: 1 kCublasLtMatmul" in capsys.readouterr().err
    file.write_text("HloModule same\nENTRY e {\n  ROOT t = () tuple()\n}", encoding="utf-8")
    assert run(["--stage=ptx", str(file)]) == 0
    assert "same has no kernel; nothing is computed" in capsys.readouterr().err


@pytest.mark.parametrize(("main", "program"), [(run, "hlo-run"), (run_opt, "hlo-opt")])
def test_help_has_examples_rows_and_all_stages(
    main: Callable[[list[str]], int], program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["-h"])
    text = capsys.readouterr().out
    examples = re.findall(rf"^  ({program} .*?)(?:  |$)", text, re.MULTILINE)
    assert len(examples) >= 5
    flags = {name for example in examples for name in re.findall(r"--(\w[\w-]*)", example)}
    assert {name.replace("-", "_") for name in flags} <= {*(FLAGS if main is run else OPT_FLAGS).fields}
    assert "A row is a place in the pipeline" in text
    assert all(f"  {stage}  " in text for stage in STAGES)


def _help(capsys: pytest.CaptureFixture[str], *words: str, main: Callable[[list[str]], int] = run) -> str:
    with pytest.raises(SystemExit):
        main(list(words))
    return capsys.readouterr().out


@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic_has_commands_and_flags(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = _help(capsys, f"--help={topic}")
    commands = re.findall(r"^  (hlo-\w+ .*?)(?:  |$)", text, re.MULTILINE)
    flags = {name for command in commands if command.startswith("hlo-run") for name in re.findall(r"--(\w+)", command)}
    assert flags <= {*FLAGS.fields}
    assert all(f"--{name}" in text for name in TOPICS[topic].flags)
    assert (ROOT / "docs" / TOPICS[topic].page).exists()
    assert f"--help={topic}" in _help(capsys, "--help")


def test_the_help_of_a_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert "live-range" in _help(capsys, "--help=stages")
    dump = _help(capsys, "--help=dump")
    assert dump.startswith("Dump:\n")
    assert "--xla_dump_to=DIR" in dump
    assert "--jobs" not in dump
    assert _help(capsys, "--help=j").splitlines()[1].startswith("  --jobs=N")
    assert "--passes" in _help(capsys, "--help=run", main=run_opt)
    assert run(["--help=nothing"]) == 2
    assert "hint: the topics are triage, goldens, " in capsys.readouterr().err


def test_help_has_the_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for columns in (60, 160):
        monkeypatch.setenv("COLUMNS", str(columns))
        text = _help(capsys, "--help")
        longest = max(map(len, text.partition("\nExamples")[0].splitlines()))
        assert columns - 20 < longest < columns
        # Only the name of one flag, or one of its values, may be longer.
        assert all(len(line) <= columns or " " not in line.strip() for line in text.splitlines())
        assert run_tool(["--help"], "hlo-fuzz") == 0
        said = capsys.readouterr().out
        assert said.startswith("Usage: hlo-fuzz [OPTIONS]")
        assert columns == 60 or max(map(len, said.splitlines())) > 120


def test_the_hint_about_a_wrong_flag_names_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tool(["--nothing"], "hlo-fuzz") == 2
    assert "hint: hlo-fuzz --help lists the flags" in capsys.readouterr().err
    assert run_tool(["diff", "--nothing"]) == 2
    assert "hint: hlo-tool diff --help lists the flags" in capsys.readouterr().err


def test_the_stages_of_the_help_are_all_stages() -> None:
    assert tuple(STAGE_TEXTS) == (HLO_INPUT, *STAGES)


def test_many_failures_are_grouped() -> None:
    results = [(f"f{number}.hlo", 4 if number % 3 else 0, f"hlo passes: unsupported: {number % 2}") for number in range(3000)]
    results += [(f"g{number}.hlo", 1, f"compare: mismatch: {number}") for number in range(50)]
    lines = summary(results, 3050).splitlines()
    assert lines[1] == "** 3050 files: 2000 unsupported, 1000 fine, 50 differ **"
    assert lines[2] == "2050 failures in 52 buckets:"
    assert lines[3].startswith(" 1000  hlo passes: unsupported: 1  [f1.hlo, f5.hlo, f7.hlo, ..]")
    assert lines[23] == "   32  in 32 smaller buckets"
    assert len(lines) < 50


@pytest.mark.parametrize("program", ["run", "run_opt"])
def test_a_redirected_file_is_read(program: str, tmp_path: Path) -> None:
    file = tmp_path / "m.hlo"
    file.write_text("HloModule m\nENTRY e {\n  ROOT p = f32[4] parameter(0)\n}\n", encoding="utf-8")
    flags = ["--stage=hlo-input"] if program == "run" else []
    code = f"import sys; from hlo_run.cli import {program}; sys.exit({program}({flags}))"
    with file.open() as stream:
        done = subprocess.run([sys.executable, "-c", code], stdin=stream, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.partition(",")[0]) == (0, "HloModule m")
    done = subprocess.run([sys.executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 2


def test_an_unknown_platform_is_one_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--platform=Hots", "a.hlo", "b.hlo"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("unknown platform 'Hots'") == 1


def test_a_value_of_the_wrong_type_gets_the_help_of_its_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-v", "a.hlo"]) == 2
    assert "hint: Log to stderr. 1: names of rows" in capsys.readouterr().err


def test_hints_about_the_reference_name_its_flag(
    small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hlo_run.backends.cuda.device.device_problem", lambda: "no GPU")
    assert run(["--platform=Host", "--reference_platform=CUDA", small]) == 5
    assert "hint: --reference_platform=Host runs the same kernels on the CPU" in capsys.readouterr().err
    assert run(["--platform=CUDA", small]) == 5
    assert "hint: --platform=Host runs" in capsys.readouterr().err
    file = tmp_path / "recv.hlo"
    file.write_text(RECV, encoding="utf-8")
    assert run(["--platform=Interpreter", str(file)]) == 4
    assert 'hint: --platform=Host --reference_platform="" runs' in capsys.readouterr().err
    assert run(["--platform=Host", "--reference_platform=Hots", small]) == 2
    assert "hint: --reference_platform=Interpreter, CPU, CUDA, Host, or" in capsys.readouterr().err
