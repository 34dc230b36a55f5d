"""Results that may be written over an operand that is read for the last time."""

from __future__ import annotations

import pytest

import hlo_run
from hlo_run.analysis.buffers.buffer_sharing import BufferSharing
from hlo_run.analysis.buffers.dataflow import analyze_dataflow
from hlo_run.hlo.graph import HloInstruction


def _fusion(body: str, operands: str, shape: str = "f32[8,4]") -> HloInstruction:
    types = {"p": "f32[8,4]", "q": "f32[8,4]", "i": "s32[]", "h": "bf16[8,4]", "z": "s32[8,4]", "w": "f32[32]"}
    parameters = "\n".join(f"  {name} = {kind} parameter({n})" for n, (name, kind) in enumerate(types.items()))
    module = hlo_run.parse(f"""
max {{ ma = f32[] parameter(0)  mb = f32[] parameter(1)  ROOT mm = f32[] maximum(ma, mb) }}
f {{
{body}
}}
ENTRY e {{
{parameters}
  ROOT r = {shape} fusion({operands}), kind=kLoop, calls=f
}}""")
    return module.entry.root


_A = "  a = f32[8,4] parameter(0)\n"
_AB = f"{_A}  b = f32[8,4] parameter(1)\n"
_UPDATE = f"{_A}  i = s32[] parameter(1)\n  z = s32[] constant(0)\n"


@pytest.mark.parametrize(
    ("body", "operands", "number", "verdict"),
    [
        (f"{_A}  ROOT r0 = f32[8,4] exponential(a)", "p", 0, True),
        (f"{_AB}  ROOT r0 = f32[8,4] add(a, b)", "p, q", 1, True),
        # Another thread may not have read yet what this one writes.
        (f"{_A}  x = f32[8,4] reverse(a), dimensions={{0}}\n  ROOT r0 = f32[8,4] add(a, x)", "p", 0, False),
        (f"{_A}  x = f32[4,8] transpose(a), dimensions={{1,0}}\n  ROOT r0 = f32[8,4] bitcast(x)", "p", 0, False),
        (f"{_A}  ROOT r0 = f32[8,4]{{0,1}} copy(a)", "p", 0, False),
        # Elements of equal width, in equal number.
        ("  a = s32[8,4] parameter(0)\n  ROOT r0 = f32[8,4] convert(a)", "z", 0, True),
        ("  a = bf16[8,4] parameter(0)\n  ROOT r0 = f32[8,4] convert(a)", "h", 0, False),
        ("  a = f32[32] parameter(0)\n  x = f32[8,4] bitcast(a)\n  ROOT r0 = f32[8,4] negate(x)", "w", 0, True),
        (
            f"{_UPDATE}  s = f32[1,4] dynamic-slice(a, i, z), dynamic_slice_sizes={{1,4}}\n"
            "  n = f32[1,4] negate(s)\n  ROOT r0 = f32[8,4] dynamic-update-slice(a, n, i, z)",
            "p, i",
            0,
            True,
        ),
        (
            f"{_UPDATE}  s = f32[1,4] dynamic-slice(a, z, z), dynamic_slice_sizes={{1,4}}\n"
            "  n = f32[1,4] negate(s)\n  ROOT r0 = f32[8,4] dynamic-update-slice(a, n, i, z)",
            "p, i",
            0,
            False,
        ),
    ],
)
def test_one_result(body: str, operands: str, number: int, verdict: bool) -> None:
    shape = "f32[8,4]{0,1}" if "{0,1} copy" in body else "f32[8,4]"
    assert BufferSharing().may_share(_fusion(body, operands, shape), number, (), ()) is verdict


def test_two_results_that_both_read_at_their_own_place() -> None:
    body = f"{_A}  x = f32[8,4] negate(a)\n  y = f32[8,4] abs(a)\n  ROOT r0 = (f32[8,4], f32[8,4]) tuple(x, y)"
    fusion = _fusion(body, "p", "(f32[8,4], f32[8,4])")
    assert BufferSharing().may_share(fusion, 0, (), (0,))
    assert BufferSharing().may_share(fusion, 0, (), (1,))


def test_the_first_reduction_reads_an_element_before_another_result_takes_its_place() -> None:
    body = (
        f"{_A}  x = f32[8,4] negate(a)\n  z = f32[] constant(0)\n"
        "  y = f32[8] reduce(a, z), dimensions={1}, to_apply=max\n  ROOT r0 = (f32[8,4], f32[8]) tuple(x, y)"
    )
    assert BufferSharing().may_share(_fusion(body, "p", "(f32[8,4], f32[8])"), 0, (), (0,))
    elsewhere = body.replace("reduce(a,", "reduce(v,").replace("  z =", "  v = f32[8,4] reverse(a), dimensions={0}\n  z =")
    assert not BufferSharing().may_share(_fusion(elsewhere, "p", "(f32[8,4], f32[8])"), 0, (), (0,))


def test_two_results_beside_a_reduction_read_before_either_is_written() -> None:
    """As in XLA of jaxlib 0.12.0.1. A reduction of another array has blocks of its own, which would read what is written."""
    body = (
        f"{_AB}  z = f32[] constant(0)\n  x = f32[8,4] negate(a)\n  y = f32[8,4] abs(a)\n"
        "  s = f32[8] reduce(a, z), dimensions={1}, to_apply=max\n"
        "  ROOT r0 = (f32[8,4], f32[8], f32[8,4]) tuple(x, s, y)"
    )
    shape = "(f32[8,4], f32[8], f32[8,4])"
    for output in (0, 2):
        assert BufferSharing().may_share(_fusion(body, "p, q", shape), 0, (), (output,))
    apart = body.replace("reduce(a,", "reduce(b,")
    assert not BufferSharing().may_share(_fusion(apart, "p, q", shape), 0, (), (0,))


def test_sort_goes_operand_by_operand() -> None:
    module = hlo_run.parse("""
less { a = f32[] parameter(0)  b = f32[] parameter(1)  c = s32[] parameter(2)  d = s32[] parameter(3)
  ROOT l = pred[] compare(a, b), direction=LT }
ENTRY e { p = f32[8] parameter(0)  q = s32[8] parameter(1)
  ROOT s = (f32[8], s32[8]) sort(p, q), dimensions={0}, to_apply=less }""")
    sharing = BufferSharing()
    assert sharing.may_share(module.entry.root, 1, (), (1,))
    assert not sharing.may_share(module.entry.root, 1, (), (0,))


@pytest.mark.parametrize(
    ("target", "beta", "operands", "shared"),
    [
        ("__cublas$lt$matmul", "1", "a, b, c", [2]),
        ("__cublas$lt$matmul", "-0.5", "a, b, c", [2]),
        ("__cublas$lt$matmul", "0", "a, b", []),
        ("__cublas$lt$matmul", "0.0", "a, b, v", []),
        # XLA lets no other library write over what it reads.
        ("__cublas$lt$matmul$f8", "1", "a, b, c", []),
        ("__cublas$triangularSolve", "1", "a, b, c", []),
        # Half of the room.
        ("__cublas$lt$matmul", "1", "a, b, h", []),
    ],
)
def test_a_product_is_written_over_the_matrix_that_it_adds(target: str, beta: str, operands: str, shared: list[int]) -> None:
    module = hlo_run.parse(
        f"""HloModule m
ENTRY e {{
  a = f32[8,8] parameter(0)
  b = f32[8,8] parameter(1)
  c = f32[8,8] parameter(2)
  h = f16[8,8] parameter(3)
  v = f32[8] parameter(4)
  ROOT g = (f32[8,8], s8[64]) custom-call({operands}), custom_call_target="{target}",
    backend_config={{"gemm_backend_config":{{"alpha_real":1,"beta":{beta},"epilogue":"DEFAULT"}}}}
}}""",
        verified=False,
    )
    sharing = BufferSharing()
    call = module.entry.root
    assert [n for n in range(len(call.operands)) if sharing.may_share(call, n, (), (0,))] == shared
    assert not any(sharing.may_share(call, n, (), (1,)) for n in range(len(call.operands)))


def test_a_product_of_the_matrix_that_it_adds_is_not_written_over_it() -> None:
    module = hlo_run.parse(
        """HloModule m, is_scheduled=true
ENTRY e {
  a = f32[8,8] parameter(0)
  t = f32[8,8] tanh(a)
  g = (f32[8,8], s8[64]) custom-call(t, a, t), custom_call_target="__cublas$lt$matmul",
    backend_config={"gemm_backend_config":{"alpha_real":1,"beta":1,"epilogue":"DEFAULT"}}
  ROOT r = f32[8,8] get-tuple-element(g), index=0
}""",
        verified=False,
    )
    trees = analyze_dataflow(module).trees
    by_name = {instruction.name: tree for instruction, tree in trees.items()}
    user = next(value for index, value in by_name["g"].walk() if index == (0,))
    value = next(value for _, value in by_name["t"].walk())
    assert not BufferSharing().may_take_place(user, value)
