"""The table "Adding things" of docs/architecture.md holds: toys are added to a copy of the package, and a module runs with them.

An `Edit` is one place that whoever adds the thing touches. A toy that needs another place makes its test fail.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from package_copy import PACKAGE, End, PackageCopy

from hlo_run.cli import run


@dataclass(frozen=True)
class Edit:
    """Lines put into a file after a line of it, or a new file (`after` is empty)."""

    file: str
    after: str
    new: str


# A module and flags of hlo-run, or -c and a Python program.
Command = tuple[str, ...]


class Toys:
    """A copy of the package, and commands with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.copy = PackageCopy(folder / "package", {"TMPDIR": str(folder)})

    def add(self, *edits: Edit) -> None:
        for edit in edits:
            before = self.copy.read(edit.file) if edit.after else ""
            assert edit.after in before, f"{edit.file} has no line {edit.after!r} any more"
            self.copy.write(edit.file, before.replace(edit.after, edit.after + edit.new, 1) if edit.after else edit.new)

    def take_out(self, edit: Edit) -> None:
        text = self.copy.read(edit.file)
        assert edit.after + edit.new in text, f"{edit.file} has no line {edit.new!r} any more"
        self.copy.write(edit.file, text.replace(edit.after + edit.new, edit.after, 1))

    def run(self, *command: str) -> End:
        return self.copy.run(self.folder, *_words(command, self.folder))


def _words(command: Command, folder: Path) -> list[str]:
    if command[0] == "-c":
        return list(command)
    module, *flags = command
    file = folder / "toy.hlo"
    file.write_text(module)
    return ["--platform=Host", "--cache=off", *flags, *([str(file)] if "--list_passes" not in flags else [])]


def _as_it_is(capsys: pytest.CaptureFixture[str], folder: Path, *command: str) -> End:
    """Run a command in this process, with the package as it is."""
    code = run(_words(command, folder))
    printed = capsys.readouterr()
    return End(code, printed.out, printed.err)


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Toys]:
    toys = Toys(tmp_path)
    yield toys
    toys.copy.close()


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toys]:
    """All toys in one copy, since none knows of another."""
    toys = Toys(tmp_path_factory.mktemp("toys"))
    toys.add(*ELEMENTWISE_OP, *PASS, *EMITTER, GPU, OLD_GPU, OLDER_GPU, *ARCHITECTURE, *HANDLER, SHARDING_RULE)
    yield toys
    toys.copy.close()


ELEMENTWISE_OP = (
    Edit("hlo/opcodes/names.py", '    "exponential",\n', '    "exponential-base-two",\n'),
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


def test_an_elementwise_op_of_libdevice_is_its_name_and_three_rows(
    toys: Toys, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _as_it_is(capsys, tmp_path, OP_MODULE).returncode == 3
    assert len({edit.file for edit in ELEMENTWISE_OP}) == 4
    done = toys.run(OP_MODULE, "--v=3")
    assert done.agrees, done.stderr
    assert "fusion(%p), kind=kLoop" in done.stderr
    assert "exponential-base-two(p" in toys.run("-c", BUILD_OP).stdout.replace("%", "")
    wrong_type = toys.run(OP_MODULE.replace("f16", "s32"))
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
from hlo_run.pass_support.hlo_pass import PassContext


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


def test_a_pass_is_its_file_and_its_row(toys: Toys) -> None:
    assert len({edit.file for edit in PASS}) == 2
    staged = toys.run(PASS_MODULE, "--stage=toy-doubling")
    assert "multiply(%p" in staged.stdout, staged.stderr
    assert "toy-doubling" in toys.run(PASS_MODULE, "--list_passes").stdout
    assert toys.run(PASS_MODULE, "--check_each_pass").agrees


EMITTER = (
    Edit(
        "codegen/emitters/toy_negation.py",
        "",
        '''"""The emitter for a lone negation, which is a loop of another name."""

from collections.abc import Sequence
from typing import ClassVar

from hlo_run.records import replace

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


def test_an_emitter_is_its_file_and_its_row(toys: Toys) -> None:
    assert len({edit.file for edit in EMITTER}) == 2
    assert "toy negation" in toys.run(EMITTER_MODULE, "--stage=fusion-analysis").stdout
    assert toys.run(EMITTER_MODULE).agrees


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


def test_a_small_float_is_its_definition_and_one_ir_type(copy: Toys, capsys: pytest.CaptureFixture[str]) -> None:
    """xDSL's float types are a closed set, all of which HLO has: one of them is taken out and put in again."""
    definition, ir_type = SMALL_FLOAT
    copy.take_out(definition)
    copy.take_out(ir_type)
    assert copy.run(FLOAT_MODULE).returncode == 3
    copy.add(definition)
    without_kernels = copy.run(FLOAT_MODULE)
    assert without_kernels.returncode == 4
    assert "elements of type f8e3m4 in a kernel" in without_kernels.stderr
    copy.add(ir_type)
    for edit in SMALL_FLOAT:
        assert copy.copy.read(edit.file) == (PACKAGE / edit.file).read_text()
    # Every rounding is kept: both sides then compute the same.
    done = _as_it_is(capsys, copy.folder, FLOAT_MODULE, "--xla_allow_excess_precision=false")
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


def test_a_gpu_is_one_record(toys: Toys) -> None:
    assert ".target sm_121" in toys.run(PASS_MODULE, "--target=toy", "--stage=ptx").stdout
    assert toys.run(PASS_MODULE, "--target=toy").agrees


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


def test_a_gpu_architecture_is_its_ptx_version_and_its_cycles(toys: Toys) -> None:
    assert len({edit.file for edit in ARCHITECTURE}) == 2
    assert ".target sm_53" not in toys.run(PASS_MODULE, "--target=older", "--stage=ptx").stdout
    ptx = toys.run(PASS_MODULE, "--target=old", "--stage=ptx").stdout
    assert ".target sm_62" in ptx, ptx
    old, older = toys.run("-c", CYCLES).stdout.split()
    assert old == "5"
    assert older != "5"
    assert toys.run(PASS_MODULE, "--target=old").agrees


HANDLER = (
    Edit(
        "sharding/partitioning/handlers/toy_norm.py",
        "",
        '''"""Handler of batch normalisations by given means: each device normalises its tile; features are not divided."""

from hlo_run.sharding.partitioning.handlers.visit import Visit
from hlo_run.sharding.partitioning.state import Part
from hlo_run.sharding.values.replicate import replicate_dims


def normalise(v: Visit) -> Part:
    """Handle a batch-norm-inference."""
    if v.is_whole:
        return v.by_default()
    tiles = replicate_dims(v.leaf, [v.hlo.feature_index])
    value, *features = v.parts
    operands = [value.reshard(tiles).hlo, *(part.replicate().hlo for part in features)]
    return v.made(v.clone(operands, tiles), tiles)
''',
    ),
    Edit(
        "sharding/partitioning/handlers/table.py",
        "_HANDLERS: dict[Opcode, Handler] = {\n",
        '    "batch-norm-inference": toy_norm.normalise,\n',
    ),
    Edit("sharding/partitioning/handlers/table.py", "    shapes,\n", "    toy_norm,\n"),
)
NORM_MODULE = """HloModule toy, num_partitions=2

ENTRY toy {
  p = f32[8,4] parameter(0), sharding={devices=[2,1]<=[2]}
  scale = f32[4] parameter(1)
  offset = f32[4] parameter(2)
  mean = f32[4] parameter(3)
  deviation = f32[4] parameter(4)
  variance = f32[4] multiply(deviation, deviation)
  ROOT norm = f32[8,4] batch-norm-inference(p, scale, offset, mean, variance), epsilon=0.1, feature_index=1,
    sharding={devices=[2,1]<=[2]}
}
"""


def test_a_handler_of_the_partitioner_is_its_function_and_its_row(
    toys: Toys, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "f32[8,4]{1,0} batch-norm-inference(" in _as_it_is(capsys, tmp_path, NORM_MODULE, "--stage=spmd-partitioning").stdout
    assert len({edit.file for edit in HANDLER}) == 2
    divided = toys.run(NORM_MODULE, "--stage=spmd-partitioning").stdout
    assert "f32[4,4]{1,0} batch-norm-inference(" in divided
    assert "all-gather" not in divided
    assert toys.run(NORM_MODULE).agrees


SHARDING_RULE = Edit(
    "sharding/shardy/rules.py",
    "_RULES: dict[Opcode, Callable[[HloInstruction], Rule | None]] = {\n",
    '    "erf": rules_calls.pointwise,\n',
)
SHARDY_MODULE = """HloModule toy, num_partitions=2, frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["x"=2]>}}

ENTRY toy {
  p = f32[8,4] parameter(0), frontend_attributes={xla.sdy.sharding="#sdy.sharding<@mesh, [{\\"x\\"}, {}]>"}
  errors = f32[8,4] erf(p)
  ROOT r = f32[8,4] negate(errors)
}
"""


def test_a_sharding_rule_is_its_row(toys: Toys, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stage = "--stage=shardy-xla"
    assert "erf(%p.1), metadata" in _as_it_is(capsys, tmp_path, SHARDY_MODULE, stage).stdout
    moved = toys.run(SHARDY_MODULE, stage)
    assert "erf(%p.1), sharding={devices=[2,1]<=[2]}, metadata" in moved.stdout, moved.stderr
    assert toys.run(SHARDY_MODULE).agrees
