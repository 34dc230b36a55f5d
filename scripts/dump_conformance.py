"""Compare the names of the files that --xla_dump_to writes with those of real XLA:GPU.

    python3 scripts/venv.py python scripts/dump_conformance.py FILE_OR_FOLDER... [--verbose]

It compiles every module twice with both: with XLA's default flags for dumps, and with --xla_dump_hlo_pass_re=.* and
--xla_dump_emitter_re=.*. It prints how many modules have equal names. XLA compiles kernels in threads, so that the numbers of
LLVM IR and PTX files depend on the time; only how many there are is compared. Needs `hlo-run[xla-gpu]`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

from hlo_run.cli import run
from hlo_run.codegen.llvm.toolkit import PTXAS, find_in_toolkit
from hlo_run.errors import HloRunError
from hlo_run.formats.xla_gpu import EMITTERS_ONLY, write_dumps
from hlo_run.target import DEFAULT_TARGET, preset, to_text_proto

_MODES = {"default": (), "passes": ("--xla_dump_hlo_pass_re=.*", "--xla_dump_emitter_re=.*")}
_NUMBERED = re.compile(r"\.\d+\.(ir-no-opt\.ll|ir-with-opt\.ll|ptx)$")
_PASS_NUMBER = re.compile(r"\.\d{4}\.(?=.*after_)")


def names_of(folder: Path) -> Counter[str]:
    """Return the names in a folder of dumps, without the numbers of kernels, and how often each occurs."""
    return Counter(_NUMBERED.sub(r".N.\1", path.name) for path in folder.iterdir())


def compare(file: Path, flags: tuple[str, ...]) -> tuple[list[str], list[str]] | str:
    """Return the names that we lack and those that only we write, or why XLA refuses the module."""
    tool = find_in_toolkit(PTXAS, "")
    cuda = tool.parent.parent if tool is not None else None
    with tempfile.TemporaryDirectory() as folder:
        theirs, ours = Path(folder, "xla"), Path(folder, "ours")
        try:
            write_dumps(
                file.read_text(), str(file), to_text_proto(preset(DEFAULT_TARGET)), [*EMITTERS_ONLY, *flags], cuda, theirs
            )
        except HloRunError as error:
            return error.message
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            code = run([str(file), f"--xla_dump_to={ours}", f"--output={folder}/m.hlox", *flags])
        if code:
            return f"hlo-run ends with exit code {code}"
        expected, found = names_of(theirs), names_of(ours)
        return sorted((expected - found).elements()), sorted((found - expected).elements())


def _plain(name: str) -> str:
    """Return a name without the module and without the number of a pass."""
    return re.sub(r"^module_\d+\.[^.]*", "", _PASS_NUMBER.sub(".", name))


def main() -> int:
    """Compare all modules and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--verbose", action="store_true", help="print the names that differ, per module")
    arguments = parser.parse_args()
    files = [file for path in arguments.paths for file in (sorted(path.glob("*.hlo")) if path.is_dir() else [path])]
    for mode, flags in _MODES.items():
        equal, refused, lacking, extra = 0, 0, Counter[str](), Counter[str]()
        for file in files:
            found = compare(file, flags)
            if isinstance(found, str):
                refused += 1
                print(f"{mode} {file.name}: {found.splitlines()[0]}", file=sys.stderr)
                continue
            equal += not any(found)
            less, more = (Counter(map(_plain, names)) for names in found)
            for names, counts, sign in ((less - more, lacking, "-"), (more - less, extra, "+")):
                counts.update(names)
                if arguments.verbose and names:
                    print(f"{mode} {file.name}: {sign} {' '.join(names)}")
        print(f"{mode}: {equal} of {len(files) - refused} modules have XLA's names ({refused} refused)")
        for sign, counts in (("-", lacking), ("+", extra)):
            for name, count in counts.most_common(8):
                print(f"  {sign} {count:4} {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
