"""Time the compilation of programs of growing size, row by row, in CPU milliseconds: time should grow no faster than size.

python3 scripts/venv.py python benchmarks/compile_scaling.py [SIZE ...] [--kind KIND] [--files FILE ...] [--target h100]

The default is a fusion of SIZE random elementwise ops. Operands are recent values, so most values are used several times. The
kind `functions` also reverses some values: the kernel has functions that call each other. Equal sizes give equal fusions. ptxas
is a separate process and has its own line.

The other kinds are modules of about SIZE instructions, compiled up to their thunks, without kernels: `chain` of elementwise ops
that become one kernel, `rnn` whose steps share matrices, `concatenate` of many operands, `tuple` of many results, and `updates`
of an array, with indices that are running sums. The last column is the exponent of growth between the two largest sizes: 1 is
linear, 2 quadratic.

`--files` measures your own modules in the same way, smallest first, such as those that growing_programs.py writes. Their
sizes are their numbers of instructions.
"""

from __future__ import annotations

import argparse
import math
import random
import resource
import time
from collections import defaultdict
from pathlib import Path
from typing import ClassVar

import hlo_run
from hlo_run.cache import choose_cache
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.wrap import wrap_bare_module
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pass_support.observer import Observer, Step
from hlo_run.pipeline.compile import compile_module, plan_module
from hlo_run.target import preset

_SHAPE = "f32[1024,32]"
_UNARY = ("negate", "abs", "tanh")
_BINARY = ("add", "subtract", "multiply", "maximum")
_WINDOW = 40  # operands are at most this many values back
_FEW = 4  # the same for `functions`, where every value in sight of a reversal doubles the work
_REVERSED_EVERY = 50
_WARM_UP = "ENTRY e { p = f32[64] parameter(0)\n ROOT t = f32[64] tanh(p) }"
_SHOWN_ROWS = 20


class _Cpu(Observer):
    """Adds up the CPU time of steps by row."""

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
    parser.add_argument("--kind", choices=("elementwise", "functions", *_MODULES), default="elementwise")
    parser.add_argument("--files", type=Path, nargs="+", default=[], metavar="FILE")
    parser.add_argument("--target", default="h100")
    arguments = parser.parse_args()
    options = Options(compile_processes=1)
    compile_module(PassContext(preset(arguments.target), options), hlo_run.parse(_WARM_UP))
    has_kernels = arguments.kind not in _MODULES and not arguments.files
    modules = [hlo_run.parse(file.read_text(encoding="utf-8"), file.name) for file in arguments.files]
    sizes = [sum(len(c.instructions) for c in module.computations) for module in modules]
    if not modules:
        sizes = arguments.sizes
        modules = [hlo_run.parse(_text(size, arguments.kind)) for size in sizes]
    columns = [_measure(arguments.target, options, wrap_bare_module(module), has_kernels) for module in modules]
    rows = sorted(columns[-1], key=lambda row: -columns[-1][row])[:_SHOWN_ROWS]
    print("| CPU ms of " + " | ".join(["row", *(f"{size} ops" for size in sizes), "exponent"]) + " |")
    print("| --- " * (len(columns) + 2) + "|")
    for row in rows:
        times = [column[row] for column in columns]
        print("| " + " | ".join([row, *(f"{seconds * 1e3:.0f}" for seconds in times), _exponent(sizes, times)]) + " |")


def _text(size: int, kind: str) -> str:
    return _MODULES[kind](size) if kind in _MODULES else fusion_text(size, kind)


def _exponent(sizes: list[int], times: list[float]) -> str:
    if len(sizes) < 2 or sizes[-1] == sizes[-2] or min(times[-2:]) <= 0:
        return ""
    return f"{math.log(times[-1] / times[-2]) / math.log(sizes[-1] / sizes[-2]):.2f}"


def _measure(target: str, options: Options, module: HloModule, has_kernels: bool) -> dict[str, float]:
    watch = _Cpu()
    tools = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    begin = time.process_time()
    (compile_module if has_kernels else plan_module)(PassContext(preset(target), options, (watch,)), module)
    watch.seconds["all"] = time.process_time() - begin
    watch.seconds["ptxas"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - tools
    return watch.seconds


def fusion_text(size: int, kind: str) -> str:
    """Return a bare computation of `size` random ops, and the sum of all values that no op uses."""
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


def _module(lines: list[str]) -> str:
    return "HloModule m\nENTRY e {\n  " + "\n  ".join(lines) + "\n}"


def _chain(size: int) -> str:
    lines = ["v_0 = f32[1024] parameter(0)"]
    lines += [f"v_{i} = f32[1024] {_UNARY[i % 3]}(v_{i - 1})" for i in range(1, size)]
    return _module([*lines, f"ROOT r = f32[1024] cosine(v_{size - 1})"])


def _rnn(size: int) -> str:
    steps = size // 7
    lines = ["h = f32[16,64] parameter(0)", "w = f32[64,64] parameter(1)", "u = f32[32,64] parameter(2)"]
    lines.append(f"xs = f32[{steps},16,32] parameter(3)")
    contracted = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    for i in range(steps):
        lines += [
            f"s_{i} = f32[1,16,32] slice(xs), slice={{[{i}:{i + 1}], [0:16], [0:32]}}",
            f"x_{i} = f32[16,32] reshape(s_{i})",
            f"e_{i} = f32[16,64] dot(x_{i}, u), {contracted}",
            f"d_{i} = f32[16,64] dot({f'h_{i - 1}' if i else 'h'}, w), {contracted}",
            f"a_{i} = f32[16,64] add(d_{i}, e_{i})",
            f"h_{i} = f32[16,64] tanh(a_{i})",
            f"y_{i} = f32[1,16,64] reshape(h_{i})",
        ]
    joined = ", ".join(f"y_{i}" for i in range(steps))
    return _module([*lines, f"ROOT r = f32[{steps},16,64] concatenate({joined}), dimensions={{0}}"])


def _concatenate(size: int) -> str:
    count = size // 2
    lines = [f"p = f32[{count},64] parameter(0)"]
    for i in range(count):
        lines.append(f"s_{i} = f32[1,64] slice(p), slice={{[{count - 1 - i}:{count - i}], [0:64]}}")
        lines.append(f"t_{i} = f32[1,64] tanh(s_{i})")
    joined = ", ".join(f"t_{i}" for i in range(count))
    return _module([*lines, f"ROOT r = f32[{count},64] concatenate({joined}), dimensions={{0}}"])


def _tuple(size: int) -> str:
    count = size // 2
    lines = [f"p_{i} = f32[16] parameter({i})\n  t_{i} = f32[16] tanh(p_{i})" for i in range(count)]
    shape, joined = ", ".join(["f32[16]"] * count), ", ".join(f"t_{i}" for i in range(count))
    return _module([*lines, f"ROOT r = ({shape}) tuple({joined})"])


def _updates(size: int) -> str:
    """Slices of an array that is updated step by step. The index of each is the sum of those before it."""
    steps = size // 3
    array = f"f32[{steps},64]"
    lines = [f"p = {array} parameter(0)", "j = s32[] parameter(1)", "z = s32[] constant(0)"]
    value, index = "p", "j"
    for number in range(steps):
        lines.append(f"i_{number} = s32[] add(j, {index})")
        lines.append(f"u_{number} = f32[1,64] dynamic-slice({value}, i_{number}, z), dynamic_slice_sizes={{1,64}}")
        lines.append(f"d_{number} = {array} dynamic-update-slice({value}, u_{number}, z, z)")
        value, index = f"d_{number}", f"i_{number}"
    lines.append(f"ROOT r = {array} negate({value})")
    return _module(lines)


_MODULES = {"chain": _chain, "rnn": _rnn, "concatenate": _concatenate, "tuple": _tuple, "updates": _updates}


if __name__ == "__main__":
    main()
