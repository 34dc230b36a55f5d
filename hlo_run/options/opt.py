"""The flags of `hlo-opt`."""

from __future__ import annotations

from dataclasses import dataclass

from hlo_run.options.flag import flag


@dataclass(frozen=True, slots=True)
class OptFlags:
    """The flags that `hlo-opt` has beside those that steer compilation and its dumps, named as in XLA's tool."""

    platform: str = flag("transforms", "transforms: no GPU's pipeline, the module as read; gpu (or CUDA).", "NAME")
    passes: str = flag(
        "", "Run these passes in this order, and nothing else; cse-4 is the fourth row of cse in the table.", "PASSES"
    )
    split_input_file: bool = flag(False, "Read modules separated by lines `// -----`, each on its own.")
    emit_proto: bool = flag(False, "Print the module as a text proto, without passes.")
    list_passes: bool = flag(False, "Print the names of the passes.")
    list_stages: bool = flag(False, "Print the names of the platform's stages.")
