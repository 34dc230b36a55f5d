"""Record the passes of real XLA:GPU in the order in which they run, for the test of the pass table.

    python3 scripts/venv.py python scripts/record_xla_pipelines.py FOLDER.. > tests/data/xla_pipelines.txt

FOLDER is where XLA:GPU dumped any module (`compile_gpu.py FILE --emitters-only --dump FOLDER
--flag=--xla_dump_module_metadata=true`). One line `pipeline<TAB>pass` per pass; a nested pipeline appears where it runs.
The file comes from three modules: one of a single partition, one that Shardy divides in two (`--partitions 2 --shardy`), one
that GSPMD divides in two. What only a later module runs comes before what it runs it in place of. So the module is small:
each pipeline that repeats must run once.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import reduce
from pathlib import Path


def main() -> None:
    print(*reduce(merge_lines, (_recorded(Path(folder)) for folder in sys.argv[1:])), sep="\n")


def merge_lines(first: Sequence[str], later: Sequence[str]) -> list[str]:
    """Return the lines of both in their order. Where the two differ, the lines of `later` come before those of `first`."""
    lines: list[str] = []
    for kind, start, end, later_start, later_end in SequenceMatcher(None, first, later, autojunk=False).get_opcodes():
        if kind != "equal":
            lines += later[later_start:later_end]
        lines += first[start:end]
    return lines


def _recorded(folder: Path) -> list[str]:
    (file,) = folder.rglob("*.metadata.textproto")
    lines: list[str] = []
    for block in file.read_text(encoding="utf-8").split("pass_metadata {")[1:]:
        fields = dict(re.findall(r'(pass_name|pipeline_name): "([^"]*)"', block))
        if fields["pass_name"] != "pipeline-start":
            lines.append(f"{fields.get('pipeline_name', '')}\t{fields['pass_name']}")
    return lines


if __name__ == "__main__":
    main()
