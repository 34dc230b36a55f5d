"""Records of the results of a command line, by file and iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field

from hlo_run.errors import HloRunError, Mismatch, Unsupported

if TYPE_CHECKING:
    from hlo_run.artifact import Executable
    from hlo_run.backends.profile import Profile
    from hlo_run.diff.texts import TextDiff
    from hlo_run.execution.signatures import Signature
    from hlo_run.kernel_checks.outcomes import Outcome
    from hlo_run.pipeline.observers.record import CompilationRecord
    from hlo_run.reference.compare.compare import Comparison
    from hlo_run.reference.compare.detectability import Detectability
    from hlo_run.reference.compare.findings import Findings
    from hlo_run.reference.sensitivity.kernel_sight import KernelSights


class LaterTry(Struct, frozen=True):
    """A run with other arguments after a blind comparison: their source, and the comparison's view of all arrays."""

    arguments: str
    seen: Detectability


class IterationResult(Struct):
    """One run with one set of arguments. `arguments` names their source. `comparison` is None if the run was not compared.

    `chosen` has a line per choice of ranges for the random arguments: the names of arrays and the range. `kernels` are the
    verdicts on each kernel alone. `later_tries` are the runs with other arguments that agreed. If one of them differs,
    `arguments` and `comparison` are its. `kernels_seen` says which kernels the comparison sees with any of the arguments; None
    if that was not measured.
    """

    number: int
    arguments: str
    comparison: Comparison | None = None
    findings: Findings | None = None
    kernels: list[Outcome] = field(default_factory=list["Outcome"])
    chosen: list[str] = field(default_factory=list[str])
    later_tries: list[LaterTry] = field(default_factory=list[LaterTry])
    kernels_seen: KernelSights | None = None


class FileResult(Struct):
    """The result of one file, filled in while it runs. `error` is the error that ended it.

    `launches` are the records of the last run's kernels, if the backend records them. `xla_diff` is the comparison of
    `--xla_diff`. The page of `--report_html` shows `compilation`, `executable` and `profile`. `golden` is the
    comparison of `--golden_dir`, and `golden_diffs` are its stages. `times_ns` are the times that
    `--profile_execution` prints.
    """

    file: str
    module: str = ""
    platform: str = ""
    device: str = ""
    reference: str = ""
    iterations: list[IterationResult] = field(default_factory=list[IterationResult])
    launches: list[dict[str, object]] = field(default_factory=list[dict[str, object]])
    xla_diff: dict[str, object] | None = None
    compilation: CompilationRecord | None = None
    executable: Executable | None = None
    profile: Profile | None = None
    golden: dict[str, object] | None = None
    golden_diffs: list[TextDiff] = field(default_factory=list["TextDiff"])
    times_ns: list[int] = field(default_factory=list[int])
    error: HloRunError | None = None

    @property
    def outcome(self) -> str:
        """`passed`, `mismatch`, `unsupported` or `error`."""
        match self.error:
            case None:
                return "passed"
            case Mismatch():
                return "mismatch"
            case Unsupported():
                return "unsupported"
            case _:
                return "error"

    @property
    def signature(self) -> Signature | None:
        """The identity of the failure; None if the file passed."""
        if self.error is None:
            return None
        from hlo_run.execution.signatures import signature_of  # imports the comparison, and only a failure needs it

        failed = (i.comparison for i in self.iterations if i.comparison is not None and not i.comparison.ok)
        return signature_of(self.error, next(failed, None))

    @property
    def exit_code(self) -> int:
        """The exit code of the file's error; 0 without an error."""
        return self.error.exit_code if self.error is not None else 0
