"""The findings of a hunt: the number of modules that agree, and the buckets of the faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from msgspec import Struct, field

from hlo_run.fuzz.case import FAILED, Fault
from hlo_run.fuzz.check import Outcome
from hlo_run.fuzz.subjects import Subject

# So many failures of one bucket are reduced. Wrong values have many causes, which only their reduced modules tell apart.
_REDUCED_MISMATCHES = 8
_SHOWN_SEEDS = 6


class Failure(Struct, frozen=True):
    """A fault of a module, to be reduced."""

    subject: Subject
    fault: Fault


class Reduced(Struct, frozen=True):
    """The end of a reduction: the folder of its files, the opcodes of the reduced module, the command that shows the failure."""

    folder: str
    opcodes: tuple[str, ...]
    instructions: int
    command: str


class Bucket(Struct):
    """Faults that are alike: the seeds of their modules, one of the faults, and a reduced module, if one was made."""

    kind: str
    name: str
    fault: Fault
    seeds: list[int] = field(default_factory=list[int])
    sources: list[str] = field(default_factory=list[str])
    reduced: Reduced | None = None

    def record(self) -> dict[str, object]:
        """Return the bucket for JSON."""
        reduced = self.reduced
        return {
            "kind": self.kind,
            "bucket": self.name,
            "signature": self.fault.signature.record(),
            "details": self.fault.details,
            "seeds": self.seeds,
            "sources": self.sources,
            "reduced": None
            if reduced is None
            else {"folder": reduced.folder, "instructions": reduced.instructions, "command": reduced.command},
        }


class Findings(Struct):
    """The results of a hunt: the number of outcomes of each kind, and the buckets of the faults."""

    kinds: Counter[str] = field(default_factory=Counter[str])
    buckets: dict[str, Bucket] = field(default_factory=dict[str, Bucket])
    processor_seconds: float = 0.0
    _asked: Counter[str] = field(default_factory=Counter[str])

    def add(self, outcome: Outcome) -> list[Failure]:
        """Count an outcome, and return its failures that should be reduced."""
        self.kinds[outcome.kind] += 1
        wanted: list[Failure] = []
        for fault in outcome.faults:
            name = fault.signature.bucket
            self._put(name, fault, outcome.subject)
            most = _REDUCED_MISMATCHES if fault.signature.kind == "mismatch" else 1
            if fault.kind == FAILED and outcome.subject.text and self._asked[name] < most:
                self._asked[name] += 1
                wanted.append(Failure(outcome.subject, fault))
        return wanted

    def put(self, failure: Failure, reduced: Reduced | None) -> None:
        """Record the end of a reduction. A mismatch moves to the bucket of the opcodes that are left."""
        if reduced is None:
            return
        fault, name = failure.fault, failure.fault.signature.bucket
        if fault.signature.kind == "mismatch":
            old, name = self.buckets[name], f"{name} [{' '.join(reduced.opcodes)}]"
            if failure.subject.seed in old.seeds:
                place = old.seeds.index(failure.subject.seed)
                del old.seeds[place], old.sources[place]
            if not old.seeds:
                del self.buckets[old.name]
            self._put(name, fault, failure.subject)
        bucket = self.buckets[name]
        if bucket.reduced is None or reduced.instructions < bucket.reduced.instructions:
            bucket.reduced = reduced

    def _put(self, name: str, fault: Fault, subject: Subject) -> None:
        bucket = self.buckets.setdefault(name, Bucket(fault.kind, name, fault))
        bucket.seeds.append(subject.seed)
        bucket.sources.append(subject.source)

    @property
    def largest_first(self) -> list[Bucket]:
        """The buckets: failures first, the largest of each kind first."""
        return sorted(self.buckets.values(), key=lambda bucket: (bucket.kind != FAILED, -len(bucket.seeds)))

    def lines(self) -> Iterator[str]:
        """Yield the lines of a report: the number of modules per kind, then each bucket with up to six of its seeds."""
        yield f"{sum(self.kinds.values())} modules: " + ", ".join(f"{n} {kind}" for kind, n in self.kinds.most_common())
        for bucket in self.largest_first:
            shown = ", ".join(map(str, bucket.seeds[:_SHOWN_SEEDS])) + (", .." if len(bucket.seeds) > _SHOWN_SEEDS else "")
            yield f"{len(bucket.seeds):6} {bucket.kind}: {bucket.name}  (seeds {shown})"
            if bucket.reduced is not None:
                yield f"       {bucket.reduced.folder}: {bucket.reduced.instructions} instructions"

    def record(self) -> dict[str, object]:
        """Return the findings for JSON."""
        return {
            "modules": dict(self.kinds),
            "processor_seconds": self.processor_seconds,
            "buckets": [bucket.record() for bucket in self.largest_first],
        }
