"""Write docs/flags.md: every flag of XLA's DebugOptions, with what it does in hlo-run.

    python3 scripts/venv.py python scripts/flag_table.py [--check]

The flags are those of hlo_run/options/debug_options.tsv. With `--check` it writes nothing, and the exit code is 1 if the page is
out of date.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from hlo_run.options.debug_options import DebugOption, debug_options
from hlo_run.options.programs import FIELDS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "flags.md"
_HEAD = """# XLA's flags

`scripts/flag_table.py` writes this page from `hlo_run/options/debug_options.tsv`. It lists every field of XLA's `DebugOptions`
and every flag that XLA reads for it: {total} names, of released XLA (jaxlib 0.10.2) and of the source tree of August 2026.
`XLA_FLAGS`, `--debug_options_file`, `--flagfile` (or `--xla_flagfile`) and the command line take all of them, and check the
types of their values. Defaults are those of released XLA.

- {acts} **act**: they are options of hlo-run.
- {accepted} are **accepted** and change nothing, for the reason given.
- {refused} are **refused** if their value is not the default: with an error on the command line. In `XLA_FLAGS` and in files,
  which other programs read too, they cause a warning, and with `--strict_flags` an error.

A name that is not here causes a warning, and with `--strict_flags` an error. "Newer" flags are in the source tree only, "dropped"
ones in released XLA only.
"""
_TITLES = {"acts": "Flags that act", "refused": "Flags that are refused", "accepted": "Flags that are accepted"}


def page() -> str:
    """Return the text of the page."""
    options = sorted(debug_options().values(), key=lambda option: option.name)
    counts = Counter(option.verdict for option in options)
    parts = [_HEAD.format(total=len(options), **counts)]
    for verdict, title in _TITLES.items():
        rows = [_row(option) for option in options if option.verdict == verdict]
        parts.append("\n".join([f"## {title}\n", "| flag | type | default | |", "| --- | --- | --- | --- |", *rows, ""]))
    return "\n".join(parts)


def _row(option: DebugOption) -> str:
    text = FIELDS[option.name].metadata["help"] if option.verdict == "acts" else option.reason
    since = {"newer": " (newer)", "released": " (dropped)"}.get(option.source, "")
    kind = "list of an enum" if option.choices and option.is_list else "enum" if option.choices else option.type
    default = f"`{option.default.replace(',', ', ')}`" if option.default else ""
    return f"| `{option.name}`{since} | {kind} | {default} | {text.replace('|', '&#124;')} |"


def main(arguments: list[str]) -> int:
    """Write or check the page; return the exit code."""
    text = page()
    if "--check" not in arguments:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
