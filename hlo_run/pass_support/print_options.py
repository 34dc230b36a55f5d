"""Print options of HLO in dumps and stages: XLA's dump defaults, changed by flags."""

from __future__ import annotations

from hlo_run.hlo.printer import DUMP, SHORT_PARSABLE, PrintOptions
from hlo_run.options import ShowOptions
from hlo_run.records import replace


def dump_options(options: ShowOptions) -> PrintOptions:
    """Return the printer's options for dumps and for `--stage`."""
    return replace(
        DUMP if options.xla_dump_hlo_as_long_text else SHORT_PARSABLE,
        large_constants=options.xla_dump_large_constants,
        metadata=not options.xla_dump_disable_metadata,
        inline_stack_frames=options.xla_hlo_print_inline_stack_frames,
        compact_get_tuple_element=options.xla_dump_compact_gte,
        sorted_backend_config=True,
        async_sugar=options.xla_syntax_sugar_async_ops,
    )
