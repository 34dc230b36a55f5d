"""The judge `reference`: the module through the whole pipeline, on Host, against the numpy reference."""

from __future__ import annotations

from collections.abc import Iterator

from hlo_run.backends.host.backend import HostBackend
from hlo_run.execution.signatures import Signature
from hlo_run.fuzz.calls import CALLS
from hlo_run.fuzz.case import FAILED, Case, Fault, mismatch
from hlo_run.fuzz.compiling import compiled
from hlo_run.fuzz.results import same_feed

NAME = "reference"


def judge(case: Case) -> Iterator[Fault]:
    """Yield the differences of the result, of calls with an effect, and of the outfeed. Raises errors of the pipeline."""
    expected = case.expected
    backend = HostBackend(engine=case.options.host_engine)
    actual = backend.run(compiled(case, case.options), case.arguments, feeds=case.feeds)
    calls = CALLS.take()
    if not case.is_open and (found := case.differences(actual, expected)):
        yield mismatch(NAME, found)
    if calls != case.expected_calls:
        details = f"{calls - case.expected_calls} too many, {case.expected_calls - calls} too few"
        yield Fault(FAILED, Signature(NAME, "mismatch", "calls with an effect"), details)
    if not same_feed(case.expected_feed, backend.outfeed):
        yield Fault(FAILED, Signature(NAME, "mismatch", "outfeed"), "other values, or in another order")
