"""Puts runs of recordable thunks into command buffers, which are recorded once and replayed (CUDA graphs).

    kCustomKernel, kCublasLtMatmul, kCopy, kCustomKernel, kCustomKernel, kFft   =>   kCommandBuffer { the first five }, kFft

A run shorter than `xla_gpu_graph_min_graph_size` does not change. Thunks that cannot be recorded do not change either, but
the pass converts the sequences inside them. Mirrors XLA's `CommandBufferConversionPass`, with the kinds of
`xla_gpu_enable_command_buffer`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

from msgspec import Struct

from hlo_run.artifact import (
    AsyncDoneThunk,
    AsyncStartThunk,
    CommandBufferThunk,
    ConditionalThunk,
    CopyThunk,
    FunctionCall,
    GemmThunk,
    KernelThunk,
    MemsetThunk,
    SequentialThunk,
    SliceCopyThunk,
    SlicedProductThunk,
    Thunk,
    WhileThunk,
)
from hlo_run.errors import UsageError
from hlo_run.options import CompileOptions
from hlo_run.records import replace
from hlo_run.runtime.thunk_numbers import thunk_numbers

DEFAULT_KINDS = (
    "FUSION",
    "CUBLAS",
    "CUBLASLT",
    "CUDNN",
    "CUSTOM_CALL",
    "CONDITIONAL",
    "DYNAMIC_SLICE_FUSION",
    "COLLECTIVES_KERNEL",
)
"""The kinds that XLA records by default."""
_KNOWN = (*DEFAULT_KINDS, "COLLECTIVES", "WHILE", "CONVOLUTION", "HOST_EXECUTE")


class CommandBufferConversion(Struct, frozen=True):
    """The kinds of commands to record, and the smallest number of commands in a command buffer.

    Thunks in `checked`, by their `id()`, are not recorded, since a check of floats follows them.
    """

    kinds: frozenset[str]
    smallest: int
    checked: frozenset[int] = frozenset()

    def convert(self, thunks: Sequence[Thunk]) -> tuple[Thunk, ...]:
        """Return the sequence with runs of recordable thunks as command buffers, named after the number of their first thunk."""
        return self._convert(thunks, thunk_numbers(thunks))

    def _convert(self, thunks: Sequence[Thunk], numbers: Mapping[int, int]) -> tuple[Thunk, ...]:
        converted: list[Thunk] = []
        run: list[Thunk] = []
        for thunk in thunks:
            if self._is_recorded(thunk):
                run.append(thunk)
                continue
            converted += self._close(run, numbers)
            run = []
            converted.append(self._inside(thunk, numbers))
        return (*converted, *self._close(run, numbers))

    def _close(self, run: list[Thunk], numbers: Mapping[int, int]) -> list[Thunk]:
        if len(run) < max(1, self.smallest):
            return [self._inside(thunk, numbers) for thunk in run]
        return [CommandBufferThunk(f"command_buffer_{numbers[id(run[0])]}", tuple(run))]

    def _is_recorded(self, thunk: Thunk) -> bool:
        if id(thunk) in self.checked:
            return False
        match thunk:
            case KernelThunk() | CopyThunk():
                return "FUSION" in self.kinds
            case GemmThunk():
                return ("CUBLAS" if thunk.kind == "kGemm" else "CUBLASLT") in self.kinds
            case ConditionalThunk():
                return "CONDITIONAL" in self.kinds and all(self._all_recorded(branch) for branch in thunk.branches)
            case WhileThunk():
                return "WHILE" in self.kinds and self._all_recorded(thunk.condition) and self._all_recorded(thunk.body)
            case SequentialThunk():
                # XLA computes the offset of a slice before each of its copies.
                return thunk.kind != "kDynamicSliceFusion" and self._all_recorded(thunk.thunks)
            case SlicedProductThunk() | SliceCopyThunk() | MemsetThunk() | FunctionCall() | CommandBufferThunk():
                return False
            case AsyncStartThunk() | AsyncDoneThunk():
                return False
            case _:
                assert_never(thunk)

    def _all_recorded(self, thunks: Sequence[Thunk]) -> bool:
        return all(self._is_recorded(thunk) for thunk in thunks)

    def _inside(self, thunk: Thunk, numbers: Mapping[int, int]) -> Thunk:
        """Return a thunk that is not recorded, with its inner sequences converted."""
        match thunk:
            case WhileThunk():
                # As in XLA, the condition stays as it is.
                return replace(thunk, body=self._convert(thunk.body, numbers))
            case ConditionalThunk():
                return replace(thunk, branches=tuple(self._convert(branch, numbers) for branch in thunk.branches))
            case SlicedProductThunk() | SequentialThunk(kind="kDynamicSliceFusion"):
                return thunk
            case SequentialThunk():
                return replace(thunk, thunks=self._convert(thunk.thunks, numbers))
            case AsyncStartThunk():
                return replace(thunk, thunks=self._convert(thunk.thunks, numbers))
            case CommandBufferThunk() | AsyncDoneThunk():
                return thunk
            case KernelThunk() | CopyThunk() | SliceCopyThunk() | MemsetThunk() | FunctionCall():
                return thunk
            case _:
                assert_never(thunk)


def command_buffer_conversion(options: CompileOptions) -> CommandBufferConversion | None:
    """Return the conversion that the flags ask for; None if nothing is to be recorded. Raises UsageError for an unknown kind.

    `--xla_gpu_enable_command_buffer` lists kinds, or changes the default by `+KIND` and `-KIND`.
    """
    words = [word.strip().upper() for word in options.xla_gpu_enable_command_buffer.split(",") if word.strip()]
    kinds: set[str] = set(DEFAULT_KINDS) if any(word[0] in "+-" for word in words) else set()
    for word in words:
        name = word.lstrip("+-")
        if name not in _KNOWN:
            hint = f"choose from {', '.join(_KNOWN)}"
            raise UsageError(f"--xla_gpu_enable_command_buffer: unknown command '{name}'", hint=hint)
        (kinds.discard if word[0] == "-" else kinds.add)(name)
    return CommandBufferConversion(frozenset(kinds), options.xla_gpu_graph_min_graph_size) if kinds else None
