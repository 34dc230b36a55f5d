"""The HLO text that is printed by default is HLO text for the released XLA, after every pass."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from released_xla import needs_released_xla

import hlo_run
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pass_support.observer import Level, Observer, Step
from hlo_run.pipeline.compile import plan_module
from hlo_run.target import preset

_ROOT = Path(__file__).parents[2]
_MODULES = sorted([*(_ROOT / "examples").glob("*.hlo"), *(_ROOT / "tests" / "data" / "jax_programs").glob("*.hlo")])
# In a process of its own, as XLA ends its process on some texts.
_PARSER = """
import json, sys
from jaxlib import _hlo
errors = {}
for place, text in json.load(sys.stdin).items():
    try:
        _hlo.hlo_module_from_text(text)
    except Exception as error:
        errors[place] = str(error)
print(json.dumps(errors))
"""


class _Texts(Observer):
    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def after(self, step: Step) -> None:
        if step.level is Level.HLO and step.changed is not False:
            self.texts[step.text()] = step.row


def test_every_dump_parses_with_released_xla() -> None:
    needs_released_xla()
    texts: dict[str, str] = {}
    for file in _MODULES:
        kept = _Texts()
        plan_module(PassContext(preset("h100"), Options(), observers=(kept,)), hlo_run.parse(file.read_text(), str(file)))
        assert kept.texts
        texts |= {f"{file.name}, {row}": text for text, row in kept.texts.items()}
    command = [sys.executable, "-c", _PARSER]
    done = subprocess.run(command, input=json.dumps(texts), capture_output=True, check=True, text=True)
    assert json.loads(done.stdout) == {}
