"""Check one module with judges: parse it, run the reference, and ask each judge."""

from __future__ import annotations

import random
import signal
import traceback
from collections.abc import Generator, Mapping
from contextlib import contextmanager

from msgspec import Struct

from hlo_run.artifact import Executable
from hlo_run.errors import DeviceError, HloRunError, ParseError, Unsupported
from hlo_run.execution.signatures import Signature, fold, signature_of
from hlo_run.fuzz.arguments import DRAWS
from hlo_run.fuzz.case import FAILED, REFUSED, Case, Fault, LeftOut
from hlo_run.fuzz.judges import Judge
from hlo_run.fuzz.results import false_claims
from hlo_run.fuzz.subjects import Subject
from hlo_run.ops.parse import parse
from hlo_run.options import Options

# A mutated loop may not end.
_REFERENCE_SECONDS = 10.0


class Outcome(Struct, frozen=True):
    """The result of checking a module: `kind` is ok, refused, failed, or left out.

    Equal faults have the same bucket, which `faults` gives with the judge and the details of each.
    """

    subject: Subject
    kind: str
    faults: tuple[Fault, ...] = ()

    @staticmethod
    def of(subject: Subject, faults: list[Fault]) -> Outcome:
        """Return the outcome of a module with these faults."""
        kinds = {fault.kind for fault in faults}
        return Outcome(subject, FAILED if FAILED in kinds else REFUSED if REFUSED in kinds else "ok", tuple(faults))


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


def check(
    subject: Subject,
    options: Options,
    judges: Mapping[str, Judge],
    draw: int | None = None,
    executables: dict[Options, Executable] | None = None,
) -> Outcome:
    """Ask each judge about a module; errors are returned as faults, never raised.

    `draw` is an index of `fuzz.arguments.DRAWS`: the arguments are drawn so, and the generator's predictions do not count.
    `executables` are those of the module that earlier checks have made, by the options.
    """
    try:
        module = parse(subject.text)
    except ParseError as error:
        return Outcome.of(subject, [Fault(FAILED, signature_of(error), str(error))])
    try:
        case = Case(subject, module, options, draw, executables)
    except ParseError:
        return Outcome(subject, "left out")  # for several devices
    except HloRunError as error:
        return Outcome.of(subject, [Fault(FAILED, signature_of(error), str(error))])
    try:
        with _limit(_REFERENCE_SECONDS):
            expected = case.expected
    except (_TooSlow, DeviceError, ParseError):
        return Outcome(subject, "left out")  # too long, too large, or for several devices
    except Unsupported as error:
        return Outcome.of(subject, [Fault(REFUSED, signature_of(error), str(error))])
    except Exception as error:  # the code under test may raise anything, and each error is a finding
        return Outcome.of(subject, [_raised(error)])
    if case.claims is not None and (claim := "; ".join(false_claims(case.claims.result, expected, "result"))):
        return Outcome.of(subject, [Fault(FAILED, Signature("generator", "false claim", fold(claim)), claim)])
    faults: list[Fault] = []
    left_out = 0
    for judge in judges.values():
        try:
            faults += judge(case)
        except LeftOut:
            left_out += 1
        except Unsupported as error:
            faults.append(Fault(REFUSED, signature_of(error), str(error)))
        except Exception as error:  # as above
            faults.append(_raised(error))
    if left_out and left_out == len(judges):
        return Outcome(subject, "left out")
    return Outcome.of(subject, list({fault.signature.bucket: fault for fault in faults}.values()))


def check_every_draw(subject: Subject, options: Options, judges: Mapping[str, Judge]) -> Outcome:
    """Check a module with arguments of every kind in turn, until one shows a fault. Return the last outcome."""
    outcome = Outcome(subject, "left out")
    executables: dict[Options, Executable] = {}
    for draw in range(len(DRAWS)):
        outcome = check(subject, options, judges, draw, executables)
        if outcome.faults:
            break
    return outcome


def _raised(error: Exception) -> Fault:
    return Fault(FAILED, signature_of(error), "".join(traceback.format_exception(error, limit=-12)))


class _TooSlow(Exception):
    """The reference takes too long."""


@contextmanager
def _limit(seconds: float) -> Generator[None]:
    """Raise _TooSlow in the block after `seconds`. In the main thread only, as signals need it."""

    def stop(number: int, frame: object) -> None:
        del number, frame
        raise _TooSlow

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
