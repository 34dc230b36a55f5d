"""Custom calls of known targets are refused unless their operands, results and attributes fit."""

from __future__ import annotations

import re

import pytest

from hlo_run.errors import Unsupported
from hlo_run.hlo.text.parser import parse_module
from hlo_run.hlo.verify.library_calls import verify_library_calls
from hlo_run.ops.parse import parse
from hlo_run.pipeline.pass_pipeline import HloPassPipeline

_GEMM = (
    'backend_config={"gemm_backend_config":{"alpha_real":1,"beta":BETA,"epilogue":"EPILOGUE",'
    '"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}'
)
_PLAIN, _BIAS, _ADD = (
    _GEMM.replace("BETA", beta).replace("EPILOGUE", epilogue)
    for beta, epilogue in (("0", "DEFAULT"), ("0", "BIAS"), ("1", "DEFAULT"))
)
_CONV = "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f"
_SCAN = "backend_config={vector_length = 1 : i64, row_length = 9 : i64, column_length = 2 : i64, kind = 1 : i32}"

# (operands, result, target, attributes) that fit
_FITTING = [
    ("f32[2,6,6]", "(f32[2,6,6], f32[2,6])", "Eigh", ""),
    ("c64[6,6]", "(c64[6,6], f32[6])", "Eigh", ""),
    ("f32[6,4]", "(f32[6,4], f32[4])", "Qr", ""),
    ("f32[3,8,5]", "(f32[3,8,5], s32[3,5], s32[3,8])", "LuDecomposition", ""),
    ("f32[6,4] f32[3]", "f32[6,4]", "ProductOfElementaryHouseholderReflectors", ""),
    ("f32[4,8] f32[8,5]", "f32[4,5]", "__cublas$gemm", _PLAIN),
    ("f32[4,8] f32[8,5]", "(f32[4,5], s8[0])", "__cublas$lt$matmul", _PLAIN),
    ("f32[4,8] f32[8,5] f32[5]", "(f32[4,5], s8[0])", "__cublas$lt$matmul", _BIAS),
    ("f32[4,8] f32[8,5] f32[4,5]", "(f32[4,5], s8[0])", "__cublas$lt$matmul", _ADD),
    ("s8[4,8] s8[8,4]", "(s32[4,4], s8[0])", "__cublas$lt$matmul", _PLAIN),
    ("f8e4m3fn[4,8] f8e4m3fn[8,5] f32[] f32[]", "(f32[4,5], s8[0])", "__cublas$lt$matmul$f8", _PLAIN),
    ("f32[4,4] f32[4,2]", "(f32[4,2], s8[64])", "__cublas$triangularSolve", 'backend_config={"left_side":true}'),
    ("f32[1,5,5,2] f32[3,3,2,4]", "(f32[1,5,5,4], u8[0])", "__cudnn$convForward", _CONV),
    ("f32[1,5,5,2] f32[3,3,2,4] f32[4]", "(f32[1,5,5,4], u8[0])", "__cudnn$convBiasActivationForward", _CONV),
    ("f32[1,5,5,4] f32[3,3,2,4]", "(f32[1,5,5,2], u8[0])", "__cudnn$convBackwardInput", _CONV),
    ("f32[1,5,5,2] f32[1,5,5,4]", "(f32[3,3,2,4], u8[0])", "__cudnn$convBackwardFilter", _CONV),
    ("f32[1,5,5,2] f32[3,3,2,4] f32[1,5,5,4] f32[]", "(f32[1,5,5,4], f32[], u8[0])", "__cudnn$convForwardGraph", _CONV),
    ("f32[2,9]", "(f32[2,9], u8[1])", "__cub$DeviceRadixSort", ""),
    ("f32[9] s32[9]", "(f32[9], s32[9], u8[1])", "xla.gpu.ext.cub_sort_pairs", ""),
    ("f32[2,9]", "(f32[2,9], u8[0])", "xla.gpu.ext.cub_scan", _SCAN),
    ("f32[2,9]", "(f32[2,3], s32[2,3])", "TopK", ""),
    ("f32[<=4,3]", "(f32[4,3], s32[], s32[])", "PadToStatic", ""),
    ("f32[4,3] s32[] s32[]", "f32[<=4,3]", "SliceToDynamic", ""),
    ("", "u64[]", "GetRngSeed", ""),
    ("f32[<=4]", "f32[<=4]{0}", "LayoutConstraint", ""),
    ("f32[8,4]", "f32[2,4]", "SPMDFullToShardShape", ""),
    ("f32[4,4]", "(f32[4,4], s32[4], s32[])", "cusolver_getrf_ffi", ""),
    ("f32[4,4] f32[3]", "f32[4,4]", "cusolver_orgqr_ffi", ""),
    ("f32[3]", "s32[7]", "a_target_of_the_user", ""),
]
# (a fitting row's place, what is replaced, by what)
_UNFIT = [
    ("cusolver_orgqr_ffi", "f32[3]", "c64[3]"),
    ("Eigh", "f32[2,6,6]", "f32[2,6,5]"),
    ("Eigh", "f32[2,6])", "s32[2,6])"),
    ("Qr", "f32[4])", "f32[6])"),
    ("LuDecomposition", "s32[3,8]", "s32[3,5]"),
    ("ProductOfElementaryHouseholderReflectors", "f32[3]", "f32[5]"),
    ("__cublas$gemm", "f32[8,5]", "f32[7,5]"),
    ("__cublas$gemm", "f32[8,5]", "s32[8,5]"),
    ("__cublas$gemm", '["0"]', '["x"]'),
    ("__cublas$lt$matmul", "f32[8,5]", "f32[8]"),
    ("__cublas$lt$matmul$f8", "f32[]", "f32[2]"),
    ("__cublas$triangularSolve", "true", "false"),
    ("__cudnn$convForward", "window={size=3x3 pad=1_1x1_1}, ", ""),
    ("__cudnn$convForward", "dim_labels", "feature_group_count=3, dim_labels"),
    ("__cudnn$convBiasActivationForward", "f32[4]", "f32[5]"),
    ("__cudnn$convBackwardInput", "f32[1,5,5,2]", "f32[1,5,4,2]"),
    ("__cudnn$convBackwardFilter", "pad=1_1x1_1", "pad=1_1x1_0"),
    ("__cudnn$convForwardGraph", "f32[3,3,2,4]", "((f32[3,3,2,4]))"),
    ("__cudnn$convForwardGraph", "f32[]", "token[]"),
    ("__cub$DeviceRadixSort", "(f32[2,9], u8[1])", "f32[2,9]"),
    ("xla.gpu.ext.cub_sort_pairs", "s32[9]", "s32[8]"),
    ("xla.gpu.ext.cub_scan", "column_length = 2", "column_length = 3"),
    ("xla.gpu.ext.cub_scan", "kind = 1", "kind = 2"),
    ("TopK", "f32[2,3]", "f32[2,10]"),
    ("TopK", "(f32[2,3], s32[2,3])", "(f32[], s32[3])"),
    ("PadToStatic", "f32[<=4,3]", "f32[4,3]"),
    ("SliceToDynamic", "f32[4,3] s32[]", "f32[4,3]"),
    ("GetRngSeed", "u64[]", "f32[<=4]"),
    ("LayoutConstraint", "f32[<=4]{0}", "f32[4]{0}"),
    ("SPMDFullToShardShape", "f32[2,4]", "f32[2]"),
    ("cusolver_getrf_ffi", "s32[])", "token[])"),
]


def _text(operands: str, result: str, target: str, attributes: str) -> str:
    shapes = operands.split()
    parameters = "\n".join(f"  p{n} = {shape} parameter({n})" for n, shape in enumerate(shapes))
    names = ", ".join(f"p{n}" for n in range(len(shapes)))
    rest = f", {attributes}" if attributes else ""
    return f'ENTRY e {{\n{parameters}\n  ROOT r = {result} custom-call({names}), custom_call_target="{target}"{rest}\n}}'


@pytest.mark.parametrize("row", _FITTING, ids=lambda row: row[2])
def test_calls_that_fit(row: tuple[str, str, str, str]) -> None:
    verify_library_calls(parse(_text(*row), "m.hlo"))


@pytest.mark.parametrize(("target", "old", "new"), _UNFIT)
def test_calls_that_do_not_fit(target: str, old: str, new: str) -> None:
    row = next(row for row in _FITTING if row[2] == target)
    text = _text(*(part.replace(old, new) if part != row[2] else part for part in row))
    assert text != _text(*row)
    with pytest.raises(Unsupported, match=re.escape(target)) as caught:
        verify_library_calls(parse_module(text, "m.hlo"))
    assert caught.value.where is not None


def test_a_pass_by_name_takes_any_call() -> None:
    module = parse_module('ENTRY e { p = f32[4] parameter(0)  ROOT r = f32[4] custom-call(p), custom_call_target="PadToStatic" }')
    with pytest.raises(Unsupported):
        verify_library_calls(module)
    assert not HloPassPipeline("p").add_pass("dce").run(module)
