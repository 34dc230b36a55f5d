"""`--xla_gpu_detect_nan`, `--xla_gpu_detect_inf` and `--xla_gpu_log_minmax`: look at the floats that each thunk writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec import Struct, field

from hlo_run.artifact import BufferSlice, Thunk, accesses, nested_sequences
from hlo_run.backends.literals import Bytes
from hlo_run.errors import DeviceError
from hlo_run.hlo.values.dtype import DTYPES

# The types that XLA's checks look at.
_CHECKED = ("f16", "bf16", "f32", "f64")
WARNING, FAIL = "WARNING", "FAIL"


class FloatWatch(Struct):
    """Checks the results of thunks in the order in which they run. `report` gets one line per finding.

    `nan` and `inf` are `NONE`, `WARNING` or `FAIL`. An instruction is reported once per run for each of the two. `results` maps
    the name of an instruction to the element type and the number of elements of each array of its result. With `FAIL`, `end_run`
    raises DeviceError after a run with a finding.
    """

    nan: str
    inf: str
    minmax: bool
    report: Callable[[str], None]
    results: Mapping[str, Sequence[tuple[str, int]]] = field(default_factory=dict[str, "Sequence[tuple[str, int]]"])
    _reported: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    _fatal: list[str] = field(default_factory=list[str])

    def begin_run(self) -> None:
        """Forget the findings of the last run."""
        self._reported.clear()
        self._fatal.clear()

    def add(self, thunk: Thunk, begin: float, read: Callable[[BufferSlice], Bytes]) -> None:
        """Look at what a thunk has written; `read` returns the bytes of a slice."""
        del begin
        if nested_sequences(thunk):
            return  # its thunks come by themselves
        left = [result for result in self.results.get(thunk.name, ()) if result[0] in DTYPES]
        for piece in accesses(thunk).writes:
            found = next((result for result in left if _bytes_of(result) == piece.size_bytes), None)
            if found is None:
                continue
            left.remove(found)
            if found[0] in _CHECKED and found[1]:
                self._look(thunk, np.frombuffer(read(piece).tobytes(), DTYPES[found[0]].numpy), found[0])

    def end_run(self) -> None:
        """Raise DeviceError if the run had a finding that is an error."""
        if self._fatal:
            raise DeviceError(f"the check of floats failed: {'; '.join(self._fatal)}")

    def _look(self, thunk: Thunk, values: np.ndarray, kind: str) -> None:
        wide = values.astype(np.float64)
        where = f"{thunk.kind} thunk of {thunk.name} ({kind}, {values.size} elements)"
        if self.minmax:
            numbers = wide[~np.isnan(wide)]
            text = f"{numbers.min():g} to {numbers.max():g}" if numbers.size else "only NaNs"
            self.report(f"{where}: {text}")
        for word, mode, test in (("NaN", self.nan, np.isnan), ("infinity", self.inf, np.isinf)):
            if mode in (WARNING, FAIL) and (thunk.name, word) not in self._reported and (count := int(test(wide).sum())):
                self._reported.add((thunk.name, word))
                self.report(f"found {word} in {count} of {values.size} elements of the {where}")
                if mode == FAIL:
                    self._fatal.append(f"{word} in '{thunk.name}'")


def _bytes_of(result: tuple[str, int]) -> int:
    kind, count = result
    return -(-count * DTYPES[kind].bits // 8)
