"""A concatenate of many operands is split into several of at most 128, with the same result."""

from __future__ import annotations

import numpy as np
import pytest

from hlo_run import parse
from hlo_run.hlo_passes.expanders.variadic_op_splitter import VariadicOpSplitter
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.reference.evaluate.evaluate import evaluate
from hlo_run.target import DEFAULT_TARGET, preset


@pytest.mark.parametrize(("count", "operands"), [(128, [128]), (129, [2, 128]), (300, [46, 128, 128])])
def test_splits_above_128_operands(count: int, operands: list[int]) -> None:
    parameters = "\n".join(f"p{n} = s32[{n % 3}] parameter({n})" for n in range(count))
    names = ", ".join(f"p{n}" for n in range(count))
    size = sum(n % 3 for n in range(count))
    module = parse(f"HloModule m\nENTRY e {{\n{parameters}\nROOT c = s32[{size}] concatenate({names}), dimensions={{0}}\n}}")
    arguments = [np.arange(n % 3, dtype=np.int32) + n for n in range(count)]
    VariadicOpSplitter().apply(PassContext(preset(DEFAULT_TARGET), Options()), module)
    found = [len(i.operands) for i in module.instructions if i.opcode == "concatenate"]
    assert sorted(found) == operands
    np.testing.assert_array_equal(evaluate(module, list(arguments)), np.concatenate(arguments))
