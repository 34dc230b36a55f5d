"""Asks ptxas about the kernels that tests compile: about each text once, and about many in one process.

Most of the time of a check is the start of ptxas. So a test goes on as if ptxas accepted its kernels, and the session asks later.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import pytest

from hlo_run.codegen.llvm.ptxas import assemble, find_ptxas
from hlo_run.errors import InternalError
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.ptxas_check import LONG_PTX, check_with_ptxas

_MANY = 64
_HEADER = re.compile(r"\s*\.version [^\n]*\n\.target [^\n]*\n\.address_size 64\n")
_FILE_NUMBER = re.compile(r"^(\s*\.(?:loc|file)\s+)(\d+)", re.MULTILINE)
_LINES_SECTION = re.compile(r"^\s*\.section\s+\.debug_macinfo\s+\{\s*\}\n", re.MULTILINE)
# Names that the whole module sees: of functions and variables. Only these lines begin at the left.
_DECLARED = re.compile(
    r"^(?:\.(?:visible|weak)\s+)?\.(?:entry|func)\s+(?:\([^\n]*?\)\s+)?([\w$]+)"
    r"|^(?!\.extern)\.[^\n;={(]*?([\w$]+)(?:\[[^\n]*|\s*=[^\n]*|;)",
    re.MULTILINE,
)


class PtxChecks:
    """The checks that `check` postponed in this process. `run` makes them, at the latest at the end of the session.

    Forks check at once. The folder `accepted` has a file for each text that ptxas has accepted in one of them: the trials of a
    search compile the same kernels again and again.
    """

    def __init__(self, accepted: Path) -> None:
        self.test = ""
        self._accepted = accepted
        self._process = os.getpid()
        self._known: set[str] = set()
        self._waiting: list[tuple[str, str, str]] = []

    @property
    def are_many(self) -> bool:
        return len(self._waiting) >= _MANY

    def check(self, ctx: PassContext, kernel: str, ptx: str, user_file: str = "") -> None:
        """Stand in for `check_with_ptxas`: ask now in a fork, and where the answer, flags or another ptxas matter; else later.

        A fork skips what its parent will ask about.
        """
        options = ctx.options
        is_plain = (
            not (user_file or ctx.observers or options.xla_gpu_cuda_data_dir or options.ptxas_flags or options.ptxas_opt_level)
            and not options.xla_gpu_fail_ptx_compilation_on_register_spilling
        )
        if not is_plain or len(ptx) > LONG_PTX:
            check_with_ptxas(ctx, kernel, ptx, user_file)
        elif ctx.assembles and (digest := hashlib.sha256(ptx.encode()).hexdigest()) not in self._known:
            self._known.add(digest)
            if os.getpid() == self._process:
                self._waiting.append((self.test, kernel, ptx))
            elif not (self._accepted / digest).exists():
                check_with_ptxas(ctx, kernel, ptx)
                (self._accepted / digest).touch()

    def run(self) -> None:
        """Ask ptxas about all waiting kernels, and fail with the tests whose kernels it rejects."""
        waiting, self._waiting = self._waiting, []
        if os.getpid() != self._process or find_ptxas() is None:
            return
        groups: dict[str, list[tuple[str, str, str]]] = {}
        for one in waiting:
            header = _HEADER.search(one[2])
            groups.setdefault(header[0].strip() if header else "", []).append(one)
        rejected: list[str] = []
        for header, group in groups.items():
            try:
                assemble(joined(header, [ptx for _, _, ptx in group]))
            except InternalError:
                rejected += _rejected(group)
        if rejected:
            pytest.fail("\n".join(["ptxas rejects kernels of these tests:", *rejected]), pytrace=False)


def joined(header: str, texts: list[str]) -> str:
    """Return one PTX module of several with the same header: names that the module declares and numbers of files differ."""
    parts: list[str] = []
    files = 0
    for number, text in enumerate(texts):
        body = _LINES_SECTION.sub("", _HEADER.sub("", text, count=1))
        names = {found[1] or found[2] for found in _DECLARED.finditer(body)}
        if names:
            body = re.sub(rf"(?<![\w$.%])(?:{'|'.join(map(re.escape, names))})(?![\w$])", rf"\g<0>_of_{number}", body)
        offset, numbers = files, [int(found[2]) for found in _FILE_NUMBER.finditer(body)]
        body = _FILE_NUMBER.sub(lambda found, offset=offset: f"{found[1]}{int(found[2]) + offset}", body)
        files += max(numbers, default=0)
        parts.append(body)
    lines = "\t.section\t.debug_macinfo\t{\t}\n" if files else ""
    return f"{header}\n{''.join(parts)}{lines}"


def _rejected(group: list[tuple[str, str, str]]) -> list[str]:
    """Return a line for each kernel that ptxas rejects on its own."""
    lines: list[str] = []
    for test, kernel, ptx in group:
        try:
            assemble(ptx)
        except InternalError as error:
            lines.append(f"{test}: kernel '{kernel}': {error.message} {' '.join(error.notes)}")
    return lines
