"""The flags about flags: a file of debug options, and the treatment of unknown XLA flags."""

from __future__ import annotations

from hlo_run.options.flag import FlagRecord, flag, flag_record


@flag_record
class FlagOptions(FlagRecord):
    """The flags about flags."""

    debug_options_file: str = flag(
        "", "Read flags from this text proto of XLA DebugOptions. XLA_FLAGS and the command line override it.", "FILE"
    )
    flagfile: str = flag("", "Read flags from this file, as if they stood here (--xla_flagfile is the same).", "FILE")
    strict_flags: bool = flag(
        False,
        "Stop with an error at an unknown --xla_* flag, at one in XLA_FLAGS that is not supported, and at one without effect "
        "here that changes what XLA makes of the module. false: print a warning and ignore the flag (docs/flags.md).",
    )
    other_xla_flags: tuple[tuple[str, str], ...] = flag(
        (), "The flags of XLA that are not options, with their values.", hidden=True
    )
