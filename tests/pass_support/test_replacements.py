"""Dumps as inputs: kernel IR is compiled from its row on, LLVM IR and PTX replace a kernel; an edited text changes the result."""

from __future__ import annotations

from pathlib import Path

import pytest

from hlo_run.cli import run
from hlo_run.pipeline.kernel_table import KERNEL_PIPELINE

# A reduction, a transpose with shared memory and a loop: what rows can print is in one of their kernels.
MODULE = """HloModule three, is_scheduled=true
add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b) }
rows { p = f32[5,300] parameter(0)
  z = f32[] constant(0)
  ROOT r = f32[5] reduce(p, z), dimensions={1}, to_apply=add }
turn { p = f32[40,33] parameter(0)
  n = f32[40,33] exponential(p)
  ROOT t = f32[33,40] transpose(n), dimensions={1,0} }
ENTRY e { a = f32[5,300] parameter(0)
  b = f32[40,33] parameter(1)
  rows.1 = f32[5] fusion(a), kind=kInput, calls=rows
  turned = f32[33,40] fusion(b), kind=kInput, calls=turn
  negated = f32[33,40] negate(turned)
  ROOT t = (f32[5], f32[33,40], f32[33,40]) tuple(rows.1, turned, negated) }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replacements")
    (folder / "three.hlo").write_text(MODULE)
    flags = [f"--xla_dump_to={folder}/d", "--xla_dump_emitter_re=.*", "--dump_kernel_rows", "--stage=ptx"]
    assert run([*flags, str(folder / "three.hlo")]) == 0
    return folder


def _stage(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    assert run([str(argument) for argument in arguments]) == 0
    return capsys.readouterr().out


def _dumps(folder: Path, kernel: str) -> list[Path]:
    return sorted((folder / "d").glob(f"module_0000.three.{kernel}.*.mlir"))


@pytest.mark.parametrize(("kernel", "first"), [("rows_1", 0), ("turned", 1), ("wrapped_negate", 2)])
def test_every_dump_goes_on_from_its_row(folder: Path, kernel: str, first: int, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [path.read_text() for path in (folder / "d").glob("module_0000.three.*.ir-no-opt.ll")]
    (expected,) = (text for text in texts if f"ptx_kernel void @{kernel}(" in text)
    dumps = _dumps(folder, kernel)
    assert len(dumps) > 8
    for dump in dumps[first::3]:  # together they are of nearly every row
        assert _stage(capsys, "--stage=llvm-before-optimizations", dump) == expected, dump.name


def test_a_stage_of_a_kernel_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = _dumps(folder, "turned")[0]
    later = _stage(capsys, "--stage=flatten-tensors", first)
    dumped = next(dump for dump in _dumps(folder, "turned") if dump.name.endswith("after_flatten-tensors.mlir"))
    assert later == dumped.read_text().partition("\n")[2]
    assert run(["--stage=emit-kernels", str(dumped)]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "'emit-kernels' does not come after row 'flatten-tensors'" in err


def test_a_dump_runs_with_the_module_beside_it(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = next(dump for dump in _dumps(folder, "turned") if "after_inliner" in dump.name)
    assert run(["--platform=Host", str(dump)]) == 0
    assert "close enough" in capsys.readouterr().err
    text = dump.read_text()
    assert text.count("math.exp ") == 1
    edited = folder / "d" / "edited.mlir"
    edited.write_text(text.replace("math.exp ", "math.sqrt "))
    assert run(["--platform=Host", str(edited)]) == 1
    out = capsys.readouterr().out
    assert "{1}" in out
    assert "{0}" not in out
    assert run(["--platform=Host", f"--kernel_ir_file={edited}", str(folder / "three.hlo")]) == 1
    alone = tmp_path / dump.name
    alone.write_text(text)
    assert run(["--platform=Host", str(alone)]) == 2
    assert "the file of its module" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "name", "old", "new"),
    [
        ("xla_gpu_ptx_file", "module_0000.three.5.ptx", "neg.f32", "abs.f32"),
        ("xla_gpu_llvm_ir_file", "module_0000.three.5.ir-with-opt.ll", "fneg float", "fmul float 2.0, "),
        ("xla_gpu_llvm_ir_file", "module_0000.three.4.ir-no-opt.ll", "fneg float", "fmul float 2.0, "),
    ],
)
def test_edited_texts_replace_a_kernel(
    folder: Path, tmp_path: Path, flag: str, name: str, old: str, new: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (folder / "d" / name).read_text()
    assert old in text
    module = str(folder / "three.hlo")
    same, edited = tmp_path / name, tmp_path / f"edited{Path(name).suffix}"
    same.write_text(text)
    edited.write_text(text.replace(old, new))
    assert run(["--platform=Host", f"--{flag}={same}", module]) == 0
    assert run(["--platform=Host", f"--{flag}={edited}", module]) == 1
    out = capsys.readouterr().out
    assert "{2}" in out
    assert "{1}" not in out
    stage = "ptx" if flag.endswith("ptx_file") else "llvm-before-optimizations"
    assert text.replace(old, new).strip() in _stage(capsys, f"--{flag}={edited}", f"--stage={stage}", module)


def test_texts_of_other_modules_are_left_alone(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "module_0001.others.5.ptx"
    other.write_text((folder / "d" / "module_0000.three.5.ptx").read_text().replace("neg.f32", "abs.f32"))
    assert run(["--platform=Host", f"--xla_gpu_ptx_file={other}", str(folder / "three.hlo")]) == 0


@pytest.mark.parametrize(
    ("flag", "text", "code", "message"),
    [
        ("xla_gpu_ptx_file", "nothing", 2, "defines no kernel"),
        ("xla_gpu_ptx_file", ".version 8.6\n.target sm_90\n.address_size 64\n.visible .entry odd() { ret; }", 2, "'odd'"),
        ("xla_gpu_ptx_file", ".version 8.6\n.target sm_90\n.visible .entry turned() { rot; }", 3, "ptxas rejects"),
        ("xla_gpu_llvm_ir_file", "define ptx_kernel void @turned() { rot }", 3, "text.txt"),
        ("kernel_ir_file", "module {}", 3, "not a dump of kernel IR"),
    ],
)
def test_texts_that_cannot_be_used(
    folder: Path, tmp_path: Path, flag: str, text: str, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "text.txt"
    file.write_text(text)
    assert run(["--platform=Host", f"--{flag}={file}", str(folder / "three.hlo")]) == code
    assert message in capsys.readouterr().err
    assert run(["--platform=Host", f"--{flag}={tmp_path}/none", str(folder / "three.hlo")]) == 2


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("row: cse;", "row: cze;", "the kernel pass table has no row 'cze'"),
        ("row: cse;", "", "not a dump of kernel IR"),
        ("func.func @", "func.func %", "error"),
        ("launch: grid", "launch: grit", "not a dump of kernel IR"),
        ("block 1", "block 0x1; block 1", "not a dump of kernel IR"),
        ("block ", "block 9", "the kernel has a block of (9"),
    ],
)
def test_damaged_dumps(
    folder: Path, tmp_path: Path, old: str, new: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = next(dump for dump in _dumps(folder, "wrapped_negate") if dump.name.endswith("after_cse-3.mlir"))
    text = dump.read_text().replace("row: cse-3;", "row: cse;")
    assert old in text
    damaged = tmp_path / "damaged.mlir"
    damaged.write_text(text.replace(old, new, 1))
    assert run(["--stage=ptx", f"--kernel_ir_file={damaged}", str(folder / "three.hlo")]) == 3
    assert message in capsys.readouterr().err


def test_the_first_row_of_the_pipeline_is_known() -> None:
    assert KERNEL_PIPELINE[0].name == "simplify-arith", "test_every_dump_goes_on_from_its_row begins with emit-kernels"
