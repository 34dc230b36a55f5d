"""The CUDA platform's libraries and graphs on stand-ins for the bindings, which check the calls and compute with numpy."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pytest
from cuda_bench import Bench, agree, array, by_numpy, values
from fake_cuda import FakeDriver, FakeStream

from hlo_run.artifact import (
    ArraySpec,
    BufferAllocation,
    CholeskyThunk,
    CommandBufferThunk,
    CopyThunk,
    DotNumbers,
    Executable,
    FftThunk,
    GemmThunk,
    Kernel,
    KernelArgument,
    KernelThunk,
    Thunk,
    TriangularSolveThunk,
)
from hlo_run.backends.cuda import graphs
from hlo_run.backends.cuda.matmul import plan_matmul
from hlo_run.errors import DeviceError
from hlo_run.hlo.values.dtype import DTYPES


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    driver = FakeDriver({})
    made = Bench(driver, monkeypatch)
    yield made
    made.backend.close()
    assert not driver.live, "device memory leaked"
    assert not any(getattr(binding, "live", ()) for binding in made.bindings.values()), "handles, plans or descriptors leaked"


# ---- products -------------------------------------------------------------------------------------------------------

PLAIN = DotNumbers((), (1,), (), (0,))


@pytest.mark.parametrize(
    ("dtype", "out"),
    [("f32", "f32"), ("f64", "f64"), ("f16", "f32"), ("bf16", "bf16"), ("c64", "c64"), ("c128", "c128"), ("s8", "s32")],
)
def test_products_of_all_types(bench: Bench, dtype: str, out: str) -> None:
    left, right, result = array(0, dtype, (5, 7)), array(1, dtype, (7, 6)), array(2, out, (5, 6))
    added = array(3, out, (5, 6))
    thunk = GemmThunk("g", left, right, result, PLAIN, alpha=(2.0, 1.5 if out[0] == "c" else 0.0), beta=3.0, addend=added)
    rng = np.random.default_rng(4)
    inputs = {spec: values(rng, spec) for spec in (left, right, added)}
    agree(bench.run(thunk, inputs, [result]), by_numpy(thunk, inputs), 2e-2 if "16" in dtype else 2e-4)
    assert bench.log.count("cublasLt.matmul") == 1
    assert bench.backend.report() == ""


@pytest.mark.parametrize("epilogue", ["DEFAULT", "BIAS", "RELU", "GELU", "BIAS_RELU", "BIAS_GELU", "GELU_AUX", "BIAS_GELU_AUX"])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_epilogues(bench: Bench, epilogue: str, batch: tuple[int, ...]) -> None:
    rank = len(batch)
    numbers = DotNumbers(tuple(range(rank)), (rank + 1,), tuple(range(rank)), (rank,))
    left, right, result = (array(n, "f32", (*batch, *dims)) for n, dims in enumerate(((5, 7), (7, 6), (5, 6))))
    bias = array(3, "f32", (6,)) if "BIAS" in epilogue else None
    kept = array(4, "f32", result.dims) if "AUX" in epilogue else None
    thunk = GemmThunk("g", left, right, result, numbers, epilogue=epilogue, bias=bias, auxiliary=kept)
    rng = np.random.default_rng(5)
    inputs = {spec: values(rng, spec) for spec in (left, right, bias) if spec is not None}
    agree(bench.run(thunk, inputs, [result, *([kept] if kept else [])]), by_numpy(thunk, inputs))
    assert bench.log.count("cublasLt.matmul") == 1


def test_a_bias_belongs_to_the_innermost_dimension(bench: Bench) -> None:
    left, right, bias = array(0, "f32", (6, 7)), array(1, "f32", (7, 6)), array(3, "f32", (6,))
    result = array(2, "f32", (6, 6), (0, 1))
    thunk = GemmThunk("g", left, right, result, PLAIN, epilogue="BIAS", bias=bias)
    rng = np.random.default_rng(11)
    inputs = {spec: values(rng, spec) for spec in (left, right, bias)}
    agree(bench.run(thunk, inputs, [result]), [inputs[left] @ inputs[right] + inputs[bias][:, None]])
    assert bench.log.count("cublasLt.matmul") == 1


def test_the_addend_may_be_where_the_result_is(bench: Bench) -> None:
    left, right, result = array(0, "f32", (5, 7)), array(1, "f32", (7, 6)), array(2, "f32", (5, 6))
    thunk = GemmThunk("g", left, right, result, PLAIN, beta=1.0, addend=result)
    rng = np.random.default_rng(6)
    inputs = {spec: values(rng, spec) for spec in (left, right, result)}
    agree(bench.run(thunk, inputs, [result]), by_numpy(thunk, inputs))


def test_f8_with_scales(bench: Bench) -> None:
    numbers = DotNumbers((), (1,), (), (1,))
    left, right = array(0, "f8e4m3fn", (16, 32)), array(1, "f8e5m2", (48, 32))
    result, scales = array(2, "bf16", (16, 48)), (array(3, "f32", ()), array(4, "f32", ()))
    thunk = GemmThunk("g", left, right, result, numbers, scales=scales)
    rng = np.random.default_rng(7)
    inputs = {spec: values(rng, spec) for spec in (left, right)}
    inputs |= {scales[0]: np.array(0.5, np.float32), scales[1]: np.array(3.0, np.float32)}
    agree(bench.run(thunk, inputs, [result]), by_numpy(thunk, inputs), 5e-2)
    assert bench.log.count("cublasLt.matmul") == 1
    # Hopper has no product of such operands, which numpy computes then.
    turned = GemmThunk("g", left, array(1, "f8e5m2", (32, 48)), result, PLAIN, scales=scales)
    inputs = {spec: values(rng, spec) for spec in (left, turned.rhs)} | {scale: inputs[scale] for scale in scales}
    agree(bench.run(turned, inputs, [result]), by_numpy(turned, inputs), 5e-2)
    assert bench.log.count("cublasLt.matmul") == 1


@pytest.mark.parametrize("out", ["f8e4m3fn", "f8e5m2"])
@pytest.mark.parametrize("epilogue", ["DEFAULT", "RELU", "BIAS", "BIAS_GELU"])
@pytest.mark.parametrize("has_largest", [False, True])
def test_f8_results(bench: Bench, out: str, epilogue: str, has_largest: bool) -> None:
    left, right = array(0, "f8e4m3fn", (16, 32)), array(1, "f8e4m3fn", (48, 32))
    result, scales = array(2, out, (16, 48)), (array(3, "f32", ()), array(4, "f32", ()))
    thunk = GemmThunk(
        "g",
        left,
        right,
        result,
        DotNumbers((), (1,), (), (1,)),
        epilogue=epilogue,
        bias=array(5, "bf16", (48,)) if "BIAS" in epilogue else None,
        scales=scales,
        result_scale=array(6, "f32", ()),
        largest=array(7, "f32", ()) if has_largest else None,
    )
    rng = np.random.default_rng(9)
    inputs = {spec: values(rng, spec) for spec in (left, right, thunk.bias) if spec is not None}
    assert thunk.result_scale is not None
    # Large enough that some results are beyond what 8 bits hold.
    factors = {scales[0]: 0.5, scales[1]: 3.0, thunk.result_scale: 40.0 if out == "f8e4m3fn" else 9000.0}
    inputs |= {spec: np.array(value, np.float32) for spec, value in factors.items()}
    found = bench.run(thunk, inputs, [result, *([thunk.largest] if thunk.largest is not None else [])])
    agree(found, by_numpy(thunk, inputs), 0.15)
    edge = 448 if out == "f8e4m3fn" else 57344
    assert np.abs(found[0].astype(np.float32)).max() == edge
    assert bench.log.count("cublasLt.matmul") == 1


@pytest.mark.parametrize(("out", "added"), [("f32", "f32"), ("bf16", "bf16"), ("f8e4m3fn", "f16"), ("f8e4m3fn", "f32")])
def test_f8_with_an_addend(bench: Bench, out: str, added: str) -> None:
    left, right = array(0, "f8e4m3fn", (16, 32)), array(1, "f8e4m3fn", (48, 32))
    result, scales, addend = array(2, out, (16, 48)), (array(3, "f32", ()), array(4, "f32", ())), array(5, added, (16, 48))
    scale = array(6, "f32", ()) if out.startswith("f8") else None
    numbers = DotNumbers((), (1,), (), (1,))
    thunk = GemmThunk("g", left, right, result, numbers, beta=1.0, addend=addend, scales=scales, result_scale=scale)
    rng = np.random.default_rng(10)
    inputs = {spec: values(rng, spec) for spec in (left, right, addend)}
    inputs |= {spec: np.array(0.75, np.float32) for spec in (*scales, scale) if spec is not None}
    agree(bench.run(thunk, inputs, [result]), by_numpy(thunk, inputs), 0.15)
    # The library adds no f32 to what becomes f8.
    assert bench.log.count("cublasLt.matmul") == (0 if (out, added) == ("f8e4m3fn", "f32") else 1)


def random_product(rng: random.Random) -> GemmThunk:
    """Return a product with any dimensions, in any order, in any layout."""
    ranks = ((0, 0, 1, 2), (0, 1, 1, 2), (0, 1, 1, 2), (1, 1, 2))
    batch, rows, columns, depth = ([rng.choice((1, 2, 3)) for _ in range(rng.choice(choices))] for choices in ranks)

    def operand(number: int, free: list[int]) -> tuple[ArraySpec, tuple[int, ...], tuple[int, ...]]:
        sizes = [*batch, *free, *depth]
        order = list(range(len(sizes)))
        if rng.random() < 0.4:
            rng.shuffle(order)
        place = {old: new for new, old in enumerate(order)}
        # Free dimensions keep their order: the result has them so.
        kept = sorted(place[n] for n in range(len(batch), len(batch) + len(free)))
        for n, new in enumerate(kept):
            place[len(batch) + n] = new
        dims = [0] * len(sizes)
        for old, new in place.items():
            dims[new] = sizes[old]
        spec = array(number, "f32", tuple(dims), layout(len(dims)))
        first = len(batch) + len(free)
        return spec, tuple(place[n] for n in range(len(batch))), tuple(place[first + n] for n in range(len(depth)))

    def layout(rank: int) -> tuple[int, ...] | None:
        return tuple(rng.sample(range(rank), rank)) if rng.random() < 0.3 else None

    left, left_batch, left_depth = operand(0, rows)
    right, right_batch, right_depth = operand(1, columns)
    dims = (*batch, *rows, *columns)
    result = array(2, "f32", dims, layout(len(dims)))
    return GemmThunk("g", left, right, result, DotNumbers(left_batch, left_depth, right_batch, right_depth))


def test_random_products(bench: Bench) -> None:
    rng, taken = random.Random(8), 0
    for n in range(150):
        thunk = random_product(rng)
        draw = np.random.default_rng(n)
        inputs = {spec: values(draw, spec) for spec in (thunk.lhs, thunk.rhs)}
        agree(bench.run(thunk, inputs, [thunk.result]), by_numpy(thunk, inputs))
        taken += not isinstance(plan_matmul(thunk), str)
    assert bench.log.count("cublasLt.matmul") == taken
    assert 75 < taken < 150, "most are taken, and some are not"


def test_what_the_library_does_not_take(bench: Bench) -> None:
    left, right, result = array(0, "s16", (5, 7)), array(1, "s16", (7, 6)), array(2, "s32", (5, 6))
    thunk = GemmThunk("g", left, right, result, PLAIN)
    rng = np.random.default_rng(9)
    inputs = {spec: values(rng, spec) for spec in (left, right)}
    agree(bench.run(thunk, inputs, [result]), by_numpy(thunk, inputs))
    assert "cuBLASLt has no product of s16 and s16 in s32" in bench.backend.report()
    bench.bindings["cublasLt"].has_algorithm = False
    floats = GemmThunk("h", array(0, "f32", (5, 7)), array(1, "f32", (7, 6)), array(2, "f32", (5, 6)), PLAIN)
    inputs = {spec: values(rng, spec) for spec in (floats.lhs, floats.rhs)}
    agree(bench.run(floats, inputs, [floats.result]), by_numpy(floats, inputs))
    assert "%h (kCublasLtMatmul) ran by numpy on copies of its arrays: cuBLASLt has no algorithm for it" in bench.backend.report()


def test_an_error_of_a_library_is_a_device_error(bench: Bench) -> None:
    lt = bench.bindings["cublasLt"]

    def fail(*_: Any) -> None:
        raise lt.cuBLASLtError("CUBLAS_STATUS_EXECUTION_FAILED (13)")

    lt.do_matmul = fail
    thunk = GemmThunk("g", array(0, "f32", (5, 7)), array(1, "f32", (7, 6)), array(2, "f32", (5, 6)), PLAIN)
    inputs = {spec: np.ones(spec.dims, np.float32) for spec in (thunk.lhs, thunk.rhs)}
    with pytest.raises(DeviceError, match=r"%g \(kCublasLtMatmul\) failed in its library: CUBLAS_STATUS"):
        bench.run(thunk, inputs, [thunk.result])


def test_a_library_behind_a_binding_that_is_not_there(bench: Bench) -> None:
    lt = bench.bindings["cublasLt"]

    def fail() -> None:
        raise lt.cuBLASLtError("libcublasLt.so was not found")

    lt.do_create = fail
    thunk = GemmThunk("g", array(0, "f32", (5, 7)), array(1, "f32", (7, 6)), array(2, "f32", (5, 6)), PLAIN)
    inputs = {spec: np.ones(spec.dims, np.float32) for spec in (thunk.lhs, thunk.rhs)}
    agree(bench.run(thunk, inputs, [thunk.result]), by_numpy(thunk, inputs))
    assert "libcublasLt.so was not found" in bench.backend.report()


# ---- solves, factors, transforms ------------------------------------------------------------------------------------

FORMS = list(itertools.product((True, False), (True, False), (False, True), ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT")))
Transpose = Literal["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"]


@pytest.mark.parametrize("dtype", ["f32", "f64", "c64", "c128"])
@pytest.mark.parametrize("orders", [((), ()), ((0, 1), ()), ((), (0, 1)), ((0, 1), (0, 1))])
def test_triangular_solves(bench: Bench, dtype: str, orders: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    rng = np.random.default_rng(10)
    refused = 0
    for left, lower, unit, transpose in FORMS:
        matrix = array(0, dtype, (4, 4), orders[0] or None)
        dims = (4, 3) if left else (3, 4)
        right, result = (array(n, dtype, dims, orders[1] or None) for n in (1, 2))
        thunk = TriangularSolveThunk("t", matrix, right, result, left, lower, unit, transpose)
        inputs = {matrix: values(rng, matrix) + 4 * np.eye(4, dtype=DTYPES[dtype].numpy), right: values(rng, right)}
        before = len(bench.log)
        agree(bench.run(thunk, inputs, [result]), by_numpy(thunk, inputs))
        refused += not any("trsm" in call for call in bench.log[before:])
    # An adjoint that need not be transposed is the one thing that cuBLAS does not have.
    assert refused == (8 if dtype[0] == "c" and orders[0] != orders[1] else 0)


@pytest.mark.parametrize("in_place", [False, True])
def test_batches_of_solves(bench: Bench, in_place: bool) -> None:
    rng = np.random.default_rng(11)
    matrix, right = array(0, "f32", (2, 3, 5, 5)), array(1, "f32", (2, 3, 5, 4))
    result = right if in_place else array(2, "f32", (2, 3, 5, 4))
    thunk = TriangularSolveThunk("t", matrix, right, result, True, True, False, "NO_TRANSPOSE")
    inputs = {matrix: values(rng, matrix) + 4 * np.eye(5, dtype=np.float32), right: values(rng, right)}
    agree(bench.run(thunk, inputs, [result]), by_numpy(thunk, inputs))
    assert bench.log.count("cublas.strsm_batched") == 1


@pytest.mark.parametrize("dtype", ["f32", "f64", "c64", "c128"])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("order", [None, (1, 2, 0)])
def test_cholesky_factors(bench: Bench, dtype: str, lower: bool, order: tuple[int, ...] | None) -> None:
    source, result = array(0, dtype, (3, 5, 5), order), array(1, dtype, (3, 5, 5), order)
    thunk = CholeskyThunk("c", lower, source, result)
    drawn = values(np.random.default_rng(12), source)
    inputs = {source: (drawn @ drawn.conj().swapaxes(1, 2) + 2 * np.eye(5)).astype(drawn.dtype)}
    agree(bench.run(thunk, inputs, [result]), by_numpy(thunk, inputs))
    assert sum("potrf" in call and "size" not in call for call in bench.log) == 3


def test_a_matrix_without_a_factor_is_nan(bench: Bench) -> None:
    source, result = array(0, "f32", (2, 3, 3)), array(1, "f32", (2, 3, 3))
    matrices = np.stack([np.eye(3), np.diag([1, -1, 1])]).astype(np.float32)
    (found,) = bench.run(CholeskyThunk("c", True, source, result), {source: matrices}, [result])
    np.testing.assert_array_equal(found, [np.eye(3), np.full((3, 3), np.nan)])


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("lengths", [(8,), (4, 6), (3, 4, 5), (2, 3, 4, 5)])
@pytest.mark.parametrize("kind", ["FFT", "IFFT", "RFFT", "IRFFT"])
def test_transforms(bench: Bench, kind: Literal["FFT", "IFFT", "RFFT", "IRFFT"], lengths: tuple[int, ...], wide: bool) -> None:
    real, imaginary = ("f64", "c128") if wide else ("f32", "c64")
    half = (*lengths[:-1], lengths[-1] // 2 + 1)
    sides = {"FFT": ((imaginary, lengths),) * 2, "RFFT": ((real, lengths), (imaginary, half))}
    sides |= {"IFFT": sides["FFT"], "IRFFT": sides["RFFT"][::-1]}
    source, result = (array(n, dtype, (2, *dims)) for n, (dtype, dims) in enumerate(sides[kind]))
    thunk = FftThunk("f", kind, lengths, source, result)
    inputs = {source: values(np.random.default_rng(13), source)}
    kept = inputs[source].copy()
    for _ in range(2):
        agree(bench.run(thunk, inputs, [result]), by_numpy(thunk, inputs))
    np.testing.assert_array_equal(inputs[source], kept)
    assert bench.log.count("cufft.xt_exec") == (2 if len(lengths) <= 3 else 0)
    assert bench.log.count("cufft.make_plan_many64") == (1 if len(lengths) <= 3 else 0)


# ---- graphs ---------------------------------------------------------------------------------------------------------


def graph_program(driver: FakeDriver) -> Executable:
    """y := x . x, then a kernel doubles y, then a copy of it: a command buffer."""

    def double(y: np.uint64, *, grid: Any, block: Any, stream: FakeStream) -> None:
        driver.floats(int(y), 4)[:] *= 2

    driver.kernels["double"] = double
    x, y, z = (array(n, "f32", (2, 2)) for n in range(3))
    thunks: tuple[Thunk, ...] = (
        GemmThunk("g", x, x, y, PLAIN),
        KernelThunk("k", "double", (KernelArgument(y.slice, True),)),
        CopyThunk("c", y.slice, z.slice),
    )
    allocations = tuple(BufferAllocation(n, 16, 0 if n == 0 else None, is_output=n == 2) for n in range(3))
    kernels = (Kernel("double", ".version 8.6", (1, 1, 1), (4, 1, 1)),)
    return Executable("m", "a100", kernels, (CommandBufferThunk("b", thunks),), allocations, (x,), z)


def test_a_command_buffer_becomes_a_graph(bench: Bench) -> None:
    program = graph_program(bench.driver)
    for n in range(3):
        value = np.random.default_rng(n).standard_normal((2, 2)).astype(np.float32)
        found = np.asarray(bench.backend.run(program, [value]))
        if n < 2:  # the stand-in runs captured work during the capture, not at the launch
            np.testing.assert_allclose(found, 2 * value @ value, rtol=1e-4)
    calls = [call.removeprefix("driver.") for call in bench.log if call.startswith("driver.")]
    record = ["cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphInstantiate", "cuGraphDestroy"]
    assert calls == [*record, "cuGraphLaunch", "cuGraphLaunch"]
    # Addresses change with the executable.
    bench.backend.run(graph_program(bench.driver), [np.ones((2, 2), np.float32)])
    assert bench.log[-1] != "driver.cuGraphLaunch"


def test_without_bindings_there_is_no_graph(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise ImportError("no cuda")

    monkeypatch.setattr(graphs, "load_cuda", missing)
    program = graph_program(bench.driver)
    value = np.random.default_rng(1).standard_normal((2, 2)).astype(np.float32)
    for _ in range(3):
        np.testing.assert_allclose(np.asarray(bench.backend.run(program, [value])), 2 * value @ value, rtol=1e-4)
    assert "cuda-bindings is not installed (no cuda)" in bench.backend.report()


def test_a_graph_that_cannot_be_made(bench: Bench) -> None:
    program = graph_program(bench.driver)
    bench.backend.run(program, [np.ones((2, 2), np.float32)])
    bench.bindings["driver"].code = 801
    with pytest.raises(DeviceError, match="a CUDA graph failed: error 801"):
        bench.backend.run(program, [np.ones((2, 2), np.float32)])
    bench.bindings["driver"].live.clear()
