"""Write docs/flags.md: every flag of XLA's DebugOptions, with what it does in hlo-run.

    python3 scripts/venv.py python scripts/flag_table.py [--check]

The flags are those of hlo_run/options/debug_options.tsv. With `--check` it writes nothing, and the exit code is 1 if the page is
out of date.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

from hlo_run.options.debug_options import DebugOption, debug_options
from hlo_run.options.programs import FIELDS
from hlo_run.version import XLA_RELEASE

PAGE = Path(__file__).resolve().parent.parent / "docs" / "flags.md"
_HEAD = """# XLA's flags

`scripts/flag_table.py` writes this page from `hlo_run/options/debug_options.tsv`. It lists every field of XLA's `DebugOptions`
and every flag that XLA reads for it: {total} names, of released XLA (jaxlib {release}) and of the release before (0.10.2).
`XLA_FLAGS`, `--debug_options_file`, `--flagfile` (or `--xla_flagfile`) and the command line take all of them, and check the
types of their values. Defaults are those of released XLA.

- {acts} **act**: they are options of hlo-run.
- {accepted} are **accepted** and change nothing here, for the reason given. The column "XLA's text" says for which modules
  released XLA makes another module, other kernels or other thunks with them, as far as `scripts/flag_effects.py` found with XLA's
  defaults ({silent} flags). If the module at hand is one of these, the first use prints a line; with `--strict_flags` it is an
  error (exit code 2). "Same" means that it changed no module of `scripts/flag_modules`, "not read" that XLA:GPU does not read it.
- {refused} are **refused** if their value is not the default: with an error on the command line. In `XLA_FLAGS` and in files,
  which other programs read too, they cause a warning, and with `--strict_flags` an error.

A name that is not here causes a warning, and with `--strict_flags` an error. So does a flag that is "dropped": the
release before had it, and the mirrored one ends at it.
"""
_TITLES = {"acts": "Flags that act", "refused": "Flags that are refused", "accepted": "Flags that are accepted"}


def page() -> str:
    """Return the text of the page."""
    options = sorted(debug_options().values(), key=lambda option: option.name)
    counts = Counter(option.verdict for option in options)
    silent = sum(option.verdict == "accepted" and bool(option.changes) for option in options)
    parts = [_HEAD.format(total=len(options), silent=silent, release=XLA_RELEASE, **counts)]
    for verdict, title in _TITLES.items():
        rows = [_row(option) for option in options if option.verdict == verdict]
        columns = ["flag", "type", "default", *(["XLA's text"] if verdict != "acts" else []), ""]
        head = [f"| {' | '.join(columns)} |".replace("|  |", "| |"), f"|{' --- |' * len(columns)}"]
        parts.append("\n".join([f"## {title}\n", *head, *rows, ""]))
    return "\n".join(parts)


def _row(option: DebugOption) -> str:
    text = FIELDS[option.name].metadata["help"] if option.verdict == "acts" else option.reason
    since = " (dropped)" if option.is_dropped else ""
    kind = "enum" if option.choices else option.type
    if option.choices and option.is_list:
        kind = "list of KIND:BYTES:TYPE" if option.has_filters else "list of an enum"
    default = f"`{option.default.replace(',', ', ')}`" if option.default else ""
    effect = "" if option.verdict == "acts" else f" {_effect(option)} |"
    return f"| `{option.name}`{since} | {kind} | {default} |{effect} {text.replace('|', '&#124;')} |"


def _effect(option: DebugOption) -> str:
    """Say whether released XLA makes something else of a module with a flag."""
    if option.is_dropped:
        return "not in released XLA"
    if re.search("XLA:[CT]PU", option.reason):
        return "not read"
    if not option.changes:
        return {"-": "same", "?": "not measured"}[option.effect]
    but = f", not for {', '.join(f'`{value}`' for value in option.here)}" if option.here else ""
    if "any" in option.changes:
        return f"changes{but}"
    return f"changes with {', '.join(sorted(option.changes))}{but}"


def main(arguments: list[str]) -> int:
    """Write or check the page; return the exit code."""
    text = page()
    if "--check" not in arguments:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
