"""Time the compilation of ever larger fusions, row by row: CPU milliseconds, which shall grow no faster than the fusion.

python3 scripts/venv.py python benchmarks/compile_scaling.py [SIZE ...] [--kind elementwise|functions] [--target h100]

A fusion of SIZE random elementwise ops, each on values made shortly before, so that most are used several times. With
`functions` some are reversed in between: the kernel has functions that call each other. Nothing is drawn anew: the same
sizes give the same fusions. ptxas, a process of its own, has a line of its own.
"""

from __future__ import annotations

import argparse
import random
import resource
import time
from collections import defaultdict

import hlo_run
from hlo_run.cache import choose_cache
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.wrap import wrap_bare_module
from hlo_run.options import Options
from hlo_run.pipeline.compile import compile_module
from hlo_run.pipeline.observer import Observer, Step
from hlo_run.pipeline.passes import PassContext
from hlo_run.target import preset

_SHAPE = "f32[1024,32]"
_UNARY = ("negate", "abs", "tanh")
_BINARY = ("add", "subtract", "multiply", "maximum")
_WINDOW = 40  # how far back operands are taken from
_FEW = 4  # how far back those of `functions` are, where every value in sight of a reversal doubles the work
_REVERSED_EVERY = 50
_WARM_UP = "ENTRY e { p = f32[64] parameter(0)\n ROOT t = f32[64] tanh(p) }"
_SHOWN_ROWS = 14


class _Cpu(Observer):
    """Adds up the CPU time between the ends of steps, by the step that ended, and counts the ops of the last."""

    only_times: ClassVar[bool] = True

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._last = time.process_time()

    def before(self, step: Step) -> None:
        self._last = time.process_time()

    def after(self, step: Step) -> None:
        now = time.process_time()
        self.seconds[step.row] += now - self._last
        self._last = now


def main() -> None:
    """Print the table."""
    choose_cache("off")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", type=int, nargs="*", default=[625, 1250, 2500, 5000])
    parser.add_argument("--kind", choices=("elementwise", "functions"), default="elementwise")
    parser.add_argument("--target", default="h100")
    arguments = parser.parse_args()
    options = Options(compile_processes=1)
    compile_module(PassContext(preset(arguments.target), options), hlo_run.parse(_WARM_UP))
    columns: list[dict[str, float]] = []
    for size in arguments.sizes:
        module = wrap_bare_module(hlo_run.parse(fusion_text(size, arguments.kind)))
        columns.append(_measure(arguments.target, options, module))
    rows = sorted(columns[-1], key=lambda row: -columns[-1][row])[:_SHOWN_ROWS]
    print("| CPU ms of " + " | ".join(["row", *(f"{size} ops" for size in arguments.sizes)]) + " |")
    print("| --- " * (len(columns) + 1) + "|")
    for row in rows:
        print("| " + " | ".join([row, *(f"{column[row] * 1e3:.0f}" for column in columns)]) + " |")


def _measure(target: str, options: Options, module: HloModule) -> dict[str, float]:
    watch = _Cpu()
    tools = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    begin = time.process_time()
    compile_module(PassContext(preset(target), options, (watch,)), module)
    watch.seconds["all"] = time.process_time() - begin
    watch.seconds["ptxas"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - tools
    return watch.seconds


def fusion_text(size: int, kind: str) -> str:
    """Return a bare computation of `size` random ops and the sum of what nobody used."""
    draw = random.Random(size)
    names = ["p", "q"]
    lines = [f"{name} = {_SHAPE} parameter({number})" for number, name in enumerate(names)]
    unused = dict.fromkeys(names)
    for number in range(size):
        name = f"v{number}"
        lines.append(f"{name} = {_SHAPE} " + _random_op(draw, number, kind, names, unused))
        names.append(name)
        unused[name] = None
    total, *rest = unused
    for number, name in enumerate(rest):
        lines.append(f"sum{number} = {_SHAPE} add({total}, {name})")
        total = f"sum{number}"
    return "f {\n  " + "\n  ".join(lines[:-1]) + f"\n  ROOT {lines[-1]}\n}}"


def _random_op(draw: random.Random, number: int, kind: str, names: list[str], unused: dict[str, None]) -> str:
    if kind == "functions" and number % _REVERSED_EVERY == _REVERSED_EVERY - 1:
        return f"reverse({names[-1]}), dimensions={{0}}"
    near = names[-(_WINDOW if kind == "elementwise" else _FEW) :]
    opcode = draw.choice((*_UNARY, *_BINARY))
    operands = [draw.choice(near) for _ in range(1 if opcode in _UNARY else 2)]
    for operand in operands:
        unused.pop(operand, None)
    return f"{opcode}({', '.join(operands)})"


if __name__ == "__main__":
    main()
