"""Run a random module through the whole pipeline on the Host platform, and compare it with the reference."""

from __future__ import annotations

import hashlib
import random
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlo_run.backends.host.backend import HostBackend
from hlo_run.custom_calls import custom_call, unregister
from hlo_run.errors import HloRunError, Unsupported
from hlo_run.execution.signatures import fold
from hlo_run.fuzz.families.effects import COUNT, FED, FLIP, RECORD
from hlo_run.fuzz.generate import RandomModule
from hlo_run.fuzz.program.values import TYPES, Range, Value
from hlo_run.hlo.feeds import Feed
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo_passes.hlo_pass import PassContext
from hlo_run.ops.parse import parse
from hlo_run.options import Options
from hlo_run.pipeline.compile import compile_module
from hlo_run.reference.evaluate.evaluate import Reference
from hlo_run.target import preset

Array = NDArray[Any]

# The tolerance in units of the error bound, which counts the roundings of one order of operations only.
_SLACK = 8.0


@dataclass
class _Record:
    """The arguments of custom calls with effects since the last `take`."""

    calls: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def note(self, target: str, value: Array) -> None:
        # -0 becomes +0, since the two are not distinguished in results.
        plain = np.asarray(value).astype(np.complex128 if np.iscomplexobj(value) else np.float64) + 0.0
        self.calls.append((target, f"{list(plain.shape)} {hashlib.sha1(plain.tobytes()).hexdigest()}"))

    def take(self) -> Counter[tuple[str, str]]:
        taken = Counter(self.calls)
        self.calls.clear()
        return taken


_RECORD = _Record()


def register_calls() -> None:
    """Register the functions of the custom calls in random modules."""

    @custom_call(FLIP)
    def flip(*values: Array) -> Any:  # pyright: ignore[reportUnusedFunction]
        flipped = [np.flip(value) for value in values]
        return tuple(flipped) if len(flipped) > 1 else flipped[0]

    @custom_call(RECORD)
    def record(value: Array) -> Array:  # pyright: ignore[reportUnusedFunction]
        _RECORD.note(RECORD, value)
        return np.flip(value)

    @custom_call(COUNT)
    def count(value: Array) -> Array:  # pyright: ignore[reportUnusedFunction]
        _RECORD.note(COUNT, value)
        return np.asarray(np.float32(1))


def unregister_calls() -> None:
    """Unregister the functions of `register_calls`."""
    for target in (FLIP, RECORD, COUNT):
        unregister(target)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of checking a module: `kind` is ok, unsupported or failed; equal failures have the same `signature`."""

    seed: int
    kind: str
    signature: str = ""
    details: str = ""


def options_of(seed: int, verify: str = "every", engine: str = "auto") -> Options:
    """Return the options of a seed, which determines the GPU and the optimisation level."""
    rng = random.Random(seed + 1_000_003)
    return Options(
        target=rng.choices(("h100", "a100", "b200", "v100"), (7, 1, 1, 1))[0],
        host_engine=engine,
        verify=verify,
        xla_backend_optimization_level=rng.choice((0, 0, 0, 3)),
        # Random modules round intermediate values to narrow floats, and the check expects each rounding.
        xla_allow_excess_precision=False,
        compile_processes=1,
        cache="off",
    )


def check(random_module: RandomModule, options: Options) -> Outcome:
    """Compile, run and compare a module; errors are returned as outcomes, never raised."""
    seed = random_module.seed
    try:
        module = parse(random_module.text)
    except HloRunError as error:
        return Outcome(seed, "failed", f"parse: {fold(str(error))}", str(error))
    arguments = make_arguments(random_module)
    reference = Reference(module)
    _RECORD.take()
    try:
        expected = reference.run([arguments], feeds=feeds_of(seed))[0]
    except Exception as error:  # the code under test may raise anything, and each error is a finding
        return _raised(seed, "reference", error)
    expected_calls, expected_feed = _RECORD.take(), reference.outfeed
    if claim := "; ".join(_false_claims(random_module.result, expected, "result")):
        return Outcome(seed, "failed", "generator: " + fold(claim), claim)
    try:
        backend = HostBackend(engine=options.host_engine)
        # ptxas takes as long as everything else together, so it only assembles every tenth module.
        context = PassContext(preset(options.target), options, assembles=seed % 10 == 0)
        executable = compile_module(context, module)
        actual = backend.run(executable, arguments, feeds=feeds_of(seed))
    except Unsupported as error:
        return Outcome(seed, "unsupported", fold(str(error)), str(error))
    except Exception as error:  # as above
        return _raised(seed, "pipeline", error)
    found = [*differences(random_module.result, expected, actual, "result")]
    if (calls := _RECORD.take()) != expected_calls:
        found.append(f"custom calls: {calls - expected_calls} too many, {expected_calls - calls} too few")
    if not _same_feed(expected_feed, backend.outfeed):
        found.append("outfeed: other values, or in another order")
    if found:
        return Outcome(seed, "failed", "mismatch: " + fold(found[0]), "\n".join(found))
    return Outcome(seed, "ok")


def _raised(seed: int, where: str, error: Exception) -> Outcome:
    own = Path(__file__).parent.parent
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(str(own))]
    cause = error.__cause__ or error
    inner = [f for f in traceback.extract_tb(cause.__traceback__) if f.filename.startswith(str(own))] or frames
    last = inner[-1]
    place = f"{Path(last.filename).relative_to(own)}:{last.name}"
    text = "".join(traceback.format_exception(error, limit=-12))
    return Outcome(seed, "failed", f"{where}: {type(cause).__name__} in {place}: {fold(str(cause))}", text)


# Arguments.


def make_arguments(random_module: RandomModule) -> list[Any]:
    """Return one argument per parameter, with numbers in the parameter's range; a seed gives the same arguments every time."""
    engine = np.random.default_rng(random_module.seed)

    def make(value: Value) -> Any:
        if value.is_tuple:
            return tuple(make(part) for part in value.parts)
        return random_numbers(engine, value.type, value.dims, value.range)

    return [make(parameter) for parameter in random_module.parameters]


def random_numbers(engine: np.random.Generator, element_type: str, dims: tuple[int, ...], range_: Range) -> Array:
    """Return random multiples of 2**-grain in [-bound, bound]; in [0, bound] for unsigned types."""
    t, numpy_type = TYPES[element_type], DTYPES[element_type].numpy
    if t.kind == "pred":
        return engine.integers(0, 2, dims).astype(np.bool_)
    if t.is_integer:
        high = min(int(range_.bound), t.largest)
        return np.asarray(engine.integers(-high if t.kind == "signed" else 0, high, dims, endpoint=True)).astype(numpy_type)
    # The parts of a complex number have half the bound, so that its magnitude is within the bound.
    steps = int(range_.bound * 2**range_.grain) // (2 if t.kind == "complex" else 1)

    def numbers() -> Array:
        return np.asarray(engine.integers(-steps, steps, dims, endpoint=True)) * 2.0**-range_.grain

    if t.kind == "complex":
        return (numbers() + 1j * numbers()).astype(numpy_type)
    return numbers().astype(np.float32 if t.bits < 32 else np.float64).astype(numpy_type)


def feeds_of(seed: int) -> Any:
    """Return the source of infeed data for each device: random numbers in the range `FED`, the same in every run."""

    def feed_of(device: int) -> Feed:
        engine = np.random.default_rng([seed, device])

        def feed(element_type: str, dims: tuple[int, ...]) -> Array:
            return random_numbers(engine, element_type, dims, FED)

        return feed

    return feed_of


# Results.


def _plain(array: Any) -> Array:
    array = np.asarray(array)
    if np.iscomplexobj(array):
        return array.astype(np.complex128)
    kind = array.dtype.kind
    return array if kind in "iub" else array.astype(np.int64 if "int" in array.dtype.name else np.float64)


def _leaves(value: Value, literal: Any, path: str) -> Iterator[tuple[Value, Array, str]]:
    if value.is_tuple:
        for number, (part, inner) in enumerate(zip(value.parts, literal, strict=True)):
            yield from _leaves(part, inner, f"{path}.{number}")
    else:
        yield value, _plain(literal), path


def _false_claims(value: Value, literal: Any, path: str) -> Iterator[str]:
    """Yield the generator's claims about a value that are false: not finite, out of bounds, not a multiple of the grain."""
    for leaf, array, where in _leaves(value, literal, path):
        if array.size == 0 or array.dtype.kind == "b":
            continue
        if not np.isfinite(array).all():
            yield f"{where} of {leaf.type} is not finite"
        elif leaf.element.is_float and np.abs(array).max() > leaf.range.bound * 1.001 + leaf.range.error:
            yield f"{where} of {leaf.type} exceeds its bound"
        elif leaf.element.is_float and leaf.exact and np.any((array * 2.0**leaf.range.grain) % 1):
            yield f"{where} of {leaf.type} is not a multiple of its grain"


def differences(value: Value, expected: Any, actual: Any, path: str) -> Iterator[str]:
    """Yield a description of each array that differs by more than its range allows; exact arrays must be equal."""
    for (leaf, one, where), (_, other, _) in zip(_leaves(value, expected, path), _leaves(value, actual, path), strict=True):
        if one.shape != other.shape:
            yield f"{where} of {leaf.type} has the shape {other.shape}, expected {one.shape}"
            continue
        same = one == other
        if not leaf.exact:
            with np.errstate(all="ignore"):
                same |= np.abs(other - one) <= _SLACK * leaf.range.error
        if not same.all():
            place = tuple(map(int, np.argwhere(~same)[0]))
            how = "exact" if leaf.exact else "inexact"
            yield (
                f"{how} {leaf.type} differs in {int((~same).sum())} of {same.size}, at {where}{list(place)}:"
                f" expected {one[place]}, got {other[place]}, error {leaf.range.error:.2g}"
            )


def _same_feed(one: list[list[Any]], other: list[list[Any]]) -> bool:
    first, second = ([value for device in side for value in device] for side in (one, other))
    return len(first) == len(second) and all(np.array_equal(_plain(a), _plain(b)) for a, b in zip(first, second, strict=True))
