"""Concatenate kernels: operands of different lengths, epilogues, types, and fusions left to the loop emitter."""

from __future__ import annotations

import pytest
from emitting import emit, run, run_on_host


@pytest.mark.parametrize(
    ("operands", "result", "axis"),
    [
        (["[30,7]", "[30,50]", "[30,1]"], "[30,58]", 1),
        (["[200]", "[256]"], "[456]", 0),
        (["[8,32]", "[4,32]", "[4,32]"], "[16,32]", 0),
        (["[3,4,5]", "[3,9,5]", "[3,0,5]", "[3,2,5]"], "[3,15,5]", 1),
        (["[6,4]{0,1}", "[6,10]{0,1}"], "[6,14]{0,1}", 1),
    ],
)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "s8", "pred"])
def test_operands_of_different_lengths(operands: list[str], result: str, axis: int, dtype: str) -> None:
    lines = [f"p{n} = {dtype}{dims} parameter({n})" for n, dims in enumerate(operands)]
    names = ", ".join(f"p{n}" for n in range(len(operands)))
    emitted = run_on_host(
        f"f {{ {' '.join(lines)} ROOT c = {dtype}{result} concatenate({names}), dimensions={{{axis}}} }}",
    )
    assert emitted.kernel.kind == "concatenate"
    loops = sum("0" not in dims.strip("[]").split(",") for dims in operands)
    assert emitted.text.count("xla_gpu.loop") == loops


def test_an_epilogue_of_several_operands_is_one_function() -> None:
    emitted = run(
        """f {
          p = f32[40,3] parameter(0)
          q = f32[40,17] parameter(1)
          s = f32[40] parameter(2)
          e = f32[40,3] exponential(p)
          c = f32[40,20] concatenate(e, q), dimensions={1}
          b = f32[40,20] broadcast(s), dimensions={0}
          m = f32[40,20] multiply(c, b)
          ROOT r = f32[800] bitcast(m)
        }"""
    )
    assert emitted.kernel.kind == "concatenate"
    assert emitted.text.count("func.func private @f__epilogue__r") == 1


def test_one_operand_twice() -> None:
    assert (
        run("f { p = f32[9,4] parameter(0) ROOT c = f32[18,4] concatenate(p, p), dimensions={0} }").kernel.kind == "concatenate"
    )


def test_vectors_divide_every_operand() -> None:
    text = "f {{ p = f32[{0}] parameter(0) q = f32[{1}] parameter(1) ROOT c = f32[{2}] concatenate(p, q), dimensions={{0}} }}"
    assert emit(text.format(2**20, 2**22, 2**20 + 2**22)).kernel.unroll_factor == 4
    assert emit(text.format(2**20 + 2, 2**22, 2**20 + 2 + 2**22)).kernel.unroll_factor == 2


def test_five_operands_and_two_roots_are_loops() -> None:
    five = "f { p = f32[8] parameter(0) ROOT c = f32[40] concatenate(p, p, p, p, p), dimensions={0} }"
    two = (
        "f { p = f32[8] parameter(0) c = f32[16] concatenate(p, p), dimensions={0} n = f32[16] negate(c) "
        "ROOT t = (f32[16], f32[16]) tuple(c, n) }"
    )
    assert run(five).kernel.kind == run(two).kernel.kind == "loop"


@pytest.mark.parametrize(("opcode", "moves"), [("bitcast", True), ("negate", False)])
def test_an_epilogue_that_only_moves_elements_is_always_inlined(opcode: str, moves: bool) -> None:
    emitted = emit(
        f"""f {{
          p = f32[40] parameter(0)
          q = f32[60] parameter(1)
          e = f32[60] exponential(q)
          c = f32[100] concatenate(p, e), dimensions={{0}}
          ROOT r = f32[100] {opcode}(c)
        }}"""
    )
    line = next(line for line in emitted.text.splitlines() if "func.func private @f__epilogue__r" in line)
    assert ("no_compute = true" in line) == moves
