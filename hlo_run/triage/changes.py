"""The changes of the first rewrite that fails: dumps of two runs, and the instructions or operations that differ."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from pathlib import Path

from hlo_run.triage.predicates import RunPredicate, own_file
from hlo_run.triage.trials import Ended

_KERNEL = re.compile(r"^// row: .*?; kernel: (\w+);")
_NUMBER = re.compile(r"\.\d{4,}\.")
_DUMP_NUMBER = re.compile(r"\.\d+\.after_")
_VALUE = re.compile(r"%\w+")
_SHOWN_LINES, _WIDTH = 8, 160


def changed_lines(ends: Sequence[Ended | None], is_kernel: bool) -> tuple[str, ...]:
    """Return the lines that the first row with another result removes (-) and adds (+), after the kernel's name.

    `ends` are those of two forks that returned `dumps`.
    """
    one, two = map(_texts, ends)
    changed = _changed_operations if is_kernel else _changed_instructions
    for old, new in _kernel_pairs(one, two) if is_kernel else _module_pairs(one, two):
        lines = changed(old, new)
        if lines:
            more = [f"and {len(lines) - _SHOWN_LINES} more lines"] if len(lines) > _SHOWN_LINES else []
            kernel = [f"kernel '{found[1]}'"] if (found := _KERNEL.search(new)) is not None else []
            return (*kernel, *(line[:_WIDTH] for line in lines[:_SHOWN_LINES]), *more)
    return ()


def _module_pairs(one: Mapping[str, str], two: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the modules of both runs after each row, up to the first row that changes the module in one run alone.

    A row that changes nothing has no dump, and the dumps behind have other numbers. So there the other run has its last dump.
    """
    old = new = ""
    names, others = sorted(one), sorted(two)
    for number, (name, other) in enumerate(zip_longest(names, others)):
        if name != other:
            follow = {_NUMBER.sub(".", each, count=1) for each in others[number:]}
            is_of_one = name is not None and _NUMBER.sub(".", name, count=1) not in follow
            if name is not None and (other is None or is_of_one):
                yield one[name], new
            elif other is not None:
                yield old, two[other]
            return
        old, new = one[name], two[name]
        yield old, new


def _kernel_pairs(one: Mapping[str, str], two: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each kernel of both runs after each row. A row that changes nothing has no dump: then the dump before it."""
    for name in sorted(set(one) | set(two)):
        yield _kernel_dump(one, name), _kernel_dump(two, name)


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
    # Not the protos in text form, such as the steps of a fusion pass, which hold the module before it.
    return found if is_kernel else {name: text for name, text in found.items() if text.startswith("HloModule")}
