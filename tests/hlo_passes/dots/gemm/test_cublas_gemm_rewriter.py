"""Tests of `cublas_gemm_rewriter.py`: a call ceases to use its operands before the next one gets scratch memory."""

from hlo_run import parse
from hlo_run.hlo_passes.dots.gemm.cublas_gemm_rewriter import CublasGemmRewriter
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.target import preset

_TEXT = """
HloModule m
ENTRY e {
  p = f32[2,64,64] parameter(0)
  q = f32[2,64,64] parameter(1)
  a = f32[2,64,64] dot(p, q), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}
  b = f32[2,64,64] dot(p, q), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={1}, rhs_contracting_dims={1}
  c = f32[2,64,64] sine(p)
  ROOT t = (f32[2,64,64], f32[2,64,64], f32[2,64,64]) tuple(a, b, c)
}
"""


def test_users_are_listed_as_after_one_replacement_at_a_time() -> None:
    module = parse(_TEXT)
    CublasGemmRewriter().apply(PassContext(preset("h100"), Options()), module)
    # The last user takes the place of one that goes: [a, b, c], [call of a, b, c], [call of a, call of b, c], twice.
    first, second = (result.operands[0] for result in module.entry.root.operands[:2])
    names = {first: "call of a", second: "call of b"}
    assert [names.get(user, user.name) for user in module.entry.parameters[0].users] == ["call of a", "call of b", "c"]
