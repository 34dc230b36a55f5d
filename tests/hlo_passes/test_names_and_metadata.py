"""Names, metadata and order of the instructions that passes make: XLA's text depends on them."""

from __future__ import annotations

from typing import Any

import hlo_run
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo_passes.dots.gemm.cublas_gemm_rewriter import CublasGemmRewriter
from hlo_run.hlo_passes.fusion.multi_output_fusion import MultiOutputFusion
from hlo_run.hlo_passes.indexed.batched_gather_scatter_normalizer import BatchedGatherScatterNormalizer
from hlo_run.hlo_passes.indexed.scatter_simplifier import ScatterSimplifier
from hlo_run.hlo_passes.reductions.reduction_degenerate_dim_remover import ReductionDegenerateDimRemover
from hlo_run.hlo_passes.simplifiers.algsimp import AlgebraicSimplifier
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.target import DEFAULT_TARGET, preset

_SUM = "sum { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }"


def _after(the_pass: Any, text: str) -> HloModule:
    module = hlo_run.parse(f"HloModule m\n{text}")
    the_pass.apply(PassContext(preset(DEFAULT_TARGET), Options()), module)
    return module


def _origin(instruction: HloInstruction) -> str:
    metadata: Any = instruction.metadata
    return metadata.op_name if metadata is not None else ""


def _origins(module: HloModule, opcode: str) -> list[str]:
    return [_origin(i) for i in module.entry.instructions if i.opcode == opcode]


def test_an_addend_changes_the_scatter_in_place() -> None:
    text = f"""{_SUM}
    ENTRY e {{ z = f32[8,4] parameter(0)  at = s32[2,1] parameter(1)  u = f32[2,1,4] parameter(2)  x = f32[8,4] parameter(3)
      s.7 = f32[8,4] scatter(z, at, u), to_apply=sum, update_window_dims={{1,2}}, inserted_window_dims={{}},
        scatter_dims_to_operand_dims={{0}}, index_vector_dim=1
      ROOT r = f32[8,4] add(x, s.7), metadata={{op_name="add"}} }}"""
    module = _after(AlgebraicSimplifier(), text)
    assert module.entry.root.name == "s.7"
    assert _origins(module, "add") == [""]


def test_updates_of_a_simplified_scatter_derive_from_the_updates() -> None:
    text = f"""{_SUM}
    ENTRY e {{ z = f32[8,4] parameter(0)  at = s32[2,1] parameter(1)  v = f32[2,4] parameter(2)
      u = f32[2,4] negate(v), metadata={{op_name="update"}}
      ROOT s = f32[8,4] scatter(z, at, u), to_apply=sum, update_window_dims={{1}}, inserted_window_dims={{0}},
        scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, metadata={{op_name="scatter"}} }}"""
    assert _origins(_after(ScatterSimplifier(), text), "reshape") == ["update"]


def test_batch_places_have_no_metadata() -> None:
    text = """ENTRY e { p = f32[3,8] parameter(0)  at = s32[3,1] parameter(1)
      ROOT g = f32[3] gather(p, at), offset_dims={}, collapsed_slice_dims={1}, start_index_map={1}, operand_batching_dims={0},
        start_indices_batching_dims={0}, index_vector_dim=1, slice_sizes={1,1}, metadata={op_name="gather"} }"""
    module = _after(BatchedGatherScatterNormalizer(), text)
    assert (_origins(module, "iota"), _origins(module, "concatenate")) == ([""], ["gather"])


def test_only_the_result_of_a_reduction_without_ones_derives_from_it() -> None:
    text = f"""{_SUM}
    ENTRY e {{ p = f32[1,7,9] parameter(0)  z = f32[] constant(0)
      ROOT r = f32[1,7] reduce(p, z), dimensions={{2}}, to_apply=sum, metadata={{op_name="sum"}} }}"""
    assert _origins(_after(ReductionDegenerateDimRemover(), text), "bitcast") == ["", "sum"]


def test_a_chain_of_bitcasts_takes_a_name() -> None:
    text = """ENTRY e { p = f32[8] parameter(0)  bitcast = f32[2,4] bitcast(p)  bitcast.1 = f32[8] bitcast(bitcast)
      ROOT n = f32[8] negate(bitcast.1) }"""
    module = _after(AlgebraicSimplifier(sees_layouts=True), text)
    assert [i.opcode for i in module.entry.instructions] == ["parameter", "negate"]
    assert module.unique_instruction_name("bitcast") == "bitcast.3"


def test_elements_of_a_joined_fusion_derive_from_the_fusion() -> None:
    text = """f { q = f32[64] parameter(0)  n = f32[64] negate(q)  ROOT e = f32[64] exponential(n) }
    g { q = f32[64] parameter(0)  n = f32[64] sine(q)  ROOT e = f32[64] exponential(n) }
    ENTRY e { p = f32[64] parameter(0)  a = f32[64] fusion(p), kind=kLoop, calls=f, metadata={op_name="a"}
      b = f32[64] fusion(p), kind=kLoop, calls=g, metadata={op_name="b"}  ROOT t = (f32[64], f32[64]) tuple(b, a) }"""
    module = _after(MultiOutputFusion(), text)
    (fusion,) = module.instructions_of("fusion")
    assert _origins(module, "get-tuple-element") == [_origin(fusion)] * 2


def test_a_call_with_a_matrix_added_comes_last_and_its_view_derives_from_the_add() -> None:
    text = """ENTRY e { p = f32[64,64] parameter(0)  q = f32[64,64] parameter(1)  x = f32[2,32,64] parameter(2)
      d = f32[64,64] dot(p, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="dot"}
      v = f32[2,32,64] bitcast(d), metadata={op_name="view"}
      c = f32[2,32,64] cosine(x), metadata={op_name="addend"}
      s = f32[2,32,64] add(v, c), metadata={op_name="add"}
      y = f32[2,32,64] sine(s)  w = f32[2,32,64] negate(s)  u = f32[2,32,64] abs(s)
      ROOT t = (f32[2,32,64], f32[2,32,64], f32[2,32,64]) tuple(w, y, u) }"""
    module = _after(CublasGemmRewriter(), text)
    (call,) = module.instructions_of("custom-call")
    matrix, view = sorted(module.instructions_of("bitcast"), key=lambda i: call in i.operands[0].operands)
    places = module.entry.instructions
    assert places.index(matrix) < places.index(view) > places.index(module.instructions_of("sine")[0])
    assert (_origin(matrix), _origin(view)) == ("addend", "add")
    assert [user.opcode for user in view.users] == ["sine", "negate", "abs"]
