"""Compute arguments and expected results of modules with the numpy reference, in other processes while the GPU works."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

import hlo_run
from hlo_run.reference.arguments.fake_arguments import make_fake_arguments, random_feeds
from hlo_run.reference.evaluate.evaluate import Reference
from hlo_run.reference.random import RandomEngine

_SEED = 7
_AHEAD = 24  # modules whose arrays wait in memory


def values_of(text: str) -> tuple[list[Any], Any]:
    """Return the arguments and the result of a module. Raises HloRunError."""
    module = hlo_run.parse(text)
    arguments = make_fake_arguments(module, RandomEngine(_SEED))
    return arguments, Reference(module).run([arguments], 1, 1, feeds=random_feeds(_SEED))[0]


def expected_values(texts: Sequence[tuple[str, str]], jobs: int) -> Iterator[tuple[str, Future[tuple[list[Any], Any]]]]:
    """Yield, in order, (name, future of arguments and result) for each (name, text)."""
    waiting: deque[tuple[str, Future[tuple[list[Any], Any]]]] = deque()
    rest = iter(texts)
    # Never fork: a forked process cannot use the CUDA context.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for name, text in rest:
            waiting.append((name, pool.submit(values_of, text)))
            if len(waiting) >= _AHEAD:
                yield waiting.popleft()
        while waiting:
            yield waiting.popleft()
