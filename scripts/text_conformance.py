"""Count the modules of folders that are parsed, verified and printed as by real XLA.

    python3 scripts/venv.py python scripts/text_conformance.py FOLDER... [--xla PYTHON] [--verbose]

It prints one row per folder in the form of the table in docs/conformance.md, then every exception. A module counts as
printed identically if `HloModule.to_string()` equals jaxlib's text byte for byte. It counts as read back if its text with all
constants in full gives an equal module again. `--xla` names a Python that has jaxlib; the default is the running one. The exit
code is 1 if there is an exception.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from dataclasses import dataclass, field
from pathlib import Path

from xla_text import XlaText

from hlo_run.errors import HloRunError
from hlo_run.hlo.fingerprint import module_fingerprint
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.print_options import FULL
from hlo_run.hlo.text.parser import parse_module
from hlo_run.ops.infer import infer_module
from hlo_run.ops.verify import verify
from hlo_run.records import replace

_COLUMNS = ("modules", "parsed", "verified", "printed identically", "read back")


@dataclass
class Count:
    """The counts of one folder, and a line for each module that does not count everywhere."""

    name: str
    numbers: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COLUMNS, 0))
    exceptions: list[str] = field(default_factory=list[str])

    def row(self) -> str:
        """Return the folder's row of the table."""
        return f"| {self.name} | " + " | ".join(str(self.numbers[column]) for column in _COLUMNS) + " |"


def count_folder(folder: Path, xla: XlaText, verbose: bool) -> Count:
    """Read every `.hlo` file of a folder."""
    count = Count(folder.name)
    for file in sorted(folder.glob("*.hlo")):
        count.numbers["modules"] += 1
        found = _count_file(file, count, xla, verbose)
        if found:
            count.exceptions.append(f"{folder.name}/{file.name}: {found}")
    return count


def _count_file(file: Path, count: Count, xla: XlaText, verbose: bool) -> str:
    """Add one module to the counts. Return its problems."""
    text = file.read_text(encoding="utf-8")
    status, expected = xla.print(text)
    try:
        module = parse_module(text, file.name)
        count.numbers["parsed"] += 1
        verify(module)
    except HloRunError as error:
        return error.message if status == "ok" else ""
    except Exception as error:
        # No other exception should get here, but the other modules must still be counted.
        return f"{type(error).__name__}: {error}"
    count.numbers["verified"] += 1
    if status != "ok":
        return f"XLA does not read it: {expected.splitlines()[-1]}"
    printed = module.to_string()
    problems: list[str] = []
    if printed == expected:
        count.numbers["printed identically"] += 1
    else:
        problems.append("printed otherwise" + (_difference(expected, printed) if verbose else ""))
    if _reads_back(module):
        count.numbers["read back"] += 1
    else:
        problems.append("does not read back")
    return "; ".join(problems)


def _difference(expected: str, printed: str) -> str:
    lines = difflib.unified_diff(expected.splitlines(), printed.splitlines(), "xla", "hlo-run", n=0, lineterm="")
    return "\n" + "\n".join(lines)


def _reads_back(module: HloModule) -> bool:
    """True if the full text gives an equal module. Stack frames do not count: readers number them by first use, as XLA does."""
    options = replace(FULL, metadata=False)
    again = parse_module(module.to_string(FULL))
    infer_module(again)
    return again.to_string(options) == module.to_string(options) and module_fingerprint(again) == module_fingerprint(module)


def main() -> int:
    """Print the table and the exceptions. Return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--xla", default=sys.executable, metavar="PYTHON", help="a Python that has jaxlib")
    parser.add_argument("--verbose", action="store_true", help="show how texts differ")
    arguments = parser.parse_args()
    print("| folder | " + " | ".join(_COLUMNS) + " |")
    print("| --- |" + " --- |" * len(_COLUMNS))
    exceptions: list[str] = []
    with XlaText(arguments.xla) as xla:
        for folder in arguments.folders:
            count = count_folder(folder, xla, arguments.verbose)
            print(count.row(), flush=True)
            exceptions += count.exceptions
    print(f"\n{len(exceptions)} exceptions")
    for exception in exceptions:
        print(f"- {exception}")
    return int(bool(exceptions))


if __name__ == "__main__":
    raise SystemExit(main())
