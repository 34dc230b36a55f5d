"""The flags that decide what is printed and dumped."""

from __future__ import annotations

from dataclasses import fields

from hlo_run.options.dump import DumpOptions
from hlo_run.options.flag import flag, flag_record
from hlo_run.options.float_checks import FloatChecks, ReductionChecks


@flag_record
class ShowOptions(DumpOptions, FloatChecks, ReductionChecks):
    """The flags of stages, dumps and lists: they decide what a compilation shows, not its result."""

    v: int = flag(
        0,
        "Log to stderr. 1: names of rows, 2: + changes, 3: + changed HLO, 4: + fusion analysis, 5: + kernel IR, LLVM IR and PTX.",
        "N",
        least=0,
    )
    v_format: str = flag(
        "full",
        "How --v shows a row's text. full: the whole text, if the row changed it. diff: the changed lines; an index comes last.",
        "HOW",
        ("full", "diff"),
        acts="compile log",
    )
    stage: str = flag(
        "",
        "Print one stage and stop: hlo-input, hlo, fusion-analysis, llvm, ptx, a row of --list_passes, ..",
        "NAME",
        acts="file",
    )
    explain: str = flag(
        "",
        "Print why instructions were fused or not, and stop. fusion: all of them. fusion:NAME or fusion:NAME,NAME: only one "
        "instruction, or a producer and its user, by their names before fusion.",
        "fusion[:NAMES]",
        acts="file",
    )
    xla_diff: str = flag(
        "",
        "Compile with XLA:GPU too, print kernels, fusions, bytes and memory of both, and stop. emitters (if MODE is omitted): "
        "XLA without Triton. default: XLA with its default flags.",
        "MODE",
        bare="emitters",
        acts="file",
    )
    golden_dir: str = flag(
        "",
        "Compile, compare the stages of --golden_stages with DIR/MODULE/STAGE.txt, and stop. Exit code 1: a stage differs or has "
        "no golden. Long differences are written to golden_differences/ (docs/ci.md).",
        "DIR",
        acts="file",
    )
    golden_stages: str = flag(
        "hlo,fusion-analysis,buffer-assignment,thunks,ptx,numbers",
        "Compare these stages with their goldens (comma-separated): those of --stage, numbers (kernels, bytes, memory), "
        "resources (registers, shared memory, spills and SASS instructions by ptxas), or all.",
        "NAMES",
        acts="golden",
    )
    golden_tolerance: str = flag(
        "",
        "Accept these changes of numbers and resources: bytes=1%,registers=2,..",
        "NAME=N,..",
        acts="golden",
    )
    update_goldens: bool = flag(False, "Write the texts of the stages to --golden_dir instead of comparing them.", acts="golden")
    output_format: str = flag(
        "hlo", "Print --stage=hlo and --stage=hlo-input in this format.", "NAME", ("hlo", "pb", "pbtxt", "stablehlo"), acts="file"
    )
    output_file: str = flag("", "Write the text of --stage to this file instead of stdout.", "FILE", acts="file")
    list_passes: bool = flag(False, "Print the rows of the HLO and kernel pass tables and stop.", acts="")
    xla_gpu_print_compilation_stats: bool = flag(False, "The same as --time_passes.")
    time_passes: bool = flag(False, "Print the time of every row at the end (stderr).")
    print_sharding: str = flag(
        "",
        "Draw which device holds which piece of the parameters and the result, once shardings are propagated. all: also of the "
        "entry's other instructions that have a sharding. On stdout, but on stderr with --stage.",
        "entry|all",
        ("", "entry", "all"),
        bare="entry",
    )
    print_locations: bool = flag(
        False, "Print on each operation of kernel IR the HLO instruction that it comes from (hlo.op).", acts="text"
    )
    print_ir_generic: bool = flag(False, "Print kernel IR in MLIR's generic form.", acts="text")
    print_ir_as_xla: bool = flag(
        False, "Print kernel IR as released XLA does: its dialect xla, its names of values, scf.forall over threads.", acts="text"
    )
    xla_syntax_sugar_async_ops: bool = flag(False, "Print the async-start of an add as add-start.")

    def display_key(self) -> str:
        """Return all options with their values."""
        return repr([(field.name, getattr(self, field.name)) for field in fields(ShowOptions)])
