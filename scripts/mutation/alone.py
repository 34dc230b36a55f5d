"""Runs one kernel on random operands of its own, with and without a fault, and compares the results exactly.

The judgement shares nothing with a run's comparison: results are equal if all their numbers are equal; NaN equals NaN, and -0
equals 0. Floats are also equal if each is the other's neighbour in its type, since the last place of a function or a sum has no
one right value. Initial values of reductions are the identities that HLO demands: with others, every kernel is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hlo_run.artifact import ArraySpec, BufferSlice, Executable, Kernel, KernelThunk
from hlo_run.backends.host.backend import HostBackend
from hlo_run.backends.host.stepper import Stepper
from hlo_run.errors import HloRunError
from hlo_run.hlo.feeds import NO_FEEDS
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.isolate import isolate_instruction
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.records import replace
from hlo_run.reference.arguments.constraints import constraints_of
from hlo_run.runtime.buffers import BufferAssignment

SECONDS = 10.0
# Floats in an interval and integers in a closed one; None: all bits, as keys of random numbers have them.
DRAWS: tuple[tuple[tuple[float, float], tuple[int, int] | None], ...] = (
    ((-1.0, 1.0), (0, 7)),
    ((-3.0, 3.0), (-3, 20)),
    ((0.1, 3.0), (0, 100)),
    ((-1.0, 1.0), None),
)
# Results that differ by no more are equal up to rounding, in units of the last place of the largest result.
ROUNDINGS = 1.0
# The same for results of modules, in which a rounding of one kernel goes through others.
ROUNDINGS_OF_MODULE = 4.0
Bytes = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Change:
    """The effect of a fault on a kernel's results: the largest difference, in units of the last place of the largest result.

    0: it is equivalent on all operands tried. `error` is what ends the kernel.
    """

    units: float
    error: HloRunError | None = None


class Alone:
    """The launch of one kernel, with its own memory."""

    def __init__(
        self,
        executable: Executable,
        thunk: KernelThunk,
        types: Mapping[BufferSlice, str],
        seed: int,
        identities: Mapping[BufferSlice, int],
    ) -> None:
        self._executable, self._thunk, self._types, self._seed = executable, thunk, types, seed
        self._identities = identities  # the initial values of reductions
        self._known: dict[int, list[Bytes] | None] = {}

    def change(self, kernel: Kernel) -> Change:
        """Return what another text of the kernel changes."""
        most = 0.0
        for draw in range(len(DRAWS)):
            if draw not in self._known:
                try:
                    self._known[draw] = self._run(self._executable.kernel(self._thunk.kernel), draw)
                except HloRunError:
                    self._known[draw] = None  # these operands are outside of what the kernel takes
            known = self._known[draw]
            if known is None:
                continue
            try:
                found = self._run(kernel, draw)
            except HloRunError as error:
                return Change(math.inf, error)
            pieces = [argument.slice for argument in self._thunk.arguments if argument.written]
            for piece, one, two in zip(pieces, known, found, strict=True):
                most = max(most, difference(self._types.get(piece, "f32"), one, two))
            if most > ROUNDINGS:
                break
        return Change(most)

    def _run(self, kernel: Kernel, draw: int) -> list[Bytes]:
        """Return the bytes that the kernel writes."""
        allocations = tuple(replace(a, parameter_number=None, alias="", is_output=False) for a in self._executable.allocations)
        constants = {a.index for a in allocations if a.constant is not None}
        one = replace(
            self._executable,
            kernels=(kernel,),
            thunks=(replace(self._thunk, sort=None),),
            allocations=allocations,
            parameters=(),
            result=(),
            divided=None,
        )
        stepper = Stepper(HostBackend((), SECONDS), one)
        stepper.begin([], 1, NO_FEEDS(0), SECONDS)
        random = np.random.default_rng([self._seed, draw])
        for argument in self._thunk.arguments:
            piece = argument.slice
            if piece.allocation not in constants:
                memory = stepper.allocation(piece.allocation)
                dtype = self._types.get(piece, "f32")
                values = operand(random, dtype, piece.size_bytes, draw)
                if piece in self._identities:
                    values = np.full(1, self._identities[piece]).astype(DTYPES[dtype].numpy).view(np.uint8)
                memory[piece.offset_bytes : piece.offset_bytes + values.size] = values
        stepper.run(stepper.steps)
        written = [argument.slice for argument in self._thunk.arguments if argument.written]
        return [stepper.allocation(p.allocation)[p.offset_bytes : p.offset_bytes + p.size_bytes].copy() for p in written]


def operand(random: np.random.Generator, dtype: str, size_bytes: int, draw: int) -> Bytes:
    """Return the bytes of a random array."""
    record = DTYPES[dtype]
    floats, integers = DRAWS[draw]
    if record.bits < 8 and dtype != "pred":
        return random.integers(0, 256, size_bytes).astype(np.uint8)
    count = size_bytes // record.numpy.itemsize
    if dtype == "pred":
        values = random.integers(0, 2, count)
    elif record.is_float:
        values = random.uniform(*floats, count)
    elif record.numpy.kind == "c":
        values = random.uniform(*floats, count) + 1j * random.uniform(*floats, count)
    elif integers is None:
        return random.integers(0, 256, size_bytes).astype(np.uint8)
    else:
        values = random.integers(max(integers[0], 0) if record.numpy.kind == "u" else integers[0], integers[1] + 1, count)
    data = values.astype(record.numpy).view(np.uint8).reshape(-1)
    return np.concatenate([data, np.zeros(size_bytes - data.size, np.uint8)])


def difference(dtype: str, one: Bytes, two: Bytes) -> float:
    """Return the largest difference in units of the last place of the largest finite number; infinite if it has no size.

    0 if each number equals the other one or is its neighbour.
    """
    record = DTYPES[dtype]
    if one.tobytes() == two.tobytes():
        return 0.0
    is_float = record.is_float or record.numpy.kind == "c"
    if record.bits < 8 or not is_float:
        return math.inf
    count = one.size // record.numpy.itemsize * record.numpy.itemsize
    wide = np.complex128 if record.numpy.kind == "c" else np.float64
    a, b = (part[:count].view(record.numpy).astype(wide) for part in (one, two))
    with np.errstate(all="ignore"):
        differs = ~((a == b) | (np.isnan(a) & np.isnan(b)))
        if not differs.any():
            return 0.0
        if not np.isfinite(a[differs]).all() or not np.isfinite(b[differs]).all():
            return math.inf
        largest = float(np.abs(a[np.isfinite(a)]).max())
    units = {"f32": 2.0**-23, "c64": 2.0**-23, "f64": 2.0**-52, "c128": 2.0**-52, "f16": 2.0**-10, "bf16": 2.0**-7}
    unit = units.get(dtype, 0.25)
    off = np.abs(a[differs] - b[differs])
    sizes = np.maximum(np.abs(a[differs]), np.abs(b[differs]))
    if dtype in units and record.is_float and bool((off <= unit * np.exp2(np.ceil(np.log2(sizes)) - 1)).all()):
        return 0.0
    return float(off.max()) / (largest * unit) if largest else math.inf


def identities_of(module: HloModule, buffers: BufferAssignment, thunk: KernelThunk) -> dict[BufferSlice, int]:
    """Return the slices of a kernel that hold the initial value of a reduction, with the value that HLO demands."""
    found: dict[BufferSlice, int] = {}
    for instruction in [i for i in module.instructions if i.name == thunk.name]:
        alone = isolate_instruction(instruction)
        for operand, parameter in zip(dict.fromkeys(instruction.operands), alone.entry.parameters, strict=True):
            identity = constraints_of(parameter).identity
            if identity is not None:
                found.update((spec.slice, identity) for spec in _specs(buffers, operand))
    return found


def types_of(module: HloModule, buffers: BufferAssignment, thunk: KernelThunk) -> dict[BufferSlice, str]:
    """Return the element types of the slices of a kernel, from the instruction that it computes."""
    wanted = {argument.slice for argument in thunk.arguments}
    found: dict[BufferSlice, str] = {}
    for is_own in (True, False):  # other instructions where the own one has another name, such as a fused sort
        for instruction in module.instructions:
            if (instruction.name == thunk.name) is is_own:
                for value in (instruction, *instruction.operands):
                    for spec in _specs(buffers, value):
                        if spec.slice in wanted:
                            found.setdefault(spec.slice, spec.dtype)
        if wanted <= found.keys():
            break
    return found


def _specs(buffers: BufferAssignment, value: Any) -> Sequence[ArraySpec]:
    try:
        return list(_leaves(buffers.array_tree(value)))
    except (KeyError, AssertionError):
        return []  # a value without a buffer


def _leaves(tree: Any) -> Sequence[ArraySpec]:
    if isinstance(tree, ArraySpec):
        return [tree]
    return [leaf for part in tree for leaf in _leaves(part)]
