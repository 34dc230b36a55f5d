"""The judges of `--against`, on modules that are right and on a planted fault each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from hlo_run.backends.host.backend import HostBackend
from hlo_run.errors import Unsupported, UsageError
from hlo_run.formats import xla_gpu
from hlo_run.formats.xla_cpu import XlaCpu, XlaCpuAnswer
from hlo_run.formats.xla_gpu import XlaCompilation, XlaCrash, find_plugin
from hlo_run.fuzz import against_xla_gpu
from hlo_run.fuzz.calls import register_calls, unregister_calls
from hlo_run.fuzz.check import Outcome, check, check_every_draw, options_of
from hlo_run.fuzz.generate import random_module
from hlo_run.fuzz.judges import JUDGES, Judge, Judges, parse_against
from hlo_run.fuzz.subjects import Subject
from hlo_run.hlo.graph import HloModule
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline import compile as compile_module
from hlo_run.pipeline.table import PIPELINE, HloGroup, HloRow

MODULE = """HloModule m, entry_computation_layout={(f32[6]{0}, f32[6]{0})->f32[6]{0}}

ENTRY e {
  p = f32[6] parameter(0)
  q = f32[6] parameter(1)
  s = f32[6] subtract(p, q)
  ROOT n = f32[6] negate(s)
}
"""
WRONG = MODULE.replace("subtract(p, q)", "subtract(q, p)")
FUSED = """
f { a = f32[6] parameter(0) b = f32[6] parameter(1) s = f32[6] add(a, b) d = f32[6] subtract(a, b)
  ROOT t = (f32[6], f32[6]) tuple(s, d) }
ENTRY e { p = f32[6] parameter(0) q = f32[6] parameter(1) ROOT u = (f32[6], f32[6]) fusion(p, q), kind=kLoop, calls=f }
"""


@pytest.fixture(autouse=True)
def _calls() -> Iterator[None]:
    register_calls()
    yield
    unregister_calls()


def _check(text: str, judges: Mapping[str, Judge]) -> Outcome:
    return check_every_draw(Subject(1, text), options_of(1), judges)


def _buckets(outcome: Outcome) -> list[str]:
    return [fault.signature.bucket for fault in outcome.faults]


def test_names() -> None:
    assert parse_against("host, reference,host") == ("host", "reference")
    for text in ("", "gpu"):
        with pytest.raises(UsageError, match="--against"):
            parse_against(text)


@pytest.mark.parametrize("name", ["xla-cpu", "xla-gpu-compile"])
def test_a_missing_extra_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    with pytest.raises(UsageError, match=f"--against={name} needs jaxlib") as caught:
        parse_against(name)
    assert caught.value.exit_code == 2
    assert caught.value.hint


@pytest.mark.parametrize("seed", range(4))
def test_our_judges_agree_with_random_modules(seed: int) -> None:
    outcome = check(Subject.of(random_module(seed)), options_of(seed), Judges(["reference", "host"]).all)
    assert outcome.kind == "ok", outcome.faults


class _SwapsSubtractions:
    name: ClassVar[str] = "swaps-subtractions-2"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        del ctx
        for instruction in module.entry.instructions:
            if instruction.opcode == "subtract":
                instruction.operands = tuple(reversed(instruction.operands))


HIDDEN = """
ENTRY e {
  p = f32[6] parameter(0)
  q = f32[6] parameter(1)
  s = f32[6] subtract(p, q)
  e = f32[6] exponential(s)
  zero = f32[] constant(0)
  zeros = f32[6] broadcast(zero), dimensions={}
  ROOT m = f32[6] multiply(e, zeros)
}
"""


def test_a_wrong_rewrite_of_a_row_is_found_that_the_result_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    judges = Judges(["passes"]).all
    assert _check(HIDDEN, judges).kind == "ok"
    row = HloRow("swaps-subtractions-2", lambda c: _SwapsSubtractions())
    monkeypatch.setattr(compile_module, "PIPELINE", (HloGroup("planted", (row,)), *PIPELINE))
    assert _buckets(_check(HIDDEN, judges)) == ["passes: mismatch: wrong rewrite (swaps-subtractions)"]


def test_engines_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    run = HostBackend.run

    def other(self: HostBackend, *arguments: Any, **more: Any) -> Any:
        result = run(self, *arguments, **more)
        return np.nextafter(result, np.inf) if "emulator" in self.description else result

    monkeypatch.setattr(HostBackend, "run", other)
    assert _buckets(_check(MODULE, Judges(["host"]).all)) == ["host: mismatch: the emulator and the JIT differ"]


def test_a_wrong_result_of_the_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    run = HostBackend.run

    def larger(self: HostBackend, *arguments: Any, **more: Any) -> Any:
        return np.asarray(run(self, *arguments, **more)) + 1

    monkeypatch.setattr(HostBackend, "run", larger)
    assert _buckets(_check(MODULE, Judges(["reference"]).all)) == ["reference: mismatch: wrong values"]


def test_a_loop_that_does_not_end_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hlo_run.fuzz.check._REFERENCE_SECONDS", 0.2)
    text = """
b { s = (s32[]) parameter(0) ROOT t = (s32[]) copy(s) }
c { s = (s32[]) parameter(0) ROOT l = pred[] constant(true) }
ENTRY e { z = s32[] constant(0) s = (s32[]) tuple(z) ROOT w = (s32[]) while(s), condition=c, body=b }
"""
    assert _check(text, Judges(["reference"]).all).kind == "left out"


# Real XLA:CPU.


def _answering(monkeypatch: pytest.MonkeyPatch, answer: XlaCpuAnswer) -> Mapping[str, Judge]:
    def run(self: XlaCpu, text: str, leaves: Sequence[Any]) -> XlaCpuAnswer:
        del self, text, leaves
        return answer

    monkeypatch.setattr(XlaCpu, "run", run)
    return Judges(["xla-cpu"]).all


@pytest.mark.parametrize(
    ("answer", "kind", "bucket"),
    [
        (XlaCpuAnswer((np.full(6, 99, np.float32),)), "failed", "xla-cpu: mismatch: wrong values"),
        (XlaCpuAnswer(problem="crash", message="Check failed: x"), "failed", "xla-cpu: crash: Check failed: x"),
        (XlaCpuAnswer(problem="compile", message="no"), "failed", "xla-cpu: refusal: no (compile)"),
        (XlaCpuAnswer(problem="compile", message="unsupported op"), "refused", "xla-cpu: refusal: unsupported op (compile)"),
        (XlaCpuAnswer(problem="time-out", message="more than 1 s"), "failed", "xla-cpu: time-out: more than N s"),
    ],
)
def test_answers_of_xla_cpu(answer: XlaCpuAnswer, kind: str, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = _check(MODULE, _answering(monkeypatch, answer))
    assert outcome.kind == kind
    assert _buckets(outcome) == [bucket]


def test_open_values_are_not_compared_with_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    judges = _answering(monkeypatch, XlaCpuAnswer((np.full(4, 99, np.int32),)))
    assert _check("ENTRY e { p = f32[4] parameter(0) ROOT c = s32[4] convert(p) }", judges).kind == "ok"


@pytest.mark.parametrize("text", [MODULE, FUSED])
def test_real_xla_cpu_agrees(text: str) -> None:
    pytest.importorskip("jaxlib")
    judges = Judges(["xla-cpu"], 5000.0)
    try:
        assert _check(text, judges.all).kind == "ok"
    finally:
        judges.stop()


# Real XLA:GPU.


def _compiling(monkeypatch: pytest.MonkeyPatch, made: XlaCompilation | Unsupported) -> Mapping[str, Judge]:
    def compile_(*arguments: object) -> XlaCompilation:
        if isinstance(made, Unsupported):
            raise made
        return made

    monkeypatch.setattr(against_xla_gpu, "compile_with_xla", compile_)
    return Judges(["xla-gpu-compile"]).all


@pytest.mark.parametrize(
    ("made", "kind", "bucket"),
    [
        (XlaCompilation(MODULE, (), 0), "ok", ""),
        (XlaCompilation(WRONG, (), 0), "failed", "xla-gpu-compile: mismatch: wrong values"),
        (XlaCrash("'m' crashes XLA: Check failed: x"), "failed", "xla-gpu-compile: crash: Check failed: x"),
        (
            Unsupported("'m': XLA:GPU does not compile it: bad"),
            "failed",
            "xla-gpu-compile: refusal: XLA:GPU does not compile it: bad",
        ),
        (Unsupported("'m': unsupported thing"), "refused", "xla-gpu-compile: refusal: unsupported thing"),
    ],
)
def test_compilations_of_xla_gpu(
    made: XlaCompilation | Unsupported, kind: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = _check(MODULE, _compiling(monkeypatch, made))
    assert (outcome.kind, _buckets(outcome)) == (kind, [bucket] if bucket else [])


def test_our_refusal_of_what_xla_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise Unsupported("a tiny op")

    judges = _compiling(monkeypatch, XlaCompilation(MODULE, (), 0))
    monkeypatch.setattr(against_xla_gpu, "compiled", refuse)
    outcome = _check(MODULE, judges)
    assert (outcome.kind, _buckets(outcome)) == ("refused", ["xla-gpu-compile: unsupported: a tiny op (hlo-run)"])


def test_real_xla_gpu_agrees() -> None:
    try:
        find_plugin()
    except UsageError as missing:
        pytest.skip(missing.message)
    assert _check(FUSED, Judges(["xla-gpu-compile"], 5000.0).all).kind == "ok"


def test_a_compiler_that_does_not_end(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jaxlib")
    child = tmp_path / "child.py"
    child.write_text("import signal\nsignal.pause()\n", encoding="utf-8")
    monkeypatch.setattr(xla_gpu.gpu_plugin, "__file__", str(child))
    monkeypatch.setattr(xla_gpu, "find_plugin", lambda: child)
    outcome = _check(MODULE, Judges(["xla-gpu-compile"], 0.5).all)
    assert _buckets(outcome) == ["xla-gpu-compile: crash: XLA:GPU's compiler takes more than N s"]


def test_all_judges_have_a_row() -> None:
    assert set(Judges([name for name in JUDGES if not name.startswith("xla")]).all) == {
        *("reference", "passes", "host", "shardings", "host-shardings")
    }
