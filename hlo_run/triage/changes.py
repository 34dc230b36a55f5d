"""The changes of the first rewrite that fails: dumps of two runs, and the instructions or operations that differ."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path

from hlo_run.triage.predicates import RunPredicate, own_file
from hlo_run.triage.trials import Ended

_KERNEL = re.compile(r"^// row: .*?; kernel: (\w+);")
_DUMP_NUMBER = re.compile(r"\.\d+\.after_")
_VALUE = re.compile(r"%\w+")
_SHOWN_LINES, _WIDTH = 8, 160


def changed_lines(ends: Sequence[Ended | None], is_kernel: bool) -> tuple[str, ...]:
    """Return the lines that the first row with another result removes (-) and adds (+), after the kernel's name.

    `ends` are those of two forks that returned `dumps`.
    """
    one, two = map(_texts, ends)
    # A kernel's row that changes nothing has no dump, so the dump before it is compared.
    names = sorted(set(one) | set(two)) if is_kernel else sorted(set(one) & set(two))
    for name in names:
        old, new = (_kernel_dump(texts, name) if is_kernel else texts[name] for texts in (one, two))
        lines = (_changed_operations if is_kernel else _changed_instructions)(old, new)
        if lines:
            more = [f"and {len(lines) - _SHOWN_LINES} more lines"] if len(lines) > _SHOWN_LINES else []
            kernel = [f"kernel '{found[1]}'"] if (found := _KERNEL.search(new)) is not None else []
            return (*kernel, *(line[:_WIDTH] for line in lines[:_SHOWN_LINES]), *more)
    return ()


def _texts(end: Ended | None) -> dict[str, str]:
    """Return what `_dumps` returned in a fork; {} if it failed."""
    return dict(end.value) if end is not None and end.value is not None else {}


def _kernel_dump(texts: Mapping[str, str], name: str) -> str:
    """Return the dump of this name, or of the last earlier row of the same kernel that changed it; empty without one."""
    kernel = _DUMP_NUMBER.split(name)[0]
    return texts[max((each for each in texts if each <= name and _DUMP_NUMBER.split(each)[0] == kernel), default=name)]


def _changed_instructions(before: str, after: str) -> list[str]:
    old, new = ([line.strip() for line in text.splitlines() if " = " in line] for text in (before, after))
    gone, come = set(old) - set(new), set(new) - set(old)
    return [f"- {line}" for line in old if line in gone] + [f"+ {line}" for line in new if line in come]


def _changed_operations(before: str, after: str) -> list[str]:
    """Return the operations that differ in more than the names of their values, which a change renumbers."""
    old, new = ([line.strip() for line in text.splitlines() if not line.startswith(("//", "#"))] for text in (before, after))
    plain = [[_VALUE.sub("%", line) for line in lines] for lines in (old, new)]
    lines: list[str] = []
    for tag, begin, end, new_begin, new_end in SequenceMatcher(None, *plain, autojunk=False).get_opcodes():
        if tag != "equal":
            lines += [f"- {line}" for line in old[begin:end]] + [f"+ {line}" for line in new[new_begin:new_end]]
    # Operands that were swapped differ in nothing but names.
    return lines or _changed_instructions(before, after)


def dumps(run: RunPredicate, path: str, flags: Sequence[str], is_kernel: bool) -> dict[str, str]:
    """Run hlo-run and return the module, or each kernel, after each row that changed it, by the name of its dump. In a fork."""
    folder = Path(own_file("dumps"))
    kind = "--dump_kernel_rows" if is_kernel else "--xla_dump_hlo_pass_re=.*"
    run.ask(path, (*flags, f"--xla_dump_to={folder}", kind))
    files = folder.glob("*.mlir" if is_kernel else "*.txt")
    found = {file.name: file.read_text(encoding="utf-8", errors="replace") for file in files}
    shutil.rmtree(folder, ignore_errors=True)
    return found
