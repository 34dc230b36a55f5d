"""Processor time of whole runs on generated modules that are large in one way: `python benchmarks/large_inputs.py KIND N ..`.

The kinds are those of `KINDS`; N is the number of instructions, arrays, elements or bytes. Each run is a process of its own,
with `--cache=off` unless `HLO_RUN_CACHE` names a directory.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

_HEAD = "HloModule m\n"


def _entry(lines: list[str]) -> str:
    return _HEAD + "ENTRY e {\n" + "\n".join(lines) + "\n}\n"


def _chain(count: int) -> str:
    opcodes = ("add", "multiply", "subtract", "maximum")
    lines = ["p = f32[8] parameter(0)", "v0 = f32[8] parameter(1)"]
    return _entry([*lines, *(f"v{n + 1} = f32[8] {opcodes[n % 4]}(v{n}, p)" for n in range(count))])


def _parameters(count: int) -> str:
    return _entry([*(f"p{n} = f32[8] parameter({n})" for n in range(count)), f"r = f32[8] add(p0, p{count - 1})"])


def _results(count: int) -> str:
    return _entry(["p = f32[8] parameter(0)", f"t = ({','.join(['f32[8]'] * count)}) tuple({','.join(['p'] * count)})"])


def _constant(count: int) -> str:
    return _entry([f"c = f32[{count}] constant({{...}})", f"p = f32[{count}] parameter(0)", f"r = f32[{count}] add(c, p)"])


def _literal(count: int) -> str:
    items = ",".join(str(n * 7919 % 1000 / 8) for n in range(count))
    return _entry([f"c = f32[{count}] constant({{{items}}})", f"p = f32[{count}] parameter(0)", f"r = f32[{count}] add(c, p)"])


def _bodies(count: int) -> str:
    unused = (f"body_{n} {{\n  q = f32[8] parameter(0)\n  r = f32[8] negate(q)\n}}\n" for n in range(count))
    return _entry(["p = f32[8] parameter(0)", "r = f32[8] negate(p)"]).replace(_HEAD, _HEAD + "".join(unused))


def _concatenate(count: int) -> str:
    names = ",".join(f"p{n}" for n in range(count))
    joined = f"r = f32[{2 * count}] concatenate({names}), dimensions={{0}}"
    return _entry([*(f"p{n} = f32[2] parameter({n})" for n in range(count)), joined])


def _comment(count: int) -> str:
    return _entry(["p = f32[8] parameter(0)", f"/* {'x ' * (count // 2)} */", "r = f32[8] negate(p)"])


def _name(count: int) -> str:
    name = "a" * count
    return _entry([f"{name} = f32[8] parameter(0)", f"r = f32[8] negate({name})"])


KINDS: dict[str, Callable[[int], str]] = {
    "chain": _chain,
    "parameters": _parameters,
    "results": _results,
    "constant": _constant,
    "literal": _literal,
    "bodies": _bodies,
    "concatenate": _concatenate,
    "comment": _comment,
    "name": _name,
}


def main() -> None:
    """Run `KIND N KIND N ..` and print a line for each: kind, number, exit code, seconds of the processor."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arguments", nargs="+", metavar="KIND N", help=f"KIND is one of {', '.join(KINDS)}")
    arguments: list[str] = parser.parse_args().arguments
    with tempfile.TemporaryDirectory() as folder:
        for kind, number in zip(arguments[::2], arguments[1::2], strict=True):
            file = Path(folder) / f"{kind}.hlo"
            file.write_text(KINDS[kind](int(number)))
            cache = [] if os.environ.get("HLO_RUN_CACHE") else ["--cache=off"]
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            command = [sys.executable, "-c", "from hlo_run.cli import main; main()", *cache, str(file)]
            done = subprocess.run(command, capture_output=True, check=False)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            print(f"{kind} {number}: exit {done.returncode}, {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
