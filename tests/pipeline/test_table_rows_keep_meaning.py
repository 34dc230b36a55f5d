"""Kernels compute the same after each row between emission and pointers: run in numpy before and after, thread by thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from emitting import read_fusion
from xdsl.dialects import arith, func, vector
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, IndexType, ModuleOp, TensorType
from xdsl.ir import Attribute, Operation, SSAValue
from xla_gpu_interpreter import Array, Interpreter, dtype_of

from hlo_run.analysis.tiling.launch_dimensions import LaunchDimensions
from hlo_run.codegen.emitters.emit import EmittedKernel, EntryArgument, emit_kernel
from hlo_run.codegen.kernel_passes.convert_index_type import ConvertIndexType
from hlo_run.codegen.kernel_passes.flatten_tensors import minor_to_major
from hlo_run.codegen.kernel_passes.simplify_affine import SimplifyAffine
from hlo_run.dialects.context import make_context
from hlo_run.dialects.module_info import set_index_bits
from hlo_run.dialects.types import is_vector
from hlo_run.dialects.xla_gpu import ApplyIndexingOp
from hlo_run.indexing.expr import Expr, ceil_div, constant, dim, maximum, minimum, symbol
from hlo_run.indexing.indexing_map import IndexingMap
from hlo_run.indexing.interval import Interval
from hlo_run.indexing.variable import Variable
from hlo_run.options import Options
from hlo_run.pipeline.kernel_table import KERNEL_PIPELINE, KernelContext, KernelRow
from hlo_run.records import replace
from hlo_run.target import DEFAULT_TARGET, preset

# These come after lower-tensors, but work on tensors as well.
_INDEX_ROWS = ("simplify-affine", "convert-index-type")

# A card that 64 threads fill: kernels of small shapes are unrolled and vectorised like those of large ones on a real card.
_SMALL_CARD = replace(preset(DEFAULT_TARGET), core_count=1, threads_per_core_limit=64)

_FUSIONS = {
    "vectors": """
        p = f32[6,512,8] parameter(0)
        q = f32[6,512,8] parameter(1)
        s = f32[6,512,8] multiply(p, q)
        ROOT r = f32[6,512,8] add(s, p)""",
    "bounds": """
        p = s32[3,10,20] parameter(0)
        c = s32[] constant(3)
        b = s32[3,10,20] broadcast(c), dimensions={}
        ROOT r = s32[3,10,20] multiply(p, b)""",
    "layout": """
        p = f32[12,20]{0,1} parameter(0)
        q = f32[12,20]{1,0} parameter(1)
        ROOT r = f32[12,20]{0,1} subtract(p, q)""",
    "pad": """
        p = s32[30,61] parameter(0)
        z = s32[] constant(7)
        ROOT r = s32[40,64] pad(p, z), padding=1_9x2_1""",
    "concatenate": """
        p = f32[16,3] parameter(0)
        q = f32[16,5] parameter(1)
        ROOT r = f32[16,8] concatenate(p, q), dimensions={1}""",
    "reverse_slice": """
        p = s32[40,24] parameter(0)
        v = s32[40,24] reverse(p), dimensions={1}
        ROOT r = s32[16,24] slice(v), slice={[3:35:2],[0:24]}""",
    "two_outputs": """
        p = f32[4,256] parameter(0)
        a = f32[4,256] negate(p)
        b = s32[4,256] convert(p)
        ROOT r = (f32[4,256], s32[4,256]) tuple(a, b)""",
    "constant_array": """
        p = s32[2,3] parameter(0)
        c = s32[2,3] constant({{1, 2, 3}, {4, 5, 6}})
        ROOT r = s32[2,3] add(p, c)""",
    "transpose": """
        p = f32[33,2,35] parameter(0)
        e = f32[33,2,35] add(p, p)
        t = f32[35,2,33] transpose(e), dimensions={2,1,0}
        ROOT r = f32[35,2,33] negate(t)""",
    "shared_by_two": """
        p = s32[9,10] parameter(0)
        e = s32[9,10] multiply(p, p)
        t = s32[10,9] transpose(e), dimensions={1,0}
        u = s32[9,10] reverse(e), dimensions={0,1}
        v = s32[9,10] bitcast(t)
        ROOT r = s32[9,10] subtract(u, v)""",
}


def _emit(body: str) -> EmittedKernel:
    _, fusion = read_fusion(f"fused {{{body}\n}}\n")
    results = len(fusion.shape.tuple_shapes) if fusion.shape.is_tuple else 1
    count = len(fusion.operands) + results
    arguments = [EntryArgument(i, align=16, dereferenceable_bytes=4, invariant=i < len(fusion.operands)) for i in range(count)]
    return emit_kernel(fusion, "kernel", _SMALL_CARD, arguments)


class _VectorInterpreter(Interpreter):
    """Vectors are arrays with a last axis of elements; a lane's vector access is that of its elements, one by one."""

    def call(self, name: str, arguments: Sequence[Array]) -> list[Array]:
        """Call a function of scalars on one array of lanes for each argument."""
        return self._call(self.functions[name], arguments, np.ones(self.lanes, bool))

    def _run(self, op: Operation, values: list[Any], mask: Array, env: dict[SSAValue, Any]) -> Sequence[Any]:
        match op:
            case arith.ConstantOp() if is_vector(op.result.type):
                assert isinstance(op.value, DenseIntOrFPElementsAttr)
                element = op.value.get_element_type()
                row = np.frombuffer(op.value.data.data, dtype_of(element))
                return [np.broadcast_to(row, (*mask.shape, len(row)))]
            case vector.ExtractOp():
                return [values[0][..., int(values[1])]]
            case vector.InsertOp():
                changed = np.array(values[1])
                changed[..., int(values[2])] = values[0]
                return [changed]
            case vector.TransferReadOp():
                size = _vector_size(op.result.type)
                return [np.stack([self._extract(values[0], [values[1] + i], mask) for i in range(size)], axis=-1)]
            case vector.TransferWriteOp():
                target = values[1]
                for i in range(_vector_size(op.vector.type)):
                    target = self._insert(values[0][..., i], target, [values[2] + i], mask)
                return [target]
            case _:
                return super()._run(op, values, mask, env)


def _vector_size(type_: Attribute) -> int:
    assert is_vector(type_)
    return type_.get_shape()[0]


def _rows_before_pointers() -> list[KernelRow]:
    names = [row.name for row in KERNEL_PIPELINE]
    return list(KERNEL_PIPELINE[: names.index("convert-pure-call-ops")])


def _argument_types(emitted: EmittedKernel) -> list[TensorType[Attribute]]:
    entry = next(op for op in emitted.module.body.block.ops if isinstance(op, func.FuncOp) and "xla.entry" in op.attributes)
    return [type_ for type_ in entry.function_type.inputs if isinstance(type_, TensorType)]


def _in_memory(array: Array, type_: TensorType[Attribute]) -> Array:
    return array.transpose(tuple(reversed(minor_to_major(type_)))).reshape(-1) if array.ndim > 1 else array


@pytest.mark.parametrize("name", _FUSIONS)
def test_kernel_computes_the_same_after_each_row(name: str) -> None:
    emitted = _emit(_FUSIONS[name])
    types = _argument_types(emitted)
    random = np.random.Generator(np.random.Philox(sum(map(ord, name))))
    input_count = _FUSIONS[name].count(" parameter(")
    inputs = [random.integers(-50, 50, t.get_shape()).astype(dtype_of(t.element_type)) for t in types[:input_count]]
    shapes = [(t.get_shape(), dtype_of(t.element_type)) for t in types[input_count:]]
    expected = _VectorInterpreter(emitted.module, emitted.launch).run("kernel", inputs, shapes)
    ctx = KernelContext(_SMALL_CARD, Options(), max_unroll_factor=emitted.unroll_factor)
    for row in [*_rows_before_pointers(), *(row for row in KERNEL_PIPELINE if row.name in _INDEX_ROWS)]:
        row.make(ctx).apply(make_context(), emitted.module)
        emitted.module.verify()
        if row.name == "flatten-tensors":
            expected = [_in_memory(array, type_) for array, type_ in zip(expected, types[input_count:], strict=True)]
            inputs = [_in_memory(array, type_) for array, type_ in zip(inputs, types, strict=False)]
            shapes = [((int(np.prod(dims)),) if dims else (), dtype) for dims, dtype in shapes]
        found = _VectorInterpreter(emitted.module, emitted.launch).run("kernel", inputs, shapes)
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=f"after {row.name}")


def test_the_fusions_reach_what_the_rows_do() -> None:
    emitted = _emit(_FUSIONS["vectors"])
    ctx = KernelContext(_SMALL_CARD, Options(), max_unroll_factor=emitted.unroll_factor)
    seen: set[str] = set()
    for row in _rows_before_pointers():
        row.make(ctx).apply(make_context(), emitted.module)
        seen |= {op.name for op in emitted.module.walk()}
    assert {"scf.for", "vector.transfer_read", "vector.transfer_write", "vector.insert"} <= seen


def _random_expr(random: np.random.Generator, depth: int) -> Expr:
    if depth == 0:
        return (dim(0), dim(1), symbol(0), constant(int(random.integers(-9, 10))))[random.integers(4)]
    left = _random_expr(random, depth - 1)
    match int(random.integers(7)):
        case 0 | 1:
            return left + _random_expr(random, depth - 1)
        case 2:
            return left * int(random.integers(-5, 6))
        case 3:
            return left % int(random.integers(1, 12))
        case 4:
            return left // int(random.integers(1, 12))
        case 5:
            return ceil_div(left, int(random.integers(1, 12)))
        case _:
            return minimum(left, _random_expr(random, depth - 1)) + maximum(left, 3)


def test_index_arithmetic_computes_what_the_maps_say() -> None:
    random = np.random.Generator(np.random.Philox(20260801))
    bounds = (Variable(Interval(-20, 20)), Variable(Interval(0, 30)), Variable(Interval(-3, 40)))
    points = [np.asarray(random.integers(v.bounds.lower, v.bounds.upper + 1, 32)) for v in bounds]
    launch = LaunchDimensions((1, 1, 1), (32, 1, 1))
    for _ in range(60):
        used = IndexingMap(bounds[:2], bounds[2:], (), tuple(_random_expr(random, 3) for _ in range(2)))
        index = IndexType()
        function = func.FuncOp("f", ([index] * 3, [index] * 2))
        apply = ApplyIndexingOp(used, function.body.block.args)
        function.body.block.add_ops([apply, func.ReturnOp(*apply.res)])
        module = ModuleOp([function])
        set_index_bits(module, 64)
        expected = [np.broadcast_to(result, 32) for result in used.compiled.results(points[:2], points[2:])]
        for row in (SimplifyAffine(), ConvertIndexType()):
            row.apply(make_context(), module)
            module.verify()
            found = _VectorInterpreter(module, launch).call("f", points)
            for ours, theirs in zip(found, expected, strict=True):
                np.testing.assert_array_equal(np.broadcast_to(ours, 32), theirs, err_msg=f"{row.name} of {used}")
