"""A module that judges run: its arguments, the reference's result, and the comparison with other results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import count

import numpy as np
from msgspec import Struct

from hlo_run.arrays import Array
from hlo_run.artifact import Executable
from hlo_run.errors import DeviceError, Unsupported
from hlo_run.execution.signatures import Signature
from hlo_run.fuzz.arguments import DRAWS, draw_arguments, feeds_of, make_arguments
from hlo_run.fuzz.calls import CALLS
from hlo_run.fuzz.defined import open_part
from hlo_run.fuzz.results import differences
from hlo_run.fuzz.subjects import Subject
from hlo_run.hlo.feeds import Feeds
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.literal import Literal
from hlo_run.options import Options, RunOptions
from hlo_run.reference.compare.compare import ErrorSpec, compare
from hlo_run.reference.compare.rounding import RoundingSamples
from hlo_run.reference.evaluate.evaluate import Reference

_BOUNDS = ErrorSpec(abs=RunOptions().abs_error_bound, rel=RunOptions().rel_error_bound)
FAILED, REFUSED = "failed", "refused"


class Fault(Struct, frozen=True):
    """A judge's finding. `kind` is failed, or refused for a limit of one side: valid HLO that it does not support."""

    kind: str
    signature: Signature
    details: str


class LeftOut(Exception):
    """A judge cannot judge a module."""


def mismatch(judge: str, differences: list[str], words: str = "wrong values", details: str = "") -> Fault:
    """Return the fault of two results that differ. `details` are more lines to keep."""
    return Fault(FAILED, Signature(judge, "mismatch", words), "\n".join((*differences, *filter(None, [details]))))


class Case:
    """A parsed module with arguments. The reference runs when its result is first needed, once."""

    def __init__(
        self,
        subject: Subject,
        module: HloModule,
        options: Options,
        draw: int | None = None,
        executables: dict[Options, Executable] | None = None,
    ) -> None:
        """`draw` is an index of `DRAWS`; by default the generator's ranges, or an index by the seed. Raises HloRunError.

        `executables` are those of the module, by the options; judges add to them.
        """
        self.subject, self.module, self.options = subject, module, options
        self.executables: dict[Options, Executable] = {} if executables is None else executables
        self.claims = subject.made if draw is None else None
        if self.claims is not None:
            self.arguments: list[Literal] = make_arguments(self.claims)
        else:
            self.arguments = draw_arguments(module, subject.seed, subject.seed % len(DRAWS) if draw is None else draw)
        self.expected_calls: Counter[tuple[str, str]] = Counter()
        self.expected_feed: list[list[Literal]] = []

    @property
    def feeds(self) -> Feeds:
        """The data of infeeds."""
        return feeds_of(self.subject.seed)

    @cached_property
    def expected(self) -> Literal:
        """The reference's result. Raises the errors of the reference."""
        reference = Reference(self.module)
        CALLS.take()
        value = reference.run([self.arguments], feeds=self.feeds)[0]
        self.expected_calls, self.expected_feed = CALLS.take(), reference.outfeed
        return value

    @property
    def leaves(self) -> list[Array]:
        """The arrays of the arguments."""
        return list(flat(self.arguments))

    def differences(self, actual: Literal, expected: Literal | None = None) -> list[str]:
        """Return descriptions of the arrays that differ from the reference's (or `expected`) by more than rounding explains."""
        expected = self.expected if expected is None else expected
        if self.claims is not None:
            return list(differences(self.claims.result, expected, actual, "result"))
        found = compare(expected, actual, self.module.entry.root.shape, _BOUNDS).judged(self._samples())
        return [] if found.ok else [found.summary()]

    @property
    def is_open(self) -> bool:
        """True if HLO leaves values of a module open that the generator does not predict."""
        return self.claims is None and bool(open_part(self.module, in_range=False))

    def nested(self, leaves: Sequence[Literal]) -> Literal:
        """Return the leaves of a result in the structure of the reference's result."""
        return _nested(self.expected, iter(leaves))

    def _samples(self) -> RoundingSamples:
        numbers = count()
        return RoundingSamples(self._in_f64, lambda: self._in_f64(next(numbers)))

    def _in_f64(self, roundings: int | None = None) -> Literal | None:
        try:
            return Reference(self.module, "f64", roundings).run([self.arguments], feeds=self.feeds)[0]
        except (Unsupported, DeviceError, MemoryError):
            return None


def flat(values: Sequence[Literal]) -> Iterator[Array]:
    """Yield the arrays of values, tuples depth first."""
    for value in values:
        if isinstance(value, tuple):
            yield from flat(value)
        else:
            yield np.asarray(value)


def _nested(like: Literal, leaves: Iterator[Literal]) -> Literal:
    if not isinstance(like, tuple):
        return next(leaves)
    return tuple(_nested(part, leaves) for part in like)
