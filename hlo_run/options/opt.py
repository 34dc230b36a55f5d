"""The flags of `hlo-opt`."""

from __future__ import annotations

from dataclasses import dataclass

from hlo_run.options.flag import flag


@dataclass(frozen=True, slots=True)
class OptFlags:
    """The flags that only `hlo-opt` has, named as in XLA's tool. It shares the flags of compilation and dumps with `hlo-run`."""

    platform: str = flag(
        "transforms",
        "gpu (or CUDA): run XLA:GPU's pipeline. transforms: run only --passes, else print the module as read.",
        "NAME",
    )
    passes: str = flag(
        "",
        "Run only these passes, in this order (comma-separated). cse-4 is the fourth row of cse in the pass table. Options "
        "of a pass are in braces: despecializer{deconstructs_reduce_window=true}.",
        "PASSES",
    )
    split_input_file: bool = flag(False, "Split FILE at the lines `// -----` and process each module separately.")
    emit_proto: bool = flag(False, "Print the module as a text proto and run no passes.")
    list_passes: bool = flag(False, "Print the names of all passes and stop.")
    list_stages: bool = flag(False, "Print the names of the stages of --platform and stop.")
