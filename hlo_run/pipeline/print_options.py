"""How HLO is printed in dumps and stages: XLA's dump defaults, changed by flags."""

from __future__ import annotations

from dataclasses import replace

from hlo_run.hlo.printer import DUMP, PrintOptions
from hlo_run.options import Options


def dump_options(options: Options) -> PrintOptions:
    """Return the printer's options for dumps and for `--stage`."""
    return replace(DUMP, large_constants=options.xla_dump_large_constants, metadata=not options.xla_dump_disable_metadata)
