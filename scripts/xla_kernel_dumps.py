"""Continues every dump in real XLA's logs of kernel passes, and compares the run with the reference.

    python3 scripts/venv.py python scripts/xla_kernel_dumps.py DUMPS [LOGS]

DUMPS is a folder with XLA's dumps of modules, in which there are files `*.mlir-passes.log`; LOGS is the number of logs to take,
evenly over the sorted names (default: 40). A dump is read if it parses and verifies, compiled if the rows after it make PTX, and
right if the optimised module of XLA beside it, run on Host with this kernel, agrees with the reference. Equal dumps of a log run
once.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

from hlo_run.cli import run
from hlo_run.dialects.parse import parse_module
from hlo_run.errors import HloRunError
from hlo_run.pass_support.xla_kernel_dumps import optimized_module, read_xla_dump

_HEADER = re.compile(r"^(?=// -----// IR Dump Before )", re.MULTILINE)
_RUN_FLAGS = ("--platform=Host", "--cache=off")


def main() -> None:
    """Print one line per log that is not all right, and the sums."""
    logs = sorted(Path(sys.argv[1]).rglob("*.mlir-passes.log"))
    wanted = int(sys.argv[2]) if len(sys.argv) > 2 else 40
    chosen = [logs[number * len(logs) // wanted] for number in range(wanted)] if wanted < len(logs) else logs
    total: Counter[str] = Counter()
    for log in chosen:
        with tempfile.TemporaryDirectory() as folder:
            counts, problem = _judge(log, Path(folder))
        total += counts
        total["kernels"] += 1
        total["kernels all right"] += counts["right"] == counts["dumps"]
        if problem:
            print(f"{log.name}: {dict(counts)}: {problem}", flush=True)
    print(", ".join(f"{name} {count}" for name, count in total.items()))


def _judge(log: Path, folder: Path) -> tuple[Counter[str], str]:
    counts: Counter[str] = Counter()
    problem = ""
    first, module = read_xla_dump(log.read_text(), str(log)), log.name
    module = first.module
    for file in (optimized_module(str(log), module), log.parent / f"{module}.thunk_sequence.txt"):
        if file is not None:
            (folder / file.name).symlink_to(file.resolve())
    results: dict[str, tuple[str, ...]] = {}
    for number, dump in enumerate(_HEADER.split(log.read_text())[1:]):
        header, _, body = dump.partition("\n")
        if body not in results:
            cut = folder / f"{module}.{first.kernel}.{number:03}.mlir"
            cut.write_text(dump)
            results[body], failure = _results(cut, body)
            if failure and not problem:
                problem = f"{header[:80]}: {failure}"
        counts.update(("dumps", *results[body]))
    return counts, problem


def _results(cut: Path, body: str) -> tuple[tuple[str, ...], str]:
    try:
        parse_module(body, str(cut))
    except HloRunError as error:
        return (), error.message
    code, text = _called(["--stage=ptx", str(cut)])
    if code or ".entry" not in text:
        return ("read",), text[-300:]
    code, text = _called([*_RUN_FLAGS, str(cut)])
    return (("read", "compiled"), text[-300:]) if code else (("read", "compiled", "right"), "")


def _called(words: list[str]) -> tuple[int, str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = run(words)
    return code, out.getvalue()


if __name__ == "__main__":
    main()
