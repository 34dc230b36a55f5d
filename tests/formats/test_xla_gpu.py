"""Real XLA:GPU as a compiler in a child process: its results, its refusals, and its crashes."""

from __future__ import annotations

from pathlib import Path

import pytest

from hlo_run import target as targets
from hlo_run.codegen.llvm.ptxas import find_ptxas
from hlo_run.errors import Unsupported, UsageError
from hlo_run.formats import gpu_plugin, xla_gpu
from hlo_run.formats.xla_gpu import EMITTERS_ONLY, compile_with_xla, find_plugin

MODULE = """HloModule m

ENTRY e {
  p = f32[64,32] parameter(0)
  n = f32[64,32] negate(p)
  ROOT t = f32[32,64] transpose(n), dimensions={1,0}
}
"""


def _target() -> str:
    return targets.to_text_proto(targets.preset("h100"))


def _fake_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Replace the child process by `program`."""
    pytest.importorskip("jaxlib")
    child = tmp_path / "child.py"
    child.write_text("import os, sys\n" + program, encoding="utf-8")
    monkeypatch.setattr(gpu_plugin, "__file__", str(child))
    monkeypatch.setattr(xla_gpu, "find_plugin", lambda: Path("plugin.so"))


LAYOUTS = """HloModule m, entry_computation_layout={(f32[64,32]{1,0})->f32[64,32]{0,1}}

ENTRY e {
  p = f32[64,32]{1,0} parameter(0)
  ROOT n = f32[64,32]{0,1} negate(p)
}
"""


def _compile(module: str = MODULE) -> xla_gpu.XlaCompilation:
    ptxas = find_ptxas()
    return compile_with_xla(module, "m.hlo", _target(), EMITTERS_ONLY, ptxas.parent.parent if ptxas else None)


def test_a_target_reads_back() -> None:
    for name in targets.PRESETS:
        spec = targets.preset(name)
        assert targets.from_text_proto(targets.to_text_proto(spec), name) == spec


def test_without_the_extra_the_hint_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(name: str) -> None:
        del name

    monkeypatch.setattr("importlib.util.find_spec", find_nothing)
    with pytest.raises(UsageError, match="jaxlib") as caught:
        _compile()
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("pip install 'hlo-run[xla-gpu]'")


def test_the_compiler_is_found_where_jax_does_not_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jaxlib")
    monkeypatch.setattr(xla_gpu, "PLUGIN_FOLDER", tmp_path)
    plugin = tmp_path / "jax_plugins" / "xla_cuda13" / "xla_cuda_plugin.so"
    plugin.parent.mkdir(parents=True)
    plugin.touch()
    assert find_plugin() == plugin


def test_a_failed_check_of_xla_is_an_error_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    died = "sys.stderr.write('F0101 10:00:00.000000 7 x.cc:1] Check failed: a == b\\n'); sys.stderr.flush(); os.abort()"
    _fake_child(tmp_path, monkeypatch, died)
    with pytest.raises(Unsupported, match=r"'m\.hlo' crashes XLA:GPU's compiler: Check failed: a == b"):
        _compile()


def test_a_refusal_has_xlas_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_child(tmp_path, monkeypatch, "sys.stderr.write('UNIMPLEMENTED: no such op\\nmore'); sys.exit(3)")
    with pytest.raises(Unsupported, match=r"XLA:GPU does not compile it: no such op$"):
        _compile()


def test_dumps_are_read_and_lists_of_passes_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = """
flags = dict(flag.partition("=")[::2] for flag in os.environ["XLA_FLAGS"].split())
assert flags["--xla_disable_hlo_passes"] == "triton-softmax-rewriter,fusion-block-level-rewriter,algsimp", flags
assert flags["--xla_gpu_enable_triton_gemm"] == "false"
assert sys.stdin.read().startswith("HloModule m")
folder = flags["--xla_dump_to"] + "/module_0000.m."
os.makedirs(flags["--xla_dump_to"])
for name, text in {
    "sm_9.0a_gpu_after_optimizations.txt": "HloModule m",
    "sm_9.0a_gpu_after_optimizations-memory-usage-report.txt": "Total bytes: 40 (40B)\\n\\nTotal bytes: 2 (2B)",
    "thunk_sequence.txt": "001: kCopy [source | sink] kCopy\\n002: kWhile [source | sink] x\\n    003: kGemm  [a | b]",
}.items():
    with open(folder + name, "w") as file:
        file.write(text)
"""
    _fake_child(tmp_path, monkeypatch, program)
    made = compile_with_xla(MODULE, "m.hlo", _target(), (*EMITTERS_ONLY, "--xla_disable_hlo_passes=algsimp"), None)
    assert made == xla_gpu.XlaCompilation("HloModule m", ("kCopy", "kWhile", "kGemm"), 42)


@pytest.fixture
def real_plugin() -> None:
    try:
        find_plugin()
    except UsageError as missing:
        pytest.skip(missing.message)


@pytest.mark.usefixtures("real_plugin")
def test_real_xla_keeps_the_layouts_of_the_entry() -> None:
    assert "->f32[64,32]{0,1}" in _compile(LAYOUTS).text


@pytest.mark.usefixtures("real_plugin")
def test_real_xla_compiles_without_a_card() -> None:
    made = _compile()
    assert made.thunk_kinds == ("kCustomKernel",)
    assert made.memory_bytes == 2 * 64 * 32 * 4
    assert "kind=kInput" in made.text or "kind=kLoop" in made.text
