"""hlo-run goes on when native code dies: the error names the step, the kernel and the signal, and a folder reproduces it."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from processes import ABS, NEGATE, NEGATE_LLVM, hlo_run, reproducers

from hlo_run.cli import run
from hlo_run.codegen.llvm.emit_ptx import compile_llvm
from hlo_run.codegen.llvm.ptxas import find_ptxas
from hlo_run.target import preset

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot copy processes")

# A file for --custom_calls that makes LLVM die on the kernel of a negation.
DIES_IN_LLVM = """
import os, signal
from hlo_run.pipeline import llvm_ahead
compile_llvm = llvm_ahead.compile_llvm
def dying(text, *rest, **more):
    if "fneg" in text:
        os.write(2, b"the last words\\n")
        os.kill(os.getpid(), signal.SIGSEGV)
    return compile_llvm(text, *rest, **more)
llvm_ahead.compile_llvm = dying
"""
# The same for native code on Host: the code of the negation writes to an invalid address.
DIES_IN_NATIVE_CODE = """
from hlo_run.backends.host.jit import llvm
compile_object = llvm.compile_object
def dying(text, kernel=""):
    if kernel == "wrapped_negate":
        head, brace, body = text.partition("{\\nentry:\\n") if "{\\nentry:\\n" in text else text.partition("{\\n")
        assert brace and "define void @run" in head, text
        text = head + brace + "  store volatile i32 0, ptr inttoptr (i64 16 to ptr)\\n" + body
    return compile_object(text, kernel)
llvm.compile_object = dying
"""
FOUR_KERNELS = """HloModule four, is_scheduled=true
ENTRY e {
  p = f32[3,40] parameter(0)
  a = f32[3,40] abs(p)
  b = f32[3,40] multiply(a, p)
  c = f32[40,3] transpose(b), dimensions={1,0}
  ROOT d = f32[40,3] negate(c)
}
"""


def _write(folder: Path, **files: str) -> dict[str, str]:
    """Write NAME=text as NAME.ENDING (`_` stands for the dot), and return the paths by name."""
    paths = {name: folder / name.replace("_", ".") for name in files}
    for name, text in files.items():
        paths[name].write_text(text, encoding="utf-8")
    return {name: str(path) for name, path in paths.items()}


def _llvm(body: str, module: str) -> str:
    """Return the negation's LLVM IR with a line in its body and definitions after it."""
    return NEGATE_LLVM.replace("BODY", body).replace("MODULE", module)


def test_given_llvm_ir_that_aborts_is_an_error_in_that_file(tmp_path: Path) -> None:
    aborts = _llvm("%q = load i32, ptr @al", "@gg = global i32 0\n@al = alias i32, ptr @gg")
    files = _write(tmp_path, neg_hlo=NEGATE, bad_ll=aborts)
    done = hlo_run(tmp_path, "--stage=ptx", f"--xla_gpu_llvm_ir_file={files['bad_ll']}", files["neg_hlo"])
    assert done.returncode == 3
    first = done.stderr.splitlines()[0]
    assert first == f"{files['bad_ll']}:1:1: error: LLVM died with SIGABRT in kernel 'wrapped_negate'"
    assert "aliasee must be" in done.stderr
    (folder,) = reproducers(tmp_path)
    assert f"reproducer: {folder}" in done.stderr
    assert (folder / "wrapped_negate.ll").read_text(encoding="utf-8") == aborts
    assert (folder / "neg.hlo").read_text(encoding="utf-8") == NEGATE
    assert "aliasee" in (folder / "stderr.txt").read_text(encoding="utf-8")
    assert "--stage=ptx" in (folder / "command.txt").read_text(encoding="utf-8")
    assert "llvmlite" in (folder / "versions.txt").read_text(encoding="utf-8")


@pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not installed")
def test_given_code_that_ptxas_refuses_is_an_error_in_that_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused = _llvm("%u = call i32 @system(ptr null)", "declare i32 @system(ptr)")
    files = _write(tmp_path, neg_hlo=NEGATE, bad_ll=refused, bad_ptx=compile_llvm(refused, preset("h100")).ptx)
    for flag, name in (("llvm_ir", "bad_ll"), ("ptx", "bad_ptx")):
        assert run(["--platform=Host", f"--xla_gpu_{flag}_file={files[name]}", files["neg_hlo"]]) == 3
        assert capsys.readouterr().err.startswith(f"{files[name]}:1:1: error: ptxas rejects the PTX")


def test_given_llvm_ir_may_trap(tmp_path: Path) -> None:
    traps = _llvm("br i1 false, label %dead, label %live\ndead:\n  call void @llvm.trap()\n  br label %live\nlive:", "")
    files = _write(tmp_path, neg_hlo=NEGATE, traps_ll=traps + "declare void @llvm.trap()\n")
    flags = ("--platform=Host", "--xla_backend_optimization_level=0")
    for engine in ("jit", "emulator"):
        assert run([*flags, f"--host_engine={engine}", f"--xla_gpu_llvm_ir_file={files['traps_ll']}", files["neg_hlo"]]) == 0


@pytest.mark.parametrize(
    ("body", "module", "code"),
    [
        ("%q = call ptr @malloc(i64 8)\n  store volatile ptr %q, ptr %1", "declare ptr @malloc(i64)", 4),
        ("store volatile i32 1, ptr addrspace(3) @s", "@s = external addrspace(3) global [0 x i8]", 5),
    ],
)
def test_an_error_of_a_given_kernel_on_host_names_its_file(
    body: str, module: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = _write(tmp_path, neg_hlo=NEGATE, mine_ll=_llvm(body, module))
    assert run(["--platform=Host", f"--xla_gpu_llvm_ir_file={files['mine_ll']}", files["neg_hlo"]]) == code
    assert f"note: kernels of the module are replaced by those in {files['mine_ll']}" in capsys.readouterr().err


def test_the_next_files_run_and_are_reported(tmp_path: Path) -> None:
    """The first and the last file crash. The third compiles its kernels in processes."""
    files = _write(tmp_path, a_hlo=NEGATE, b_hlo=ABS, c_hlo=FOUR_KERNELS, d_hlo=NEGATE, dies_py=DIES_IN_LLVM)
    inputs = [files[name] for name in ("a_hlo", "b_hlo", "c_hlo", "d_hlo")]
    flags = [f"--report_{kind}={tmp_path / kind}" for kind in ("json", "junit")]
    done = hlo_run(tmp_path, "--platform=Host", "--compile_processes=2", f"--custom_calls={files['dies_py']}", *flags, *inputs)
    assert done.returncode == 70
    assert done.stderr.count("internal error: LLVM died with SIGSEGV in kernel 'wrapped_negate'") == 3
    assert "it wrote: the last words" in done.stderr
    assert "Traceback" not in done.stderr
    report = json.loads((tmp_path / "json").read_text(encoding="utf-8"))
    assert [file["file"] for file in report["files"]] == inputs
    assert [file["outcome"] for file in report["files"]] == ["error", "passed", "error", "error"]
    assert report["exit_code"] == 70
    suite = ET.fromstring((tmp_path / "junit").read_text(encoding="utf-8"))
    assert [len(case.findall("error")) for case in suite.iter("testcase")] == [1, 0, 1, 1]
    assert len(reproducers(tmp_path)) == 3
    assert all("fneg" in (folder / "wrapped_negate.ll").read_text(encoding="utf-8") for folder in reproducers(tmp_path))


@pytest.mark.parametrize("ways", [(), ("--timeout=1000",)], ids=["recorded", "with-a-limit"])
def test_native_code_that_dies_is_a_device_error(ways: tuple[str, ...], tmp_path: Path) -> None:
    files = _write(tmp_path, a_hlo=NEGATE, b_hlo=ABS, dies_py=DIES_IN_NATIVE_CODE)
    flags = ("--platform=Host", "--host_engine=jit", f"--custom_calls={files['dies_py']}")
    done = hlo_run(tmp_path, *flags, *ways, files["a_hlo"], files["b_hlo"])
    assert done.returncode == 5, done.stderr
    assert "device error: native code died with SIGSEGV in kernel 'wrapped_negate'" in done.stderr
    assert "close enough" in done.stderr, "the second file ran"


def test_a_crash_outside_of_native_steps_names_the_phase(tmp_path: Path) -> None:
    dies = """
import os, signal
from hlo_run.commands import run
run.check_memory = lambda _: os.kill(os.getpid(), signal.SIGKILL)
"""
    files = _write(tmp_path, a_hlo=NEGATE, dies_py=dies)
    done = hlo_run(tmp_path, "--platform=Host", f"--custom_calls={files['dies_py']}", files["a_hlo"])
    assert done.returncode == 5
    assert "device error: the process died with SIGKILL in " in done.stderr
    assert "memory is full" in done.stderr


def test_llvm_that_does_not_end_is_stopped(tmp_path: Path) -> None:
    """The patch waits for ever in LLVM, and sets the limit when it begins, so no time of a machine counts."""
    waits = """
import signal
from hlo_run.containment.board import limited
from hlo_run.pipeline import llvm_ahead
def waiting(*_, **__):
    with limited(0.01):
        signal.pause()
llvm_ahead.compile_llvm = waiting
"""
    files = _write(tmp_path, a_hlo=NEGATE, waits_py=waits)
    done = hlo_run(tmp_path, "--reference_platform=", "--timeout=5000", f"--custom_calls={files['waits_py']}", files["a_hlo"])
    assert done.returncode == 5
    assert "took longer than --timeout=5000 s, in LLVM of kernel 'wrapped_negate'" in done.stderr
    (folder,) = reproducers(tmp_path)
    assert "fneg" in (folder / "wrapped_negate.ll").read_text(encoding="utf-8")


# Sets the limit when a loop begins, so no time of a machine counts.
_LIMITS_LOOPS = """
from hlo_run.containment.board import limited
from hlo_run.reference.evaluate import control
limits = []
def begin(loop):
    if not limits:
        limits.append(limited(0.01))
        limits[0].__enter__()
control.check_limit = begin
"""


def test_a_loop_without_end_is_stopped_in_the_interpreter(tmp_path: Path) -> None:
    endless = """HloModule endless
body { s = s32[] parameter(0)
  ROOT n = s32[] negate(s) }
cond { s = s32[] parameter(0)
  ROOT t = pred[] constant(true) }
ENTRY e { p = s32[] parameter(0)
  ROOT w = s32[] while(p), condition=cond, body=body }
"""
    files = _write(tmp_path, endless_hlo=endless, limits_py=_LIMITS_LOOPS)
    flags = ("--platform=Interpreter", "--reference_platform=", "--timeout=5000", f"--custom_calls={files['limits_py']}")
    done = hlo_run(tmp_path, *flags, files["endless_hlo"])
    assert done.returncode == 5
    assert "took longer than --timeout=5000 s, in the run on Interpreter" in done.stderr


def test_a_loop_without_end_is_stopped_in_the_reference(tmp_path: Path) -> None:
    """The passes remove the loop, whose state stays as it is, so only the reference runs it."""
    endless = """HloModule endless
body { s = (s32[1]) parameter(0)
  z = s32[1] constant({0})
  ROOT n = (s32[1]) tuple(z) }
cond { s = (s32[1]) parameter(0)
  ROOT t = pred[] constant(true) }
ENTRY e { z = s32[1] constant({0})
  i = (s32[1]) tuple(z)
  ROOT w = (s32[1]) while(i), condition=cond, body=body }
"""
    files = _write(tmp_path, endless_hlo=endless, limits_py=_LIMITS_LOOPS)
    flags = ("--platform=Host", "--timeout=5000", f"--custom_calls={files['limits_py']}")
    done = hlo_run(tmp_path, *flags, files["endless_hlo"])
    assert done.returncode == 5
    assert "took longer than --timeout=5000 s, in the run on Interpreter" in done.stderr


def test_the_reproducer_has_what_was_read_from_stdin(tmp_path: Path) -> None:
    files = _write(tmp_path, dies_py=DIES_IN_LLVM)
    done = hlo_run(tmp_path, "--reference_platform=", f"--custom_calls={files['dies_py']}", "-", stdin=NEGATE)
    assert done.returncode == 70
    (folder,) = reproducers(tmp_path)
    assert (folder / "stdin.hlo").read_text(encoding="utf-8") == NEGATE


def test_one_process_does_everything_itself(tmp_path: Path) -> None:
    files = _write(tmp_path, a_hlo=NEGATE, dies_py=DIES_IN_LLVM)
    done = hlo_run(tmp_path, "--one_process", "--reference_platform=", f"--custom_calls={files['dies_py']}", files["a_hlo"])
    assert done.returncode == -11


def test_the_end_of_a_worker_is_that_of_an_interpreter(tmp_path: Path) -> None:
    """Functions of atexit run, and what child processes print is seen."""
    ends = "import atexit, os\natexit.register(print, 'at the end')\nos.system('echo to stderr >&2')\n"
    files = _write(tmp_path, a_hlo=NEGATE, ends_py=ends)
    done = hlo_run(tmp_path, "--reference_platform=", f"--custom_calls={files['ends_py']}", files["a_hlo"])
    assert done.returncode == 0
    assert done.stdout.endswith("at the end\n")
    assert "to stderr\n" in done.stderr
