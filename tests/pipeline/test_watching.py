"""An observer does not change what a compilation makes, and passes do not read the observers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import hlo_run
from hlo_run.hlo.printer import FULL, module_to_string
from hlo_run.hlo.text.parser import parse_module
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pass_support.observer import Level, Observer, Step
from hlo_run.pipeline.compile import optimize
from hlo_run.pipeline.observers.record import CompilationRecord, RecordObserver
from hlo_run.pipeline.observers.timing import TimingObserver
from hlo_run.pipeline.observers.verbose import VerboseObserver
from hlo_run.target import DEFAULT_TARGET, preset

_MODULES = {
    "softmax": """HloModule softmax
max { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT m = f32[] maximum(a, b) }
add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b) }
ENTRY e { x = f32[64,256] parameter(0)
  low = f32[] constant(-inf)
  zero = f32[] constant(0)
  top = f32[64] reduce(x, low), dimensions={1}, to_apply=max
  tops = f32[64,256] broadcast(top), dimensions={0}
  d = f32[64,256] subtract(x, tops)
  p = f32[64,256] exponential(d)
  n = f32[64] reduce(p, zero), dimensions={1}, to_apply=add
  ns = f32[64,256] broadcast(n), dimensions={0}
  ROOT r = f32[64,256] divide(p, ns) }
""",
    "layout": """HloModule layout
ENTRY e { x = f32[8,16]{0,1} parameter(0)
  y = f32[8,16]{0,1} negate(x)
  z = f32[8,16]{0,1} multiply(y, x)
  ROOT t = (f32[8,16]{0,1}, f32[8,16]{0,1}) tuple(y, z) }
""",
    "divided": """HloModule divided, num_partitions=2
ENTRY e { x = f32[8,16] parameter(0), sharding={devices=[2,1]<=[2]}
  y = f32[8,16] negate(x), sharding={devices=[2,1]<=[2]}
  ROOT r = f32[16,8] transpose(y), dimensions={1,0}, sharding={devices=[2,1]<=[2]} }
""",
}


class _ReadsAll(Observer):
    """Asks for everything that an observer can get, as a dump of all files does."""

    def __init__(self) -> None:
        self.read = 0

    def watches(self, level: Level) -> bool:
        return True

    def wants_note(self, title: str) -> bool:
        return True

    def after(self, step: Step) -> None:
        self.read += len(step.text())

    def note(self, kernel: str, title: str, text: Callable[[], str]) -> None:
        self.read += len(text())


def _compiled(text: str, watching: str) -> str:
    """Return the optimised module."""
    module, target = parse_module(text), preset(DEFAULT_TARGET)
    make: dict[str, Callable[[], tuple[Observer, ...]]] = {
        "no observer": lambda: (),
        "dump": lambda: (_ReadsAll(),),
        "--v=5": lambda: (VerboseObserver(5, lambda _: None),),
        "times": lambda: (TimingObserver(),),
        "report": lambda: (RecordObserver(module, target, CompilationRecord(target.name)),),
    }
    optimize(PassContext(target, Options(), make[watching]()), module)
    return module_to_string(module, FULL)


@pytest.mark.parametrize("name", _MODULES)
def test_watching_does_not_change_the_module(name: str) -> None:
    unwatched = _compiled(_MODULES[name], "no observer")
    for watching in ("dump", "--v=5", "times", "report"):
        assert _compiled(_MODULES[name], watching) == unwatched, watching


def test_passes_do_not_read_the_observers() -> None:
    folders = [Path(hlo_run.__file__).parent / name for name in ("hlo_passes", "sharding", "pass_support")]
    files = [path for folder in folders for path in folder.rglob("*.py")]
    readers = {path.name for path in files if re.search(r"\.observers\b", path.read_text(encoding="utf-8"))}
    assert readers == {"hlo_pass.py"}
