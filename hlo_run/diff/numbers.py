"""The figures of a compilation: kernels, bytes, memory, registers, SASS instructions; and their comparison within tolerances."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

from hlo_run.analysis.cost.device_work import device_work
from hlo_run.analysis.cost.side_by_side import make_side
from hlo_run.artifact import Executable, every_thunk
from hlo_run.codegen.llvm.ptxas import assemble, find_ptxas
from hlo_run.errors import UsageError
from hlo_run.hlo.graph import HloModule
from hlo_run.options.flag import names

# What a tolerance may be for. `bytes` is for the bytes read and the bytes written.
_OF_MODULES = ("kernels", "copies", "library-calls", "fusions", "bytes-read", "bytes-written", "memory")
_OF_KERNELS = ("registers", "shared", "spills", "stack", "sass")
_GROUPS = {"bytes": ("bytes-read", "bytes-written")}
_TOLERANCE = re.compile(r"([a-z-]+)=(\d+(?:\.\d+)?)(%?)")
_LINE = re.compile(r"(.*\S)\s+(\d+)")


class Tolerance(Struct, frozen=True):
    """The largest accepted change of a figure: a number, or a percentage of the first value."""

    amount: float = 0.0
    is_percentage: bool = False

    def accepts(self, before: int, after: int) -> bool:
        """True if the change is within the tolerance."""
        return abs(after - before) <= (self.amount * before / 100 if self.is_percentage else self.amount)

    def __str__(self) -> str:
        return f"{self.amount:g}{'%' if self.is_percentage else ''}"


class Figure(Struct, frozen=True):
    """A figure that changed. None: one side lacks it. `accepted`: the change is within the tolerance."""

    name: str
    before: int | None
    after: int | None
    tolerance: Tolerance
    accepted: bool


def read_tolerances(text: str) -> dict[str, Tolerance]:
    """Read `bytes=1%,registers=2` into a tolerance per kind of figure; raises UsageError."""
    found: dict[str, Tolerance] = {}
    for part in names(text):
        match = _TOLERANCE.fullmatch(part)
        kinds = _GROUPS.get(match[1], (match[1],)) if match else ()
        if match is None or not set(kinds) <= {*_OF_MODULES, *_OF_KERNELS}:
            known = ", ".join((*_OF_MODULES, *_GROUPS, *_OF_KERNELS))
            raise UsageError(f"'{part}' is not a tolerance", hint=f"write NAME=2 or NAME=1%; the names are {known}")
        found |= dict.fromkeys(kinds, Tolerance(float(match[2]), bool(match[3])))
    return found


def module_figures(executable: Executable, module: HloModule) -> dict[str, int]:
    """Return the figures of an executable and its optimised module. Bytes come from XLA's cost analysis."""
    memory = sum(allocation.size_bytes for allocation in executable.allocations)
    side = make_side([thunk.kind for thunk in every_thunk(executable.thunks)], memory, ())
    counts = {"kernels": side.kernels, "copies": side.copies, "library-calls": side.library_calls}
    return {**counts, **work_figures(module), "memory": memory}


def work_figures(module: HloModule) -> dict[str, int]:
    """Return the figures that an optimised module alone tells."""
    work = device_work(module)
    return {
        "fusions": sum(one.kind.startswith("k") for one in work),
        "bytes-read": sum(one.bytes_accessed - one.bytes_written for one in work),
        "bytes-written": sum(one.bytes_written for one in work),
    }


def kernel_figures(ptx: Iterable[str], cuda_data_dir: str = "") -> dict[str, int] | None:
    """Return what ptxas says about kernels; None without ptxas. Raises InternalError if it rejects a kernel."""
    if find_ptxas(cuda_data_dir) is None:
        return None
    figures: dict[str, int] = {}
    for text in ptx:
        for report in assemble(text, cuda_data_dir=cuda_data_dir):
            spills = report.spill_store_bytes + report.spill_load_bytes
            values = (report.registers, report.shared_bytes, spills, report.stack_bytes, report.sass_instructions)
            figures |= {f"{report.kernel} {kind}": value for kind, value in zip(_OF_KERNELS, values, strict=True)}
    return figures


def figures_text(figures: Mapping[str, int]) -> str:
    """Return a line per figure: its name and its value."""
    width = max(map(len, figures), default=0)
    return "".join(f"{name:{width}} {value}\n" for name, value in figures.items())


def read_figures(text: str) -> dict[str, int]:
    """Read the text of `figures_text`. Other lines are ignored."""
    return {found[1]: int(found[2]) for line in text.splitlines() if (found := _LINE.fullmatch(line))}


def with_kernels_of(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return figures of kernels under the names in `after`, for kernels that have other names, in order, if the counts agree."""
    kernels, others = ([*dict.fromkeys(name.rpartition(" ")[0] for name in side)] for side in (before, after))
    gone, come = [k for k in kernels if k not in set(others)], [k for k in others if k not in set(kernels)]
    names = dict(zip(gone, come, strict=True)) if len(gone) == len(come) else {}
    parted = ((name.rpartition(" "), value) for name, value in before.items())
    return {f"{names.get(kernel, kernel)} {kind}": value for (kernel, _, kind), value in parted}


def diff_figures(before: Mapping[str, int], after: Mapping[str, int], tolerances: Mapping[str, Tolerance]) -> list[Figure]:
    """Return the figures that differ, in the order of both sides."""
    changed: list[Figure] = []
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        tolerance = tolerances.get(name.rpartition(" ")[2], Tolerance())
        if old != new:
            is_accepted = old is not None and new is not None and tolerance.accepts(old, new)
            changed.append(Figure(name, old, new, tolerance, is_accepted))
    return changed
