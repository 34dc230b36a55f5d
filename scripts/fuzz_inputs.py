"""Call the command on mutated inputs of every format, and print exit codes and failures.

    python3 scripts/venv.py python scripts/fuzz_inputs.py [--format FORMATS] [--count N] [--seed N] [--jobs N] [--keep FOLDER]
                                                          [--reduce SECONDS] [--index N] [--seeds FOLDER..]

FORMATS is a comma-separated list; the default is all of them. A failure is exit code 70 or one that the README does not list, an
exception that leaves the command, a signal, or more than 10 seconds of processor time. The smallest input of each signature is
written to `--keep`, with its command line, after it is reduced for some seconds. `--index` tries one input and prints its
command line. `--seeds` adds the `.hlo` files below folders to the seeds. The exit code is 1 if any input failed.

`tests/input_hunt.py` has the machinery, `tests/input_formats.py` the formats. docs/reliability.md has results.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from input_formats import FORMATS, MODULES, XLA_FORMATS, Case, Corpus, make_case, make_corpus
from input_hunt import Failure, Tally, hunt, outcomes


def reduced(case: Case, signature: str, seconds: float) -> Case:
    """Return a case with a smaller file that fails in the same way. Removes ever shorter runs of lines, then of bytes."""
    if not case.subject:
        return case
    ends = time.monotonic() + seconds

    def with_data(data: bytes) -> Case:
        return replace(case, files={**case.files, case.subject: data})

    def fails(data: bytes) -> bool:
        return any(outcome.failure == signature for _, outcome in outcomes([0], lambda _: with_data(data)))

    lines = case.files[case.subject].splitlines(keepends=True)
    fewer_lines = _shorter(lines, fails, ends)
    return with_data(_shorter([bytes([byte]) for byte in fewer_lines], fails, ends))


def _shorter(parts: Sequence[bytes], fails: Callable[[bytes], bool], ends: float) -> bytes:
    size = len(parts) // 2
    while size and time.monotonic() < ends:
        place = 0
        while place < len(parts) and time.monotonic() < ends:
            without = [*parts[:place], *parts[place + size :]]
            if fails(b"".join(without)):
                parts = without
            else:
                place += size
        size //= 2
    return b"".join(parts)


def command_of(case: Case) -> str:
    """Return the shell's command line of a case, to call in the folder of its files."""
    environment = [f"{name}={shlex.quote(value)}" for name, value in case.environment.items()]
    arguments = (shlex.quote(argument) for argument in case.arguments)
    return " ".join([*environment, case.program, *arguments]) + (" < stdin" if case.stdin else "")


def write_case(folder: Path, case: Case, note: str) -> None:
    """Write the files of a case and its command line."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in case.files.items():
        (folder / name).write_bytes(content)
    if case.stdin:
        (folder / "stdin").write_bytes(case.stdin)
    (folder / "command.txt").write_bytes(f"{note}\n{command_of(case)}\n".encode(errors="surrogateescape"))


def keep(folder: Path, name: str, signature: str, failure: Failure, seconds: float) -> None:
    """Write the smallest input of a failure below `folder`."""
    case = reduced(failure.case, signature, seconds) if seconds else failure.case
    stem = re.sub(r"[^A-Za-z0-9]+", "_", signature).strip("_")[:80]
    write_case(folder / f"{name}_{stem}", case, f"{signature} (index {failure.index})")


def line(name: str, tally: Tally) -> str:
    """Return the row of a format in the table."""
    codes = ", ".join(f"{code}: {count}" for code, count in sorted(tally.codes.items()))
    failed = sum(failure.count for failure in tally.failures.values())
    slow, index = tally.slowest
    return f"{name:14} {tally.tried:7} {failed:6}   {tally.seconds / max(1, tally.tried):6.3f} {slow:6.1f} ({index})   {codes}"


def _one(name: str, seed: int, index: int, corpus: Corpus, folder: Path | None) -> int:
    case = make_case(name, seed, index, corpus)
    failed = False
    for _, outcome in outcomes([index], lambda _: case):
        failed = bool(outcome.failure)
        print(f"{command_of(case)}\nexit code {outcome.code}, {outcome.seconds:.2f} s {outcome.failure}")
    if folder is not None:
        write_case(folder, case, f"{name}, seed {seed}, index {index}")
    return int(failed)


def main() -> int:
    """Try the inputs, print the table and the failures, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--format", default=",".join(FORMATS), metavar="FORMATS")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    parser.add_argument("--reduce", type=float, default=5.0, metavar="SECONDS")
    parser.add_argument("--index", type=int)
    parser.add_argument("--seeds", type=Path, nargs="*", default=[], metavar="FOLDER")
    arguments = parser.parse_args()
    names = arguments.format.split(",")
    with tempfile.TemporaryDirectory() as folder:
        corpus = make_corpus(Path(folder), MODULES, arguments.seeds)
    if arguments.index is not None:
        return _one(names[0], arguments.seed, arguments.index, corpus, arguments.keep)
    failed = False
    print(f"{'format':14} {'inputs':>7} {'failed':>6}   s each  longest (index)   exit codes", flush=True)
    for name in names:
        if name in XLA_FORMATS and not corpus.of(name):
            print(f"{name:14} needs jaxlib and protobuf")
            continue
        tally = hunt(name, arguments.count, arguments.seed, corpus, arguments.jobs)
        print(line(name, tally), flush=True)
        for signature, failure in sorted(tally.failures.items(), key=lambda item: -item[1].count):
            print(f"    {failure.count:5} {signature} (index {failure.index})", flush=True)
            if arguments.keep is not None:
                keep(arguments.keep, name, signature, failure, arguments.reduce)
        failed = failed or bool(tally.failures)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
