"""Time asynchronous collectives on Host: with other work between start and done, and with the same work after the done.

    python3 scripts/venv.py python benchmarks/collectives.py --megabytes 32 --rounds 9

Two devices add up an array by an all-reduce, and do other work. Milliseconds, the best and the median of
the rounds, in turns. The devices are in one process, in two, and in two with a link of limited speed: there the sender sleeps as
long as the bytes would take. The work is that of kernels (cosines of another array) or, with `--wait`, a custom call that sleeps:
then the figures do not depend on what else the processors do.
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
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import compile_module
from hlo_run.processes import partners as partners_module
from hlo_run.processes.launcher import Launch
from hlo_run.processes.messages import send
from hlo_run.processes.partners import Partners
from hlo_run.target import DEFAULT_TARGET, preset

PROGRAM = """HloModule m, is_scheduled=true, replica_count=2
add {{ a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b) }}
ENTRY e {{
  p = f32[] parameter(0)
  x = f32[{elements}] broadcast(p), dimensions={{}}
  y = f32[{elements}] negate(x)
  s = f32[{elements}] all-reduce-start(x), replica_groups={{{{0,1}}}}, to_apply=add
{body}
  u = f32[1] slice(d), slice={{[0:1]}}
  v = f32[1] slice(c{last}), slice={{[0:1]}}
  ROOT t = (f32[1], f32[1]) tuple(u, v)
}}
"""
WAIT = "wait"
DONE = "  d = f32[{elements}] all-reduce-done(s)"
Run = Callable[[], float]


def program(elements: int, cosines: int, waits: bool, *, overlaps: bool) -> Executable:
    """Compile the program: the done comes after the work if it `overlaps`, else before it."""
    names = ["y", *(f"c{number}" for number in range(1, cosines + 1))]
    call = f'custom-call({{}}), custom_call_target="{WAIT}"' if waits else "cosine({})"
    work = [f"  {names[n + 1]} = f32[{elements}] {call.format(names[n])}" for n in range(cosines)]
    if not overlaps:
        work[0] += ", control-predecessors={d}"
    done = DONE.format(elements=elements)
    body = "\n".join([*work, done] if overlaps else [done, *work])
    text = PROGRAM.format(elements=elements, body=body, last=cosines)
    return compile_module(PassContext(preset(DEFAULT_TARGET), Options(host_engine="jit")), hlo_run.parse(text))


def register_wait(seconds: float) -> None:
    """Let the custom call sleep."""

    @hlo_run.custom_call(WAIT, "Host")
    def wait(operand: Any) -> Any:
        time.sleep(seconds)
        return operand


def partner(executable: Executable, connection: socket.socket, bytes_per_second: float, seconds: float) -> None:
    """Be process 1."""
    register_wait(seconds)
    limit_speed(bytes_per_second)
    partners = Partners(Launch(2, 1), {0: connection}, most_bytes(executable, 2))
    serve(HostBackend(engine="jit"), executable, partners, 2)
    partners.close()


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
    parser.add_argument("--wait", type=float, default=0.0, help="seconds that a custom call sleeps in place of each cosine")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--speeds", default="0,500,200", help="MB/s of the link between processes (0: loopback as it is)")
    flags = parser.parse_args()
    elements = flags.megabytes << 18
    values: list[Any] = [np.array(0.5, np.float32)]
    sides = [program(elements, flags.cosines, flags.wait > 0, overlaps=overlaps) for overlaps in (True, False)]
    register_wait(flags.wait)
    print("| devices | overlapped | one after the other | ratio |\n| --- | --- | --- | --- |")
    for speed in map(float, flags.speeds.split(",")):
        runs: list[Run] = []
        joined: list[Partners] = []
        for executable in sides:
            here, there = socket.socketpair()
            arguments = (executable, there, speed * 1e6, flags.wait)
            child = multiprocessing.get_context("spawn").Process(target=partner, args=arguments, daemon=True)
            child.start()
            there.close()
            joined.append(Partners(Launch(2, 0), {1: here}, most_bytes(executable, 2)))
            runs.append(runner(executable, SharedBackend(HostBackend(engine="jit"), joined[-1], 2), values))
        limit_speed(speed * 1e6)
        name = f"two processes, {speed:g} MB/s" if speed else "two processes, loopback"
        print(f"| {name} | {measured(runs[0], runs[1], flags.rounds)} |", flush=True)
        for each in joined:
            each.close()
    alone = [runner(executable, HostBackend(engine="jit"), values) for executable in sides]
    print(f"| one process | {measured(alone[0], alone[1], flags.rounds)} |")


if __name__ == "__main__":
    main()
