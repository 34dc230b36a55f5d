"""`--localize`, `--isolate_instructions`, and the end of `--check_each_pass`: each names what was planted, by one command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from planted_rows import SwapsSubtractions, plant
from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

import hlo_run
from hlo_run.artifact import BufferSlice, Thunk
from hlo_run.backends.library.arrays import Array, LibraryCall
from hlo_run.backends.library.calls import library_call
from hlo_run.cli import run
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.localize import kernel_rows
from hlo_run.pipeline import kernels
from hlo_run.pipeline.kernel_table import KERNEL_PIPELINE, KernelRow
from hlo_run.records import replace
from hlo_run.reference.evaluate.device import ProgramEvaluator
from hlo_run.reference.evaluate.evaluate import choose
from hlo_run.reference.values import Evaluator
from hlo_run.runtime.buffers import BufferAssignment, assign_buffers

# The state is updated in place. Each instruction stays a kernel of its own.
MODULE = """HloModule m

fused_multiply {
  x = f32[4,5] parameter(0)
  y = f32[4,5] parameter(1)
  ROOT m = f32[4,5] multiply(x, y)
}

body {
  s = (s32[], f32[4,5], f32[4,5]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[4,5] get-tuple-element(s), index=1
  y = f32[4,5] get-tuple-element(s), index=2
  f.inner = f32[4,5] fusion(x, y), kind=kLoop, calls=fused_multiply
  one = s32[] constant(1)
  j = s32[] add(i, one)
  ROOT t = (s32[], f32[4,5], f32[4,5]) tuple(j, f.inner, y)
}

cond {
  s = (s32[], f32[4,5], f32[4,5]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT
}

on_true {
  v = f32[4,5] parameter(0)
  ROOT n = f32[4,5] negate(v)
}

on_false {
  v = f32[4,5] parameter(0)
  ROOT e = f32[4,5] exponential(v)
}

ENTRY e {
  p = f32[4,5] parameter(0)
  q = f32[4,5] parameter(1)
  k = pred[] parameter(2)
  z = s32[] constant(0)
  d = f32[4,5] subtract(p, q)
  a = (s32[], f32[4,5], f32[4,5]) tuple(z, d, q)
  w = (s32[], f32[4,5], f32[4,5]) while(a), body=body, condition=cond
  x = f32[4,5] get-tuple-element(w), index=1
  b = f32[4,5] conditional(k, x, d), true_computation=on_true, false_computation=on_false
  ROOT r = (f32[4,5], f32[4,5]) tuple(b, x)
}
"""
KEPT = "--xla_disable_hlo_passes=priority-fusion,multi_output_fusion,rename_fusions,simplify-conditional"


@dataclass(frozen=True)
class Tool:
    """Runs command lines on the module in a folder of its own. `err` and `out` are the texts of the last one."""

    folder: Path
    capture: pytest.CaptureFixture[str]

    def run(self, *flags: str, text: str = MODULE) -> tuple[int, str, str]:
        """Return the exit code, stdout and stderr."""
        file = self.folder / "m.hlo"
        file.write_text(text)
        code = run(["--platform=Host", KEPT, *flags, str(file)])
        captured = self.capture.readouterr()
        return code, captured.out, captured.err

    def reproduce(self, err: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
        """Run the command that a message gives, in its folder."""
        found = re.search(r"reproduce: cd (.*) && hlo-run (.*)", err)
        assert found is not None, err
        monkeypatch.chdir(self.folder / found[1])
        code = run(shlex.split(found[2]))
        return code, self.capture.readouterr().err

    def dump(self, ending: str, kernel: str) -> Path:
        """Return the file with a kernel's dump of this ending; without one, the module is compiled."""
        folder = self.folder / "dumps"
        if not folder.exists():
            assert self.run(f"--xla_dump_to={folder}", "--xla_dump_emitter_re=ptx", "--dump_kernel_rows")[0] == 0
        if ending == ".ptx":
            return ptx_of(folder, kernel)
        return next(path for path in sorted(folder.iterdir()) if kernel in path.name and path.name.endswith(ending))


def ptx_of(folder: Path, kernel: str) -> Path:
    """Return the file with the PTX of the kernel whose name contains `kernel`."""
    (found,) = (path for path in folder.glob("*.ptx") if re.search(rf"\.entry \w*{kernel}", path.read_text()))
    return found


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tool:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.chdir(tmp_path)
    # A slow machine gives up no step of the search.
    for limit in ("localize.interpreted._SECONDS", "commands.checked_run._SECONDS", "commands.localize._LEAST_SECONDS"):
        monkeypatch.setattr(f"hlo_run.{limit}", 5000.0)
    monkeypatch.setattr("hlo_run.commands.check_each_pass._LEAST_SECONDS", 5000.0)
    return Tool(tmp_path, capsys)


def _edited(tool: Tool, ending: str, kernel: str, edit: Callable[[str], str]) -> str:
    text = tool.dump(ending, kernel).read_text()
    changed = edit(text)
    assert changed != text
    path = tool.folder / f"edited{ending[-5:].lstrip('.').rpartition('.')[0]}.{ending.rpartition('.')[2]}"
    path.write_text(changed)
    return str(path)


def _added_ptx(text: str) -> str:
    return re.sub(r"mul(\.rn)?\.f32", r"add\1.f32", text)


def test_a_right_run_agrees(tool: Tool) -> None:
    code, out, err = tool.run("--localize")
    assert code == 0
    assert "thunks agree with the reference alone, and the run agrees" in err
    (inner,) = (line for line in out.splitlines() if line.startswith("%f.inner"))
    assert inner.split() == ["%f.inner", "%w", "f_inner", "3", "0", "0", "0", "agrees"]
    assert not (tool.folder / "m.localize").exists()


def test_a_wrong_ptx_in_a_loop_is_named_and_reproduced(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _edited(tool, ".ptx", "f_inner", _added_ptx)
    code, out, err = tool.run("--localize", f"--xla_gpu_ptx_file={file}")
    assert code == 1
    assert "kernel 'f_inner' (%f.inner) is the first that computes a wrong result, iteration 0 of %w" in err
    assert "received (its operands in the run): no error beyond the bounds" in err
    assert re.search(r"%wrapped_(negate|exponential) .* beyond the bounds in the run", out), (
        "what follows only receives the error"
    )
    code, again = tool.reproduce(err, monkeypatch)
    assert code == 1
    assert "20 of 20 elements differ" in again
    assert "must-alias" in (tool.folder / "m.localize" / "f.inner.hlo").read_text(), "the kernel updates its operand in place"


def test_the_files_go_where_the_flag_says(tool: Tool) -> None:
    file = _edited(tool, ".ptx", "f_inner", _added_ptx)
    assert tool.run("--localize", "--localize_dir=here/there", f"--xla_gpu_ptx_file={file}")[0] == 1
    names = sorted(path.name for path in (tool.folder / "here" / "there").iterdir())
    assert names == ["README", "cmd", "f.inner.hlo", "f.inner.npz", "f_inner.ptx"]


def test_a_wrong_kernel_ir_is_named_and_reproduced(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _edited(tool, "after_emit-kernels.mlir", "f_inner", lambda text: text.replace("arith.mulf", "arith.addf"))
    code, _, err = tool.run("--localize", f"--kernel_ir_file={file}")
    assert code == 1
    assert "kernel 'f_inner' (%f.inner) is the first that computes a wrong result, iteration 0 of %w" in err
    code, again = tool.reproduce(err, monkeypatch)
    assert (code, "20 of 20 elements differ" in again) == (1, True)


def test_a_fault_is_named(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _edited(tool, ".ptx", "f_inner", lambda text: re.sub(r"(st\.global\.\w+ \t\[%rd\d+)\]", r"\1+4096]", text))
    code, _, err = tool.run("--localize", f"--xla_gpu_ptx_file={file}")
    assert code == 1
    assert "kernel 'f_inner' (%f.inner) is the first that fails, iteration 0 of %w: out-of-bounds" in err
    assert tool.reproduce(err, monkeypatch)[0] == 5


def test_a_wrong_hlo_pass_is_named(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, SwapsSubtractions())
    code, out, err = tool.run("--localize")
    assert code == 1
    assert "an HLO pass is to blame: row 'swaps-subtractions' of pipeline 'planted' changed the meaning of m" in err
    assert "--check_each_pass" in err
    assert "differs" not in out, "every kernel computes what its HLO says"


def test_check_each_pass_ends_with_the_hlo_row(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, SwapsSubtractions())
    code, _, err = tool.run("--check_each_pass")
    assert code == 1
    assert "look at HLO row 'swaps-subtractions'" in err


def test_check_each_pass_ends_with_the_replacement(tool: Tool) -> None:
    file = _edited(tool, ".ptx", "f_inner", _added_ptx)
    code, _, err = tool.run("--check_each_pass", f"--xla_gpu_ptx_file={file}")
    assert code == 1
    assert f"kernel 'f_inner' (%f.inner) is wrong, iteration 0 of %w; look at '{file}', which replaces it" in err


def test_check_each_pass_says_that_nothing_is_wrong(tool: Tool) -> None:
    code, _, err = tool.run("--check_each_pass")
    assert code == 0
    assert "every HLO row keeps the module's meaning, and the run agrees" in err


@dataclass(frozen=True)
class _AddsForMultiplies(ModulePass):
    name: ClassVar[str] = "adds-for-multiplies"  # pyright: ignore[reportIncompatibleVariableOverride]: as KernelPass has it

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for inner in list(op.walk()):
            if isinstance(inner, arith.MulfOp):
                Rewriter.replace_op(inner, arith.AddfOp(inner.lhs, inner.rhs))


@pytest.mark.parametrize("place", [1, 4])
def test_check_each_pass_ends_with_the_kernel_row(tool: Tool, monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    row = KernelRow("adds-for-multiplies", lambda c: _AddsForMultiplies())
    table = (*KERNEL_PIPELINE[:place], row, *KERNEL_PIPELINE[place:])
    monkeypatch.setattr(kernels, "KERNEL_PIPELINE", table)
    monkeypatch.setattr(kernel_rows, "KERNEL_PIPELINE", table)
    code, _, err = tool.run("--check_each_pass")
    assert code == 1
    assert "every HLO row keeps the module's meaning; kernel 'f_inner' (%f.inner) is wrong, iteration 0 of %w" in err
    assert "look at kernel row 'adds-for-multiplies': the kernel is right after" in err


def test_check_each_pass_ends_with_a_required_row(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row cannot be skipped: the IR before and after it is interpreted."""
    row = KernelRow("adds-for-multiplies", lambda c: _AddsForMultiplies(), required=True)
    table = (row, *KERNEL_PIPELINE)
    monkeypatch.setattr(kernels, "KERNEL_PIPELINE", table)
    monkeypatch.setattr(kernel_rows, "KERNEL_PIPELINE", table)
    code, _, err = tool.run("--check_each_pass")
    assert code == 1
    assert "look at kernel row 'adds-for-multiplies': interpreted, the IR is right after 'emit-kernels'" in err


CHAIN = """HloModule m
ENTRY e {
  p = f32[4,5] parameter(0)
  a = f32[4,5] negate(p)
  b = f32[4,5] exponential(p)
  c = f32[4,5] subtract(a, b)
  d = f32[4,5] tanh(c)
  ROOT r = (f32[4,5], f32[4,5]) tuple(c, d)
}
"""


def _overlapping(module: HloModule, *options: Any) -> BufferAssignment:
    """Give the exponential the memory of the negation, which is still live."""
    made = assign_buffers(module, *options)
    slices: dict[object, BufferSlice] = {}
    places = {instruction.name: made.slices[instruction, ()] for instruction, index in made.slices if index == ()}
    for (instruction, index), piece in made.slices.items():
        swap = instruction.name == "wrapped_exponential" and index == ()
        slices[instruction, index] = places["wrapped_negate"] if swap else piece
    return replace(made, slices=slices)


@pytest.mark.parametrize("flag", ["--localize", "--check_each_pass"])
def test_a_value_that_is_overwritten_is_named(tool: Tool, monkeypatch: pytest.MonkeyPatch, flag: str) -> None:
    monkeypatch.setattr("hlo_run.pipeline.compile.assign_buffers", _overlapping)
    code, _, err = tool.run(flag, text=CHAIN)
    assert code == 1
    assert "--verify=every" in err
    if flag == "--localize":
        assert "(%wrapped_subtract) is the first that reads a value that was overwritten" in err
        assert "wrong are %wrapped_exponential" in err
    else:
        assert "a value that it reads was overwritten; look at the buffers" in err


def test_a_wrong_trip_count_is_named(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    def two(loop: HloInstruction) -> int:
        del loop
        return 2

    monkeypatch.setattr("hlo_run.runtime.control_thunks._trip_count", two)
    code, _, err = tool.run("--localize")
    assert code == 1
    assert "goes another way: the run leaves out iteration 2 (counted from 0), as its known trip count is 2" in err


NESTED = """HloModule nested
inner_body {
  s = (s32[], f32[6]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[6] get-tuple-element(s), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  y = f32[6] cosine(x)
  ROOT t = (s32[], f32[6]) tuple(j, y)
}
inner_cond {
  s = (s32[], f32[6]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(2)
  ROOT c = pred[] compare(i, n), direction=LT
}
outer_body {
  s = (s32[], f32[6]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[6] get-tuple-element(s), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  z = s32[] constant(0)
  a = (s32[], f32[6]) tuple(z, x)
  w.inner = (s32[], f32[6]) while(a), body=inner_body, condition=inner_cond
  y = f32[6] get-tuple-element(w.inner), index=1
  k = s32[] constant(1)
  late = pred[] compare(i, k), direction=EQ
  late.all = pred[6] broadcast(late), dimensions={}
  v = f32[6] negate(y)
  u = f32[6] select(late.all, v, y)
  ROOT t = (s32[], f32[6]) tuple(j, u)
}
outer_cond {
  s = (s32[], f32[6]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] parameter_free()
  ROOT c = pred[] compare(i, n), direction=LT
}
ENTRY e {
  p = f32[6] parameter(0)
  z = s32[] constant(0)
  a = (s32[], f32[6]) tuple(z, p)
  w = (s32[], f32[6]) while(a), body=outer_body, condition=outer_cond
  ROOT r = f32[6] get-tuple-element(w), index=1
}
""".replace("parameter_free()", "constant(3)")


def test_the_iteration_is_the_first_wrong_one_of_nested_loops(tool: Tool) -> None:
    """The wrong kernel differs only where its operand is -1, which is first the case in the second turn of the outer loop."""
    folder = tool.folder / "dumps"
    code, _, err = tool.run(f"--xla_dump_to={folder}", "--xla_dump_emitter_re=ptx", text=NESTED)
    assert code == 0, err
    text = ptx_of(folder, "select").read_text()
    changed = re.sub(r"selp\.(\w+) (\s*%\w+), (%\w+), (%\w+),", r"selp.\1 \2, \4, \4,", text)
    assert changed != text
    (tool.folder / "edited.ptx").write_text(changed)
    code, out, err = tool.run("--localize", "--xla_gpu_ptx_file=edited.ptx", text=NESTED)
    assert code == 1
    assert "computes a wrong result, iteration 1 of %w" in err
    (cosine,) = (line for line in out.splitlines() if line.startswith("%wrapped_cosine"))
    assert cosine.split()[1:4] == ["%w.inner", "wrapped_cosine", "6"]


MAGNIFYING = """HloModule m
ENTRY e {
  p = f32[64] parameter(0)
  e = f32[64] exponential(p)
  k = f32[] constant(4096)
  kk = f32[64] broadcast(k), dimensions={}
  m = f32[64] multiply(e, kk)
  f = f32[64] floor(m)
  ROOT d = f32[64] subtract(m, f)
}
"""


def test_the_workspace_of_a_library_call_is_not_compared(tool: Tool) -> None:
    text = """HloModule m
    ENTRY e {
      p = f32[3,24,32] parameter(0)
      q = f32[3,32,48] parameter(1)
      ROOT d = f32[3,24,48] dot(p, q), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}
    }"""
    code, out, _ = tool.run("--localize", text=text)
    assert code == 0
    assert "kCublasLtMatmul" in out


SCHEDULED = """HloModule m, is_scheduled=true
ENTRY e {
  p = f32[24,32]{1,0} parameter(0)
  q = f32[32,48]{1,0} parameter(1)
  d = (f32[24,48]{1,0}, s8[4194304]{0}) custom-call(p, q), custom_call_target="__cublas$gemm",
    backend_config={"gemm_backend_config":{"alpha_real":1,"beta":0,"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"],"lhs_batch_dimensions":[],"rhs_batch_dimensions":[]}}}
  ROOT r = f32[24,48]{1,0} get-tuple-element(d), index=0
}
"""


def test_the_workspace_of_an_isolated_instruction_is_not_compared(tool: Tool) -> None:
    code, out, err = tool.run("--isolate_instructions", text=SCHEDULED)
    assert code == 0, err
    (line,) = (line for line in out.splitlines() if line.startswith("%d "))
    assert line.endswith("agrees")


def test_what_the_reference_cannot_evaluate_is_not_checked(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replay goes on with the value that the run has."""

    def without_calls(instruction: HloInstruction) -> tuple[Evaluator | None, ProgramEvaluator | None]:
        return (None, None) if instruction.opcode == "custom-call" else choose(instruction)

    monkeypatch.setattr("hlo_run.reference.evaluate.walk.choose", without_calls)
    text = SCHEDULED.replace("ROOT r =", "r =").replace("index=0\n}", "index=0\n  ROOT c = f32[24,48]{0,1} copy(r)\n}")
    code, out, err = tool.run("--localize", text=text)
    assert code == 0, err
    verdicts = {line.split()[0]: line for line in out.splitlines() if line.startswith("%")}
    assert "not checked: the reference cannot evaluate 'custom-call'" in verdicts["%d"]
    assert len(verdicts) == 2
    assert all(line.endswith("agrees") for name, line in verdicts.items() if name != "%d")


def test_a_wrong_library_call_is_reproduced_without_its_workspace(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as wrong:
        wrong.setattr("hlo_run.backends.library.calls.library_call", _off_by_one)
        wrong.setattr("hlo_run.backends.host.control_steps.library_call", _off_by_one)
        code, _, err = tool.run("--localize", text=SCHEDULED)
        assert code == 1
        assert "the custom-call %d is the first that computes a wrong result" in err
        assert tool.reproduce(err, wrong)[0] == 1
    assert tool.reproduce(err, monkeypatch)[0] == 0, "the files agree once the library is right"


def _off_by_one(thunk: Thunk) -> LibraryCall | None:
    call = library_call(thunk)
    if call is None:
        return None

    def compute(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        call.compute(inputs, outputs)
        outputs[0][...] += 1

    return replace(call, compute=compute, bind=None)


def test_errors_that_add_up_are_told_from_a_wrong_kernel(tool: Tool) -> None:
    code, out, err = tool.run("--localize", "--rel_error_bound=1e-5", "--abs_error_bound=0", text=MAGNIFYING)
    assert code == 1
    assert "every thunk agrees alone; errors within the bounds add up" in err
    assert "by %wrapped_exponential" in err
    assert "differs" not in out


def test_isolated_instructions_have_verdicts(tool: Tool) -> None:
    code, out, err = tool.run("--isolate_instructions")
    assert code == 0
    verdicts = {line.split()[0]: line.split()[5:] for line in out.splitlines() if line.startswith("%")}
    assert verdicts["%f.inner"] == ["agrees"]
    assert {name for name, verdict in verdicts.items() if verdict[0] == "not"} < {"%n.1", "%n", "%e"}, "the branch not taken"
    assert "0 of" in err


def test_an_isolated_instruction_that_differs_is_named(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, SwapsSubtractions())
    code, out, err = tool.run("--isolate_instructions")
    assert code == 1
    assert "1 of" in err
    assert "instructions are wrong alone: %d" in err
    (line,) = (line for line in out.splitlines() if line.startswith("%d "))
    assert "differs: 20 of 20 elements differ" in line


def test_saved_executables_and_other_platforms_are_refused(tool: Tool) -> None:
    file = tool.folder / "n.hlo"
    file.write_text(CHAIN)
    assert run(["--platform=Interpreter", "--localize", str(file)]) == 2
    assert run(["--localize", "--stage=hlo", str(file)]) == 2
    assert run(["--output=n.hlox", str(file)]) == 0
    assert run(["--platform=Host", "--localize", "n.hlox"]) == 2
    assert hlo_run.parse(CHAIN).name == "m"
