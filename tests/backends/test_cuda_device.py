"""The examples on a real device: they agree with the reference, and with Host."""

from __future__ import annotations

from pathlib import Path

import pytest

import hlo_run
from hlo_run.backends.cuda.device import device_problem
from hlo_run.backends.platforms import open_backend
from hlo_run.options import Options
from hlo_run.pipeline.compile import compile_module
from hlo_run.pipeline.passes import PassContext
from hlo_run.reference.agreement import disagreements
from hlo_run.reference.arguments import make_fake_arguments
from hlo_run.reference.evaluate import evaluate

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
pytestmark = [pytest.mark.cuda, pytest.mark.skipif(bool(device_problem()), reason=device_problem() or "a device is there")]


@pytest.mark.parametrize("name", ["gelu.hlo", "transpose.hlo"])
def test_an_example_agrees_with_the_reference_and_with_host(name: str) -> None:
    module = hlo_run.parse((EXAMPLES / name).read_text(encoding="utf-8"), name)
    arguments = make_fake_arguments(module, 3)
    options = Options()
    device = open_backend("CUDA", options)
    assert device.target is not None
    executable = compile_module(PassContext(device.target, options), module.clone())
    actual = device.run(executable, arguments)
    on_host = open_backend("Host", options).run(executable, arguments)
    for expected in (evaluate(module, arguments), on_host):
        for _, comparison in disagreements(expected, actual, module.entry.root.shape):
            pytest.fail(comparison.report())


LIBRARIES = {
    "product": """a = f32[96,64] parameter(0)
  b = f32[64,80] parameter(1)
  ROOT d = f32[96,80] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}""",
    "products": """a = bf16[3,96,64] parameter(0)
  b = bf16[3,80,64] parameter(1)
  ROOT d = bf16[3,96,80] dot(a, b), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={2}""",
    "solve": """a = f32[2,24,24] parameter(0)
  b = f32[2,24,8] parameter(1)
  d = f32[24,24] iota(), iota_dimension=0
  e = f32[24,24] iota(), iota_dimension=1
  i = pred[24,24] compare(d, e), direction=EQ
  c = f32[] constant(8)
  z = f32[] constant(0)
  cs = f32[24,24] broadcast(c), dimensions={}
  zs = f32[24,24] broadcast(z), dimensions={}
  s = f32[24,24] select(i, cs, zs)
  t = f32[2,24,24] broadcast(s), dimensions={1,2}
  m = f32[2,24,24] add(a, t)
  ROOT x = f32[2,24,8] triangular-solve(m, b), left_side=true, lower=true, transpose_a=NO_TRANSPOSE""",
    "transform": """a = f32[5,12,16] parameter(0)
  f = c64[5,12,9] fft(a), fft_type=RFFT, fft_length={12,16}
  ROOT r = f32[5,12,16] fft(f), fft_type=IRFFT, fft_length={12,16}""",
}


@pytest.mark.parametrize("name", LIBRARIES)
def test_libraries_agree_with_the_reference(name: str) -> None:
    module = hlo_run.parse(f"HloModule m\nENTRY e {{\n  {LIBRARIES[name]}\n}}")
    arguments = make_fake_arguments(module, 4)
    device = open_backend("CUDA", Options())
    assert device.target is not None
    executable = compile_module(PassContext(device.target, Options()), module.clone())
    for _ in range(3):  # the third run replays what the second recorded
        actual = device.run(executable, arguments)
        for _, comparison in disagreements(evaluate(module, arguments), actual, module.entry.root.shape):
            pytest.fail(comparison.report())
    assert device.report() == "", "no library was left out"
