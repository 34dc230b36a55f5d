"""The judges `shardings` and `host-shardings`: the module divided between its partitions, against the undivided module.

The first one runs the rows up to `spmd-partitioning`, and the numpy reference evaluates the divided module on all devices. The
second one runs the whole pipeline, and Host runs the executable on as many simulated devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hlo_run.artifact.division import DividedEntry
from hlo_run.backends.host.backend import HostBackend
from hlo_run.backends.tiles import join_results, split_arguments
from hlo_run.fuzz.calls import CALLS
from hlo_run.fuzz.case import Case, Fault, LeftOut, mismatch
from hlo_run.fuzz.compiling import compiled
from hlo_run.fuzz.defined import open_part
from hlo_run.fuzz.shardings import differs_by_device
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.literal import Literal
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.partition import partition
from hlo_run.reference.evaluate.evaluate import Reference
from hlo_run.target import preset

NAME, HOST_NAME = "shardings", "host-shardings"


def judge(case: Case) -> Iterator[Fault]:
    """Yield the difference between the joined tiles and the undivided result. Raises LeftOut, and errors of the rows."""
    count = _partitions(case)
    module = case.module.clone()
    partition(PassContext(preset(case.options.target), case.options), module)
    results = Reference(module).run(_arguments(case, module.divided, count), 1, count, feeds=case.feeds)
    yield from _compared(NAME, case, module.divided, results)


def host_judge(case: Case) -> Iterator[Fault]:
    """Yield the difference between Host's joined tiles and the undivided result. Raises LeftOut, and errors of the pipeline."""
    count = _partitions(case)
    executable = compiled(case, case.options)
    backend = HostBackend(engine=case.options.host_engine)
    results = backend.run_devices(executable, _arguments(case, executable.divided, count), 1, count, feeds=case.feeds)
    yield from _compared(HOST_NAME, case, executable.divided, results)


def _partitions(case: Case) -> int:
    module: HloModule = case.module
    count = module.num_partitions
    if count == 1 or module.replica_count != 1 or differs_by_device(module):
        raise LeftOut
    return count


def _arguments(case: Case, divided: DividedEntry | None, count: int) -> list[list[Literal]]:
    whole = [case.arguments] * count
    return split_arguments(divided, whole, count) if divided is not None else whole


def _compared(name: str, case: Case, divided: DividedEntry | None, results: Sequence[Literal]) -> Iterator[Fault]:
    CALLS.take()
    joined = join_results(divided, results, len(results)) if divided is not None else results
    if open_part(case.module, in_range=case.claims is not None):
        return
    for device, result in enumerate(joined):
        if found := case.differences(result):
            yield mismatch(name, found, details=f"on device {device} of {len(joined)}")
            return
