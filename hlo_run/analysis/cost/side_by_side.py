"""Compares the results of two compilers for a module: totals, and the pieces of work in pairs.

Kernels, copies and library calls are counted as thunks, those in bodies of loops once. Fusions are matched by what they
compute. An unmatched fusion is paired with the unmatched one of the other side that shares most ops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct

from hlo_run.analysis.cost.device_work import Work
from hlo_run.columns import aligned

_KERNELS = frozenset(("kKernel", "kCustomKernel"))
_COPIES = frozenset(("kCopy", "kMemzero", "kMemset32BitValue", "kDeviceToHostCopy", "kHostToDeviceCopy"))
_CONTROL = frozenset("kWhile kConditional kSequential kCommandBuffer kReplicaId kPartitionId kAsyncStart kAsyncDone".split())
# Pieces of work that share less than this part of their ops are not paired.
_LEAST_COMMON = 0.3
_MAX_PAIRS = 200_000


class Side(Struct, frozen=True):
    """The result of one compiler for a module."""

    kernels: int
    copies: int
    library_calls: int
    memory_bytes: int
    work: tuple[Work, ...]

    @property
    def launches(self) -> int:
        """The number of kernels and copies."""
        return self.kernels + self.copies

    @property
    def fusions(self) -> int:
        """The number of fusions."""
        return sum(work.kind.startswith("k") for work in self.work)

    @property
    def bytes_accessed(self) -> int:
        """The bytes that all work accesses."""
        return sum(work.bytes_accessed for work in self.work)


class Pair(Struct, frozen=True):
    """A piece of work of each side. `alike` if both compute the same. None: the other side has no counterpart."""

    ours: Work | None
    xla: Work | None
    alike: bool


class XlaDiff(Struct, frozen=True):
    """Both sides and their pairs of work: first the pairs that are alike, then the others, each in the order of our module."""

    module: str
    target: str
    mode: str
    ours: Side
    xla: Side
    pairs: tuple[Pair, ...]

    @property
    def different(self) -> list[Pair]:
        """The pairs that are not alike, in descending order of bytes moved."""
        rest = [pair for pair in self.pairs if not pair.alike]
        return sorted(rest, key=lambda pair: -max(work.bytes_accessed for work in (pair.ours, pair.xla) if work is not None))

    @property
    def totals(self) -> list[tuple[str, int, int]]:
        """The figures of both sides by name."""
        ours, xla = self.ours, self.xla
        return [
            ("kernels", ours.kernels, xla.kernels),
            ("copies", ours.copies, xla.copies),
            ("library calls", ours.library_calls, xla.library_calls),
            ("fusions", ours.fusions, xla.fusions),
            ("bytes accessed", ours.bytes_accessed, xla.bytes_accessed),
            ("planned memory, bytes", ours.memory_bytes, xla.memory_bytes),
        ]


def make_side(kinds: Iterable[str], memory_bytes: int, work: Sequence[Work]) -> Side:
    """Return a side from the kinds of its thunks (XLA's words), the bytes of its allocations, and its work."""
    counts = Counter(_class(kind) for kind in kinds)
    return Side(counts["kernel"], counts["copy"], counts["library"], memory_bytes, tuple(work))


def _class(kind: str) -> str:
    if kind in _KERNELS:
        return "kernel"
    if kind in _COPIES:
        return "copy"
    return "" if kind in _CONTROL else "library"


def diff_sides(module: str, target: str, mode: str, ours: Side, xla: Side) -> XlaDiff:
    """Match the work of both sides."""
    by_digest: dict[str, list[Work]] = {}
    for work in xla.work:
        by_digest.setdefault(work.digest, []).append(work)
    alike: list[Pair] = []
    rest: list[Work] = []
    for work in ours.work:
        found = by_digest.get(work.digest)
        if found:
            alike.append(Pair(work, found.pop(0), True))
        else:
            rest.append(work)
    left = [work for group in by_digest.values() for work in group]
    return XlaDiff(module, target, mode, ours, xla, (*alike, *_nearest(rest, left)))


def _nearest(ours: Sequence[Work], xlas: Sequence[Work]) -> list[Pair]:
    """Pair the works with most ops in common. The rest stays unpaired."""
    partners: dict[int, int] = {}
    if len(ours) * len(xlas) <= _MAX_PAIRS:
        scores = [(_common(one, two), -i, -j) for i, one in enumerate(ours) for j, two in enumerate(xlas)]
        taken: set[int] = set()
        for score, i, j in sorted(scores, reverse=True):
            if score >= _LEAST_COMMON and -i not in partners and -j not in taken:
                partners[-i] = -j
                taken.add(-j)
    pairs = [Pair(work, xlas[partners[i]] if i in partners else None, False) for i, work in enumerate(ours)]
    taken_by_ours = set(partners.values())
    return pairs + [Pair(None, work, False) for j, work in enumerate(xlas) if j not in taken_by_ours]


def _common(one: Work, two: Work) -> float:
    """Return the part of all ops of two works that both have."""
    return 2 * (one.ops & two.ops).total() / ((one.ops.total() + two.ops.total()) or 1)


def ratio_text(ours: int, xla: int) -> str:
    """Return ours / XLA's to three digits; a dash if XLA's is 0."""
    return f"{ours / xla:.3f}" if xla else "1.000" if not ours else "-"


def diff_text(diff: XlaDiff) -> str:
    """Return the comparison as plain text: the totals, then a line for each pair of work that differs."""
    alike = sum(pair.alike for pair in diff.pairs)
    rows = [("", "ours", "XLA", "ours/XLA")]
    rows += [(name, str(ours), str(xla), ratio_text(ours, xla)) for name, ours, xla in diff.totals]
    lines = [headline(diff), "", *aligned(rows, (1, 2, 3)), "", f"{alike} alike on both sides, {len(diff.different)} not"]
    if diff.different:
        table = [("ours", "bytes", "XLA", "bytes", "ours computes", "XLA computes")]
        lines += ["", *aligned([*table, *(_pair_row(pair) for pair in diff.different)], (1, 3))]
    return "\n".join(lines)


def headline(diff: XlaDiff) -> str:
    """Return the title of the comparison."""
    how = "native emitters and libraries, no Triton" if diff.mode == "emitters" else "default flags, with Triton"
    return f"{diff.module} for {diff.target}, compared with XLA:GPU ({how})"


def _pair_row(pair: Pair) -> tuple[str, ...]:
    ours, xla = pair.ours, pair.xla
    return (*side_cells(ours), *side_cells(xla), ours.contents if ours else "", xla.contents if xla else "")


def side_cells(work: Work | None) -> tuple[str, str]:
    """Return the name and the bytes of a piece of work."""
    return ("-", "-") if work is None else (work.name, str(work.bytes_accessed))


def diff_record(diff: XlaDiff) -> dict[str, object]:
    """Return the whole comparison as data for JSON."""
    return {
        "target": diff.target,
        "mode": diff.mode,
        "totals": {name: {"ours": ours, "xla": xla, "ratio": ours / xla if xla else None} for name, ours, xla in diff.totals},
        "work": [
            {"alike": pair.alike, "ours": _work_record(pair.ours), "xla": _work_record(pair.xla)}
            for pair in (*(pair for pair in diff.pairs if pair.alike), *diff.different)
        ],
    }


def _work_record(work: Work | None) -> dict[str, object] | None:
    if work is None:
        return None
    return {
        "name": work.name,
        "kind": work.kind,
        "shape": work.shape,
        "ops": dict(sorted(work.ops.items())),
        "bytes_accessed": work.bytes_accessed,
    }
