"""Signatures of failures: the part of a failure that stays equal when the same fault breaks another module.

Failures with equal signatures form a bucket. Names, numbers, shapes and paths in messages are folded, so that thousands of
failures give a few buckets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from types import TracebackType

from msgspec import Struct

from hlo_run.errors import (
    DeviceError,
    GoldenDifference,
    HloRunError,
    InternalError,
    KernelMismatch,
    Mismatch,
    OutOfTime,
    ParseError,
    Unsupported,
    UsageError,
)
from hlo_run.reference.compare.compare import Comparison
from hlo_run.reference.compare.leaf_comparison import how_it_differs

_PACKAGE = __name__.partition(".")[0]
_ROW = re.compile(r" in row '([^']*)'(?:, kernel '[^']*')?: ")
_INSIDE = re.compile(r" in row '(?P<row>[^']*)'(?:, kernel '(?P<kernel>[^']*)')?")
_WRONG_ROW = re.compile(r"row '([^']*)' of pipeline '[^']*' (?:changed the meaning|rewrote a part) of ")
_NUMBER_OF_ROW = re.compile(r"-\d+$")
_FRAME = re.compile(rf"^at ({_PACKAGE}\.[\w.<>]+), line \d+$")
_BUG = re.compile(r"^at ([\w.]+):\d+, (\S+)$")
_DIED = re.compile(r"^(?P<step>.*?) died with (?P<how>SIG\w+|signal \d+|exit code -?\d+)(?: in (?P<where>.*))?$")
_LONGEST = 120
# What is folded, in this order: quoted names, %names, paths, shapes, and numbers, also inside of names.
_FOLDS = (
    (re.compile(r"0x[0-9a-fA-F]+"), "N"),
    (re.compile(r"(?<!\w)'[^']*'"), "NAME"),
    (re.compile(r"%[\w.-]+"), "NAME"),
    (re.compile(r"(?<![\w.])~?(?:/[\w.+-]+)+/?"), "PATH"),
    (re.compile(r"\b(?:pred|token|opaque|bf16|[suf]\d+\w*|c64|c128)\[[^\]]*\](?:\{[^}]*\})?"), "SHAPE"),
    (re.compile(r"\(SHAPE(?:, (?:/\*index=\d+\*/)?SHAPE)*\)"), "SHAPE"),
    (re.compile(r"[\[({]-?\d+(?:, ?-?\d+)*,?[\])}]"), "LIST"),
    (re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"), "N"),
)
# The first part of a module's name -> the stage of a run.
_STAGES = (
    ("formats", "read"),
    ("hlo.text", "read"),
    ("commands.load", "read"),
    ("hlo_passes", "hlo passes"),
    ("sharding", "hlo passes"),
    ("codegen.emitters", "emit"),
    ("codegen.elemental", "emit"),
    ("codegen.kernel_passes", "kernel passes"),
    ("codegen.to_llvm", "kernel passes"),
    ("codegen.llvm.ptxas", "ptxas"),
    ("codegen.llvm", "llvm"),
    ("pipeline.kernels", "kernels"),
    ("runtime", "buffers and thunks"),
    ("pipeline", "compile"),
    ("backends", "run"),
    ("execution", "run"),
    ("reference", "reference"),
)
_TEXTS = ("hlo.text", "hlo.attributes", "hlo.values", "formats")


class Signature(Struct, frozen=True):
    """The identity of a failure.

    `stage` is where it happens (read, hlo passes, emit, llvm, ptxas, run, compare, golden, ..), `kind` one of parse error,
    verifier, unsupported, internal error, crash, time-out, ptxas failure, device fault, usage error, mismatch and golden.
    `message` is the folded message. `place` is the row of a pass table, or the innermost function of hlo-run. `output` is the
    index of the first result that differs, as `{1,0}`, for a mismatch. `kernel` is the kernel's name, if known.
    """

    stage: str
    kind: str
    message: str
    place: str = ""
    output: str = ""
    kernel: str = ""

    @property
    def bucket(self) -> str:
        """The text that groups failures: all parts but the output and the kernel, which differ between modules."""
        place = f" ({self.place})" if self.place else ""
        parts = dict.fromkeys((self.stage, self.kind, self.message))  # stage and kind of a golden are one word
        return f"{': '.join(parts)}{place}"

    def __str__(self) -> str:
        output = f" in output {self.output}" if self.output else ""
        return self.bucket + output

    def record(self) -> dict[str, str]:
        """Return the parts and the bucket for JSON."""
        return {
            "bucket": self.bucket,
            "stage": self.stage,
            "kind": self.kind,
            "message": self.message,
            "place": self.place,
            "output": self.output,
            "kernel": self.kernel,
        }


def fold(message: str) -> str:
    """Return the first line of a message without names, shapes, paths and numbers, at most 120 characters."""
    line = next((line.strip() for line in message.splitlines() if line.strip()), "")
    for pattern, word in _FOLDS:
        line = pattern.sub(word, line)
    return line[:_LONGEST]


def signature_of(error: BaseException, comparison: Comparison | None = None) -> Signature:
    """Return the signature of an error. `comparison` belongs to a Mismatch, if known."""
    modules = _modules(error.__traceback__)
    stage = _stage(modules)
    died = _DIED.match(error.message) if isinstance(error, HloRunError) else None
    if died is not None:
        step = died["step"] if died["step"] != "the process" else died["where"] or "run"
        return crash_signature(died["how"], fold(step))
    match error:
        case GoldenDifference():
            return golden_signature(error.what)
        case KernelMismatch():
            return Signature("compare", "mismatch", f"kernel differs alone: {error.how}", kernel=error.kernel)
        case Mismatch():
            return _of_mismatch(error, comparison)
        case ParseError():
            kind = "parse error" if modules and modules[-1].startswith(_TEXTS) else "verifier"
            return Signature(stage or "read", kind, fold(error.message), _pass_of(modules))
        case Unsupported():
            return Signature(stage or "compile", "unsupported", fold(error.message))
        case DeviceError():
            kind = "time-out" if isinstance(error, OutOfTime) else "device fault"
            return Signature("run", kind, fold(error.message))
        case UsageError():
            return Signature("read", "usage error", fold(error.message))
        case InternalError():
            return _of_internal(error, stage)
        case HloRunError():
            return Signature(stage or "run", error.kind, fold(error.message))
        case _:
            return Signature(stage or "run", "internal error", f"{type(error).__name__}: {fold(str(error))}", _function(error))


def crash_signature(name: str, stage: str = "run") -> Signature:
    """Return the signature of a process that ended by the signal `name` (SIGSEGV, ..) or with an unknown exit code."""
    return Signature(stage, "crash", name)


def timeout_signature(stage: str = "run") -> Signature:
    """Return the signature of a process that was stopped after its time limit."""
    return Signature(stage, "time-out", "the run took longer than its limit")


def golden_signature(what: str) -> Signature:
    """Return the signature of a difference from a golden: `ptx differs`, `missing`."""
    return Signature("golden", "golden", what)


def _of_mismatch(error: Mismatch, comparison: Comparison | None) -> Signature:
    if row := _WRONG_ROW.match(error.message):
        # A wrong rewrite is the same fault, whether the result shows it or its region alone.
        return Signature("hlo passes", "mismatch", "wrong rewrite", _NUMBER_OF_ROW.sub("", row[1]))
    if comparison is None:
        return Signature("compare", "mismatch", "wrong values")
    if comparison.problem:
        return Signature("compare", "mismatch", "shape")
    wrong = next((leaf for leaf in comparison.leaves if not leaf.ok), None)
    if wrong is None:
        return Signature("compare", "mismatch", fold(error.message))
    output = "{" + ",".join(map(str, wrong.path)) + "}"
    return Signature("compare", "mismatch", how_it_differs(wrong), output=output)


def _of_internal(error: InternalError, stage: str) -> Signature:
    if error.message.startswith("ptxas rejects"):
        first = next((note for note in error.notes if "error" in note), "")
        return Signature("ptxas", "ptxas failure", fold(re.sub(r"^.*?(?=error\b)", "", first)) or "ptxas rejects the PTX")
    inside = _INSIDE.search(error.message)
    kernel = inside["kernel"] or "" if inside is not None else ""
    place = next((found[1] for note in reversed(error.notes) if (found := _FRAME.match(note))), "")
    place = place.removeprefix(f"{_PACKAGE}.") or next(
        (f"{found[1]}.{found[2]}" for note in error.notes if (found := _BUG.match(note))), ""
    )
    place = place or _function(error.__cause__ or error)
    message = fold(_ROW.sub(": ", error.message))
    if inside is not None and inside["row"]:
        place = f"{inside['row']}: {place}" if place else inside["row"]
    return Signature(_stage([place.rpartition(": ")[2]]) or stage or "run", "internal error", message, place, kernel=kernel)


def _modules(traceback: TracebackType | None) -> list[str]:
    """Return the modules of hlo-run in a traceback without the package's name, the outermost frame first."""
    found: list[str] = []
    while traceback is not None:
        name = str(traceback.tb_frame.f_globals.get("__name__", ""))
        if name.startswith(f"{_PACKAGE}."):
            found.append(name.removeprefix(f"{_PACKAGE}."))
        traceback = traceback.tb_next
    return found


def _stage(modules: Iterable[str]) -> str:
    """Return the stage of the innermost module that has one, or nothing."""
    for module in reversed(list(modules)):
        for prefix, stage in _STAGES:
            if module == prefix or module.startswith(f"{prefix}."):
                return stage
    return ""


def _pass_of(modules: Iterable[str]) -> str:
    """Return the last pass in a list of modules as the name of its file, or nothing."""
    passes = [module for module in modules if module.startswith(("hlo_passes.", "sharding.", "codegen.kernel_passes."))]
    return passes[-1].rpartition(".")[2].replace("_", "-") if passes else ""


def _function(error: BaseException) -> str:
    """Return the innermost function of hlo-run in an error's traceback as MODULE.FUNCTION, or nothing."""
    place, traceback = "", error.__traceback__
    while traceback is not None:
        name = str(traceback.tb_frame.f_globals.get("__name__", ""))
        if name.startswith(f"{_PACKAGE}."):
            place = f"{name.removeprefix(f'{_PACKAGE}.')}.{traceback.tb_frame.f_code.co_qualname}"
        traceback = traceback.tb_next
    return place


def buckets(failures: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the files of each bucket from (bucket, file), the largest bucket first."""
    files: dict[str, list[str]] = {}
    for bucket, file in failures:
        files.setdefault(bucket, []).append(file)
    return dict(sorted(files.items(), key=lambda item: -len(item[1])))


def bucket_table(failures: Iterable[tuple[str, str]], examples: int = 3, most: int = 1 << 30) -> list[str]:
    """Return the lines of a table of the `most` largest buckets from (bucket, file); [] for fewer than two failures."""
    found = buckets(failures)
    count = sum(map(len, found.values()))
    if count < 2:
        return []
    lines = [f"{count} failures in {len(found)} bucket{'s' * (len(found) > 1)}:"]
    for bucket, files in list(found.items())[:most]:
        more = ", .." if len(files) > examples else ""
        lines.append(f"{len(files):5}  {bucket}  [{', '.join(files[:examples])}{more}]")
    if len(found) > most:
        rest = list(map(len, found.values()))[most:]
        lines.append(f"{sum(rest):5}  in {len(rest)} smaller buckets")
    return lines
