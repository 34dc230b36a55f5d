"""Tells which flags do nothing here, but change XLA's result for the module.

The table of flags names the instructions without which a flag changes nothing. They were found by compilations with real XLA.
"""

from __future__ import annotations

from collections.abc import Callable

from hlo_run.errors import UsageError
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.opcodes.traits import COLLECTIVE
from hlo_run.options import Options
from hlo_run.options.debug_options import debug_options, is_default

_ANY, _COLLECTIVE, _SHARDING = "any", "collective", "sharding"


def note_silent_flags(options: Options, module: HloModule, noted: set[str], say: Callable[[str], None]) -> None:
    """Print a line about each such flag that is not in `noted`, and add it. Raises UsageError with `--strict_flags`."""
    words: frozenset[str] | None = None
    for name, value in options.other_xla_flags:
        option = debug_options().get(name)
        if option is None or name in noted or not option.changes or is_default(option, value) or value in option.here:
            continue
        words = module_words(module) if words is None else words
        if words.isdisjoint(option.changes):
            continue
        problem = f"--{name}={value} changes what XLA makes of '{module.name}', and does nothing here. {option.reason}"
        if options.strict_flags:
            raise UsageError(problem.rstrip("."), hint=f"leave out --{name}, or --strict_flags")
        noted.add(name)
        say(f"warning: {problem}")


def module_words(module: HloModule) -> frozenset[str]:
    """Return the contents of a module in the words of the table: its opcodes, `collective`, `sharding`, and `any`."""
    instructions = [instruction for computation in module.computations for instruction in computation.instructions]
    words = {_ANY, *(instruction.opcode for instruction in instructions)}
    if words & COLLECTIVE:
        words.add(_COLLECTIVE)
    if module.num_partitions > 1 and any("sharding" in i.attrs for i in instructions):
        words.add(_SHARDING)
    return frozenset(words)
