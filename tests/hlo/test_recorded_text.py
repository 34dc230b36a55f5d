"""Texts that real XLA was asked about: what it reads, what it refuses, what it prints (scripts/record_xla_text.py)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hlo_run.errors import HloRunError
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.parser import parse_module
from hlo_run.hlo.printer import CANONICAL, DEFAULT, FINGERPRINT, FULL, SHORT_PARSABLE
from hlo_run.ops.infer import fill_shapes

_FOLDER = Path(__file__).parent.parent / "data" / "hlo"
_OPTIONS = {
    "default": DEFAULT,
    "short_parsable": SHORT_PARSABLE,
    "canonical": CANONICAL,
    "fingerprint": FINGERPRINT,
    "no_layout": replace(DEFAULT, layouts=False, operand_shapes=True, compact_operands=True),
    "no_ids": replace(DEFAULT, ids=False, metadata=False, backend_config=False, indent=1),
}
_FILES = sorted(file.name for file in _FOLDER.glob("*.cases"))


def _entries(name: str) -> list[dict[str, Any]]:
    return json.loads((_FOLDER / name).with_suffix(".json").read_text(encoding="utf-8"))


def _read(text: str) -> HloModule:
    module = parse_module(text)
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
        if entry["status"] != "ok":
            continue
        module = _read(entry["text"])
        for label, options in _OPTIONS.items() if name != "literals.cases" else [("default", DEFAULT)]:
            expected = entry["printed"].get(label, entry["printed"]["default"])
            found = module.to_string(options)
            if options.large_constants:
                # XLA prints -0, which nobody reads as a negative zero, and a module's name bare; ours must read back.
                found = found.replace("-0.0", "-0").replace("HloModule %", "HloModule ")
            assert found == expected, (label, entry["text"])


@pytest.mark.parametrize("name", _FILES)
def test_what_xla_refuses_we_refuse(name: str) -> None:
    refused = [entry["text"] for entry in _entries(name) if entry["status"] != "ok"]
    assert len(refused) > 10
    for text in refused:
        with pytest.raises(HloRunError):
            _read(text)


@pytest.mark.parametrize("name", _FILES)
def test_full_text_reads_back(name: str) -> None:
    for entry in _entries(name):
        # XLA reads `#(f32)` and prints `#(invalid)`, which it does not read.
        if entry["status"] == "ok" and "#(f32)" not in entry["text"]:
            module = _read(entry["text"])
            again = _read(module.to_string(FULL))
            assert again.to_string(FULL) == module.to_string(FULL), entry["text"]
            assert again.fingerprint() == module.fingerprint(), entry["text"]
