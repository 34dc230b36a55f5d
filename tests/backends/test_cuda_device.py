"""The examples on a real device: they agree with the reference, and with Host."""

from __future__ import annotations

from pathlib import Path

import pytest

import hlo_run
from hlo_run.backends.cuda.device import device_problem
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import compile_module
from hlo_run.platforms import open_backend
from hlo_run.reference.arguments.fake_arguments import make_fake_arguments
from hlo_run.reference.compare.agreement import disagreements
from hlo_run.reference.evaluate.evaluate import evaluate

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


LIBRARIES = sorted((Path(__file__).resolve().parents[1] / "data" / "cuda").glob("*.hlo"))


@pytest.mark.parametrize("file", LIBRARIES, ids=[file.stem for file in LIBRARIES])
def test_libraries_agree_with_the_reference(file: Path) -> None:
    module = hlo_run.parse(file.read_text(encoding="utf-8"), file.name)
    arguments = make_fake_arguments(module, 4)
    device = open_backend("CUDA", Options())
    assert device.target is not None
    executable = compile_module(PassContext(device.target, Options()), module.clone())
    for _ in range(3):  # the third run replays what the second recorded
        actual = device.run(executable, arguments)
        for _, comparison in disagreements(evaluate(module, arguments), actual, module.entry.root.shape):
            pytest.fail(comparison.report())
    assert device.report() == "", "no library was left out"
