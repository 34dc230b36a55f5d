"""Prints how many megabytes of HLO text a second are read, checked and printed.

    python benchmarks/parse.py [FILE_OR_FOLDER...]

Without arguments a module of 4,000 instructions is made up. parse: text to graph; infer and verify: `hlo_run.parse` less
that; print: the graph back to text. Each figure is the best of three rounds over all texts, in
processor time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from time import process_time
from typing import Any

from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.parser import parse_module
from hlo_run.hlo.printer import SHORT_PARSABLE, module_to_string
from hlo_run.hlo.verify import verify_module
from hlo_run.ops.infer import infer_module

_ROUNDS = 3


def _texts(arguments: list[str]) -> list[str]:
    if not arguments:
        return [_made_up(4000)]
    files: list[Path] = []
    for argument in map(Path, arguments):
        files += sorted(argument.rglob("*.hlo")) if argument.is_dir() else [argument]
    return [file.read_text(encoding="utf-8") for file in files]


def _made_up(count: int) -> str:
    """Return a module in the style of XLA's dumps: a chain of element-wise ops, broadcasts, transposes and slices."""
    shape, turned = "f32[64,128]{1,0}", "f32[128,64]{1,0}"
    lines = [f"  %v.0 = {shape} parameter(0)", "  %c = f32[] constant(0.5)"]
    for number in range(1, count, 4):
        name, last = f"%v.{number}", f"%v.{max(0, number - 4)}"
        lines += [
            f'  {name} = {shape} add({last}, %v.0), metadata={{op_name="jit(f)/add" stack_frame_id={number}}}',
            f"  %b.{number} = {shape} broadcast(%c), dimensions={{}}",
            f"  %t.{number} = {turned} transpose({name}), dimensions={{1,0}}",
            f"  %s.{number} = f32[32,64]{{1,0}} slice({shape} {name}), slice={{[0:64:2], [0:64]}}",
        ]
    return "HloModule made_up\n\nENTRY %main {\n" + "\n".join(lines) + "\n}\n"


def _best(action: Callable[[Any], object], items: Iterable[Any]) -> float:
    """Return the seconds of the fastest round."""
    kept = list(items)
    rounds: list[float] = []
    for _ in range(_ROUNDS):
        started = process_time()
        for item in kept:
            action(item)
        rounds.append(process_time() - started)
    return min(rounds)


def _check(module: HloModule) -> None:
    infer_module(module)
    verify_module(module)


def main() -> None:
    """Measure and print."""
    texts = _texts(sys.argv[1:])
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    modules = [parse_module(text) for text in texts]
    seconds = {
        "parse": _best(parse_module, texts),
        "infer and verify": _best(_check, modules),
        "print": _best(lambda module: module_to_string(module, SHORT_PARSABLE), modules),
    }
    instructions = sum(len(list(module.instructions)) for module in modules)
    print(f"{len(texts)} modules, {instructions} instructions, {megabytes:.2f} MB")
    for name, taken in seconds.items():
        print(f"{name:18} {taken:8.3f} s {megabytes / taken:8.2f} MB/s")
    reading = seconds["parse"] + seconds["infer and verify"]
    print(f"{'hlo_run.parse':18} {reading:8.3f} s {megabytes / reading:8.2f} MB/s")


if __name__ == "__main__":
    main()
