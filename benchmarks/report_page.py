"""Measures how long a browser takes to open the page of `--report_html` about a large module.

    python benchmarks/report_page.py [--instructions N] [--keep FOLDER]

Prints the size of the page, the seconds to its `load` event, and those until the parts in view are drawn. Needs Chromium and
chromedriver. The module is a random mix of elementwise ops, transposes, reductions and matrix products.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from hlo_run.cli import run

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import webdriver  # after the path to it

_HEAD = """HloModule large

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY e {
  zero = f32[] constant(0)
"""
_SHAPE = "f32[64,64]"
# Several values of the last ones are operands, so that the graph is wide.
_RECENT = 30
_RUNS = 5
_DRAWN = """const parts = [...document.querySelectorAll(".part")].filter(p => p.dataset.part !== "verdict");
            const shown = parts.filter(p => p.getBoundingClientRect().top < innerHeight);
            return shown.every(p => p.dataset.drawn) && performance.now();"""


def module_text(count: int) -> str:
    """Return a module with about `count` instructions."""
    draw = random.Random(0)
    lines = [f"  p{n} = {_SHAPE} parameter({n})" for n in range(20)]
    values = [f"p{n}" for n in range(20)]
    while len(lines) < count - 2:
        one, other = draw.choice(values[-_RECENT:]), draw.choice(values[-_RECENT:])
        name, kind = f"v{len(lines)}", draw.random()
        if kind < 0.35:
            lines.append(f"  {name} = {_SHAPE} {draw.choice(['add', 'subtract', 'maximum'])}({one}, {other})")
        elif kind < 0.7:
            lines.append(f"  {name} = {_SHAPE} {draw.choice(['tanh', 'negate', 'sine', 'logistic'])}({one})")
        elif kind < 0.8:
            lines.append(f"  {name} = {_SHAPE} transpose({one}), dimensions={{1,0}}")
        elif kind < 0.9:
            lines.append(f"  {name}.r = f32[64] reduce({one}, zero), dimensions={{1}}, to_apply=sum")
            lines.append(f"  {name} = {_SHAPE} broadcast({name}.r), dimensions={{0}}")
        else:
            product = f"dot({one}, {other}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
            lines += [f"  {name}.d = {_SHAPE} {product}", f"  {name} = {_SHAPE} tanh({name}.d)"]
        values.append(name)
    last = values[-_RECENT:]
    result = f"  ROOT out = ({', '.join([_SHAPE] * len(last))}) tuple({', '.join(last)})\n}}\n"
    return _HEAD + "\n".join(lines) + "\n" + result


def measure(folder: Path, count: int) -> None:
    """Make the page in `folder`, open it several times, and print the times."""
    module, page = folder / "large.hlo", folder / "large.html"
    module.write_text(module_text(count), encoding="utf-8")
    if code := run(["--platform=Host", "--profile", f"--report_html={page}", str(module)]):
        raise SystemExit(code)
    print(f"{count} instructions: {page.stat().st_size / 1e6:.1f} MB")
    with webdriver.browser(folder) as window:
        window.resize(1400, 1000)
        for number in range(1, _RUNS + 1):
            window.open(page)
            loaded = window.script("return performance.getEntriesByType('navigation')[0].loadEventEnd")
            window.wait(_DRAWN, "the parts in view")
            drawn = window.script(_DRAWN)
            print(f"open {number}: {loaded / 1e3:.2f} s to load, at most {drawn / 1e3:.2f} s until the parts in view are drawn")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instructions", type=int, default=3000)
    parser.add_argument("--keep", type=Path, help="write the module and the page to this folder")
    arguments = parser.parse_args()
    if problem := webdriver.missing():
        raise SystemExit(problem)
    if arguments.keep is not None:
        measure(arguments.keep, arguments.instructions)
        return
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), arguments.instructions)


if __name__ == "__main__":
    main()
