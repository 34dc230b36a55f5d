"""Comparisons that see nothing: other arguments, warnings, and --fail_on_vacuous."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hlo_run.backends.interpreter import InterpreterBackend
from hlo_run.cli import run
from hlo_run.execution import arguments, iterations

ROUNDED_DOWN = "HloModule r\nENTRY e { p = f32[40] parameter(0) a = f32[40] abs(p) ROOT c = s32[40] convert(a) }"
ZEROS = "HloModule z\nENTRY e { p = f32[4] parameter(0) z = f32[] constant(0) ROOT b = f32[4] broadcast(z), dimensions={} }"
LOGARITHM = "HloModule l\nENTRY e { p = f32[40] parameter(0) ROOT l = f32[40] log(p) }"
PLAIN = "HloModule p\nENTRY e { p = f32[40] parameter(0) ROOT l = f32[40] add(p, p) }"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    return tmp_path / "m.hlo"


def test_other_arguments_are_tried_if_all_is_zero(write: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write.write_text(ROUNDED_DOWN)
    report = write.with_suffix(".json")
    assert run(["--platform=Host", "--fail_on_vacuous", f"--report_json={report}", str(write)]) == 0
    err = capsys.readouterr().err
    assert "the comparison sees 0 of 40 elements (0 %): 40 zero" in err
    assert "seed 1, floats in [-1, 2), integers in [-4, 8]: agree" in err
    assert "blind" not in err
    (iteration,) = json.loads(report.read_text())["files"][0]["iterations"]
    assert iteration["comparison"]["seen"]["elements"] == 0
    assert iteration["later_tries"][0]["seen"]["elements"] > 0


def test_nans_make_another_try(write: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write.write_text(LOGARITHM)
    assert run(["--platform=Host", "--xla_arguments", str(write)]) == 0
    assert "floats in [0.5, 2), integers in [0, 3]: agree, the comparison sees all 40 elements" in capsys.readouterr().err


def test_what_is_never_seen_is_vacuous(write: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write.write_text(ZEROS)
    assert run(["--platform=Host", str(write)]) == 0
    assert "warning: the comparison is blind to the result" in capsys.readouterr().err
    assert run(["--platform=Host", "--fail_on_vacuous", str(write)]) == 6
    assert "vacuous: the comparison is blind to the result" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--input_scale=10", "--use_large_float_range", "--random_init_input_literals=false"])
def test_chosen_arguments_are_the_only_ones(flag: str, write: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write.write_text(ROUNDED_DOWN.replace("abs", "tanh"))
    run(["--platform=Host", flag, str(write)])
    assert "floats in [" not in capsys.readouterr().err


def test_a_visible_result_runs_once(write: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write.write_text(PLAIN)
    assert _runs_of_the_reference(monkeypatch, str(write)) == 1


def test_the_scale_of_arguments(write: Path) -> None:
    write.write_text(PLAIN)
    largest: list[float] = []
    for scale in ("1", "100"):
        out = write.with_name(f"{scale}.npz")
        assert run(["--platform=Interpreter", f"--input_scale={scale}", f"--save_inputs={out}", str(write)]) == 0
        with np.load(out) as data:
            largest.append(float(np.abs(data["arg0"]).max()))
    assert largest[1] == pytest.approx(100 * largest[0], rel=1e-5)


def test_a_difference_in_a_later_try_saves_its_arguments(
    write: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write.write_text(ROUNDED_DOWN)
    original = InterpreterBackend.run_module

    def wrong_for_large_numbers(self: InterpreterBackend, *arguments: object, **names: object) -> object:
        return np.minimum(original(self, *arguments, **names), 0)  # pyright: ignore[reportArgumentType, reportCallIssue]

    monkeypatch.setattr(InterpreterBackend, "run_module", wrong_for_large_numbers)
    saved = write.with_suffix(".npz")
    assert run(["--platform=Host", f"--save_inputs={saved}", str(write)]) == 1
    assert "a later try (seed 1, floats in [-1, 2), integers in [-4, 8]) shows a difference" in capsys.readouterr().err
    with np.load(saved) as data:
        assert float(np.abs(data["arg0"]).max()) > 1


INDEXED = """HloModule i
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
ENTRY e {
  x = f32[16] parameter(0)
  i = s32[4,1] parameter(1)
  u = f32[4] parameter(2)
  one = s32[] constant(1)
  ones = s32[4,1] broadcast(one), dimensions={}
  j = s32[4,1] xor(i, ones)
  ROOT r = f32[16] scatter(x, j, u), update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0},
    index_vector_dim=1, to_apply=add
}
"""


def test_integers_that_may_be_indices_are_small_in_a_second_try(
    write: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(arguments, "_SMALL_ELEMENTS", 1)
    write.write_text(INDEXED)
    assert run(["--platform=Host", str(write)]) == 0
    assert capsys.readouterr().err.count("integers in [") == 1
    write.write_text(INDEXED.replace("scatter(x, j", "scatter(x, i"))
    assert run(["--platform=Host", str(write)]) == 0
    assert "integers in [" not in capsys.readouterr().err


# The last element of the result is written only if both starts are near the end.
UPDATE = """HloModule u
ENTRY e {
  x = f32[8,9] parameter(0)
  u = f32[3,5] parameter(1)
  i = s32[] parameter(2)
  j = s32[] parameter(3)
  ROOT r = f32[8,9] dynamic-update-slice(x, u, i, j)
}
"""
# The argument decides how often the loop runs.
HALVING = """HloModule h
half { x = f32[] parameter(0) h = f32[] constant(0.5) ROOT m = f32[] multiply(x, h) }
above { x = f32[] parameter(0) b = f32[] constant(0.01) ROOT c = pred[] compare(x, b), direction=GT }
ENTRY e { p = f32[] parameter(0) ROOT w = f32[] while(p), condition=above, body=half }
"""


def _runs_of_the_reference(monkeypatch: pytest.MonkeyPatch, *flags: str) -> int:
    original = InterpreterBackend.run_module
    runs: list[int] = []

    def counted(self: InterpreterBackend, *arguments: object, **names: object) -> object:
        if arguments[3:4] != ("f64",):
            runs.append(1)
        return original(self, *arguments, **names)  # pyright: ignore[reportArgumentType] - passed on

    monkeypatch.setattr(InterpreterBackend, "run_module", counted)
    assert run(["--platform=Host", *flags]) == 0
    return len(runs)


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        (UPDATE, 5),
        (UPDATE.replace("8,9", "1024,4097"), 1),  # too large
        (HALVING, 1),
    ],
)
def test_small_modules_whose_arguments_choose_parts_run_with_all_draws(
    text: str, runs: int, write: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write.write_text(text)
    assert _runs_of_the_reference(monkeypatch, str(write)) == runs


def test_only_the_first_iteration_runs_with_all_draws(write: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write.write_text(UPDATE)
    assert _runs_of_the_reference(monkeypatch, "--iterations=3", str(write)) == 7


def test_a_later_try_finds_what_only_the_last_element_shows(
    write: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write.write_text(UPDATE)
    original = InterpreterBackend.run_module

    def without_the_last(self: InterpreterBackend, module: object, values: list[np.ndarray], *others: object) -> object:
        result = np.array(original(self, module, values, *others))  # pyright: ignore[reportArgumentType] - passed on
        result[-1, -1] = values[0][-1, -1]
        return result

    monkeypatch.setattr(InterpreterBackend, "run_module", without_the_last)
    assert run(["--platform=Host", str(write)]) == 1
    assert "shows a difference" in capsys.readouterr().err


TIES = """HloModule t
argmax {
  v0 = f32[] parameter(0)
  i0 = s32[] parameter(1)
  v1 = f32[] parameter(2)
  i1 = s32[] parameter(3)
  ge = pred[] compare(v0, v1), direction=GE
  v = f32[] select(ge, v0, v1)
  i = s32[] select(ge, i0, i1)
  ROOT t = (f32[], s32[]) tuple(v, i)
}
ENTRY e {
  x = f32[12,34] parameter(0)
  i = s32[12,34] iota(), iota_dimension=1
  lo = f32[] constant(-inf)
  z = s32[] constant(0)
  ROOT r = (f32[12], s32[12]) reduce(x, i, lo, z), dimensions={1}, to_apply=argmax
}
"""


def test_equal_numbers_are_not_tried_where_their_order_is_open(write: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write.write_text(TIES)
    assert run(["--platform=Host", str(write)]) == 0
    assert "4 other sets of arguments agree too" in capsys.readouterr().err


ENDLESS = """HloModule endless
body { v = (s32[], f32[]) parameter(0) n = s32[] get-tuple-element(v), index=0 y = f32[] get-tuple-element(v), index=1
  d = s32[] add(n, n) ROOT t = (s32[], f32[]) tuple(d, y) }
large { v = (s32[], f32[]) parameter(0) y = f32[] get-tuple-element(v), index=1 h = f32[] constant(0.5)
  ROOT c = pred[] compare(y, h), direction=GE }
ENTRY e { zero = s32[] constant(0) y = f32[] parameter(0) t = (s32[], f32[]) tuple(zero, y)
  ROOT w = (s32[], f32[]) while(t), condition=large, body=body }
"""


def test_a_try_with_which_a_loop_never_ends_is_left_out(
    write: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iterations, "_LOOP_SECONDS", 0.05)
    write.write_text(ENDLESS)
    assert run(["--platform=Host", str(write)]) == 0
    assert "not run, as a loop goes on with these arguments" in capsys.readouterr().err


UNKNOWN_CALL = """HloModule u
known { p = f32[] parameter(0) ROOT r = f32[] negate(p) }
strange { p = f32[] parameter(0) ROOT c = f32[] custom-call(p), custom_call_target="unknown" }
ENTRY e {
  i = s32[] parameter(0)
  x = f32[] parameter(1)
  limit = s32[] constant(-3)
  below = pred[] compare(i, limit), direction=LT
  ROOT c = f32[] conditional(below, x, x), true_computation=strange, false_computation=known
}
"""


def test_a_branch_that_only_other_arguments_take_may_be_unsupported(write: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write.write_text(UNKNOWN_CALL)
    assert run(["--platform=Host", str(write)]) == 0
    err = capsys.readouterr().err
    assert "not run, No registered implementation for custom call to unknown" in err
    assert "its change leads to what is not supported" in err, "the comparison's values lead there as well"
