"""Compare the verifier with real XLA's, on random modules about every opcode and on whole folders.

    python3 scripts/venv.py python scripts/verify_conformance.py [--xla PYTHON] [--count N] [--seed N] [--verbose] [NAME...]
    python3 scripts/venv.py python scripts/verify_conformance.py --folders FOLDER...
    python3 scripts/venv.py python scripts/verify_conformance.py --record N

It takes the seeds of tests/data/verify, makes N random changes of each (`tests/verify_cases.py`), and asks both verifiers whether
they accept the results. It prints the table of docs/conformance.md, then every disagreement. With
`--folders` it counts the modules that verify, by the strictest way that fits each. `--record` writes cases with XLA's verdicts
into tests/data/verify, for tests without XLA. `--xla` names a Python with jaxlib and the XLA:GPU plugin. The exit code is 1 if
the two disagree.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import verify_cases
from xla_verifier import XlaVerifier

from hlo_run.errors import HloRunError
from hlo_run.hlo.text.parser import parse_module
from hlo_run.ops.verify import COMPILING, LAID_OUT, READING, Strictness, verify

_RECORDED = verify_cases.FOLDER / "verdicts.json"


def our_verdict(text: str) -> str:
    """Return our verifier's message; empty if it accepts the module."""
    try:
        verify(parse_module(text), COMPILING)
    except HloRunError as error:
        return error.message
    return ""


def compare(names: list[str], count: int, seed: int, xla: XlaVerifier, verbose: bool) -> int:
    """Print the table and the disagreements. Return the number of disagreements."""
    rows: Counter[tuple[str, bool, bool]] = Counter()
    different: list[str] = []
    seeds = {name: texts for name, texts in verify_cases.seeds().items() if not names or name in names}
    for name, texts in seeds.items():
        for number in range(-len(texts), count):
            text = verify_cases.case(name, texts, number, seed)
            accepted, said = xla.verify(text)
            ours = our_verdict(text)
            rows[name, accepted, not ours] += 1
            if accepted == bool(ours):
                part = f"\n{verify_cases.changed_part(text)}" if verbose else ""
                different.append(f"- {name} {number}: XLA: {_first_line(said) or 'accepts'}; we: {ours or 'accept'}{part}")
        shown = _row(f"`{name}`", rows, name)
        print(shown if name != next(iter(seeds)) else f"{_HEADER}\n{shown}", flush=True)
    print(_row("all", rows, *seeds))
    print("\n".join([f"\n{len(different)} disagreements", *different]))
    return len(different)


_HEADER = "| about | both accept | both refuse | only XLA accepts | only hlo-run accepts |\n| --- | --- | --- | --- | --- |"


def _row(title: str, rows: Counter[tuple[str, bool, bool]], *names: str) -> str:
    kinds = ((True, True), (False, False), (True, False), (False, True))
    return f"| {title} | " + " | ".join(str(sum(rows[name, *kind] for name in names)) for kind in kinds) + " |"


def _first_line(said: str) -> str:
    return said.strip().partition("\n")[0][:200]


def count_folders(folders: list[Path]) -> int:
    """Print how many modules of each folder verify, by the strictest way. Return the number of those that do not."""
    ways = {"layouts held": LAID_OUT, "as compiled": COMPILING, "as read": READING}
    print("| folder | modules | " + " | ".join(ways) + " | refused |\n| --- |" + " --- |" * (len(ways) + 2))
    refused: list[str] = []
    less: list[str] = []
    for folder in folders:
        found: Counter[str] = Counter()
        files = sorted(folder.glob("*.hlo"))
        for file in files:
            way, why = _strictest(file, ways)
            found[way] += 1
            if why:
                (refused if way == "refused" else less).append(f"- {folder.name}/{file.name} ({way}): {why}")
        print(f"| {folder.name} | {len(files)} | " + " | ".join(str(found[way]) for way in (*ways, "refused")) + " |", flush=True)
    print("\n".join(["", *refused, *less]))
    return len(refused)


def _strictest(file: Path, ways: dict[str, Strictness]) -> tuple[str, str]:
    why = ""
    for way, strictness in ways.items():
        try:
            verify(parse_module(file.read_text(encoding="utf-8"), file.name), strictness)
        except HloRunError as error:
            why = error.message
        else:
            return way, why
    return "refused", why


def record(count: int, xla: XlaVerifier) -> None:
    """Write `count` cases for each seed's name with XLA's verdicts. A case is the text between BEGIN and END."""
    rows: list[tuple[str, int, bool]] = []
    for name, texts in verify_cases.seeds().items():
        for number in range(-len(texts), count):
            rows.append((name, number, xla.verify(verify_cases.case(name, texts, number, 0))[0]))
    lines = ",\n".join(json.dumps(row) for row in rows)
    _RECORDED.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(f"{len(rows)} cases, {sum(accepted for _, _, accepted in rows)} of them accepted")


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="opcodes, or names of tests/data/verify/modules.hlo")
    parser.add_argument("--xla", default=sys.executable, metavar="PYTHON", help="a Python with jaxlib and the XLA:GPU plugin")
    parser.add_argument("--count", type=int, default=50, help="random changes for each name")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="show the modules on which the two disagree")
    parser.add_argument("--folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--record", type=int, metavar="N")
    arguments = parser.parse_args()
    if arguments.folders:
        return int(bool(count_folders(arguments.folders)))
    with XlaVerifier(arguments.xla) as xla:
        if arguments.record:
            record(arguments.record, xla)
            return 0
        return int(bool(compare(arguments.names, arguments.count, arguments.seed, xla, arguments.verbose)))


if __name__ == "__main__":
    raise SystemExit(main())
