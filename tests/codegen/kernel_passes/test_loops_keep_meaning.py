"""Loops over random maps visit the same points after peeling, lowering and simplification."""

from __future__ import annotations

import random
from itertools import product

import pytest
from xdsl.dialects import arith, func, scf
from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.ir import Block, SSAValue
from xdsl.passes import ModulePass

from hlo_run.codegen.kernel_passes.canonicalize import Canonicalize
from hlo_run.codegen.kernel_passes.cse import Cse
from hlo_run.codegen.kernel_passes.lower_xla_gpu_to_scf import LowerXlaGpuToScf
from hlo_run.codegen.kernel_passes.peel_loops import PeelLoops
from hlo_run.codegen.kernel_passes.simplify_arith import SimplifyArith
from hlo_run.dialects.context import make_context
from hlo_run.dialects.editing.folding import compare
from hlo_run.dialects.editing.functions import functions
from hlo_run.dialects.parse import parse_module
from hlo_run.dialects.xla_gpu import ApplyIndexingOp
from hlo_run.indexing.expr import Expr, constant, dim, symbol
from hlo_run.indexing.indexing_map import IndexingMap
from hlo_run.indexing.interval import Interval
from hlo_run.indexing.printer import attribute_text
from hlo_run.indexing.variable import Variable

THREADS = 6


def random_expr(rng: random.Random, range_count: int) -> Expr:
    """Return a sum of the thread id and the range variables, perhaps divided or taken modulo something."""
    expr = dim(0) * rng.choice((0, 1, 2, 3))
    for number in range(range_count):
        expr += symbol(number) * rng.choice((0, 1, 2, 4, 6))
    match rng.randrange(4):
        case 0:
            return expr // rng.choice((2, 3, 4))
        case 1:
            return expr % rng.choice((3, 4, 5))
        case _:
            return expr + constant(rng.choice((0, 1)))


def random_map(rng: random.Random) -> IndexingMap:
    ranges = tuple(Variable(Interval(low, low + rng.randrange(4))) for low in rng.choices((0, 1), k=rng.randrange(3)))
    results = tuple(random_expr(rng, len(ranges)) for _ in range(2))
    constraints: list[tuple[Expr, Interval]] = []
    for _ in range(rng.randrange(3)):
        constraints.append((random_expr(rng, len(ranges)), Interval(rng.choice((0, 1)), rng.randrange(2, 14))))
    # The interval of the dim is narrower than that of the id, so the loop has to check it.
    first = rng.choice((0, 0, 1))
    dims = (Variable(Interval(first, first + rng.choice((THREADS - 1, 3)))),)
    return IndexingMap(dims, ranges, (), results).with_constraints(constraints)


def visited(used_map: IndexingMap, thread: int) -> list[tuple[int, ...]]:
    """Return the results at the points of the domain, in loop order."""
    steps = product(*(range(v.bounds.lower, v.bounds.upper + 1) for v in used_map.ranges))
    return [used_map.evaluate((thread,), s) for s in steps if used_map.contains((thread,), s)]


def kernel(used_map: IndexingMap) -> ModuleOp:
    """Return a function that passes the points to `@visit`."""
    symbols = ", ".join(f"%s{i}" for i in range(len(used_map.ranges)))
    text = attribute_text(used_map)
    return parse_module(
        f"""
        func.func @main(%id: index {{xla.range = [0 : index, {THREADS - 1} : index]}}, %init: i32) -> i32 {{
          %r = xla_gpu.loop (%id)[{symbols}] -> (%a, %b) in #xla_gpu.indexing_map<"{text}"> iter_args(%n = %init) -> (i32) {{
            %0 = func.call @visit(%n, %a, %b) : (i32, index, index) -> i32
            xla_gpu.yield %0 : i32
          }}
          return %r : i32
        }}
        func.func private @visit(%n: i32, %a: index, %b: index) -> i32
        """
    )


def run(module: ModuleOp, thread: int) -> list[tuple[int, ...]]:
    """Interpret the lowered function, and return the points passed to `@visit`. The iteration value counts them."""
    points: list[tuple[int, ...]] = []
    values: dict[SSAValue, int] = {}

    def block(body: Block, arguments: list[int]) -> list[int]:
        values.update(zip(body.args, arguments, strict=True))
        for op in body.ops:
            inputs = [values[operand] for operand in op.operands]
            match op:
                case arith.ConstantOp(value=IntegerAttr() as attribute):
                    outputs = [attribute.value.data]
                case arith.CmpiOp():
                    outputs = [-compare(op.predicate.value.data, inputs[0], inputs[1], op.lhs.type)]
                case arith.AndIOp():
                    outputs = [inputs[0] & inputs[1]]
                case ApplyIndexingOp():
                    count = len(op.map.dims)
                    outputs = list(op.map.evaluate(inputs[:count], inputs[count:]))
                case func.CallOp():
                    assert inputs[0] == len(points), "steps see the value of the step before"
                    points.append(tuple(inputs[1:]))
                    outputs = [inputs[0] + 1]
                case scf.IfOp():
                    outputs = block((op.true_region if inputs[0] else op.false_region).block, [])
                case scf.ForOp():
                    outputs = inputs[3:]
                    for step in range(inputs[0], inputs[1], inputs[2]):
                        outputs = block(op.body.block, [step, *outputs])
                case func.ReturnOp() | scf.YieldOp():
                    return inputs
                case _:
                    raise AssertionError(f"unexpected {op.name}")
            values.update(zip(op.results, outputs, strict=True))
        raise AssertionError("a block ends in a terminator")

    assert block(functions(module)[0].body.block, [thread, 0]) == [len(points)]
    return points


@pytest.mark.parametrize("seed", range(40))
def test_lowered_loops_keep_points_and_order(seed: int) -> None:
    used_map = random_map(random.Random(seed))
    module = kernel(used_map)
    apply(module, Canonicalize(), LowerXlaGpuToScf())
    for thread in range(THREADS):
        assert run(module, thread) == visited(used_map, thread)
    apply(module, SimplifyArith(), Canonicalize(), Cse())
    for thread in range(THREADS):
        assert run(module, thread) == visited(used_map, thread)


@pytest.mark.parametrize("seed", range(40, 80))
def test_peeled_loops_keep_points(seed: int) -> None:
    """Peeling an inner range variable moves its last step after all others: same points, different order."""
    used_map = random_map(random.Random(seed))
    module = kernel(used_map)
    apply(module, PeelLoops(), LowerXlaGpuToScf(), SimplifyArith(), Canonicalize(), Cse())
    for thread in range(THREADS):
        assert sorted(run(module, thread)) == sorted(visited(used_map, thread))


def apply(module: ModuleOp, *passes: ModulePass) -> None:
    for each in passes:
        each.apply(make_context(), module)
        module.verify()
