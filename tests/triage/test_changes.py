"""The lines that a rewrite changes, from the dumps of two runs."""

from __future__ import annotations

from hlo_run.triage.changes import changed_lines
from hlo_run.triage.trials import Ended


def _dump(root: str) -> str:
    return f"HloModule m\nENTRY e {{\n  ROOT r = {root}\n}}\n"


def test_a_row_that_changes_the_module_in_one_run_alone_is_shown() -> None:
    """Without the rewrite its row has no dump, and the dumps of later rows have other numbers."""
    unchanged = {"m.0000.a.after_x.before_y.txt": _dump("tanh(p)"), "m.0001.a.after_z.before_w.txt": _dump("abs(p)")}
    changed = {
        "m.0000.a.after_x.before_y.txt": _dump("tanh(p)"),
        "m.0001.a.after_y.before_z.txt": _dump("sine(p)"),
        "m.0002.a.after_z.before_w.txt": _dump("abs(q)"),
    }
    lines = "- ROOT r = tanh(p)", "+ ROOT r = sine(p)"
    assert changed_lines((Ended(unchanged), Ended(changed)), is_kernel=False) == lines
    back = "- ROOT r = sine(p)", "+ ROOT r = tanh(p)"
    assert changed_lines((Ended(changed), Ended(unchanged)), is_kernel=False) == back


def test_a_row_with_another_result_in_both_runs_is_shown() -> None:
    one, two = ({"m.0000.a.after_x.before_y.txt": _dump(root)} for root in ("tanh(p)", "tanh(q)"))
    lines = changed_lines((Ended(one), Ended(two)), is_kernel=False)
    assert lines == ("- ROOT r = tanh(p)", "+ ROOT r = tanh(q)")
