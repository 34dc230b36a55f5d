"""Reduce: planted faults shrink to their instruction, every candidate is valid, and the result keeps the failure."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from pathlib import Path

import pytest

from hlo_run.errors import HloRunError
from hlo_run.module_edits import texts
from hlo_run.ops.parse import parse
from hlo_run.tool import run_tool
from hlo_run.triage.reduce import edited
from hlo_run.triage.steps import STEPS
from hlo_run.triage.trials import Ended, run_fork, run_forks, with_modules

_MODULE = """HloModule m, replica_count=2
add { p = f32[] parameter(0) q = f32[] parameter(1) ROOT r = f32[] add(p, q) }
body {
  s = (s32[], f32[8,4], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  one = s32[] constant(1)
  next = s32[] add(i, one)
  x = f32[8,4]{1,0} get-tuple-element(s), index=1
  w = f32[4]{0} get-tuple-element(s), index=2
  wb = f32[8,4]{1,0} broadcast(w), dimensions={1}
  y = f32[8,4]{1,0} multiply(x, wb)
  t = f32[8,4]{1,0} tanh(y), metadata={op_name="t"}
  ROOT out = (s32[], f32[8,4], f32[4]) tuple(next, t, w)
}
cond {
  s = (s32[], f32[8,4], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT less = pred[] compare(i, n), direction=LT
}
ENTRY e {
  a = f32[8,4]{1,0} parameter(0)
  b = f32[4]{0} parameter(1)
  zero = s32[] constant(0)
  e = f32[8,4]{1,0} exponential(a)
  init = (s32[], f32[8,4], f32[4]) tuple(zero, e, b)
  loop = (s32[], f32[8,4], f32[4]) while(init), condition=cond, body=body
  h = f32[8,4]{1,0} get-tuple-element(loop), index=1
  z = f32[] constant(0)
  sum = f32[8]{0} reduce(h, z), dimensions={1}, to_apply=add
  c = f32[8]{0} cosine(sum)
  d = bf16[8]{0} convert(c)
  ROOT result = (bf16[8], f32[8,4]) tuple(d, e)
}
"""
_WRONG_TANH = """from hlo_run.codegen.elemental.elementwise import EMIT
EMIT["tanh"] = EMIT["cosine"]
"""
_CRASHES = """import os, signal
from hlo_run.codegen.elemental.elementwise import EMIT
def wrong(b, instruction, operands):
    os.kill(os.getpid(), signal.SIGUSR2)
EMIT["tanh"] = wrong
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "m.hlo"
    path.write_text(_MODULE, encoding="utf-8")
    return path


_FEW = """HloModule m
ENTRY e {
  a = f32[8,4]{1,0} parameter(0)
  e = f32[8,4]{1,0} exponential(a)
  t = f32[8,4]{1,0} tanh(e)
  c = f32[8,4]{1,0} cosine(t)
  ROOT result = (f32[8,4], f32[8,4]) tuple(c, e)
}
"""


@pytest.mark.parametrize(("text", "plant", "count"), [(_MODULE, _WRONG_TANH, 29), (_FEW, _CRASHES, 5)], ids=["mismatch", "crash"])
def test_a_planted_fault_shrinks_to_its_instruction(
    file: Path, tmp_path: Path, text: str, plant: str, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(text, encoding="utf-8")
    planted = tmp_path / "plant.py"
    planted.write_text(plant, encoding="utf-8")
    run = f"hlo-run --platform=Host --check_kernels=off --num_replicas=1 --custom_calls={planted}"
    assert run_tool(["reduce", str(file), f"--run={run}", "--jobs=1"]) == 0
    assert f"of {count} instructions" in capsys.readouterr().out
    module = parse((tmp_path / "m.reduced.hlo").read_text(encoding="utf-8"))
    instructions = list(module.instructions)
    assert len(instructions) <= 3
    assert [i.opcode for i in instructions if i.opcode not in ("parameter", "constant")] == ["tanh"]
    assert {size for i in instructions for size in i.shape.dims} <= {1}


def test_a_command_is_asked_about_every_candidate(file: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.hlo"
    command = ["reduce", str(file), "--test=grep -q cosine {}", f"--output={output}", "--jobs=1"]
    assert run_tool(command) == 0
    module = parse(output.read_text(encoding="utf-8"))
    assert sorted(i.opcode for i in module.instructions) == ["cosine", "parameter"]


def test_a_file_that_does_not_fail_gives_1(file: Path, tmp_path: Path) -> None:
    assert run_tool(["reduce", str(file), "--test=false {}"]) == 1
    assert not (tmp_path / "m.reduced.hlo").exists()


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--run=hlo-run", "--test=true {}"],
        ["--test=true"],
        ["--run=hlo-run --no_such_flag=1"],
        ["--run=hlo-run x.hlo"],
        ["--test=true {}", "--jobs=-1"],
    ],
)
def test_bad_flags_give_2(file: Path, flags: list[str]) -> None:
    assert run_tool(["reduce", str(file), *flags]) == 2


def test_most_edits_give_valid_modules() -> None:
    """The parser may refuse an edit, but never with an error of another family."""
    valid = count = 0
    for step in STEPS:
        for number in range(sum(1 for _ in step.edits(parse(_MODULE)))):
            module = parse(_MODULE)
            edit = list(step.edits(module))[number]
            text = edited(edit, module)
            count += 1
            with contextlib.suppress(HloRunError):
                valid += text is not None and bool(parse(text).computations)
    assert count > 100
    assert valid > count // 2


def test_sizes_change_in_shapes_slices_and_windows() -> None:
    text = "f32[8,64] x = slice(y), slice={[0:8], [0:64]} window={size=8x1} slice_sizes={8,2}"
    assert texts.with_size(text, 8, 2, multiples=False) == (
        "f32[2,64] x = slice(y), slice={[0:2], [0:64]} window={size=2x1} slice_sizes={2,2}"
    )
    assert "f32[2,16]" in texts.with_size(text, 8, 2, multiples=True)


def test_forks_that_crash_hang_or_are_late() -> None:
    assert run_fork(lambda: 7, 60.0).value == 7
    assert "SIGUSR2" in run_fork(lambda: os.kill(os.getpid(), signal.SIGUSR2), 60.0).bucket
    assert "time-out" in run_fork(signal.pause, 0.05).bucket
    ends = run_forks([lambda: 1, lambda: 2, lambda: 2, lambda: 2], 2, 60.0, lambda end: end.value == 2)
    values = [end.value if isinstance(end, Ended) else None for end in ends]
    assert values == [1, 2, None, None]


def test_a_fork_names_the_modules_that_it_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only those: the list of all modules takes longer to send than many a trial."""
    name = "hlo_run.triage.bisect"
    importlib.import_module(name)
    assert with_modules(lambda: importlib.import_module(name).__name__) == (name, [])
    monkeypatch.delitem(sys.modules, name)
    assert with_modules(lambda: importlib.import_module(name).__name__) == (name, [name])
