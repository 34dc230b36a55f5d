"""Print the megabytes of HLO text per second that are parsed, checked and printed, compared with jaxlib if installed.

    python benchmarks/parse.py [--scaling] [FILE_OR_FOLDER...]

Without arguments it generates a module of 4,000 instructions. parse: text to graph. infer and verify: `hlo_run.parse` without the
former. print: the graph back to text. Each figure is the best of three rounds over all texts, in processor time; our rounds and
jaxlib's take turns. `--scaling` reads generated modules from 1,000 to 256,000 instructions, each in its own process, and prints
the speed and the growth of the process's peak memory, in sizes of the text.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import process_time
from typing import Any

from hlo_run.hlo.printer import DEFAULT, module_to_string
from hlo_run.hlo.text.parser import parse_module
from hlo_run.ops.verify import verify

_ROUNDS = 3
_SIZES = (1_000, 4_000, 16_000, 64_000, 256_000)


def _texts(paths: list[Path]) -> list[str]:
    if not paths:
        return [_made_up(4000)]
    files: list[Path] = []
    for path in paths:
        files += sorted(path.rglob("*.hlo")) if path.is_dir() else [path]
    return [file.read_text(encoding="utf-8") for file in files]


def _made_up(count: int) -> str:
    """Return a module in the style of XLA's dumps: a chain of element-wise ops, broadcasts, transposes and slices."""
    shape, turned = "f32[64,128]{1,0}", "f32[128,64]{1,0}"
    lines = [f"  %v.0 = {shape} parameter(0)", "  %c = f32[] constant(0.5)"]
    for number in range(1, count, 4):
        name, last = f"%v.{number}", f"%v.{max(0, number - 4)}"
        lines += [
            f'  {name} = {shape} add({last}, %v.0), metadata={{op_name="jit(f)/add" source_file="f.py" source_line={number}}}',
            f"  %b.{number} = {shape} broadcast(%c), dimensions={{}}",
            f"  %t.{number} = {turned} transpose({name}), dimensions={{1,0}}",
            f"  %s.{number} = f32[32,64]{{1,0}} slice({shape} {name}), slice={{[0:64:2], [0:64]}}",
        ]
    return "HloModule made_up\n\nENTRY %main {\n" + "\n".join(lines) + "\n}\n"


def _best(actions: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Return the seconds of each action's fastest round. The actions take turns."""
    rounds: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(_ROUNDS):
        for name, action in actions.items():
            started = process_time()
            action()
            rounds[name].append(process_time() - started)
    return {name: min(seconds) for name, seconds in rounds.items()}


def _compare(texts: list[str]) -> None:
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    modules = [parse_module(text) for text in texts]
    actions: dict[str, Callable[[], object]] = {
        "parse": lambda: [parse_module(text) for text in texts],
        "infer and verify": lambda: [verify(module) for module in modules],
        "print": lambda: [module_to_string(module, DEFAULT) for module in modules],
    }
    if importlib.util.find_spec("jaxlib"):
        hlo: Any = importlib.import_module("jaxlib._hlo")
        theirs = [hlo.hlo_module_from_text(text) for text in texts]
        actions["jaxlib parse"] = lambda: [hlo.hlo_module_from_text(text) for text in texts]
        actions["jaxlib print"] = lambda: [module.to_string() for module in theirs]
    seconds = _best(actions)
    seconds["hlo_run.parse"] = seconds["parse"] + seconds["infer and verify"]
    instructions = sum(len(list(module.instructions)) for module in modules)
    print(f"{len(texts)} modules, {instructions} instructions, {megabytes:.2f} MB\n")
    print("| step | MB/s | times jaxlib's |\n| --- | --- | --- |")
    for name, taken in seconds.items():
        other = seconds.get("jaxlib print" if name == "print" else "jaxlib parse")
        ratio = "" if other is None or name.startswith(("jaxlib", "infer")) else f"{taken / other:.1f}"
        print(f"| {name} | {megabytes / taken:.2f} | {ratio} |")


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _read_one(count: int) -> None:
    """Print one row of the table of `--scaling`."""
    text = _made_up(count)
    size, before = len(text.encode()), _peak_bytes()
    started = process_time()
    module = parse_module(text)
    parsed = process_time()
    verify(module)
    checked = process_time()
    grown = (_peak_bytes() - before) / size
    printed = len(module_to_string(module, DEFAULT)) / 1e6 / (process_time() - checked)
    megabytes = size / 1e6
    speeds = (megabytes / (parsed - started), megabytes / (checked - started), printed)
    print(f"| {count} | {megabytes:.2f} | " + " | ".join(f"{speed:.2f}" for speed in speeds) + f" | {grown:.0f} |", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", nargs="*", type=Path, metavar="FILE_OR_FOLDER")
    parser.add_argument("--scaling", action="store_true")
    parser.add_argument("--instructions", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.instructions:
        _read_one(arguments.instructions)
    elif arguments.scaling:
        print("| instructions | MB | parse MB/s | hlo_run.parse MB/s | print MB/s | memory, times the text |")
        print("| --- " * 6 + "|", flush=True)
        for count in _SIZES:
            subprocess.run([sys.executable, __file__, "--instructions", str(count)], check=True)
    else:
        _compare(_texts(arguments.paths))


if __name__ == "__main__":
    main()
