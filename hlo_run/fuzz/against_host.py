"""The judge `host`: Host's two engines bit for bit, and the optimised pipeline against the required rows alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hlo_run.artifact import Executable
from hlo_run.backends.host.backend import HostBackend
from hlo_run.errors import Unsupported
from hlo_run.fuzz.calls import CALLS
from hlo_run.fuzz.case import Case, Fault, flat, mismatch
from hlo_run.fuzz.compiling import compiled
from hlo_run.hlo.values.literal import Literal
from hlo_run.ops.layouts import layouts_fit

NAME = "host"


def judge(case: Case) -> Iterator[Fault]:
    """Yield what differs between the engines and between the pipelines. Raises errors of the pipeline."""
    executable = compiled(case, case.options)
    emulated, native = (_run(case, executable, engine) for engine in ("emulator", "jit"))
    if found := _other_bits(emulated, native):
        yield mismatch(NAME, [found], "the emulator and the JIT differ")
    if not layouts_fit(case.module):
        CALLS.take()
        return  # layout assignment, a pass, inserts the copies
    try:
        plain = _run(case, compiled(case, replace(case.options, xla_disable_all_hlo_passes=True)), "auto")
    except Unsupported:
        return  # only passes turn some opcodes into kernels
    finally:
        CALLS.take()
    if not case.is_open and (other := case.differences(native, plain)):
        yield mismatch(NAME, other, "the optimised module and the unoptimised one differ")


def _run(case: Case, executable: Executable, engine: str) -> Literal:
    # In order: float atomics of several blocks round in the order in which they take effect.
    return HostBackend(engine=engine, in_order=True).run(executable, case.arguments, feeds=case.feeds)


def _other_bits(one: Literal, other: Literal) -> str:
    for number, (first, second) in enumerate(zip(flat([one]), flat([other]), strict=True)):
        if first.shape != second.shape or first.dtype != second.dtype:
            return f"array {number}: {first.dtype}{list(first.shape)} and {second.dtype}{list(second.shape)}"
        left, right = (np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in (first, second))
        if not np.array_equal(left, right):
            size = max(1, left.size // max(1, first.size))
            places = np.unique(np.nonzero(left != right)[0] // size)
            place = int(places[0])
            a, b = first.reshape(-1)[place], second.reshape(-1)[place]
            return f"array {number} of type {first.dtype}: {len(places)} of {first.size}, the first at {place}: {a} and {b}"
    return ""
