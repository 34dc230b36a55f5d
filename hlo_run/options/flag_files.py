"""Where flags come from."""

from __future__ import annotations

from dataclasses import dataclass

from hlo_run.options.flag import flag


# Each method that is generated costs a start of the program a millisecond; those of `Options` do for comparing.
@dataclass(frozen=True, repr=False, eq=False)
class FlagOptions:
    """The flags about flags."""

    debug_options_file: str = flag("", "Text proto of XLA debug options; flags win over it.", "FILE")
    strict_flags: bool = flag(False, "An unknown --xla_* flag is an error instead of a warning.")
