"""Mixed precision: what a compilation refuses beyond the reading of a text, as real XLA:GPU does."""

from __future__ import annotations

import pytest

from hlo_run.errors import ParseError
from hlo_run.ops.parse import parse
from hlo_run.ops.verify import COMPILING, verify

_MODULE = """
add {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }}
ENTRY e {{ x = bf16[4,2] parameter(0) z = bf16[] constant(0) ROOT r = {body}, to_apply=add }}
"""


@pytest.mark.parametrize(
    "body",
    [
        "f32[2] reduce(x, z), dimensions={0}",
        "f32[4,2] map(x, x), dimensions={0,1}",
    ],
)
def test_operands_have_the_types_of_the_computation(body: str) -> None:
    module = parse(_MODULE.format(body=body))
    with pytest.raises(ParseError, match="operand 0 has the type bf16, but 'add' takes f32"):
        verify(module, COMPILING)
