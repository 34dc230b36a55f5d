"""Threads access elements exactly once: every result, and the operands that XLA's own tests of these fusions name.

The maps are those of the emitted kernel, evaluated for every thread of the launch; see `touches.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from emitting import Emitted, emit
from touches import Touches, fault, touches
from xdsl.dialects import tensor

from hlo_run.dialects.xla_gpu import IndexingMapAttr, LoopOp
from hlo_run.hlo.graph import HloInstruction
from hlo_run.indexing.expr import constant
from hlo_run.indexing.indexing_map import IndexingMap
from hlo_run.indexing.variable import Variable
from hlo_run.records import replace

DATA = Path(__file__).resolve().parents[2] / "data" / "emitters"
# The operands (hero:number) that threads must read once, and whether they must write every result once.
CASES = {
    "common__concatenate__prologue_epilogue": (("concat:0", "concat:1"), True),
    "common__dynamic_update_slice__simple": (("updated:1",), False),
    "common__loop__vectorize_x4": (("neg:0",), True),
    "gpu__reduce_column__horizontal_fusion_two_groups": ((), True),
    "gpu__reduce_column__mof_heteorgeneous_input_shapes": (("reduce.1:0", "reduce.2:0"), True),
    "gpu__reduce_column__vectorize_x2_f32": (("reduce:0",), True),
    "gpu__reduce_column_small__input_layout": (("reduce:0",), True),
    "gpu__reduce_multirow__pred_mof_x2_v4": (("tmp_5:0", "tmp_8:0"), True),
    "gpu__reduce_row__side_output": (("reduce:0",), True),
    "gpu__reduce_row__variadic_f32": (("reduce:0", "reduce:1"), True),
    "gpu__scatter__sorted_indices_small": (("scatter:2",), False),
    "gpu__transpose__fused_transpose_102": (("transpose:0",), True),
    "gpu__transpose__multiple_roots_mixed_rank": ((), True),
    "gpu__transpose__packed_transpose_two_heroes": (("tr0:0", "tr1:0"), True),
    "gpu__transpose__partial_tile": (("t:0",), True),
    "gpu__transpose__side_outputs": (("tr:0",), True),
}


def _emit(name: str, target: str = "h100") -> Emitted:
    return emit((DATA / f"{name}.hlo").read_text(), target)


def _operand(emitted: Emitted, spec: str) -> HloInstruction:
    name, number = spec.split(":")
    computation = emitted.fusion.fused_computation
    return next(i for i in computation.instructions if i.name == name).operands[int(number)]


def _faults(emitted: Emitted, reads: tuple[str, ...], writes: bool, found: Touches) -> list[str]:
    """Return a description of the wrong accesses of a kernel."""
    faults: list[str] = []
    for spec in reads:
        operand = _operand(emitted, spec)
        accesses = found.reads.get(operand.name, [])
        wrong = [fault([access], operand.shape.dims) for access in accesses] or ["it is not read"]
        faults += [f"{spec}: {why}" for why in wrong if why]
    first = len(emitted.fusion.operands)
    for number, (_, leaf) in enumerate(emitted.fusion.shape.leaves()):
        why = fault(found.writes.get(first + number, []), leaf.dims) if writes else ""
        faults += [f"result {number}: {why}"] if why else []
    return faults


@pytest.mark.parametrize("name", list(CASES))
def test_elements_are_touched_once(name: str) -> None:
    emitted = _emit(name)
    found = touches(emitted.kernel)
    assert _faults(emitted, *CASES[name], found) == []
    for accesses in found.shared.values():
        # The threads of a block do not share a tile.
        dims = [int(access.max()) + 1 for access in accesses[0].T]
        for access in accesses:
            assert "2 times" not in fault([access], dims)


def test_other_targets_have_other_maps() -> None:
    """On fewer multiprocessors a thread processes more neighbours."""
    for target in ("v100", "b200"):
        emitted = _emit("gpu__reduce_multirow__pred_mof_x2_v4", target)
        assert _faults(emitted, *CASES["gpu__reduce_multirow__pred_mof_x2_v4"], touches(emitted.kernel)) == []


def _skewed(old: IndexingMap) -> IndexingMap:
    return replace(old, results=(old.results[0] + constant(1), *old.results[1:]))


def _short(old: IndexingMap) -> IndexingMap:
    """Leave out the last block or thread."""
    last = old.dims[-1]
    bounds = replace(last.bounds, upper=last.bounds.upper - 1)
    return replace(old, dims=(*old.dims[:-1], Variable(bounds, last.name)))


@pytest.mark.parametrize("change", [_skewed, _short], ids=["skewed", "short"])
@pytest.mark.parametrize("name", ["common__loop__vectorize_x4", "gpu__transpose__partial_tile", "gpu__reduce_row__side_output"])
def test_a_wrong_map_is_found(name: str, change: type) -> None:
    emitted = _emit(name)
    loop = next(op for op in emitted.kernel.module.walk() if isinstance(op, LoopOp))
    loop.properties["indexing_map"] = IndexingMapAttr(change(loop.map))
    assert _faults(emitted, *CASES[name], touches(emitted.kernel))


def test_a_second_write_is_found() -> None:
    emitted = _emit("common__loop__vectorize_x4")
    insert = next(op for op in emitted.kernel.module.walk() if isinstance(op, tensor.InsertOp))
    assert insert.parent is not None
    again = tensor.InsertOp.create(operands=[insert.scalar, insert.result, *insert.indices], result_types=[insert.result.type])
    insert.parent.insert_op_after(again, insert)
    assert any("is touched 2 times" in why for why in _faults(emitted, (), True, touches(emitted.kernel)))
