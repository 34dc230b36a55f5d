"""The verdicts on each kernel alone, and the line of the whole verdict that sums them up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from hlo_run.backends.literals import Literal
from hlo_run.errors import KernelMismatch
from hlo_run.kernel_checks.units import Unit
from hlo_run.reference.compare.compare import Comparison
from hlo_run.reference.compare.leaf_comparison import how_it_differs
from hlo_run.reference.compare.rounding import largest_number

LARGE = "too large for a sample"
UNREACHED = "not reached"
HIDDEN = "hidden by its operands"
LOST = "lost in rounding"
_MOST_NAMED = 4
_REASONS = {
    LARGE: "too large for a sample (--check_kernels=all checks all)",
    UNREACHED: "not reached by the run",
    HIDDEN: "hidden by their operands",
    LOST: "that rounding decides",
}


class Outcome(Struct, eq=False):
    """The verdict on one unit. `comparison` is the first that differs, else the one with the worst error; None: not judged.

    `runs` counts the executions that were judged, `sampled` the elements (0: all). `own_operands` says that it was judged on
    operands of its own as well, `equal` names the unit whose verdict it shares, `place` the execution that differs, and
    `operands` what it had there. `result` are the arrays that it wrote last in the run, if they are kept, and `in_run` compares
    them with those of the reference's run.
    """

    unit: Unit
    comparison: Comparison | None = None
    runs: int = 0
    own_operands: str = ""
    sampled: int = 0
    equal: str = ""
    place: str = ""
    operands: tuple[Literal, ...] = ()
    unchecked: str = UNREACHED
    result: tuple[Literal, ...] = ()
    in_run: Comparison | None = None

    @property
    def differs(self) -> bool:
        """True if a judged execution differs from the reference."""
        return self.comparison is not None and not self.comparison.ok

    @property
    def verdict(self) -> str:
        """`agrees`, `differs`, or `not checked`."""
        return "not checked" if self.unchecked else "differs" if self.differs else "agrees"

    def add(self, comparison: Comparison, place: str, operands: Sequence[Literal]) -> None:
        """Record one more judged execution."""
        if self.differs:
            return
        if _is_lost(comparison):
            # Both may be right: rounding may change every number. Another execution may tell more.
            self.unchecked = self.unchecked if self.runs else LOST
            return
        self.runs += 1
        self.unchecked = ""
        if not comparison.ok:
            self.operands = tuple(map(_copied, operands))
        if self.comparison is None or not comparison.ok or not worst_error(comparison) <= worst_error(self.comparison):
            self.comparison, self.place = comparison, place

    def record(self) -> dict[str, object]:
        """Return the outcome as plain values for `--report_json` (docs/report.md)."""
        worst_abs, worst_rel = _worst(self.comparison)
        in_run_abs, in_run_rel = _worst(self.in_run)
        return {
            "name": self.unit.name,
            "opcode": self.unit.instruction.opcode,
            "kernels": list(self.unit.kernels),
            "verdict": self.verdict,
            "reason": self.unchecked,
            "equal_to": self.equal,
            "runs": self.runs,
            "own_operands": self.own_operands,
            "sampled_elements": self.sampled or None,
            "place": self.place if self.differs else "",
            "alone": self.comparison.summary() if self.comparison is not None else "",
            "worst_abs_error": worst_abs,
            "worst_rel_error": worst_rel,
            "worst_abs_error_in_run": in_run_abs,
            "worst_rel_error_in_run": in_run_rel,
        }


def _worst(comparison: Comparison | None) -> tuple[float | str | None, float | str | None]:
    """Return the worst absolute and relative errors for JSON."""
    if comparison is None:
        return None, None
    relative = [float(leaf.worst_rel.error) for leaf in comparison.leaves if leaf.worst_rel is not None]
    return _finite(worst_error(comparison)), _finite(max(relative)) if relative else None


def _is_lost(comparison: Comparison) -> bool:
    """True if rounding may change every number of every array by more than its size."""
    verdicts = [leaf.rounding for leaf in comparison.leaves]
    sizes = [leaf.shape.element_count for leaf in comparison.leaves]
    return bool(sizes) and all(v is not None and 0 < v.lost == size for v, size in zip(verdicts, sizes, strict=True))


def _copied(value: Literal) -> Literal:
    """Return a value that does not change as the run goes on."""
    return tuple(map(_copied, value)) if isinstance(value, tuple) else value.copy()


def _finite(number: float) -> float | str:
    """Return a number, or the text of one that JSON lacks."""
    return number if abs(number) < float("inf") else str(number)


def worst_error(comparison: Comparison) -> float:
    """Return the largest absolute error; for pred and values that cannot be compared, the number of wrong elements."""
    errors = [leaf.worst_abs.error for leaf in comparison.leaves if leaf.worst_abs is not None]
    return max(errors, default=float(comparison.mismatches))


def summary(outcomes: list[Outcome]) -> str:
    """Return the line of the verdict: `28 of 28 kernels agree alone, worst error 1.2e-07 of the largest number (%fusion)`.

    An error is told as a part of the largest number of its array, since kernels are judged on numbers of all sizes.
    """
    agreeing = [outcome for outcome in outcomes if outcome.verdict == "agrees"]
    text = f"{len(agreeing)} of {len(outcomes)} kernels agree alone"
    compared = [outcome for outcome in agreeing if outcome.comparison is not None]
    if compared:
        error, name = max((_scaled_error(_comparison_of(outcome)), outcome.unit.name) for outcome in compared)
        text += f", worst error {error:.3g} of the largest number (%{name})" if error else ", worst error 0"
    sampled = sum(bool(outcome.sampled) for outcome in agreeing)
    if sampled:
        text += f"; {sampled} on a sample of {'its' if sampled == 1 else 'their'} elements"
    wrong = [outcome for outcome in outcomes if outcome.verdict == "differs"]
    if wrong:
        names = ", ".join(f"%{outcome.unit.name}" for outcome in wrong[:_MOST_NAMED])
        names += ", .." if len(wrong) > _MOST_NAMED else ""
        text += f"; {len(wrong)} {'differs' if len(wrong) == 1 else 'differ'}: {names}"
    left = Counter(outcome.unchecked for outcome in outcomes if outcome.unchecked)
    if not left:
        return text
    reasons = ", ".join(f"{count} {_REASONS.get(reason, reason)}" for reason, count in left.items())
    return f"no kernel was checked alone: {reasons}" if left.total() == len(outcomes) else f"{text}; not checked: {reasons}"


def rows_of(outcomes: Sequence[Outcome]) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """Return the headings and the rows of a table for people. Errors alone are the worst of all judged executions."""
    errors_of = ("worst abs alone", "worst rel alone", "worst abs in the run", "worst rel in the run")
    keys = ("worst_abs_error", "worst_rel_error", "worst_abs_error_in_run", "worst_rel_error_in_run")
    head = ("kernel", "instruction", "verdict", "executions", *errors_of, "remark")
    rows: list[tuple[object, ...]] = []
    for outcome in outcomes:
        record = outcome.record()
        remarks = [
            outcome.unchecked,
            f"equals %{outcome.equal}" if outcome.equal else "",
            outcome.place if outcome.differs else "",
        ]
        remarks += [f"also on {outcome.own_operands}" if outcome.own_operands and not outcome.differs else ""]
        errors = ("" if record[key] is None else record[key] for key in keys)
        kernel = ", ".join(outcome.unit.kernels) or outcome.unit.thunks[0].kind
        remark = "; ".join(filter(None, remarks))
        rows.append((kernel, f"%{outcome.unit.name}", outcome.verdict, outcome.runs, *errors, remark))
    return head, rows


def first_difference(outcomes: list[Outcome]) -> list[str]:
    """Return a sentence about the first kernel that differs: its name, where, and its first wrong element; [] if none does."""
    wrong = next((outcome for outcome in outcomes if outcome.verdict == "differs"), None)
    return [sentence(wrong)] if wrong is not None else []


def raise_first(outcomes: list[Outcome]) -> None:
    """Raise the KernelMismatch of the first kernel that differs."""
    wrong = [outcome for outcome in outcomes if outcome.verdict == "differs"]
    if not wrong:
        return
    others = tuple(sentence(other) for other in wrong[1:_MOST_NAMED])
    instruction = wrong[0].unit.instruction
    kernel = wrong[0].unit.kernels[0] if wrong[0].unit.kernels else instruction.name
    leaf = next(leaf for leaf in _comparison_of(wrong[0]).leaves if not leaf.ok)
    notes = (*others, summary(outcomes))
    raise KernelMismatch(sentence(wrong[0]), instruction.where, notes=notes, kernel=kernel, how=how_it_differs(leaf))


def sentence(outcome: Outcome) -> str:
    """Return a sentence: which kernel differs, where, and its first wrong element."""
    unit = outcome.unit
    kernel = f"kernel '{unit.kernels[0]}' " if unit.kernels else ""
    place = f", {outcome.place}" if outcome.place else ""
    return f"{kernel}(%{unit.name}) differs alone{place}: {_comparison_of(outcome).summary()}".lstrip()


def _scaled_error(comparison: Comparison) -> float:
    """Return the largest absolute error of a float array as a part of its largest number."""
    near = [leaf for leaf in comparison.leaves if leaf.is_near and leaf.worst_abs is not None]
    errors = [leaf.worst_abs.error / (largest_number(leaf) or 1.0) for leaf in near if leaf.worst_abs and leaf.worst_abs.error]
    return max(errors, default=0.0)


def _comparison_of(outcome: Outcome) -> Comparison:
    assert outcome.comparison is not None, "the caller has chosen those that were judged"
    return outcome.comparison
