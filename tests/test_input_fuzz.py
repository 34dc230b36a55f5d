"""Mutated inputs of every format end in a documented exit code other than 70, within the limits of time and memory.

`scripts/fuzz_inputs.py` does the same for any number of inputs.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import input_formats
import input_hunt
import pytest
from input_formats import FORMATS, XLA_FORMATS, Case, Corpus

from hlo_run import cli

_COUNT = 12
_SEED = 7


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return input_formats.make_corpus(tmp_path_factory.mktemp("corpus"), ("reduce_or", "gather_collapsed"))


@pytest.mark.parametrize("name", FORMATS)
def test_mutated_inputs(name: str, corpus: Corpus) -> None:
    if name in XLA_FORMATS and not corpus.of(name):
        pytest.skip("needs jaxlib and protobuf")
    tally = input_hunt.hunt(name, _COUNT, _SEED, corpus)
    assert tally.tried == _COUNT
    assert {signature: failure.case.arguments for signature, failure in tally.failures.items()} == {}


@pytest.mark.parametrize("name", FORMATS)
def test_a_case_is_reproducible(name: str, corpus: Corpus) -> None:
    if name in XLA_FORMATS and not corpus.of(name):
        pytest.skip("needs jaxlib and protobuf")
    first, again, other = (input_formats.make_case(name, _SEED, index, corpus) for index in (3, 3, 4))
    assert first == again != other


def _crash() -> int:
    os.kill(os.getpid(), signal.SIGSEGV)
    return 0


def _spin() -> int:
    while True:
        time.process_time()


def _raise() -> int:
    raise KeyError("x")


def _return(code: int) -> Callable[[], int]:
    return lambda: code


@pytest.mark.parametrize(
    ("work", "failure"),
    [
        (_crash, "SIGSEGV"),
        (_spin, "hang: over"),
        (_raise, "KeyError left the command"),
        (_return(70), "exit 70"),
        (_return(9), "undocumented exit code 9"),
        (_return(5), ""),
    ],
)
def test_what_counts_as_a_failure(work: Callable[[], int], failure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(arguments: tuple[str, ...]) -> int:
        return work() if arguments == ("bad",) else 0

    monkeypatch.setattr(cli, "run", run)
    monkeypatch.setattr(input_hunt, "SECONDS_FOR_AN_INPUT", 0.2)
    # The input after a death is tried as well.
    cases = [Case(("good",)), Case(("bad",)), Case(("good",))]
    found = dict(input_hunt.outcomes(range(3), cases.__getitem__))
    assert [found[0].failure, found[2].failure] == ["", ""]
    assert found[1].failure.startswith(failure)
    assert bool(found[1].failure) == bool(failure)
