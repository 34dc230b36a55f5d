"""The verdicts on each kernel alone, and the line of the whole verdict that sums them up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from hlo_run.backends.literals import Literal
from hlo_run.errors import KernelMismatch
from hlo_run.kernel_checks.units import Unit
from hlo_run.reference.compare.compare import Comparison
from hlo_run.reference.compare.leaf_comparison import how_it_differs
from hlo_run.reference.compare.rounding import largest_number

LARGE = "too large for a sample"
UNREACHED = "not reached"
LOST = "lost in rounding"
_MOST_NAMED = 4
Hidden: TypeAlias = "Mapping[tuple[int, ...], complex | None]"
"""The arrays of a result, by shape index, that say little of a kernel, and the finite number that all their elements are."""
_REASONS = {
    LARGE: "too large for a sample (--check_kernels=all checks all)",
    UNREACHED: "not reached by the run",
    LOST: "that rounding decides",
}


class Outcome(Struct, eq=False):
    """The verdict on one unit. `comparison` is the first that differs, else the one with the worst error; None: not judged.

    `runs` counts the executions that were judged, `sampled` the elements (0: all). `unseen` are the arrays that say nothing
    of the kernel in any of them: zero, NaN, infinite, or the same number everywhere and every time. `own_operands` says that it
    was judged on operands of its own as well, `equal` names the unit whose verdict it shares, `place` the execution that
    differs, and `operands` what it had there. `result` are the arrays that it wrote last in the run, if they are kept, and
    `in_run` compares them with those of the reference's run.
    """

    unit: Unit
    comparison: Comparison | None = None
    runs: int = 0
    unseen: Hidden = {}  # never changed in place
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
    def is_hidden(self) -> bool:
        """True if no array that the unit writes says anything of it, in no judged execution."""
        return len(self.unseen) == len(self.unit.leaves)

    @property
    def verdict(self) -> str:
        """`agrees`, `differs`, `shows nothing` (it agrees, as others might), or `not checked`."""
        if self.unchecked or self.differs:
            return "not checked" if self.unchecked else "differs"
        return "shows nothing" if self.is_hidden else "agrees"

    def add(self, comparison: Comparison, place: str, operands: Sequence[Literal], hidden: Hidden) -> None:
        """Record one more judged execution, in which some arrays say nothing of the unit."""
        if self.differs:
            return
        if _is_lost(comparison):
            # Both may be right: rounding may change every number. Another execution may tell more.
            self.unchecked = self.unchecked if self.runs else LOST
            return
        self.unseen = _hidden_in_both(self.unseen, hidden) if self.runs else hidden
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
            "unseen_results": sorted(map(list, self.unseen)),
            "own_operands": self.own_operands,
            "sampled_elements": self.sampled or None,
            "place": self.place if self.differs else "",
            "alone": self.comparison.summary() if self.comparison is not None else "",
            "worst_abs_error": worst_abs,
            "worst_rel_error": worst_rel,
            "worst_abs_error_in_run": in_run_abs,
            "worst_rel_error_in_run": in_run_rel,
        }


def _hidden_in_both(one: Hidden, two: Hidden) -> Hidden:
    """Return the arrays that say nothing in both: not two numbers, each of which is everywhere once."""
    both = {path: (one[path], two[path]) for path in one.keys() & two.keys()}
    return {path: a if b is None else b for path, (a, b) in both.items() if a is None or b is None or a == b}


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
        text += f"; {len(wrong)} {'differs' if len(wrong) == 1 else 'differ'}: {_names(wrong)}"
    hidden = [outcome for outcome in outcomes if outcome.verdict == "shows nothing"]
    if hidden:
        text += f"; {len(hidden)} {'shows' if len(hidden) == 1 else 'show'} nothing on any operands tried: {_names(hidden)}"
    partly = [outcome for outcome in agreeing if outcome.unseen]
    if partly:
        text += f"; {len(partly)} {'shows' if len(partly) == 1 else 'show'} nothing in some results: {_names(partly)}"
    left = Counter(outcome.unchecked for outcome in outcomes if outcome.unchecked)
    if not left:
        return text
    reasons = ", ".join(f"{count} {_REASONS.get(reason, reason)}" for reason, count in left.items())
    return f"no kernel was checked alone: {reasons}" if left.total() == len(outcomes) else f"{text}; not checked: {reasons}"


def _names(outcomes: Sequence[Outcome]) -> str:
    names = ", ".join(f"%{outcome.unit.name}" for outcome in outcomes[:_MOST_NAMED])
    return f"{names}, .." if len(outcomes) > _MOST_NAMED else names


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
            "" if outcome.is_hidden else ", ".join(f"result {_index(path)} shows nothing" for path in sorted(outcome.unseen)),
        ]
        remarks += [f"also on {outcome.own_operands}" if outcome.own_operands and not outcome.differs else ""]
        errors = ("" if record[key] is None else record[key] for key in keys)
        kernel = ", ".join(outcome.unit.kernels) or outcome.unit.thunks[0].kind
        remark = "; ".join(filter(None, remarks))
        rows.append((kernel, f"%{outcome.unit.name}", outcome.verdict, outcome.runs, *errors, remark))
    return head, rows


def _index(path: Sequence[int]) -> str:
    return "{" + ",".join(map(str, path)) + "}"


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
