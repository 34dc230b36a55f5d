"""Compare the kernel IR of this project with real XLA's, row by row.

    python3 scripts/venv.py python scripts/kernel_ir_goldens.py DUMPS [--every K] [--verbose]

DUMPS is a folder with XLA's dumps of modules (`compile_gpu.py --dump`). XLA's optimised module runs through our kernel rows with
`--print_ir_as_xla`. For each kernel with a log `*.mlir-passes.log`, the texts after our rows are compared with those before XLA's
passes. A text is equal as it is, or equal once values are renumbered, and attributes of ranges and the name of the module, which
is that of a fusion, are left out.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from itertools import zip_longest
from pathlib import Path

# Our row, and XLA's first pass after it.
ROWS = {
    "as emitted": ("simplify-arith", "xla-simplify-arith"),
    "as emitted, simplified": ("lower-xla-to-scf", "xla-gpu-lower-xla-shared"),
    "functions inlined": ("peel-loops", "xla-gpu-peel-loops"),
    "loops lowered": ("propagate-slice-indices", "xla-propagate-slice-indices"),
    "tensors flattened": ("loop-invariant-code-motion", "loop-invariant-code-motion"),
    "vectorised": ("optimize-loops", "xla-gpu-optimize-loops"),
    "loops unrolled": ("convert-pure-call-ops", "xla-convert-pure-call-ops"),
    "on pointers": ("lower-pdl-wait", "xla-lower-pdl-wait"),
    "before the LLVM dialect": ("lower-to-llvm-gpu", "xla-lower-to-llvm-gpu"),
}
_HEADER = re.compile(r"^// -----// IR Dump Before (?P<title>[\w-]+)(?:: (?P<name>[\w-]+))?[^\n]*//----- //\n", re.MULTILINE)
_NAME = re.compile(r"[%#][A-Za-z_0-9]+")
_MODULE = re.compile(r"^module @\S+")
_RANGE = re.compile(r" \{xla\.range = \[[^\]]*\]\}")


def sections(log: str) -> dict[str, str]:
    """Return the first text before each pass of a log; of ours, before each row."""
    headers = [*_HEADER.finditer(log)]
    found: dict[str, str] = {}
    for header, following in zip_longest(headers, headers[1:]):
        end = following.start() if following else len(log)
        found.setdefault(header["name"] or header["title"], log[header.end() : end].strip())
    return found


def canonical(text: str) -> list[str]:
    """Return the lines without names of values, maps and the module, and without ranges; maps stand where they are used."""
    aliases = {name: _plain_map(text) for name, text in re.findall(r"^(#\w+) = (.*)$", text, re.MULTILINE)}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("#") or not line.strip():
            continue
        number: dict[str, str] = {}
        plain = _MODULE.sub("module", _RANGE.sub("", line))
        lines.append(_NAME.sub(lambda match: aliases.get(match[0]) or number.setdefault(match[0], f"%{len(number)}"), plain))  # noqa: B023
    return lines


def _plain_map(text: str) -> str:
    """Return the text of a map whose variables are named by position."""
    head = text.partition("->")[0].partition("<")[2]
    order = {name: f"v{position}" for position, name in enumerate(re.findall(r"\w+", head))}
    return re.sub(r"\w+", lambda match: order.get(match[0], match[0]), text)


def main() -> int:
    """Run the command line; the exit code is 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dumps", type=Path)
    parser.add_argument("--every", type=int, default=1, metavar="K", help="take every K-th log")
    parser.add_argument("--verbose", action="store_true", help="print the first line that differs, for each kernel")
    args = parser.parse_args()
    kernels, equal, similar = 0, Counter[str](), Counter[str]()
    for log in sorted(args.dumps.glob("*/*.mlir-passes.log"))[:: args.every]:
        ours = _ours(log)
        if ours is None:
            print(f"{log.parent.name}/{log.name}: no kernel of this name", flush=True)
            continue
        kernels += 1
        theirs, mine = sections(log.read_text(encoding="utf-8")), sections(ours)
        told = False
        for title, (row, name) in ROWS.items():
            wanted, found = theirs.get(name, ""), mine.get(row, "")
            equal[title] += wanted == found
            alike = canonical(wanted) == canonical(found)
            similar[title] += alike
            if args.verbose and not alike and not told:
                told = True
                pairs = zip_longest(canonical(wanted), canonical(found), fillvalue="")
                line = next((pair for pair in pairs if pair[0] != pair[1]), ("", ""))
                print(f"{log.parent.name}/{log.name} {title}\n  XLA  {line[0][:220]}\n  ours {line[1][:220]}", flush=True)
    print(f"| of {kernels} kernels | byte-equal | equal but for names and ranges |\n| --- | ---: | ---: |")
    for title in ROWS:
        print(f"| {title} | {equal[title]} | {similar[title]} |")
    return 0


def _ours(log: Path) -> str | None:
    module = next(iter(sorted(log.parent.glob("*gpu_after_optimizations.txt"))), None)
    if module is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        flags = [
            "--platform=CUDA",
            "--print_ir_as_xla",
            "--xla_disable_all_hlo_passes",
            "--xla_dump_emitter_re=.*",
            "--cache=off",
        ]
        command = [str(Path(sys.prefix) / "bin" / "hlo-run"), *flags, f"--xla_dump_to={folder}", str(module)]
        subprocess.run(command, check=False, capture_output=True)
        ending = "." + log.name.split(".", 2)[-1]
        found = next((file for file in Path(folder).iterdir() if file.name.endswith(ending)), None)
        return None if found is None else found.read_text(encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
