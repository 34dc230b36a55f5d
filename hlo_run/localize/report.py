"""Prints the findings of a replay: the table of all thunks, and the sentences on the first one that differs."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.columns import aligned
from hlo_run.errors import Mismatch
from hlo_run.localize.replay import Event, Kind, Record, worst_error
from hlo_run.reference.compare.compare import Comparison

_HEADINGS = ("thunk", "in", "kernel or kind", "runs", "made", "received", "in the run", "verdict")
_NUMBERS = range(3, 7)


def table(records: Sequence[Record]) -> str:
    """Return one line per instruction with thunks: the worst absolute error that it made and received, and the verdict."""
    rows = [_HEADINGS, *map(_row, records)]
    return "\n".join(aligned(rows, _NUMBERS))


def _row(record: Record) -> tuple[str, ...]:
    verdict = record.differs or record.differs_in_run or "agrees"
    if record.unchecked:
        verdict = f"not checked: {record.unchecked}"
    where = ", ".join(record.kernels[:2]) + (", .." if len(record.kernels) > 2 else "") or ", ".join(record.kinds)
    errors = (_number(error) for error in (record.made, record.received, record.produced))
    return (f"%{record.instruction.name}", record.place or "entry", where, str(record.compared), *errors, verdict)


def _number(error: float | None) -> str:
    return "-" if error is None else f"{error:.3g}"


def culprit(event: Event) -> Mismatch:
    """Return the error that names the first thunk that differs, without hints on its reproduction."""
    name = f"%{event.instruction.name}"
    what = f"kernel '{event.kernels[0]}' ({name})" if event.kernels else f"the {event.instruction.opcode} {name}"
    notes = [f"instruction: {_line(event)}"]
    match event.kind:
        case Kind.MADE:
            message = f"{what} is the first that computes a wrong result{event.place}"
        case Kind.FAULT:
            message = f"{what} is the first that fails{event.place}: {event.note}"
        case Kind.OVERWRITTEN:
            message = f"{what} is the first that reads a value that was overwritten{event.place}"
        case Kind.CONTROL:
            message = f"{what} goes another way{event.place}: {event.note}"
        case Kind.SHARED:
            message = f"{what} has operands that share memory{event.place}"
    operands = "those operands" if "on operands" in event.place else "the reference's operands"
    if event.made is not None:
        notes.append(f"made (on {operands}): {_summary(event.made)}")
    if event.received is not None:
        notes.append(f"received (its operands in the run): {_received(event)}")
    if event.produced is not None:
        notes.append(f"made and received (its result in the run): {_summary(event.produced)}")
    hint = ""
    if event.kind in (Kind.OVERWRITTEN, Kind.SHARED):
        hint = "two values share a buffer while both are live: --verify=every checks the buffers and names them"
    return Mismatch(message, event.instruction.where, hint, tuple(notes))


def _line(event: Event) -> str:
    from hlo_run.hlo.printer import instruction_to_string  # late: only a culprit is printed

    return instruction_to_string(event.instruction)


def _summary(comparison: Comparison) -> str:
    return comparison.summary()


def _received(event: Event) -> str:
    assert event.received is not None, "the caller has looked"
    if event.received.ok:
        return f"no error beyond the bounds, worst abs error {worst_error(event.received):.3g}"
    wrong = [leaf.path[0] for leaf in event.received.leaves if not leaf.ok and leaf.path]
    names = list(dict.fromkeys(operand.name for operand in event.instruction.operands))
    texts = ", ".join(f"%{names[number]}" for number in dict.fromkeys(wrong) if number < len(names))
    return f"wrong are {texts}: {_summary(event.received)}"


def summed_up(event: Event, records: Sequence[Record]) -> Mismatch:
    """Return the error for a run in which every thunk alone agrees, but errors add up; `event` is the first out of bounds."""
    largest = max((record for record in records if record.made), key=lambda r: r.made or 0.0, default=None)
    notes = [f"there: {_summary(event.produced)}"] if event.produced is not None else []
    if event.received is not None:
        notes.append(f"received: {_received(event)}")
    if event.made is not None:
        notes.append(f"made: {_summary(event.made)}")
    if largest is not None:
        notes.append(f"the largest error made alone: {largest.made:.3g} by %{largest.instruction.name}")
    return Mismatch(
        f"every thunk agrees alone; errors within the bounds add up, beyond them first at %{event.instruction.name}{event.place}",
        event.instruction.where,
        "the module may be ill-conditioned: the plain run compares with float64",
        tuple(notes),
    )
