"""Stand-ins for NVIDIA's bindings: calls must have the recorded parameters, and do in numpy, on a stand-in driver's memory, what
the libraries' manuals say: matrices lie column by column, `op` transposes, batches have strides.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import operator
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from fake_cuda import DriverMemory

from hlo_run.backends.cuda.matmul import CUDA_TYPES
from hlo_run.hlo.values.dtype import DTYPES

_NUMBERS = ("int ", "intptr_t ", "size_t ", "uint64_t ", "int64_t ", "long long ", "unsigned long long ")
_REAL = {"s": np.float32, "d": np.float64, "c": np.complex64, "z": np.complex128}


class BindingError(Exception):
    """What a library says."""


BindingError.__module__ = "nvmath.bindings"


@cache
def record() -> dict[str, Any]:
    """What scripts/record_bindings.py wrote."""
    path = Path(__file__).parent / "data" / "nvidia_bindings.json"
    return json.loads(path.read_text(encoding="utf-8"))


def _names(members: Any) -> dict[int, str]:
    numbers: dict[str, int] = members.__dict__
    return {number: name for name, number in numbers.items()}


def host_memory(address: int, kind: Any, count: int = 1) -> np.ndarray[Any, Any]:
    """Memory of this process, as a pointer to it is handed to a library."""
    size = np.dtype(kind).itemsize * count
    memory: Any = (ctypes.c_char * size).from_address(address)
    return np.frombuffer(memory, kind)


class Binding:
    """A module: its enumerations, and its functions, which `do_NAME` of a subclass does."""

    def __init__(self, name: str, driver: DriverMemory, log: list[str]) -> None:
        self._name, self._driver, self._log = name, driver, log
        self._functions: dict[str, list[str]] = record()[name]["functions"]
        self._ids = itertools.count(100)
        self.live: set[int] = set()
        for key, members in record()[name]["enums"].items():
            setattr(self, key, SimpleNamespace(**members))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._functions:
            raise AttributeError(name)
        return partial(self._call, name)

    def _call(self, name: str, *arguments: Any) -> Any:
        parameters = self._functions[name]
        assert len(arguments) == len(parameters), f"{self._name}.{name} takes {parameters}"
        for parameter, value in zip(parameters, arguments, strict=True):
            if parameter.startswith(_NUMBERS):
                assert operator.index(value) >= (-1 if "direction" in parameter else 0), f"{name}: {parameter} is {value}"
        self._log.append(f"{self._name}.{name}")
        return getattr(self, f"do_{name}")(*arguments)

    def do_create(self) -> int:
        return self._make()

    def do_destroy(self, handle: int) -> None:
        self.live.remove(handle)

    def do_set_stream(self, handle: int, stream: int) -> None:
        assert handle in self.live
        assert stream == 77, "the driver's only stream"

    def _make(self) -> int:
        made = next(self._ids)
        self.live.add(made)
        return made

    # ---- device memory ------------------------------------------------------------------------------------------

    def array(self, address: int, kind: Any, count: int) -> np.ndarray[Any, Any]:
        size = np.dtype(kind).itemsize * count
        return self._driver.view(address, size).view(kind)

    def matrix(self, address: int, kind: Any, shape: tuple[int, int], leading: int) -> np.ndarray[Any, Any]:
        """A view of a matrix that lies column by column."""
        rows, columns = shape
        assert leading >= max(rows, 1), "columns do not overlap"
        size = np.dtype(kind).itemsize
        end = address + ((columns - 1) * leading + rows) * size
        return np.ndarray(shape, np.dtype(kind), self._driver.view(address, end - address), strides=(size, leading * size))


class FakeLt(Binding):
    """cuBLASLt."""

    cuBLASLtError = BindingError
    matmul_heuristic_result_dtype = np.dtype([("algo", "<u8", 8), ("workspace_size", "<u8"), ("state", "<i4")])

    def __init__(self, driver: DriverMemory, log: list[str]) -> None:
        super().__init__("cublasLt", driver, log)
        self._made: dict[int, dict[str, int]] = {}
        self.has_algorithm = True
        self.workspace_bytes = 256

    def do_matmul_desc_create(self, compute: int, scale: int) -> int:
        made = self._make()
        self._made[made] = {"compute": compute, "scale": scale}
        return made

    def do_matrix_layout_create(self, kind: int, rows: int, columns: int, leading: int) -> int:
        made = self._make()
        self._made[made] = {"type": kind, "rows": rows, "columns": columns, "leading": leading}
        return made

    def do_matmul_preference_create(self) -> int:
        return self._make()

    do_matmul_desc_destroy = do_matrix_layout_destroy = do_matmul_preference_destroy = Binding.do_destroy

    def do_get_matmul_desc_attribute_dtype(self, attribute: int) -> Any:
        names = _names(self.MatmulDescAttribute)
        is_wide = any(part in names[attribute] for part in ("POINTER", "LD", "STRIDE"))
        return np.int64 if is_wide else np.int32

    def do_get_matrix_layout_attribute_dtype(self, attribute: int) -> Any:
        return np.int64 if attribute == self.MatrixLayoutAttribute.STRIDED_BATCH_OFFSET else np.int32

    def do_matmul_desc_set_attribute(self, made: int, attribute: int, buffer: int, size: int) -> None:
        names = _names(self.MatmulDescAttribute)
        self._made[made][names[attribute]] = int(host_memory(buffer, f"<i{size}")[0])

    def do_matrix_layout_set_attribute(self, made: int, attribute: int, buffer: int, size: int) -> None:
        names = _names(self.MatrixLayoutAttribute)
        self._made[made][names[attribute]] = int(host_memory(buffer, f"<i{size}")[0])

    def do_matmul_preference_set_attribute(self, made: int, attribute: int, buffer: int, size: int) -> None:
        assert made in self.live
        assert attribute == self.MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES
        assert int(host_memory(buffer, f"<u{size}")[0]) >= 4 << 20

    def do_matmul_algo_get_heuristic(self, *arguments: int) -> None:
        *handles, _, results, count = arguments
        assert set(handles) <= self.live
        host_memory(count, np.int32)[0] = int(self.has_algorithm and self._has_product(*handles[1:6]))
        host_memory(results, self.matmul_heuristic_result_dtype)["workspace_size"][0] = self.workspace_bytes

    def _has_product(self, descriptor: int, *layouts: int) -> bool:
        """What Hopper has of f8: op(a) transposed and op(b) not, all sizes multiples of 16, and c in 16 bits if d has 8."""
        how, (a, b, c, d) = self._made[descriptor], (self._made[layout] for layout in layouts)
        if number_kind(a["type"]).itemsize > 1 or number_kind(a["type"]) == np.int8:
            return True
        sizes = [layout[name] for layout in (a, b, c, d) for name in ("rows", "columns")]
        is_wide_c = number_kind(c["type"]).itemsize == 2 if number_kind(d["type"]).itemsize == 1 else True
        return bool(how.get("TRANSA")) and not how.get("TRANSB") and is_wide_c and all(size % 16 == 0 for size in sizes)

    def do_matmul(self, handle: int, descriptor: int, *rest: int) -> None:
        alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algorithm, workspace, size, stream = rest
        assert handle in self.live
        assert algorithm
        assert stream == 77
        assert size == self.workspace_bytes
        assert workspace or not size
        how = self._made[descriptor]
        left, right = self._read(a, a_layout), self._read(b, b_layout)
        left = left.swapaxes(1, 2) if how.get("TRANSA") else left
        right = right.swapaxes(1, 2) if how.get("TRANSB") else right
        kind = number_kind(how["scale"])
        wide = np.complex128 if kind.kind == "c" else np.float64
        value = left.astype(wide) @ right.astype(wide) * host_memory(alpha, kind)[0]
        for scale in ("A_SCALE_POINTER", "B_SCALE_POINTER"):
            if scale in how:
                value = value * float(self.array(how[scale], np.float32, 1)[0])
        factor = host_memory(beta, kind)[0]
        if factor:
            value = value + factor * self._read(c, c_layout).astype(wide)
        value = self._epilogue(how, value, d_layout)
        if "AMAX_D_POINTER" in how:
            self.array(how["AMAX_D_POINTER"], np.float32, 1)[0] = np.abs(value).max()
        d_kind = number_kind(self._made[d_layout]["type"])
        if d_kind.itemsize == 1 and d_kind != np.int8:
            scale = float(self.array(how["D_SCALE_POINTER"], np.float32, 1)[0]) if "D_SCALE_POINTER" in how else 1.0
            largest = 448.0 if d_kind == DTYPES["f8e4m3fn"].numpy else 57344.0
            value = np.clip(value * scale, -largest, largest)
        else:
            assert "D_SCALE_POINTER" not in how
            assert "AMAX_D_POINTER" not in how
        self._write(d, d_layout, value)

    def _epilogue(self, how: dict[str, int], value: np.ndarray[Any, Any], d_layout: int) -> np.ndarray[Any, Any]:
        name = _names(self.Epilogue)[how["EPILOGUE"]]
        if "BIAS" in name:
            bias_kind = number_kind(how.get("BIAS_DATA_TYPE", self._made[d_layout]["type"]))
            bias = self.array(how["BIAS_POINTER"], bias_kind, value.shape[1])
            value = value + bias.astype(np.float64)[None, :, None]
        if "AUX" in name:
            layout = {**self._made[d_layout], "leading": how["EPILOGUE_AUX_LD"]}
            layout["STRIDED_BATCH_OFFSET"] = how.get("EPILOGUE_AUX_BATCH_STRIDE", 0)
            self._store(how["EPILOGUE_AUX_POINTER"], layout, value)
        if "RELU" in name:
            return np.maximum(value, 0)
        if "GELU" in name:
            return 0.5 * value * (1 + np.tanh(np.sqrt(2 / np.pi) * (value + 0.044715 * value**3)))
        return value

    def _views(self, address: int, layout: dict[str, int]) -> list[np.ndarray[Any, Any]]:
        kind = number_kind(layout["type"])
        shape, step = (layout["rows"], layout["columns"]), layout.get("STRIDED_BATCH_OFFSET", 0) * kind.itemsize
        return [self.matrix(address + n * step, kind, shape, layout["leading"]) for n in range(layout.get("BATCH_COUNT", 1))]

    def _read(self, address: int, layout: int) -> np.ndarray[Any, Any]:
        return np.stack(self._views(address, self._made[layout]))

    def _write(self, address: int, layout: int, value: np.ndarray[Any, Any]) -> None:
        self._store(address, self._made[layout], value)

    def _store(self, address: int, layout: dict[str, int], value: np.ndarray[Any, Any]) -> None:
        for view, one in zip(self._views(address, layout), value, strict=True):
            view[...] = one.astype(view.dtype)


def number_kind(number: int) -> np.dtype[Any]:
    numbers = {value: name for name, value in record()["nvmath"]["enums"]["CudaDataType"].items()}
    return next(DTYPES[dtype].numpy for dtype, name in CUDA_TYPES.items() if name == numbers[number])


class FakeBlas(Binding):
    """cuBLAS: triangular solves, and vectors times numbers."""

    def __init__(self, driver: DriverMemory, log: list[str]) -> None:
        super().__init__("cublas", driver, log)
        for letter, kind in _REAL.items():
            setattr(self, f"do_{letter}trsm", partial(self._trsm, kind))
            setattr(self, f"do_{letter}trsm_batched", partial(self._trsm_batched, kind))
        for name, kind, factor in (("s", "s", "s"), ("d", "d", "d"), ("cs", "c", "s"), ("zd", "z", "d")):
            setattr(self, f"do_{name}scal", partial(self._scal, _REAL[kind], _REAL[factor]))

    def _scal(self, kind: Any, factor: Any, handle: int, count: int, alpha: int, x: int, step: int) -> None:
        assert handle in self.live
        assert step == 1
        self.array(x, kind, count)[...] *= host_memory(alpha, factor)[0]

    def _trsm_batched(self, kind: Any, *arguments: int) -> None:
        *how, alpha, a, lda, b, ldb, count = arguments
        for a_place, b_place in zip(self.array(a, np.uint64, count), self.array(b, np.uint64, count), strict=True):
            self._trsm(kind, *how, alpha, int(a_place), lda, int(b_place), ldb)

    def _trsm(self, kind: Any, handle: int, side: int, uplo: int, trans: int, diag: int, *rest: int) -> None:
        m, n, alpha, a, lda, b, ldb = rest
        assert handle in self.live
        size = m if side == self.SideMode.LEFT else n
        matrix: np.ndarray[Any, Any] = np.array(self.matrix(a, kind, (size, size), lda))
        matrix = np.tril(matrix) if uplo == self.FillMode.LOWER else np.triu(matrix)
        if diag == self.DiagType.UNIT:
            np.fill_diagonal(matrix, 1)
        matrix = {self.Operation.N: matrix, self.Operation.T: matrix.T, self.Operation.C: matrix.conj().T}[trans]
        right = self.matrix(b, kind, (m, n), ldb)
        value = host_memory(alpha, kind)[0] * right
        solve: Any = np.linalg.solve
        right[...] = solve(matrix, value) if side == self.SideMode.LEFT else solve(matrix.T, value.T).T


class FakeSolver(Binding):
    """cuSOLVER: Cholesky factors, which leave the other triangle as it was."""

    def __init__(self, driver: DriverMemory, log: list[str]) -> None:
        super().__init__("cusolverDn", driver, log)
        for letter, kind in _REAL.items():
            setattr(self, f"do_{letter}potrf", partial(self._potrf, kind))
            setattr(self, f"do_{letter}potrf_buffer_size", self._size)

    def _size(self, handle: int, uplo: int, n: int, a: int, lda: int) -> int:
        assert handle in self.live
        return 10

    def _potrf(self, kind: Any, handle: int, uplo: int, n: int, a: int, lda: int, work: int, size: int, info: int) -> None:
        assert handle in self.live
        assert size == 10
        assert work
        matrix, is_lower = self.matrix(a, kind, (n, n), lda), uplo == 0
        whole = np.tril(matrix) + np.tril(matrix, -1).conj().T if is_lower else np.triu(matrix) + np.triu(matrix, 1).conj().T
        failed = self.array(info, np.int32, 1)
        try:
            factor = np.linalg.cholesky(whole)
        except np.linalg.LinAlgError:
            failed[0] = 3
            return
        failed[0] = 0
        matrix[...] = np.tril(factor) + np.triu(matrix, 1) if is_lower else factor.conj().T + np.tril(matrix, -1)


class FakeFft(Binding):
    """cuFFT; transforms to real numbers spoil what they read."""

    def __init__(self, driver: DriverMemory, log: list[str]) -> None:
        super().__init__("cufft", driver, log)
        self._plans: dict[int, tuple[str, list[int], list[int], list[int], int]] = {}
        self._areas: dict[int, int] = {}

    def do_set_auto_allocation(self, plan: int, automatic: int) -> None:
        assert not automatic

    def do_make_plan_many64(self, plan: int, rank: int, n: list[int], *rest: Any) -> int:
        inembed, istride, idist, onembed, ostride, odist, kind, batch = rest
        assert rank == len(n) == len(inembed) == len(onembed)
        assert (istride, ostride) == (1, 1)
        assert (idist, odist) == (np.prod(inembed), np.prod(onembed))
        name = _names(self.Type)[kind]
        self._plans[plan] = (name, n, inembed, onembed, batch)
        return 512

    def do_set_work_area(self, plan: int, area: int) -> None:
        self._areas[plan] = area

    def do_xt_exec(self, plan: int, source: int, result: int, direction: int) -> None:
        name, n, inembed, onembed, batch = self._plans[plan]
        assert self._areas[plan]
        kinds = {"C": np.complex64, "Z": np.complex128, "R": np.float32, "D": np.float64}
        first = self.array(source, kinds[name[0]], batch * int(np.prod(inembed))).reshape(batch, *inembed)
        second = self.array(result, kinds[name[2]], batch * int(np.prod(onembed))).reshape(batch, *onembed)
        axes = tuple(range(1, len(n) + 1))
        if name in ("R2C", "D2Z"):
            assert direction == -1
            second[...] = np.fft.rfftn(first, n, axes)
        elif name in ("C2R", "Z2D"):
            assert direction == 1
            second[...] = np.fft.irfftn(first, n, axes) * np.prod(n)
            first[...] = np.nan
        elif direction == -1:
            second[...] = np.fft.fftn(first, axes=axes)
        else:
            second[...] = np.fft.ifftn(first, axes=axes) * np.prod(n)


class FakeGraphs(Binding):
    """The driver's graphs: what is asked for while a stream records is done at once here, so a launch only counts."""

    def __init__(self, driver: DriverMemory, log: list[str]) -> None:
        super().__init__("driver", driver, log)
        self.CUresult = SimpleNamespace(CUDA_SUCCESS=0)
        self.CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1)
        self.code = 0

    def do_cuStreamBeginCapture(self, stream: int, mode: int) -> tuple[Any, ...]:
        assert (stream, mode) == (77, 1)
        self._driver.captures = True
        return (0,)

    def do_cuStreamEndCapture(self, stream: int) -> tuple[Any, ...]:
        self._driver.captures = False
        return 0, self._make()

    def do_cuGraphInstantiate(self, graph: int, flags: int) -> tuple[Any, ...]:
        assert (graph in self.live, flags) == (True, 0)
        return self.code, self._make()

    def do_cuGraphLaunch(self, graph: int, stream: int) -> tuple[Any, ...]:
        assert (graph in self.live, stream) == (True, 77)
        return (0,)

    def do_cuGraphDestroy(self, graph: int) -> tuple[Any, ...]:
        self.live.remove(graph)
        return (0,)

    do_cuGraphExecDestroy = do_cuGraphDestroy

    def do_cuGetErrorString(self, code: int) -> tuple[Any, ...]:
        return 0, f"error {code}".encode()


def fake_bindings(driver: DriverMemory, log: list[str]) -> dict[str, Any]:
    """Return all of them by name; the empty name is `nvmath` itself."""
    types = SimpleNamespace(CudaDataType=SimpleNamespace(**record()["nvmath"]["enums"]["CudaDataType"]))
    made: list[Binding] = [FakeBlas(driver, log), FakeSolver(driver, log), FakeFft(driver, log), FakeGraphs(driver, log)]
    names = ("cublas", "cusolverDn", "cufft", "driver")
    return {"": types, "cublasLt": FakeLt(driver, log), **dict(zip(names, made, strict=True))}
