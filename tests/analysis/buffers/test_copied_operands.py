"""Fusions that need no kernel, because every result is bytes of an operand. The answers are those of XLA's thunks."""

from __future__ import annotations

import numpy as np
import pytest
from emitting import read_fusion, results_on_host

import hlo_run
from hlo_run.analysis.buffers.copied_operands import CopiedOperand, SlicePlace, copied_operands, copied_slice
from hlo_run.artifact import CopyThunk
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import compile_module
from hlo_run.reference.arguments.fake_arguments import make_fake_arguments
from hlo_run.reference.evaluate.evaluate import evaluate
from hlo_run.target import preset

P = "f { p = f32[12,6] parameter(0) "
COPIED = {
    "rows": (P + "ROOT r = f32[3,6] slice(p), slice={[2:5], [0:6]} }", 48),
    "part of a row": (P + "ROOT r = f32[1,3] slice(p), slice={[2:3], [1:4]} }", 52),
    "columns that lie side by side": (
        "f { p = f32[12,6]{0,1} parameter(0) ROOT r = f32[12,2]{0,1} slice(p), slice={[0:12], [2:4]} }",
        96,
    ),
    "whole bytes of four bits": ("f { p = s4[12,6] parameter(0) ROOT r = s4[2,6] slice(p), slice={[2:4], [0:6]} }", 6),
}
NOT_COPIED = {
    "columns": P + "ROOT r = f32[12,3] slice(p), slice={[0:12], [1:4]} }",
    "every other row": P + "ROOT r = f32[3,6] slice(p), slice={[2:8:2], [0:6]} }",
    "a slice of a slice": P + "a = f32[8,6] slice(p), slice={[2:10], [0:6]} ROOT r = f32[3,6] slice(a), slice={[2:5], [0:6]} }",
    "another shape": P + "a = f32[1,6] slice(p), slice={[2:3], [0:6]} ROOT r = f32[6] bitcast(a) }",
    "two parts": P + "a = f32[2,6] slice(p), slice={[2:4], [0:6]} b = f32[3,6] slice(p), slice={[4:7], [0:6]} "
    "ROOT t = (f32[2,6], f32[3,6]) tuple(a, b) }",
    "half a byte": "f { p = s4[12,5] parameter(0) ROOT r = s4[2,5] slice(p), slice={[3:5], [0:5]} }",
}


@pytest.mark.parametrize("name", COPIED)
def test_contiguous_slices_are_copies(name: str) -> None:
    text, offset = COPIED[name]
    module, fusion = read_fusion(text)
    assert copied_operands(fusion) == (CopiedOperand(0, offset),)
    (thunk,) = compile_module(PassContext(preset("h100"), Options()), module.clone()).thunks
    assert isinstance(thunk, CopyThunk)
    values = make_fake_arguments(module, 3)
    got = np.asarray(results_on_host(module, values, "h100", Options()))
    assert got.tobytes() == np.asarray(evaluate(module, values)).tobytes()


@pytest.mark.parametrize("name", NOT_COPIED)
def test_other_slices_need_a_kernel(name: str) -> None:
    _, fusion = read_fusion(NOT_COPIED[name])
    assert copied_operands(fusion) == ()


COPIED_SLICE = """HloModule m
f { p = f32[5,8] parameter(0)
  i = s32[] parameter(1)
  z = s32[] constant(0)
  d = f32[1,8] dynamic-slice(p, i, z), dynamic_slice_sizes={1,8}, backend_config={"dynamic_slice_config":{CONFIG}}
  ROOT c = f32[1,8] copy(d) }
ENTRY e { p = f32[5,8] parameter(0)
  i = s32[] parameter(1)
  ROOT r = f32[1,8] fusion(p, i), kind=kCustom, calls=f,
    backend_config={"fusion_backend_config":{"kind":"__custom_fusion","custom_fusion_config":{"name":"dynamic_slice_fusion"}}} }
"""


def test_copied_slices() -> None:
    fixed = hlo_run.parse(COPIED_SLICE.replace("CONFIG", '"byte_offset":"64","byte_stride":"0"'))
    found = copied_slice(fixed.entry.root)
    assert found is not None
    assert (found.size_bytes, found.source, found.target) == (32, SlicePlace(0, 64), None)
    outside = hlo_run.parse(COPIED_SLICE.replace("CONFIG", '"loop_index":"0","byte_offset":"0","byte_stride":"32"'))
    assert copied_slice(outside.entry.root) is None, "the loop that the offset depends on is not around"


def test_copies_of_several_operands() -> None:
    _, fusion = read_fusion(
        "f { p = f32[12] parameter(0) q = f32[5] parameter(1) a = f32[5] copy(q) b = f32[12] copy(p) "
        "ROOT t = (f32[5], f32[12]) tuple(a, b) }"
    )
    assert copied_operands(fusion) == (CopiedOperand(1, 0), CopiedOperand(0, 0))
