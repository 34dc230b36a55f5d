"""NVIDIA's libraries through nvmath-python and cuDNN's frontend. A library is opened when the first thunk needs it.

A missing library or an unsupported operation is not an error: `run` returns False and keeps the reason, and numpy does the work.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeVar, assert_never

from hlo_run.artifact import (
    AsyncDoneThunk,
    CholeskyThunk,
    CollectiveThunk,
    ConvolutionThunk,
    CopyThunk,
    CustomCallThunk,
    FftThunk,
    GemmThunk,
    HostTransfer,
    KernelThunk,
    MemsetThunk,
    Nesting,
    ResizeThunk,
    RngSeedThunk,
    RngStateThunk,
    ScanThunk,
    SelectKThunk,
    SliceCopyThunk,
    SortThunk,
    Thunk,
    TriangularSolveThunk,
)
from hlo_run.backends.cuda.convolution import CuDnn, plan_convolution
from hlo_run.backends.cuda.fft import CuFft, plan_fft
from hlo_run.backends.cuda.linalg import Factoriser, Solver, plan_cholesky, plan_solve
from hlo_run.backends.cuda.matmul import CublasLt, plan_matmul
from hlo_run.backends.cuda.memory import DeviceMemory
from hlo_run.errors import DeviceError

_T = TypeVar("_T")
# The most scratch memory of a product, which `config-assigner` writes into its call.
_WORKSPACE_BYTES = 4 << 20


def load_binding(name: str) -> Any:
    """Return a module of `nvmath.bindings`, or `nvmath` itself for the empty name; raises ImportError."""
    return importlib.import_module(f"nvmath.bindings.{name}" if name else "nvmath")


def load_cudnn() -> Any:
    """Return cuDNN's Python frontend; raises ImportError."""
    return importlib.import_module("cudnn")


class Libraries:
    """All libraries of one device. `stream` is the handle of the stream for their work."""

    def __init__(self, memory: DeviceMemory, stream: int) -> None:
        self._memory, self._stream = memory, stream
        self._opened: dict[str, Any] = {}
        self._closing: list[Callable[[], None]] = []
        self._done: set[GemmThunk] = set()
        self.refused: dict[str, str] = {}
        """The thunks left to numpy: "name (kind)" to the reason."""

    def run(self, thunk: Thunk) -> bool:
        """Run a thunk in a library. Returns False if no library takes it. Raises DeviceError if the library fails."""
        try:
            reason = self._run(thunk)
        except _Missing as missing:
            reason = str(missing)
        except Exception as error:
            if not _is_binding_error(error):
                raise
            raise DeviceError(f"%{thunk.name} ({thunk.kind}) failed in its library: {error}") from error
        if reason:
            self.refused[f"{thunk.name} ({thunk.kind})"] = reason
        elif isinstance(thunk, GemmThunk):
            self._done.add(thunk)
        return not reason

    def takes_product(self, thunk: GemmThunk) -> bool:
        """True if cuBLASLt ran this product before. Its next run only enqueues work on the stream."""
        return thunk in self._done

    def close(self) -> None:
        """Release all handles."""
        while self._closing:
            self._closing.pop()()
        self._opened.clear()

    def _run(self, thunk: Thunk) -> str:
        """Return "" after a library ran the thunk, else the reason that none did."""
        address = self._memory.address
        match thunk:
            case GemmThunk():
                plan = plan_matmul(thunk)
                if not isinstance(plan, str):
                    return "" if self._matmul().run(plan, address, self._stream) else "cuBLASLt has no algorithm for it"
            case ConvolutionThunk():
                plan = plan_convolution(thunk)
                if not isinstance(plan, str):
                    return self._convolver().run(plan, address)
            case TriangularSolveThunk():
                plan = plan_solve(thunk)
                if not isinstance(plan, str):
                    self._solver().run(plan, address)
            case CholeskyThunk():
                plan = plan_cholesky(thunk)
                if not isinstance(plan, str):
                    self._factoriser().run(plan, address)
            case FftThunk():
                plan = plan_fft(thunk)
                if not isinstance(plan, str):
                    self._transformer().run(plan, address, self._stream)
            case (
                ResizeThunk()
                | ScanThunk()
                | SelectKThunk()
                | KernelThunk()
                | CopyThunk()
                | SliceCopyThunk()
                | MemsetThunk()
                | SortThunk()
                | RngStateThunk()
                | RngSeedThunk()
                | CustomCallThunk()
                | CollectiveThunk()
                | HostTransfer()
                | Nesting()
                | AsyncDoneThunk()
            ):
                return "no library is used for it"
            case _:
                assert_never(thunk)
        return plan if isinstance(plan, str) else ""

    # ---- opening ------------------------------------------------------------------------------------------------

    def _matmul(self) -> CublasLt:
        def make() -> CublasLt:
            lt, cublas, types = self._binding("cublasLt"), self._binding("cublas"), self._binding("")
            opened = CublasLt(lt, cublas.ComputeType, types.CudaDataType, self._memory.scratch, _WORKSPACE_BYTES)
            self._closing.append(opened.close)
            return opened

        return self._once("matmul", make)

    def _cublas(self) -> tuple[Any, int]:
        def make() -> tuple[Any, int]:
            cublas = self._binding("cublas")
            handle = int(cublas.create())
            self._closing.append(lambda: cublas.destroy(handle))
            cublas.set_stream(handle, self._stream)
            return cublas, handle

        return self._once("cublas", make)

    def _solver(self) -> Solver:
        return self._once("solver", lambda: Solver(*self._cublas(), self._memory))

    def _factoriser(self) -> Factoriser:
        def make() -> Factoriser:
            cusolver, cublas = self._binding("cusolverDn"), self._binding("cublas")
            handle = int(cusolver.create())
            self._closing.append(lambda: cusolver.destroy(handle))
            cusolver.set_stream(handle, self._stream)
            return Factoriser(cusolver, cublas.FillMode, handle, self._memory)

        return self._once("factoriser", make)

    def _convolver(self) -> CuDnn:
        def make() -> CuDnn:
            try:
                opened = CuDnn(load_cudnn(), self._stream, self._memory.scratch)
            except ImportError as error:
                raise _Missing(f"cuDNN's frontend is not installed (pip install 'hlo-run[cudnn]'): {error}") from error
            except RuntimeError as error:
                # The frontend is installed, the library behind it is missing.
                raise _Missing(str(error)) from error
            self._closing.append(opened.close)
            return opened

        return self._once("convolution", make)

    def _transformer(self) -> CuFft:
        def make() -> CuFft:
            opened = CuFft(self._binding("cufft"), *self._cublas(), self._memory)
            self._closing.append(opened.close)
            return opened

        return self._once("fft", make)

    def _once(self, name: str, make: Callable[[], _T]) -> _T:
        if name not in self._opened:
            try:
                self._opened[name] = make()
            except _Missing as missing:
                self._opened[name] = missing
            except Exception as error:
                if not _is_binding_error(error):
                    raise
                # The binding is installed, the library behind it is missing.
                self._opened[name] = _Missing(str(error))
        found = self._opened[name]
        if isinstance(found, _Missing):
            raise found
        return found

    def _binding(self, name: str) -> Any:
        """Return a binding; raises _Missing."""
        try:
            return load_binding(name)
        except ImportError as error:
            raise _Missing(f"nvmath-python is not installed (pip install 'hlo-run[cuda]'): {error}") from error


def _is_binding_error(error: Exception) -> bool:
    return type(error).__module__.startswith("nvmath")


class _Missing(Exception):
    """A library or binding is not installed."""
