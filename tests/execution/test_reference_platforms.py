"""`--reference_platform`: XLA:CPU and our own kernels compute the expected result; refusals and crashes have their codes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hlo_run.cli import run
from hlo_run.execution.reference_module import despecialized, xla_cpu_text
from hlo_run.execution.xla_cpu_reference import XlaCpuReference
from hlo_run.formats.xla_cpu import XlaCpu, XlaCpuAnswer
from hlo_run.hlo.feeds import NO_FEEDS
from hlo_run.ops.parse import parse
from hlo_run.reference.evaluate.devices import DeviceGrid
from hlo_run.reference.evaluate.evaluate import evaluate

OPTIMIZED = """HloModule optimised, is_scheduled=true, input_output_alias={ {1}: (0, {}, may-alias) }
%inner (a: f32[4,8]) -> f32[4,8] {
  %a = f32[4,8]{1,0} parameter(0)
  ROOT %t = f32[4,8]{1,0} tanh(%a)
}
%outer (b: f32[4,8]) -> f32[4,8] {
  %b = f32[4,8]{1,0} parameter(0)
  %u = f32[4,8]{1,0} fusion(%b), kind=kLoop, calls=%inner
  ROOT %n = f32[4,8]{1,0} negate(%u)
}
ENTRY %e (p: f32[4,8]) -> (f32[8,4], f32[4,8]) {
  %p = f32[4,8]{1,0} parameter(0)
  %s = f32[4,8]{1,0} fusion(%p), kind=kLoop, calls=%outer
  %c = f32[4,8]{0,1} copy(%s), control-predecessors={%p}
  %i = f32[8,4]{1,0} bitcast(%c)
  ROOT %r = (f32[8,4]{1,0}, f32[4,8]{1,0}) tuple(%i, %s)
}
"""
NAMED = """HloModule m
ENTRY e {
  p = (f32[2,3], (bf16[4], s4[5])) parameter(0)
  x = f32[2,3] get-tuple-element(p), index=0
  i = (bf16[4], s4[5]) get-tuple-element(p), index=1
  y = f32[2,3] exponential(x)
  ROOT t = (f32[2,3], (bf16[4], s4[5])) tuple(y, i)
}
"""
CALL = 'HloModule m\nENTRY e { p = f32[4] parameter(0)\n ROOT c = f32[4] custom-call(p), custom_call_target="no_such_function" }'


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    path = tmp_path / "m.hlo"
    path.write_text(NAMED, encoding="utf-8")
    return path


def _answers(monkeypatch: pytest.MonkeyPatch, answer: XlaCpuAnswer) -> None:
    def answered(self: XlaCpu, text: str, leaves: Sequence[Any]) -> XlaCpuAnswer:
        del self, text, leaves
        return answer

    monkeypatch.setattr(XlaCpu, "run", answered)


def test_the_despecialised_module_means_the_same() -> None:
    module = parse(OPTIMIZED, "m.hlo")
    plain = despecialized(module)
    assert not plain.instructions_of("fusion")
    assert plain.schedule is None
    assert plain.name == "optimised-reference"
    assert not any(i.control_predecessors for i in plain.instructions)
    assert module.instructions_of("fusion"), "the module itself is unchanged"
    text = xla_cpu_text(plain)
    assert "bitcast(" not in text
    assert "alias" not in text
    values = [np.arange(32, dtype=np.float32).reshape(4, 8) / 32]
    expected = evaluate(module, values)
    for other in (plain, parse(text, "text.hlo")):
        for one, two in zip(evaluate(other, values), expected, strict=True):
            np.testing.assert_array_equal(one, two)


def test_a_bitcast_may_change_the_type() -> None:
    module = parse(
        "HloModule m\nENTRY e { p = f32[2,3]{0,1} parameter(0)\n ROOT b = s32[3,2]{1,0} bitcast(p) }",
        "m.hlo",
    )
    values = [np.arange(6, dtype=np.float32).reshape(2, 3)]
    text = xla_cpu_text(module)
    assert " bitcast(" not in text
    np.testing.assert_array_equal(evaluate(parse(text, "t.hlo"), values), evaluate(module, values))


def test_xla_cpu_computes_the_expected_result(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jaxlib")
    assert run(["--platform=Interpreter", "--reference_platform=cpu", "--print_literals", "--iterations=2", str(file)]) == 0
    out, err = capsys.readouterr()
    assert out.count("** Result with reference runner CPU **") == 2
    assert "** Results on Interpreter and CPU are close enough. **" in err
    file.write_text(OPTIMIZED, encoding="utf-8")
    assert run(["--platform=Host", "--reference_platform=CPU", "--run_test_hlo_passes=false", str(file)]) == 0


def test_a_wrong_result_is_seen(file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import ml_dtypes

    wrong = (np.full((2, 3), 9, np.float32), np.zeros(4, ml_dtypes.bfloat16), np.zeros(5, ml_dtypes.int4))
    _answers(monkeypatch, XlaCpuAnswer(wrong))
    assert run(["--platform=Interpreter", "--reference_platform=CPU", str(file)]) == 1
    assert "Interpreter and CPU differ" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        (XlaCpuAnswer(problem="crash", message="Check failed: a"), 5, "device error: XLA:CPU crashes: Check failed: a"),
        (XlaCpuAnswer(problem="time-out", message="more than 1 s"), 5, "XLA:CPU takes longer than --timeout"),
        (XlaCpuAnswer(problem="compile", message="no"), 4, "XLA:CPU cannot compile the module: no"),
    ],
)
def test_refusals_and_crashes(
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: XlaCpuAnswer,
    code: int,
    message: str,
) -> None:
    _answers(monkeypatch, answer)
    assert run(["--platform=Interpreter", "--reference_platform=CPU", str(file)]) == code
    assert message in capsys.readouterr().err


def test_a_function_that_xla_does_not_know(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jaxlib")
    reference = XlaCpuReference(parse(CALL, "m.hlo"), DeviceGrid())
    try:
        with pytest.raises(Exception, match="XLA:CPU cannot compile") as caught:
            reference.run([np.zeros(4, np.float32)], 42, NO_FEEDS)
    finally:
        reference.stop()
    assert "no_such_function" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("HloModule m\nENTRY e { t = token[] after-all()\n ROOT i = (f32[4], token[]) infeed(t) }", "other end of 'infeed'"),
        ("HloModule m, replica_count=2\nENTRY e { ROOT p = f32[4] parameter(0) }", "has one device"),
        ("HloModule m\nENTRY e { ROOT p = f32[<=4] parameter(0) }", "only arrays of fixed sizes"),
    ],
)
def test_modules_that_are_not_sent_to_xla(file: Path, capsys: pytest.CaptureFixture[str], text: str, message: str) -> None:
    file.write_text(text, encoding="utf-8")
    assert run(["--platform=Interpreter", "--reference_platform=CPU", str(file)]) == 4
    assert message in capsys.readouterr().err


def test_our_own_kernels_as_the_reference(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--platform=Interpreter", "--reference_platform=Host", "--run_reference_hlo_passes=false", str(file)]) == 0
    assert "** Results on Interpreter and Host are close enough. **" in capsys.readouterr().err
    assert run(["--platform=Host", "--reference_platform=Host", str(file)]) == 0
    assert "the reference runs the same kernels" in capsys.readouterr().err
    assert run(["--platform=Interpreter", "--reference_platform=TPU", str(file)]) == 2
    assert "unknown reference platform 'TPU'" in capsys.readouterr().err


def test_a_reference_without_a_device(file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from hlo_run.errors import DeviceError
    from hlo_run.execution import reference_platforms

    def missing(name: str, options: object) -> None:
        raise DeviceError(f"no device for {name}")

    monkeypatch.setattr(reference_platforms, "open_backend", missing)
    assert run(["--platform=Interpreter", "--reference_platform=CUDA", str(file)]) == 5
    assert "no device for CUDA" in capsys.readouterr().err
