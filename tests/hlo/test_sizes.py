"""Arrays that no device holds: they parse, print and compile, and only a run refuses them."""

from __future__ import annotations

import pytest

import hlo_run
from hlo_run.errors import DeviceError, ParseError
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import compile_module
from hlo_run.target import preset

# The shape of one of XLA's tests of emitters.
HUGE = "bf16[24,2048,2048,3,4096]"
TEXT = f"HloModule m\nENTRY e {{ p = {HUGE} parameter(0) ROOT n = {HUGE} negate(p) }}"


def test_a_huge_array_compiles_with_xlas_launch() -> None:
    module = hlo_run.parse(TEXT, "huge")
    assert f"{HUGE}{{4,3,2,1,0}} negate" in module.to_string()
    (kernel,) = compile_module(PassContext(preset("h100"), Options(cache="off").compile), module).kernels
    # CUDA's limit for the first dimension of a grid is 2^31 - 1.
    assert kernel.grid == (1207959552, 2, 1)


def test_a_huge_array_does_not_run() -> None:
    module = hlo_run.parse(TEXT.replace("parameter(0)", "iota(), iota_dimension=0"), "huge")
    with pytest.raises(DeviceError, match="more than any device can hold"):
        hlo_run.evaluate(module)
    with pytest.raises(DeviceError):
        hlo_run.run(module, platform="Host")


def test_bytes_beyond_64_bits_are_an_error() -> None:
    with pytest.raises(ParseError, match="does not fit into 64 bits"):
        hlo_run.parse("ENTRY e { ROOT p = f32[2147483648,2147483648] parameter(0) }", "huger")
