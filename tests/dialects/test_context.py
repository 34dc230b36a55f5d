"""The context imports dialects when they are asked for."""

from __future__ import annotations

from hlo_run.dialects.all_dialects import DIALECTS
from hlo_run.dialects.context import NAMES, make_context


def test_the_context_knows_all_dialects_and_loads_none() -> None:
    context = make_context()
    assert set(NAMES) == set(DIALECTS)
    assert list(context.loaded_dialects) == []
    assert context.get_optional_op("llvm.fptrunc") is not None
    assert [dialect.name for dialect in context.loaded_dialects] == ["llvm"]
