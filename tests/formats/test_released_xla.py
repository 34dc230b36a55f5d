"""The HLO text that is printed by default is HLO text for the released XLA, after every pass."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import hlo_run
from hlo_run.formats import xla
from hlo_run.hlo_passes.hlo_pass import PassContext
from hlo_run.hlo_passes.observer import Level, Observer, Step
from hlo_run.options import Options
from hlo_run.pipeline.compile import plan_module
from hlo_run.target import preset

_ROOT = Path(__file__).parents[2]
_MODULES = sorted([*(_ROOT / "examples").glob("*.hlo"), *(_ROOT / "tests" / "data" / "jax_programs").glob("*.hlo")])


class _Texts(Observer):
    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def after(self, step: Step) -> None:
        if step.level is Level.HLO and step.changed is not False:
            self.texts.setdefault(step.text(), step.row)


@pytest.mark.parametrize("file", _MODULES, ids=lambda file: file.stem)
def test_every_dump_parses_with_released_xla(file: Path) -> None:
    if importlib.util.find_spec("jaxlib") is None:
        pytest.skip("needs hlo-run[xla]")
    kept = _Texts()
    plan_module(PassContext(preset("h100"), Options(), observers=(kept,)), hlo_run.parse(file.read_text(), str(file)))
    assert kept.texts
    for text, row in kept.texts.items():
        assert xla.text_to_proto(text, row), row
