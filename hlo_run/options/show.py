"""What is shown, printed and dumped."""

from __future__ import annotations

from dataclasses import dataclass, fields

from hlo_run.options.flag import flag


# Each method that is generated costs a start of the program a millisecond; those of `Options` do for comparing.
@dataclass(frozen=True, repr=False, eq=False)
class ShowOptions:
    """The flags of stages, dumps and lists: they decide what is seen of a compilation, not what it makes."""

    v: int = flag(0, "0-5: rows, changes, HLO, fusion analysis, all kernel IR with LLVM and PTX (stderr).", "N")
    stage: str = flag("", "Print one stage and stop: hlo-input, hlo, fusion-analysis, llvm, ptx, a row name, ..", "NAME")
    explain: str = flag(
        "",
        "Say why instructions were fused or not, and stop: fusion, or fusion:NAME,.. for one, or a pair, of those before fusion.",
        "fusion[:NAMES]",
    )
    xla_diff: str = flag(
        "",
        "Compile, show kernels, fusions, bytes and memory beside real XLA:GPU's, and stop: emitters (no Triton; bare), default.",
        "MODE",
        bare="emitters",
    )
    output_format: str = flag("hlo", "Format of --stage=hlo and hlo-input.", "NAME", ("hlo", "pb", "pbtxt", "stablehlo"))
    output_file: str = flag("", "Write the stage to a file instead of stdout.", "FILE")
    list_passes: bool = flag(False, "List the rows of both pass tables and stop.")
    time_passes: bool = flag(False, "Print the seconds of every row at the end (stderr).")
    print_locations: bool = flag(False, "Print the HLO instruction (hlo.op) each kernel op came from.")
    print_ir_generic: bool = flag(False, "Print kernel IR in MLIR's generic form.")
    xla_dump_to: str = flag("", "Directory for dumps; - prints them to stdout.", "DIR")
    xla_dump_hlo_pass_re: str = flag("", "Dump the HLO around rows that match; .* dumps every change.", "RE")
    xla_dump_hlo_module_re: str = flag("", "Dump only modules whose name matches.", "RE")
    xla_dump_emitter_re: str = flag("", "Dump kernels: mlir-fusion, llvm, ptx.", "RE")
    xla_dump_large_constants: bool = flag(False, "Print constants of more than 10 elements in full.")
    xla_dump_disable_metadata: bool = flag(False, "Leave metadata out of HLO dumps.")
    xla_dump_hlo_as_long_text: bool = flag(True, "Print HLO with signatures and % before names.")
    xla_dump_compact_gte: bool = flag(True, "Print %t#0 for get-tuple-element.")
    xla_syntax_sugar_async_ops: bool = flag(False, "Print add-start for the async-start of an add.")

    def display_key(self) -> str:
        """Return all options with their values."""
        return repr([(field.name, getattr(self, field.name)) for field in fields(ShowOptions)])
