"""Faults in copies of the package: one command names the culprit, and leaves files that show the fault again."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from package_copy import End, PackageCopy

from hlo_run.cli import run

_MODULE = """HloModule m

ENTRY e {
  x = f32[8,64] parameter(0)
  y = f32[8,64] parameter(1)
  a = f32[8,64] add(x, y)
  b = f32[8,64] add(x, y)
  s = f32[8,64] subtract(a, y)
  ROOT r = f32[8,64] multiply(s, b)
}
"""


_FLAGS = ("--platform=Host", "--cache=off", "--compile_processes=1")


class _Copy:
    """A copy of the package, and a folder with the module m.hlo."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "work"
        self._package = PackageCopy(folder / "package", {**os.environ, "HLO_RUN_CRASH_DIR": str(self.folder / "crashes")})
        self.folder.mkdir()
        (self.folder / "m.hlo").write_text(_MODULE, encoding="utf-8")

    def replace(self, file: str, old: str, new: str) -> None:
        text = self._package.read(file)
        assert text.count(old) == 1, f"{file} has '{old}' {text.count(old)} times"
        self._package.write(file, text.replace(old, new))

    def append(self, file: str, text: str) -> None:
        self._package.write(file, self._package.read(file) + text)

    def run(self, *words: str, folder: Path | None = None) -> End:
        return self._package.run(folder or self.folder, *_FLAGS, *words)

    def run_alone(self, *words: str, folder: Path | None = None) -> End:
        return self._package.run_alone(folder or self.folder, *_FLAGS, *words)

    def close(self) -> None:
        self._package.close()


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[_Copy]:
    copy = _Copy(tmp_path)
    yield copy
    copy.close()


def _reproduces(copy: _Copy, words: list[str], folder: Path) -> None:
    """The command fails in the copy, and agrees in the package as it is."""
    flags = [word for word in words if word not in ("hlo-run", "--platform=Host", "--compile_processes=1")]
    assert copy.run(*flags, folder=folder).returncode == 1
    with contextlib.chdir(folder):
        assert run(["--platform=Host", "--cache=off", *flags]) == 0


def _command_in(text: str) -> tuple[list[str], Path]:
    """Return the words and the folder of the line `reproduce: cd FOLDER && COMMAND`."""
    found = re.search(r"reproduce: cd (\S+) && (.*)$", text, re.MULTILINE)
    assert found is not None, text
    return found[2].split(), Path(found[1])


def test_a_wrong_rewrite_in_an_hlo_pass(copy: _Copy) -> None:
    rules = "hlo_passes/simplifiers/algebraic/signs.py"
    copy.replace(rules, "\nRULES: Rules = {\n", _WRONG_RULE)
    done = copy.run("--check_each_pass", "m.hlo")
    assert done.returncode == 1
    assert "row 'algsimp' of pipeline 'pre-spmd-partitioner' changed the meaning of m" in done.stderr
    assert "next: hlo-tool bisect m.hlo" in done.stderr
    found = re.search(r"reproduce: (hlo-run .*)$", done.stderr, re.MULTILINE)
    assert found is not None
    _reproduces(copy, found[1].split(), copy.folder)


_WRONG_RULE = """
def _wrong(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    return rw.binary("subtract", i.operands[1], i.operands[0]) if i.operands[0].opcode == "add" else None


RULES: Rules = {
    "subtract": (_wrong,),
"""


def test_a_wrong_lowering_in_a_kernel_pass(copy: _Copy) -> None:
    """No run can skip the row, so only the interpreter tells it from its neighbours."""
    copy.replace(
        "codegen/to_llvm/arith.py", "arith.SubfOp: _with_fast_math(llvm.FSubOp)", "arith.SubfOp: _with_fast_math(llvm.FAddOp)"
    )
    done = copy.run("--check_each_pass", "m.hlo")
    assert done.returncode == 1
    assert "look at kernel row 'lower-to-llvm-gpu': interpreted, the IR is right after" in done.stderr
    words, folder = _command_in(done.stderr)
    _reproduces(copy, words, copy.folder / folder)


def test_a_wrong_ptx_instruction(copy: _Copy) -> None:
    copy.replace(
        "codegen/llvm/nvptx.py",
        'return ptx[ptx.index(".version") :]',
        'return ptx[ptx.index(".version") :].replace("sub.rn.f32", "add.rn.f32")',
    )
    done = copy.run("--localize", "m.hlo")
    assert done.returncode == 1
    assert "is the first that computes a wrong result" in done.stderr
    assert "look at what follows row 'lower-to-llvm-gpu'" in done.stderr
    words, folder = _command_in(done.stderr)
    _reproduces(copy, words, copy.folder / folder)


def test_an_abort_in_llvm(copy: _Copy) -> None:
    declared = 'text + "\\ndeclare float @llvm.amdgcn.rcp.f32(float)\\n"'
    broken = f'_re.sub(r"fsub float ([^,]*), .*", r"call float @llvm.amdgcn.rcp.f32(float \\1)", {declared})'
    copy.replace(
        "codegen/llvm/emit_ptx.py",
        "    module = Module.from_text(_flushing(ir_text) if flushes_denormals else ir_text)\n",
        f"    import re as _re\n    text = ir_text\n    module = Module.from_text({broken})\n",
    )
    done = copy.run_alone("m.hlo")
    assert done.returncode == 70
    assert "LLVM died with SIGABRT in kernel 'loop_multiply_fusion'" in done.stderr
    assert "Cannot select: intrinsic %llvm.amdgcn.rcp" in done.stderr
    assert "next: hlo-tool bisect m.hlo" in done.stderr
    found = re.search(r"reproducer: (\S+)$", done.stderr, re.MULTILINE)
    assert found is not None
    folder = Path(found[1])
    assert (folder / "loop_multiply_fusion.ll").is_file()
    again = copy.run_alone("m.hlo", folder=folder)
    assert "LLVM died with SIGABRT" in again.stderr


_DOTS = """HloModule m

ENTRY e {
  x = f32[8,8] parameter(0)
  y = f32[8,8] parameter(1)
  a = f32[8,8] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  b = f32[8,8] dot(a, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  c = f32[8,8] dot(b, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  d = f32[8,8] dot(c, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r = f32[8,8] subtract(d, b)
}
"""


def test_live_values_that_share_a_buffer(copy: _Copy) -> None:
    copy.replace("runtime/interference.py", "        if (overlapping & ~touching).any():\n", "        if False:\n")
    (copy.folder / "m.hlo").write_text(_DOTS, encoding="utf-8")
    done = copy.run("--check_each_pass", "m.hlo")
    assert done.returncode == 1
    assert "a value that it reads was overwritten; look at the buffers" in done.stderr
    assert "next: hlo-run --platform=Host --verify=every m.hlo names values that overlap in one buffer" in done.stderr
    assert copy.run("--verify=every", "m.hlo").returncode == 70


def test_thunks_in_the_wrong_order(copy: _Copy) -> None:
    """The buffers are right for the schedule, so they must not be blamed."""
    copy.append("runtime/thunks.py", _WRONG_ORDER)
    (copy.folder / "m.hlo").write_text(_DOTS, encoding="utf-8")
    done = copy.run("--check_each_pass", "m.hlo")
    assert done.returncode == 1
    assert "every kernel alone is right; look at the order of the thunks" in done.stderr


_WRONG_ORDER = """
_plan_thunks = plan_thunks


def plan_thunks(*words):
    thunks, requests = _plan_thunks(*words)
    return (*thunks[:-2], thunks[-1], thunks[-2]), requests
"""


_ROWS = """HloModule m

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY e {
  p = f32[2,600] parameter(0)
  z = f32[] constant(0)
  ROOT r = f32[2] reduce(p, z), dimensions={1}, to_apply=add
}
"""


def test_a_wrong_last_step_of_a_peeled_loop(copy: _Copy) -> None:
    copy.replace(
        "codegen/kernel_passes/peel_loops.py",
        "Interval.point(bounds.upper))\n    return None",
        "Interval.point(bounds.upper - 1))\n    return None",
    )
    (copy.folder / "m.hlo").write_text(_ROWS, encoding="utf-8")
    done = copy.run("--check_each_pass", "m.hlo")
    assert done.returncode == 1
    assert "look at kernel row 'peel-loops': the kernel is right after" in done.stderr
    assert "next: hlo-tool bisect m.hlo" in done.stderr
    words, folder = _command_in(done.stderr)
    _reproduces(copy, words, copy.folder / folder)
    assert copy.run("--kernel_fuel=peel-loops=0", "m.hlo").returncode == 0
