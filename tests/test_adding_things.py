"""What docs/architecture.md says under "Adding things": toys are added to a copy of the package, and a module runs with them.

An `Edit` is one place that whoever adds the thing touches. A toy that needs another place makes its test fail.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

import pytest

from hlo_run.cli import run

PACKAGE = Path(__file__).resolve().parents[1] / "hlo_run"


@dataclass(frozen=True)
class Edit:
    """Lines put into a file after a line of it, or a new file (`after` is empty)."""

    file: str
    after: str
    new: str


@dataclass(frozen=True)
class End:
    """How a command ended: its exit code and what it printed."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def agrees(self) -> bool:
        return self.returncode == 0 and "close enough" in self.stderr


# A module and flags of hlo-run, or -c and a Python program.
Command = tuple[str, ...]
_ENDS_OF = """import contextlib, io, json, sys
from hlo_run.cli import run
ends = []
for words in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = exec(words[1], {}) or 0 if words[0] == "-c" else run(words)
    ends.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(ends))
"""


@dataclass(frozen=True)
class Toy:
    """A copy of the package, and commands that one process runs with it."""

    folder: Path

    def add(self, *edits: Edit) -> None:
        for edit in edits:
            path = self.folder / "hlo_run" / edit.file
            before = path.read_text() if edit.after else ""
            assert edit.after in before, f"{edit.file} has no line {edit.after!r} any more"
            path.write_text(before.replace(edit.after, edit.after + edit.new, 1) if edit.after else edit.new)

    def take_out(self, edit: Edit) -> None:
        path = self.folder / "hlo_run" / edit.file
        text = path.read_text()
        assert edit.after + edit.new in text, f"{edit.file} has no line {edit.new!r} any more"
        path.write_text(text.replace(edit.after + edit.new, edit.after, 1))

    def run(self, *commands: Command) -> list[End]:
        environment = {"PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(self.folder)}
        done = subprocess.run(
            [sys.executable, "-P", "-c", _ENDS_OF],
            input=json.dumps([_words(command, self.folder) for command in commands]),
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            env=environment,
        )
        assert done.returncode == 0, done.stderr
        return [End(*end) for end in json.loads(done.stdout)]


def _words(command: Command, folder: Path) -> list[str]:
    if command[0] == "-c":
        return list(command)
    module, *flags = command
    file = folder / f"{zlib.crc32(module.encode())}.hlo"
    file.write_text(module)
    return ["--platform=Host", "--cache=off", *flags, *([str(file)] if "--list_passes" not in flags else [])]


def _as_it_is(capsys: pytest.CaptureFixture[str], folder: Path, *command: str) -> End:
    """Run a command in this process, with the package as it is."""
    code = run(_words(command, folder))
    printed = capsys.readouterr()
    return End(code, printed.out, printed.err)


def _copy(folder: Path) -> Toy:
    # Compiled files come along: they are those of files with the same time.
    shutil.copytree(PACKAGE, folder / "hlo_run", copy_function=shutil.copy2)
    return Toy(folder)


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return _copy(tmp_path)


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, End]:
    """All toys in one copy, since none knows of another, and the end of each of COMMANDS."""
    toy = _copy(tmp_path_factory.mktemp("toys"))
    toy.add(*ELEMENTWISE_OP, *PASS, *EMITTER, GPU, OLD_GPU, OLDER_GPU, *ARCHITECTURE)
    return dict(zip(COMMANDS, toy.run(*COMMANDS.values()), strict=True))


ELEMENTWISE_OP = (
    Edit(
        "hlo/opcodes/table.py",
        "[can_infer_shape elementwise keeps_layout]\n",
        "exponential-base-two | 1 | result_accuracy | | float\n",
    ),
    Edit(
        "reference/numerics/elementwise.py",
        '    _inexact("erf", e.erf),\n',
        '    _inexact("exponential-base-two", np.exp2),\n',
    ),
    Edit(
        "codegen/elemental/elementwise.py",
        '        floats("erf", math.ErfOp),\n',
        '        floats("exponential-base-two", math.Exp2Op),\n',
    ),
)
# The shape is left out, the attribute is written, a fusion takes the op in, and f16 goes by way of libdevice's f32.
OP_MODULE = """HloModule toy

ENTRY toy {
  p = f16[24,40]{0,1} parameter(0)
  two_to_p = exponential-base-two(p), result_accuracy={mode=highest}
  ROOT sum = f16[24,40]{0,1} add(two_to_p, p)
}
"""


BUILD_OP = (
    "from hlo_run import HloBuilder; b = HloBuilder('m'); p = b.parameter(0, 'f32[2]');"
    "print(b.build(b.exponential_base_two(p)).entry.root)"
)


def test_an_elementwise_op_of_libdevice_is_three_rows(
    ends: dict[str, End], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _as_it_is(capsys, tmp_path, OP_MODULE).returncode == 3
    assert len({edit.file for edit in ELEMENTWISE_OP}) == 3
    done = ends["op"]
    assert done.agrees, done.stderr
    assert "fusion(%p), kind=kLoop" in done.stderr
    assert "exponential-base-two(p" in ends["op built"].stdout.replace("%", "")
    wrong_type = ends["op of integers"]
    assert wrong_type.returncode == 3
    assert "does not support elements of type s32" in wrong_type.stderr


PASS = (
    Edit(
        "hlo_passes/simplifiers/toy_doubling.py",
        "",
        '''"""Write a sum of a value with itself as a product: `add(x, x)` => `multiply(x, 2)`."""

from dataclasses import dataclass
from typing import ClassVar

from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo_passes.hlo_pass import PassContext


@dataclass(frozen=True)
class ToyDoubling:
    name: ClassVar[str] = "toy-doubling"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        for add in module.instructions_of("add"):
            if add.operands[0] is add.operands[1]:
                edit = Editor(add)
                two = edit.broadcast(edit.constant(2, add.shape.element_type), add.shape.dims)
                module.replace(add, edit.binary("multiply", add.operands[0], two))
''',
    ),
    Edit(
        "pipeline/table.py",
        '            HloRow("zero_sized_hlo_elimination", _pass("simplifiers.zero_sized_hlo_elimination")),\n',
        '            HloRow("toy-doubling", _pass("simplifiers.toy_doubling"), for_opcodes=("add",)),\n',
    ),
)
PASS_MODULE = """HloModule toy

ENTRY toy {
  p = f32[24] parameter(0)
  ROOT sum = f32[24] add(p, p)
}
"""


def test_a_pass_is_its_file_and_its_row(ends: dict[str, End]) -> None:
    assert len({edit.file for edit in PASS}) == 2
    assert "multiply(%p" in ends["pass, stage"].stdout, ends["pass, stage"].stderr
    assert "toy-doubling" in ends["pass, list"].stdout
    assert ends["pass"].agrees, ends["pass"].stderr


EMITTER = (
    Edit(
        "codegen/emitters/toy_negation.py",
        "",
        '''"""The emitter for a lone negation, which is a loop of another name."""

from collections.abc import Sequence
from typing import ClassVar

from msgspec.structs import replace

from hlo_run.analysis.decision import Decision, no, yes
from hlo_run.analysis.tiling.fusion_analysis import FusionAnalysis
from hlo_run.codegen.emitters.kernel import EmittedKernel, EntryArgument
from hlo_run.codegen.emitters.loop import LoopEmitter


class ToyNegationEmitter(LoopEmitter):
    kind: ClassVar[str] = "toy negation"

    def accepts(self, analysis: FusionAnalysis, arguments: Sequence[EntryArgument]) -> Decision:
        return yes("it is one") if analysis.roots[0].opcode == "negate" else no("the root is not a negation")

    def emit(self, analysis: FusionAnalysis, kernel_name: str, arguments: Sequence[EntryArgument]) -> EmittedKernel:
        return replace(super().emit(analysis, kernel_name, arguments), kind=self.kind)
''',
    ),
    Edit("codegen/emitters/table.py", "EMITTERS = (\n", "    ToyNegationEmitter,\n"),
    Edit(
        "codegen/emitters/table.py",
        "from hlo_run.codegen.emitters.sort import SortEmitter\n",
        "from hlo_run.codegen.emitters.toy_negation import ToyNegationEmitter\n",
    ),
)
EMITTER_MODULE = """HloModule toy

ENTRY toy {
  p = f32[24] parameter(0)
  ROOT n = f32[24] negate(p)
}
"""


def test_an_emitter_is_its_file_and_its_row(ends: dict[str, End]) -> None:
    assert len({edit.file for edit in EMITTER}) == 2
    assert "toy negation" in ends["emitter, stage"].stdout, ends["emitter, stage"].stderr
    assert ends["emitter"].agrees, ends["emitter"].stderr


SMALL_FLOAT = (
    Edit(
        "hlo/values/dtype.py",
        '        _float("f8e4m3fnuz", 25, ml_dtypes.float8_e4m3fnuz, 4, 3, 8, "fnuz"),\n',
        '        _float("f8e3m4", 29, ml_dtypes.float8_e3m4, 3, 4, 3),\n',
    ),
    Edit("codegen/elemental/types.py", "    Float8E5M2FNUZType,\n    Float8E4M3FNUZType,\n", "    Float8E3M4Type,\n"),
)
# Text, a literal with a NaN of its own, conversions from and to other floats, arithmetic, the reference and its arguments.
FLOAT_MODULE = """HloModule toy

ENTRY toy {
  p = f8e3m4[24] parameter(0)
  q = f64[24] parameter(1)
  half = f8e3m4[] constant(-0.5)
  halves = f8e3m4[24] broadcast(half), dimensions={}
  product = f8e3m4[24] multiply(p, halves)
  narrow = f8e3m4[24] convert(q)
  sum = f8e3m4[24] add(product, narrow)
  rounded = f8e3m4[24] reduce-precision(sum), exponent_bits=3, mantissa_bits=2
  wide = bf16[24] convert(sum)
  ROOT both = (bf16[24], f8e3m4[24]) tuple(wide, rounded)
}
"""
# Choices by name: XLA's about what libraries multiply and what floats are widened to, and what the fuzzer likes.
POLICIES = (
    "analysis/float_support.py",
    "analysis/matrix_product.py",
    "hlo_passes/subgraphs/library_calls.py",
    "fuzz/program/values.py",
)


def test_a_small_float_is_its_definition_and_one_ir_type(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    """xDSL's float types are a closed set, all of which HLO has: one of them is taken out and put in again."""
    definition, ir_type = SMALL_FLOAT
    toy.take_out(definition)
    toy.take_out(ir_type)
    (without,) = toy.run((FLOAT_MODULE,))
    assert without.returncode == 3
    toy.add(definition)
    (without_kernels,) = toy.run((FLOAT_MODULE,))
    assert without_kernels.returncode == 4
    assert "elements of type f8e3m4 in a kernel" in without_kernels.stderr
    toy.add(ir_type)
    for edit in SMALL_FLOAT:
        assert (toy.folder / "hlo_run" / edit.file).read_text() == (PACKAGE / edit.file).read_text()
    # Every rounding is kept: both sides then compute the same.
    done = _as_it_is(capsys, toy.folder, FLOAT_MODULE, "--xla_allow_excess_precision=false")
    assert done.agrees, done.stderr


def test_no_other_file_names_a_small_float_to_say_what_it_is() -> None:
    naming = {
        path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if re.search(r"\bf8e3m4\b", path.read_text())
    }
    assert naming == {SMALL_FLOAT[0].file, *POLICIES}


GPU = Edit(
    "target.py",
    "    spec.name: spec\n    for spec in (\n",
    '        _spec("toy", "A toy", (12, 1), (48, 1536, 128), 2.4, 25165824, 300000000000, 128000000000, (101376, 102400)),\n',
)


def test_a_gpu_is_one_record(ends: dict[str, End]) -> None:
    assert ".target sm_121" in ends["gpu, stage"].stdout, ends["gpu, stage"].stderr
    assert ends["gpu"].agrees, ends["gpu"].stderr


# LLVM knows these, the tables do not: they are older than the oldest of them. One of the two gets the rows of an architecture.
OLD_GPU, OLDER_GPU = (
    Edit(
        "target.py",
        GPU.after,
        f'        _spec("{name}", "Toy", {capability}, (2, 2048, 128), 1.4, 524288, 58000000000, 8000000000, (49152, 65536)),\n',
    )
    for name, capability in (("old", (6, 2)), ("older", (5, 3)))
)
ARCHITECTURE = (
    Edit("codegen/llvm/nvptx.py", "_PTX_VERSION_OF_SM = {\n", "    62: 86,\n"),
    Edit("analysis/cost/op_cycles.py", "_PROFILES: dict[int, str] = {\n", '    62: """\n        f32 add=5\n    """,\n'),
)
CYCLES = (
    "from hlo_run.analysis.cost.op_cycles import cycles_per_element; from hlo_run.target import preset;"
    "print(*(cycles_per_element('add', 'f32', preset(name)) for name in ('old', 'older')))"
)


def test_a_gpu_architecture_is_its_ptx_version_and_its_cycles(ends: dict[str, End]) -> None:
    assert len({edit.file for edit in ARCHITECTURE}) == 2
    assert ".target sm_53" not in ends["older gpu, stage"].stdout
    assert ".target sm_62" in ends["old gpu, stage"].stdout, ends["old gpu, stage"].stderr
    old, older = ends["cycles"].stdout.split()
    assert old == "5"
    assert older != "5"
    assert ends["old gpu"].agrees, ends["old gpu"].stderr


COMMANDS: dict[str, Command] = {
    "op": (OP_MODULE, "--v=3"),
    "op built": ("-c", BUILD_OP),
    "op of integers": (OP_MODULE.replace("f16", "s32"),),
    "pass": (PASS_MODULE, "--check_each_pass"),
    "pass, stage": (PASS_MODULE, "--stage=toy-doubling"),
    "pass, list": (PASS_MODULE, "--list_passes"),
    "emitter": (EMITTER_MODULE,),
    "emitter, stage": (EMITTER_MODULE, "--stage=fusion-analysis"),
    "gpu": (PASS_MODULE, "--target=toy"),
    "gpu, stage": (PASS_MODULE, "--target=toy", "--stage=ptx"),
    "old gpu": (PASS_MODULE, "--target=old"),
    "old gpu, stage": (PASS_MODULE, "--target=old", "--stage=ptx"),
    "older gpu, stage": (PASS_MODULE, "--target=older", "--stage=ptx"),
    "cycles": ("-c", CYCLES),
}
