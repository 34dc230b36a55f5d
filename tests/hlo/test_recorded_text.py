"""Recorded behaviour of real XLA: which texts it parses or refuses, and what it prints (scripts/record_xla_text.py)."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from xla_print_options import OPTIONS, as_xla_prints

import hlo_run
from hlo_run.errors import HloRunError
from hlo_run.hlo.fingerprint import module_fingerprint
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.print_options import FULL
from hlo_run.hlo.text.parser import parse_module
from hlo_run.ops.infer import fill_shapes

_FOLDER = Path(__file__).parent.parent / "data" / "hlo"
# XLA itself does not parse this back: it names a stack frame without the tables.
_LOST = "negate(f32[4,4] a), metadata={stack_frame_id=3}"
# XLA's parser takes an async-done of something else, and an after-all of an array, its verifier does not. Ours takes neither.
_INVALID_ASYNC = ("async-done(p)}", "async-done(st.1, st.1)}", "after-all-done(u) }")
_FEWER_OPTIONS = {
    "literals.cases": ("default", "short_parsable"),
    "opcodes.cases": ("default", "short_parsable", "fingerprint", "no_ids"),
}
_FILES = sorted(file.name for file in _FOLDER.glob("*.cases"))


def _entries(name: str) -> list[dict[str, Any]]:
    return json.loads((_FOLDER / name).with_suffix(".json").read_text(encoding="utf-8"))


def _read(text: str) -> HloModule:
    """Parse `text` with the checks of XLA's parser; its verifier checks whether shapes fit their instructions."""
    module = parse_module(text)
    with suppress(HloRunError):
        fill_shapes(module)
    return module


@pytest.mark.parametrize("name", _FILES)
def test_every_text_is_recorded(name: str) -> None:
    texts = (_FOLDER / name).read_text(encoding="utf-8").split("\n====\n")
    assert [entry["text"] for entry in _entries(name)] == texts
    assert len(texts) > 50


@pytest.mark.parametrize("name", _FILES)
def test_what_xla_prints_we_print(name: str) -> None:
    for entry in _entries(name):
        if entry["status"] != "ok" or entry["text"].endswith(_INVALID_ASYNC):
            continue
        module = _read(entry["text"])
        for label in _FEWER_OPTIONS.get(name, OPTIONS):
            expected = entry["printed"].get(label, entry["printed"]["default"])
            assert as_xla_prints(module, label) == expected, (label, entry["text"])


@pytest.mark.parametrize("name", _FILES)
def test_what_xla_refuses_we_refuse(name: str) -> None:
    refused = [entry["text"] for entry in _entries(name) if entry["status"] != "ok"]
    assert len(refused) > 10
    for text in refused:
        with pytest.raises(HloRunError):
            hlo_run.parse(text)


@pytest.mark.parametrize("name", _FILES)
def test_full_text_reads_back(name: str) -> None:
    for entry in _entries(name):
        if entry["status"] == "ok" and _LOST not in entry["text"] and not entry["text"].endswith(_INVALID_ASYNC):
            module = _read(entry["text"])
            again = _read(module.to_string(FULL))
            assert again.to_string(FULL) == module.to_string(FULL), entry["text"]
            assert module_fingerprint(again) == module_fingerprint(module), entry["text"]
