"""Index maps against the opcodes' semantics: a gather by the map gives the elements that numpy moves or combines."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import pytest

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.text.parser import parse_module
from hlo_run.hlo.values.shape import Shape
from hlo_run.indexing import IndexingMap
from hlo_run.ops.index import bitcast_map, fused_maps, operand_map, runtime_values, user_map
from hlo_run.ops.index_rule import operand_dims, output_dims
from hlo_run.ops.infer import infer_module

Array: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Point: TypeAlias = tuple[int, ...]

_ADDER = "add { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT c = f32[] add(a, b) }"


def _instruction(line: str, *operands: str) -> HloInstruction:
    """Return the root `line` of a module whose parameters p0, p1, .. have the given shapes."""
    body = [f"p{i} = {shape} parameter({i})" for i, shape in enumerate(operands)] + [f"ROOT r = {line}"]
    module = parse_module(f"HloModule m\n{_ADDER}\nENTRY e {{\n" + "\n".join(body) + "\n}\n")
    infer_module(module)
    return module.entry.root


def _operand_map(instruction: HloInstruction, number: int = 0) -> IndexingMap:
    found = operand_map(instruction, number)
    assert found is not None
    return found


def _numbers(instruction: HloInstruction, number: int = 0) -> Array:
    sizes = operand_dims(instruction, number)
    return np.random.default_rng(number + sum(sizes)).integers(1, 10**6, size=sizes)


def _reads(found: IndexingMap, dims: Sequence[int]) -> Iterator[tuple[Point, Point]]:
    """Yield (index, symbol values, result) of all points of the box of `dims` and the symbols that are in the domain."""
    loops = [range(v.bounds.lower, v.bounds.upper + 1) for v in found.symbols]
    for point in itertools.product(*map(range, dims)):
        for symbols in itertools.product(*loops):
            if found.contains(point, symbols):
                yield point, found.evaluate(point, symbols)


def _gather(found: IndexingMap, source: Array, dims: Sequence[int], outside: int = 0) -> Array:
    """Return the sum over all elements that the map reads for each output index, `outside` where it reads none."""
    output = np.zeros(dims, np.int64)
    read = np.zeros(dims, bool)
    for point, index in _reads(found, dims):
        assert all(0 <= i < size for i, size in zip(index, source.shape, strict=True)), f"{found} reads {index} at {point}"
        output[point] += source[index]
        read[point] = True
    return np.where(read, output, outside)


def _loose_pad(source: Array, padding: Sequence[tuple[int, int, int]]) -> Array:
    """Return `source` padded with -1 as HLO's pad, by placing element i at low + i * (interior + 1)."""
    sizes = [low + high + n + max(n - 1, 0) * p for n, (low, high, p) in zip(source.shape, padding, strict=True)]
    output = np.full(sizes, -1, np.int64)
    for index in np.ndindex(*source.shape):
        target = tuple(low + i * (p + 1) for i, (low, _, p) in zip(index, padding, strict=True))
        if all(0 <= t < size for t, size in zip(target, sizes, strict=True)):
            output[target] = source[index]
    return output


_MOVES: list[tuple[str, str, Callable[[Array], Array]]] = [
    ("f32[3,4] negate(p0)", "f32[3,4]", lambda x: x),
    ("f32[2,3,4] broadcast(p0), dimensions={2,0}", "f32[4,2]", lambda x: np.broadcast_to(x.T[:, None, :], (2, 3, 4))),
    ("f32[2,3] broadcast(p0), dimensions={}", "f32[]", lambda x: np.broadcast_to(x, (2, 3))),
    ("f32[4,2,3] transpose(p0), dimensions={2,0,1}", "f32[2,3,4]", lambda x: x.transpose(2, 0, 1)),
    ("f32[3,4] reverse(p0), dimensions={1}", "f32[3,4]", lambda x: x[:, ::-1]),
    ("f32[2,3] slice(p0), slice={[1:4:2], [3:6]}", "f32[5,7]", lambda x: x[1:4:2, 3:6]),
    ("f32[4,6] reshape(p0)", "f32[2,3,4]", lambda x: x.reshape(4, 6)),
    ("f32[1,12,1] reshape(p0)", "f32[3,1,4]", lambda x: x.reshape(1, 12, 1)),
    ("f32[3,3,4] reshape(p0)", "f32[6,6]", lambda x: x.reshape(3, 3, 4)),
    ("f32[] reshape(p0)", "f32[1,1]", lambda x: x.reshape(())),
    ("f32[1,1] reshape(p0)", "f32[]", lambda x: x.reshape((1, 1))),
    ("f32[4,6]{0,1} bitcast(p0)", "f32[6,4]{1,0}", lambda x: x.T),
    ("f32[24] bitcast(p0)", "f32[2,3,4]{0,2,1}", lambda x: x.transpose(1, 2, 0).reshape(24)),
    ("f32[8,3]{0,1} bitcast(p0)", "f32[2,3,4]{0,2,1}", lambda x: x.transpose(1, 2, 0).reshape(3, 8).T),
    ("f32[3,4] copy(p0)", "f32[3,4]{0,1}", lambda x: x),
    ("s32[3,4] convert(p0)", "f32[3,4]", lambda x: x),
]


@pytest.mark.parametrize(("line", "operand", "expected"), _MOVES, ids=[line.replace(" ", "_") for line, _, _ in _MOVES])
def test_moving_opcodes(line: str, operand: str, expected: Callable[[Array], Array]) -> None:
    instruction = _instruction(line, operand)
    source = _numbers(instruction)
    np.testing.assert_array_equal(_gather(_operand_map(instruction), source, output_dims(instruction)), expected(source))


@pytest.mark.parametrize(
    ("text", "operand"),
    [("1_2_0x0_1", "f32[3,2]"), ("2_0_3x-1_0_0", "f32[3,4]"), ("-1_-1x-2_3_1", "f32[5,4]"), ("-1_2_2", "f32[4]")],
)
def test_pad(text: str, operand: str) -> None:
    padding = [tuple(map(int, part.split("_"))) for part in text.split("x")]
    triples = [(part[0], part[1], part[2] if len(part) == 3 else 0) for part in padding]
    source = np.zeros([int(n) for n in operand[4:-1].split(",")], np.int64)
    sizes = ",".join(map(str, _loose_pad(source, triples).shape))
    instruction = _instruction(f"f32[{sizes}] pad(p0, p1), padding={text}", operand, "f32[]")
    source = _numbers(instruction)
    moved = _gather(_operand_map(instruction), source, output_dims(instruction), outside=-1)
    np.testing.assert_array_equal(moved, _loose_pad(source, triples))
    assert _operand_map(instruction, 1).results == ()


def test_concatenate_operands_share_the_output() -> None:
    instruction = _instruction("f32[2,9] concatenate(p0, p1, p2), dimensions={1}", "f32[2,2]", "f32[2,4]", "f32[2,3]")
    sources = [_numbers(instruction, n) for n in range(3)]
    gathered = sum(_gather(_operand_map(instruction, n), sources[n], (2, 9)) for n in range(3))
    np.testing.assert_array_equal(gathered, np.concatenate(sources, axis=1))


def test_scalar_operands_of_select_and_clamp() -> None:
    select = _instruction("f32[3,4] select(p0, p1, p2)", "pred[]", "f32[3,4]", "f32[3,4]")
    assert [len(_operand_map(select, n).results) for n in range(3)] == [0, 2, 2]
    clamp = _instruction("f32[3] clamp(p0, p1, p2)", "f32[]", "f32[3]", "f32[]")
    assert [len(_operand_map(clamp, n).results) for n in range(3)] == [0, 1, 0]


def test_reduce() -> None:
    instruction = _instruction("f32[3,2] reduce(p0, p1), dimensions={2,0}, to_apply=add", "f32[4,3,5,2]", "f32[]")
    source = _numbers(instruction)
    np.testing.assert_array_equal(_gather(_operand_map(instruction), source, (3, 2)), source.sum(axis=(0, 2)))
    assert _operand_map(instruction, 1).results == ()
    assert str(_operand_map(instruction)).startswith("(d0, d1)[s0, s1] -> (s0, d0, s1, d1)")


def _window_sum(source: Array, window: Sequence[tuple[int, int, int, int, int, int]], sizes: Sequence[int]) -> Array:
    """Return sums over windows (size, stride, low, high, base dilation, window dilation per dimension)."""
    padded = _loose_pad(source, [(low, high, base - 1) for _, _, low, high, base, _ in window])
    output = np.zeros(sizes, np.int64)
    for index in np.ndindex(*sizes):
        for position in np.ndindex(*(w[0] for w in window)):
            value = padded[tuple(i * w[1] + p * w[5] for i, p, w in zip(index, position, window, strict=True))]
            output[index] += max(value, 0)
    return output


def test_reduce_window() -> None:
    text = "size=3x1 stride=2x3 pad=2_1x0_1 lhs_dilate=2x1 rhs_dilate=2x1"
    window = [(3, 2, 2, 1, 2, 2), (1, 3, 0, 1, 1, 1)]
    instruction = _instruction(f"f32[3,2] reduce-window(p0, p1), window={{{text}}}, to_apply=add", "f32[4,5]", "f32[]")
    source = _numbers(instruction)
    moved = _gather(_operand_map(instruction), source, (3, 2))
    np.testing.assert_array_equal(moved, _window_sum(source, window, (3, 2)))
    assert len(_operand_map(instruction).ranges) == 1


@pytest.mark.parametrize("number", [0, 1])
def test_dot(number: int) -> None:
    line = (
        "f32[2,3,7] dot(p0, p1), lhs_batch_dims={1}, rhs_batch_dims={0}, lhs_contracting_dims={3,2}, rhs_contracting_dims={1,3}"
    )
    instruction = _instruction(line, "f32[3,2,4,5]", "f32[2,5,7,4]")
    left, right = _numbers(instruction, 0), _numbers(instruction, 1)
    expected = np.einsum("iblm,bmjl->bij", left, np.ones_like(right)), np.einsum("iblm,bmjl->bij", np.ones_like(left), right)
    np.testing.assert_array_equal(_gather(_operand_map(instruction, number), (left, right)[number], (2, 3, 7)), expected[number])


def test_dot_symbols_agree_between_operands() -> None:
    instruction = _instruction(
        "f32[3,7] dot(p0, p1), lhs_contracting_dims={2,1}, rhs_contracting_dims={0,2}", "f32[3,4,5]", "f32[5,7,4]"
    )
    left, right = _numbers(instruction, 0), _numbers(instruction, 1)
    first, second = _operand_map(instruction, 0), _operand_map(instruction, 1)
    output = np.zeros((3, 7), np.int64)
    for i, j, a, b in np.ndindex(3, 7, 5, 4):
        output[i, j] += left[first.evaluate((i, j), (a, b))] * right[second.evaluate((i, j), (a, b))]
    np.testing.assert_array_equal(output, np.einsum("ilm,mjl->ij", left, right))


def test_scaled_dot_scales() -> None:
    instruction = _instruction(
        "f32[3,2] scaled-dot(p0, p1, p2, p3), lhs_contracting_dims={1}, rhs_contracting_dims={1}",
        *("f32[3,8]", "f32[2,8]", "f32[3,2]", "f32[2,4]"),
    )
    scale = _numbers(instruction, 3)
    expected = np.repeat(scale, 2, axis=1).sum(axis=1)
    moved = _gather(_operand_map(instruction, 3), scale, (3, 2))
    np.testing.assert_array_equal(moved, np.broadcast_to(expected, (3, 2)))


def test_convolution() -> None:
    window = "size=2x3 stride=2x1 pad=1_1x0_2 lhs_dilate=1x2 rhs_dilate=1x2 rhs_reversal=0x1"
    line = f"f32[2,3,7,6] convolution(p0, p1), window={{{window}}}, dim_labels=b01f_01io->b01f, feature_group_count=2"
    instruction = _instruction(line, "f32[2,4,5,4]", "f32[2,3,2,6]")
    source, kernel = _numbers(instruction, 0), _numbers(instruction, 1)
    padded = np.maximum(_loose_pad(source, [(0, 0, 0), (1, 1, 0), (0, 2, 1), (0, 0, 0)]), 0)
    inputs, kernels = np.zeros((2, 3, 7, 6), np.int64), np.zeros((2, 3, 7, 6), np.int64)
    for b, y, x, o, ky, kx, i in np.ndindex(2, 3, 7, 6, 2, 3, 2):
        inputs[b, y, x, o] += padded[b, 2 * y + ky, x + 2 * kx, i + 2 * (o // 3)]
        kernels[b, y, x, o] += kernel[ky, 2 - kx, i, o]
    np.testing.assert_array_equal(_gather(_operand_map(instruction, 0), source, (2, 3, 7, 6)), inputs)
    np.testing.assert_array_equal(_gather(_operand_map(instruction, 1), kernel, (2, 3, 7, 6)), kernels)


def test_convolution_reversal_pairs_with_the_input() -> None:
    line = "f32[1,3,1] convolution(p0, p1), window={size=3 rhs_reversal=1}, dim_labels=b0f_0io->b0f"
    instruction = _instruction(line, "f32[1,5,1]", "f32[3,1,1]")
    source, kernel = _operand_map(instruction, 0), _operand_map(instruction, 1)
    assert [kernel.evaluate((0, 1, 0), (s,))[0] for s in range(3)] == [2, 1, 0]
    assert [source.evaluate((0, 1, 0), (s,))[1] for s in range(3)] == [1, 2, 3]


def test_dynamic_slice() -> None:
    instruction = _instruction("f32[2,3] dynamic-slice(p0, p1, p2), dynamic_slice_sizes={2,3}", "f32[5,3]", "s32[]", "s32[]")
    source, found = _numbers(instruction), _operand_map(instruction)
    assert [v.bounds.upper for v in found.rts] == [3, 0]
    assert found.ranges == ()
    moved = [[source[found.evaluate((i, j), (2, 0))] for j in range(3)] for i in range(2)]
    np.testing.assert_array_equal(moved, source[2:4, 0:3])
    assert [(v.operand_number, v.index.results) for v in runtime_values(instruction, 0)] == [(1, ()), (2, ())]


def test_dynamic_update_slice() -> None:
    instruction = _instruction("f32[5,4] dynamic-update-slice(p0, p1, p2, p3)", "f32[5,4]", "f32[2,3]", "s32[]", "s32[]")
    assert _operand_map(instruction, 0) == IndexingMap.identity((5, 4))
    update = _operand_map(instruction, 1)
    assert update.evaluate((3, 2), (2, 1)) == (1, 1)
    assert [v.bounds.upper for v in update.rts] == [3, 1]
    assert [v.operand_number for v in runtime_values(instruction, 1)] == [2, 3]
    assert runtime_values(instruction, 0) == ()


def test_a_scalar_is_updated_at_no_index() -> None:
    instruction = _instruction("f32[] dynamic-update-slice(p0, p1)", "f32[]", "f32[]")
    assert runtime_values(instruction, 1) == ()


def test_gather_simple_form_only() -> None:
    line = "f32[7,2,3] gather(p0, p1), offset_dims={1,2}, collapsed_slice_dims={}, start_index_map={1,0}, index_vector_dim=1"
    instruction = _instruction(f"{line}, slice_sizes={{2,3}}", "f32[5,8]", "s32[7,2]")
    source, found = _numbers(instruction), _operand_map(instruction)
    starts = np.random.default_rng(5).integers(0, 4, size=(7, 2))
    values = runtime_values(instruction, 0)
    for point in np.ndindex(7, 2, 3):
        symbols = [int(starts[value.index.evaluate(point)]) for value in values]
        row, column = starts[point[0], 1] + point[1], starts[point[0], 0] + point[2]
        assert source[found.evaluate(point, symbols)] == source[row, column]
    assert [v.bounds.upper for v in found.rts] == [5, 3]
    collapsed = "f32[7,3] gather(p0, p1), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1"
    assert operand_map(_instruction(f"{collapsed}, slice_sizes={{1,3}}", "f32[5,3]", "s32[7,1]"), 0) is None


_BOTH_WAYS = [
    ("f32[3,4] negate(p0)", "f32[3,4]"),
    ("f32[2,3,4] broadcast(p0), dimensions={2,0}", "f32[4,2]"),
    ("f32[4,2,3] transpose(p0), dimensions={2,0,1}", "f32[2,3,4]"),
    ("f32[3,4] reverse(p0), dimensions={1}", "f32[3,4]"),
    ("f32[2,3] slice(p0), slice={[1:4:2], [3:6]}", "f32[5,7]"),
    ("f32[3,3,4] reshape(p0)", "f32[6,6]"),
    ("f32[8,3]{0,1} bitcast(p0)", "f32[2,3,4]{0,2,1}"),
    ("f32[3,2] reduce(p0, p0), dimensions={2,0}, to_apply=add", "f32[4,3,5,2]"),
    ("f32[5,3] concatenate(p0, p0), dimensions={0}", "f32[2,3]"),
    ("u8[3,4] bitcast-convert(p0)", "f32[3]"),
    ("f32[3] bitcast-convert(p0)", "u8[3,4]"),
]


@pytest.mark.parametrize(("line", "operand"), _BOTH_WAYS, ids=[line.split("(")[0] for line, _ in _BOTH_WAYS])
def test_user_map_is_the_reverse_relation(line: str, operand: str) -> None:
    line = line.replace("reduce(p0, p0)", "reduce(p0, p1)").replace("concatenate(p0, p0)", "concatenate(p0, p1)")
    others = {"reduce": ["f32[]"], "concatenate": ["f32[3,3]"]}
    instruction = _instruction(line, operand, *others.get(line.split("(")[0].split()[-1], []))
    for number in range(len(instruction.operands)):
        back = user_map(instruction, number)
        assert back is not None
        forward = {(index, point) for point, index in _reads(_operand_map(instruction, number), output_dims(instruction))}
        assert set(_reads(back, operand_dims(instruction, number))) == forward


def test_opcodes_without_maps() -> None:
    pad = _instruction("f32[4] pad(p0, p1), padding=0_1", "f32[3]", "f32[]")
    assert user_map(pad, 0) is None
    cholesky = _instruction("f32[4,4] cholesky(p0), lower=true", "f32[4,4]")
    assert operand_map(cholesky, 0) is None


def test_bitcast_map_of_shapes() -> None:
    f32, s32 = Shape.array("f32", (2, 3), (0, 1)), Shape.array("s32", (6,))
    found = bitcast_map(f32, s32)
    assert found is not None
    assert [found.evaluate((i, j)) for i in range(2) for j in range(3)] == [(0,), (2,), (4,), (1,), (3,), (5,)]
    assert bitcast_map(f32, Shape.array("u8", (24,))) is None


def test_fused_maps_keep_one_map_per_way() -> None:
    text = """HloModule m
fused {
  p = f32[4,4] parameter(0)
  t = f32[4,4] transpose(p), dimensions={1,0}
  e = f32[4,4] exponential(p)
  a = f32[4,4] add(e, t)
  ROOT b = f32[4,4] multiply(a, e)
}
ENTRY e {
  q = f32[4,4] parameter(0)
  ROOT f = f32[4,4] fusion(q), kind=kLoop, calls=fused
}
"""
    module = parse_module(text)
    infer_module(module)
    fusion = module.entry.root
    maps = fused_maps(fusion.fused_computation.root)
    parameter = fusion.fused_computation.parameters[0]
    results = [[r.value for r in m.results] for m in maps[parameter] if m is not None]
    assert sorted(results) == [[0, 1], [1, 0]]
    assert operand_map(fusion, 0) is None
