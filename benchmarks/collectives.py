"""Time asynchronous collectives on Host: with other work between start and done, and with the same work after the done.

    python3 scripts/venv.py python benchmarks/collectives.py --megabytes 32 --rounds 9

Two devices add up an array by an all-reduce and compute cosines of another one, which depend on nothing. Milliseconds, the best
and the median of the rounds, in turns. The devices are in one process, in two, and in two with a link of limited speed: there the
sender sleeps as long as the bytes would take.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import hlo_run
from hlo_run.artifact import Executable
from hlo_run.backends.host.backend import HostBackend
from hlo_run.backends.shared import SharedBackend, most_bytes, serve
from hlo_run.hlo_passes.hlo_pass import PassContext
from hlo_run.options import Options
from hlo_run.pipeline.compile import compile_module
from hlo_run.processes import partners as partners_module
from hlo_run.processes.launcher import Launch
from hlo_run.processes.messages import Farewell, send
from hlo_run.processes.partners import Partners
from hlo_run.target import DEFAULT_TARGET, preset

PROGRAM = """HloModule m, is_scheduled=true, replica_count=2
add {{ a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b) }}
ENTRY e {{
  x = f32[{elements}] parameter(0)
  y = f32[{elements}] parameter(1)
  s = f32[{elements}] all-reduce-start(x), replica_groups={{{{0,1}}}}, to_apply=add
{body}
  ROOT t = (f32[{elements}], f32[{elements}]) tuple(d, c{last})
}}
"""
DONE = "  d = f32[{elements}] all-reduce-done(s)"
Run = Callable[[], float]


def program(elements: int, cosines: int, *, overlaps: bool) -> Executable:
    """Compile the program: the done comes after the cosines if it `overlaps`, else before them."""
    names = ["y", *(f"c{number}" for number in range(1, cosines + 1))]
    work = [f"  {names[n + 1]} = f32[{elements}] cosine({names[n]})" for n in range(cosines)]
    done = DONE.format(elements=elements)
    body = "\n".join([*work, done] if overlaps else [done, *work])
    text = PROGRAM.format(elements=elements, body=body, last=cosines)
    return compile_module(PassContext(preset(DEFAULT_TARGET), Options(host_engine="jit")), hlo_run.parse(text))


def partner(executable: Executable, connection: socket.socket, bytes_per_second: float) -> None:
    """Be process 1."""
    limit_speed(bytes_per_second)
    partners = Partners(Launch(2, 1), {0: connection}, most_bytes(executable, 2))
    serve(HostBackend(engine="jit"), executable, partners, 2)
    partners.close(Farewell(0, 1))


def limit_speed(bytes_per_second: float) -> None:
    """Let this process send no faster (0: no limit)."""

    def slow_send(connection: socket.socket, message: object, arrays: Sequence[memoryview] = ()) -> None:
        if bytes_per_second:
            time.sleep(sum(array.nbytes for array in arrays) / bytes_per_second)
        send(connection, message, arrays)  # pyright: ignore[reportArgumentType]: of the type that `send` takes

    partners_module.send = slow_send


def runner(executable: Executable, backend: HostBackend | SharedBackend, values: Sequence[Any]) -> Run:
    """Return a function that runs once and returns the seconds."""

    def run() -> float:
        begin = time.perf_counter()
        backend.run_devices(executable, [values, values], 2, 1)
        return time.perf_counter() - begin

    return run


def measured(together: Run, apart: Run, rounds: int) -> str:
    """Return the cells of a row. The first runs compile."""
    pairs = [(together(), apart()) for _ in range(rounds + 1)][1:]
    first, second = zip(*pairs, strict=True)
    cells = [f"{min(side) * 1e3:.0f} ({statistics.median(side) * 1e3:.0f})" for side in (first, second)]
    ratio = f"{min(first) / min(second):.2f} ({statistics.median(first) / statistics.median(second):.2f})"
    return " | ".join([*cells, ratio])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--megabytes", type=int, default=32, help="size of each array")
    parser.add_argument("--cosines", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--speeds", default="0,500,200", help="MB/s of the link between processes (0: loopback as it is)")
    flags = parser.parse_args()
    elements = flags.megabytes << 18
    values: list[Any] = [np.random.default_rng(n).random(elements, np.float32) for n in range(2)]
    sides = [program(elements, flags.cosines, overlaps=overlaps) for overlaps in (True, False)]
    print("| devices | overlapped | one after the other | ratio |\n| --- | --- | --- | --- |")
    for speed in map(float, flags.speeds.split(",")):
        runs: list[Run] = []
        joined: list[Partners] = []
        for executable in sides:
            here, there = socket.socketpair()
            arguments = (executable, there, speed * 1e6)
            child = multiprocessing.get_context("spawn").Process(target=partner, args=arguments, daemon=True)
            child.start()
            there.close()
            joined.append(Partners(Launch(2, 0), {1: here}, most_bytes(executable, 2)))
            runs.append(runner(executable, SharedBackend(HostBackend(engine="jit"), joined[-1], 2), values))
        limit_speed(speed * 1e6)
        name = f"two processes, {speed:g} MB/s" if speed else "two processes, loopback"
        print(f"| {name} | {measured(runs[0], runs[1], flags.rounds)} |", flush=True)
        for each in joined:
            each.close(Farewell(0))
    alone = [runner(executable, HostBackend(engine="jit"), values) for executable in sides]
    print(f"| one process | {measured(alone[0], alone[1], flags.rounds)} |")


if __name__ == "__main__":
    main()
