"""Configs are read as XLA reads them: as the JSON of protobuf messages, which is wider than JSON."""

from __future__ import annotations

import numpy as np
import pytest

from hlo_run.hlo.values.backend_config import config_of, read_config
from hlo_run.ops.parse import parse
from hlo_run.reference.evaluate.evaluate import evaluate

_STRICT = '{"gemm_backend_config":{"beta":0,"epilogue":"DEFAULT","lhs":["1","0"]},"wait":[]}'


@pytest.mark.parametrize(
    "text",
    [
        _STRICT,
        '{gemm_backend_config:{beta:0,epilogue:"DEFAULT",lhs:["1","0"]},wait:[]}',
        "{'gemm_backend_config' : {'beta':0, epilogue:'DEFAULT', 'lhs':['1','0']}, wait:[]}",
        '{"gemm_backend_config":{"beta":0,"epilogue":"DEFAULT","lhs":["1","0",],},"wait":[],}',
        ' {"gemmBackendConfig":{beta:0,epilogue:"DEFAULT",lhs:["1","0"]},wait:[]}',
    ],
)
def test_all_spellings_give_one_record(text: str) -> None:
    assert read_config(text) == read_config(_STRICT)


def test_texts_keep_their_characters() -> None:
    assert read_config(r"""{a:'x: "y", \'z\',}',"b":"k: 'v',]"}""") == {"a": "x: \"y\", 'z',}", "b": "k: 'v',]"}


@pytest.mark.parametrize("text", ["", "Sum", '"{}"', "[1]", "{}"])
def test_other_texts_are_empty(text: str) -> None:
    assert read_config(text) == {}


@pytest.mark.parametrize("text", ["{algorithm = 0 : ui8, lower = true}", "{a:}", "{a:1", "{a b:1}"])
def test_no_record(text: str) -> None:
    with pytest.raises(ValueError, match="line 1"):
        read_config(text)
    assert config_of(text) == {}


def test_a_product_runs_with_bare_keys() -> None:
    module = parse("""HloModule m
ENTRY e {
  a = f32[2,3] parameter(0)
  b = f32[3,2] parameter(1)
  ROOT c = (f32[2,2], s8[0]) custom-call(a, b), custom_call_target="__cublas$gemm", \
backend_config={gemm_backend_config:{alpha_real:2,alpha_imag:0,beta:0,dot_dimension_numbers:{lhs_contracting_dimensions:["1"],rhs_contracting_dimensions:["0"],\
lhs_batch_dimensions:[],rhs_batch_dimensions:[]},epilogue:"DEFAULT"}}
}
""")
    product, _ = evaluate(module, [np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)])
    assert np.asarray(product).tolist() == [[6, 6], [6, 6]]
