"""Command buffers as CUDA graphs, through cuda-bindings: capture the work on a stream, then launch it as one graph."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from hlo_run.errors import DeviceError


def load_cuda() -> Any:
    """Return the module `cuda.bindings.driver`; raises ImportError."""
    return importlib.import_module("cuda.bindings.driver")


class Graphs:
    """The graphs of one executable, by name. A graph holds addresses: call `clear` when memory moves."""

    def __init__(self, stream: int) -> None:
        self._stream = stream
        self._seen: set[str] = set()
        self._graphs: dict[str, Any] = {}
        self._cuda: Any = None
        self.problem = ""
        """Why nothing is captured; empty if graphs work."""

    def run(self, name: str, work: Callable[[], None], may_record: Callable[[], bool]) -> None:
        """Do `work`. The first call runs it, the second captures it if `may_record` allows, and later calls launch the graph."""
        if name not in self._graphs:
            if name not in self._seen or not may_record() or not self._is_there():
                self._seen.add(name)  # the first run loads kernels and lets libraries allocate memory
                work()
                return
            self._graphs[name] = self._record(work)
        self._check(self._cuda.cuGraphLaunch(self._graphs[name], self._stream))

    @property
    def count(self) -> int:
        """The number of graphs."""
        return len(self._graphs)

    def clear(self) -> None:
        """Destroy all graphs."""
        while self._graphs:
            _, graph = self._graphs.popitem()
            self._cuda.cuGraphExecDestroy(graph)  # an error here does not matter
        self._seen.clear()

    def _is_there(self) -> bool:
        if self._cuda is None and not self.problem:
            try:
                self._cuda = load_cuda()
            except ImportError as error:
                self.problem = f"command buffers are not recorded: cuda-bindings is not installed ({error})"
        return self._cuda is not None

    def _record(self, work: Callable[[], None]) -> Any:
        cuda = self._cuda
        self._check(cuda.cuStreamBeginCapture(self._stream, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
        try:
            work()
        except BaseException:
            cuda.cuStreamEndCapture(self._stream)  # the stream leaves capture mode; the first error counts
            raise
        graph = self._check(cuda.cuStreamEndCapture(self._stream))
        try:
            return self._check(cuda.cuGraphInstantiate(graph, 0))
        finally:
            self._check(cuda.cuGraphDestroy(graph))

    def _check(self, answer: tuple[Any, ...]) -> Any:
        """Return the values of a driver call besides its code. Raises DeviceError for a code other than success."""
        code, *values = answer
        if code != self._cuda.CUresult.CUDA_SUCCESS:
            _, text = self._cuda.cuGetErrorString(code)
            message = text.decode() if isinstance(text, bytes) else str(text)
            raise DeviceError(f"a CUDA graph failed: {message}", hint="--xla_gpu_enable_command_buffer= runs without graphs")
        return values[0] if values else None
