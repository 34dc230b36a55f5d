"""scripts/follow_release.py: what it says of the dumps of two releases."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
BEFORE = """HloModule m, entry_computation_layout={()->f32[]}

ENTRY %e (x: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  ROOT %NAME = f32[] OPCODE(%x)CONFIG
}
"""
FINAL = "module_0000.m.sm_9.0a_gpu_after_optimizations.txt"


@pytest.fixture(name="follow")
def _follow(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    pytest.importorskip("google.protobuf", reason="needs protobuf (hlo-run[xla])")
    monkeypatch.setattr(sys, "path", [str(SCRIPTS), *sys.path])
    known = set(sys.modules)
    yield importlib.import_module("follow_release")
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(SCRIPTS)):
            del sys.modules[name]


def _text(name: str, opcode: str, config: str = "") -> str:
    return BEFORE.replace("NAME", name).replace("OPCODE", opcode).replace("CONFIG", config)


def _dumps(*steps: tuple[str, str, str], final: str, thunks: str = "") -> dict[str, str]:
    """Return dumps with the text after each (pipeline, pass, text)."""
    made = {
        f"module_0000.m.{number:04d}.{pipeline}.after_{row}.before_next.txt": text
        for number, (pipeline, row, text) in enumerate(steps)
    }
    return {**made, FINAL: final, "module_0000.m.thunk_sequence.txt": thunks}


def test_names_and_the_order_of_keys_do_not_count(follow: ModuleType) -> None:
    modules = follow.Modules({})
    one = _text("a", "sine", ', backend_config={"b":1,"a":2}')
    other = _text("z.3", "sine", ', backend_config={"a":2,"b":1}')
    modules.add("same", _dumps(final=one), _dumps(final=other))
    assert (modules.compiled, modules.equal, modules.configs.count, modules.thunks.count) == (1, 1, 0, 0)
    modules.add("thunks", _dumps(final=one, thunks="000: kCopy\n"), _dumps(final=other, thunks="000: kGemm\n"))
    modules.add("config", _dumps(final=one), _dumps(final=_text("a", "sine", ', backend_config={"b":1}')))
    assert (modules.thunks.module, modules.configs.module) == ("thunks", "config")


def test_a_module_counts_for_the_first_pass_that_differs(follow: ModuleType) -> None:
    start = ("optimization", "pipeline-start", _text("a", "sine"))
    old = (start, ("old-name", "old-name", _text("a", "cosine")))
    new = (start, ("new-name", "new-name", _text("b", "tanh")))
    modules = follow.Modules({"old-name/old-name": "new-name/new-name"})
    modules.add("renamed", _dumps(*old, final=_text("a", "cosine")), _dumps(*new, final=_text("b", "tanh")))
    assert dict(modules.passes)["new-name/new-name"].lines == (
        "-  ROOT %i1 = f32[] cosine(%i0)",
        "+  ROOT %i1 = f32[] tanh(%i0)",
    )
    apart = follow.Modules({})
    apart.add("new", _dumps(start, final=start[2]), _dumps(*new, final=_text("b", "tanh")))
    assert list(apart.passes) == ["new-name/new-name (changes it in the new release alone)"]
    assert apart.work[1]["new-name/new-name"] == 1


def test_refusals_and_files_of_one_release(follow: ModuleType) -> None:
    modules = follow.Modules({})
    modules.add("refused", "no such opcode", _dumps(final=_text("a", "sine")))
    modules.add("files", _dumps(final=""), {**_dumps(final=""), "module_0000.m.7.ptx": "", "module_0000.m.new.txt": ""})
    assert list(modules.refused) == ["old release: no such opcode"]
    assert sorted(modules.files) == ["new: `M.N.ptx`", "new: `M.new.txt`"]


def test_fields_and_defaults(follow: ModuleType) -> None:
    field = follow.Field
    before = {"kept": field(1, "bool"), "moved": field(2, "bool"), "gone": field(3, "bool")}
    after = {"kept": field(1, "bool"), "moved": field(2, "int32"), "added": field(4, "string")}
    assert list(follow.changed_fields(before, after)) == [
        "other: `moved` was bool 2, is int32 2",
        "new: `added` (string)",
        "gone: `gone`",
    ]
    options = "debug_options {\n  a: true\n  list: A\n  list: B\n  message {\n    inner: 1\n  }\n}\n"
    text = f"replica_count: 1\n{options}partition_size: 1\n"
    assert follow.defaults({"module_0000.m.config.pbtxt": text}) == {"a": ["true"], "list": ["A", "B"]}
