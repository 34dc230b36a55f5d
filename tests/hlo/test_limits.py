"""Deep tuples and calls, and dimensions without a bound: read and printed, refused where they are compiled or evaluated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import hlo_run
from hlo_run.cli import run
from hlo_run.errors import Unsupported
from hlo_run.hlo.verify.limits import MAX_CALL_DEPTH, MAX_TUPLE_DEPTH, verify_limits


def _tuple(depth: int) -> str:
    return f"HloModule m\nENTRY e {{ ROOT p = {'(' * depth}f32[2]{')' * depth} parameter(0) }}\n"


def _made_tuples(depth: int, given: int = 0) -> str:
    """Return a module that makes a tuple of this depth from a parameter of the depth `given`."""
    lines = [f"  t{n} = {'(' * n}f32[2]{')' * n} tuple(t{n - 1})" for n in range(given + 1, depth + 1)]
    parameter = f"  t{given} = {'(' * given}f32[2]{')' * given} parameter(0)\n"
    return "HloModule m\nENTRY e {\n" + parameter + "\n".join(lines) + "\n}\n"


def _last_made_tuples(depth: int) -> str:
    """As `_made_tuples`, whose text grows with the square of the depth."""
    return _made_tuples(depth, depth - 5)


def _bodies(depth: int, call: str) -> str:
    text = "HloModule m\nbody_0 {\n  p = f32[2] parameter(0)\n  ROOT s = f32[2] sine(p)\n}\n"
    for number in range(1, depth + 1):
        head = f"body_{number}" if number < depth else "ENTRY e"
        text += f"{head} {{\n  p = f32[2] parameter(0)\n  ROOT r = f32[2] {call}=body_{number - 1}\n}}\n"
    return text


def _calls(depth: int) -> str:
    return _bodies(depth, "call(p), to_apply")


def _fusions(depth: int) -> str:
    return _bodies(depth, "fusion(p), kind=kLoop, calls")


_LIMITS = [(_tuple, MAX_TUPLE_DEPTH), (_made_tuples, MAX_TUPLE_DEPTH), (_calls, MAX_CALL_DEPTH), (_fusions, MAX_CALL_DEPTH)]


@pytest.mark.parametrize(("make", "limit"), _LIMITS)
def test_the_limit_is_allowed_and_one_more_is_not(make: Callable[[int], str], limit: int) -> None:
    verify_limits(hlo_run.parse(make(limit)))
    with pytest.raises(Unsupported, match="nested too deep") as refused:
        verify_limits(hlo_run.parse(make(limit + 1)))
    assert refused.value.where is not None


@pytest.mark.parametrize(("make", "limit"), _LIMITS)
def test_modules_at_the_limit_run(make: Callable[[int], str], limit: int, tmp_path: Path) -> None:
    file = tmp_path / "m.hlo"
    file.write_text(make(limit))
    assert run(["--cache=off", "--platform=Host", "--verify=every", str(file)]) == 0


@pytest.mark.parametrize("make", [_tuple, _last_made_tuples, _calls, _fusions])
def test_deeper_than_pythons_stack(make: Callable[[int], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "m.hlo"
    file.write_text(make(1100))
    assert run(["--stage=hlo-input", str(file)]) == 0
    for flags in (["--platform=Host"], ["--platform=Interpreter"], ["--verify=off"], ["--stage=hlo"]):
        assert run(["--cache=off", *flags, str(file)]) == 4
        assert "nested too deep" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--stage=ptx"], ["--platform=Host"], ["--platform=Interpreter"]])
def test_dimensions_without_a_bound(flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "m.hlo"
    file.write_text("HloModule m\nENTRY e {\n  p = f32[?,0] parameter(0)\n  ROOT r = f32[?,0] copy(p)\n}\n")
    assert run(["--cache=off", *flags, str(file)]) == 4
    assert "'p' has a dimension without a bound" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        "(f32[4], s32[2]) bitcast(x)",
        "f32[3] bitcast(x)",
        "f32[<=4] bitcast-convert(x)",
        "(s32[4], f32[4]) rng-bit-generator(x, x), algorithm=rng_philox",
        "u32[4] rng-bit-generator(t), algorithm=rng_philox",
        "s32[4] map(x, s), to_apply=add",
        "s32[4] dynamic-reshape(x, x)",
        "(s32[4], s32[4]) scatter(x, x, i, w, x), update_window_dims={0}, inserted_window_dims={},"
        " scatter_dims_to_operand_dims={0}, index_vector_dim=0, to_apply=both",
    ],
)
@pytest.mark.parametrize("flags", [["--stage=ptx"], ["--platform=Interpreter"]])
def test_forms_that_no_step_understands(line: str, flags: list[str], tmp_path: Path) -> None:
    file = tmp_path / "m.hlo"
    values = (
        "x = s32[4] parameter(0)\n s = s32[] parameter(1)\n t = (s32[4]) tuple(x)\n i = s32[1] reshape(s)"
        "\n w = s32[2] slice(x), slice={[0:2]}"
    )
    both = (
        "both { a = s32[] parameter(0)\n b = s32[] parameter(1)\n c = s32[] parameter(2)\n d = s32[] parameter(3)"
        "\n ROOT t = (s32[], s32[]) tuple(c, d) }"
    )
    add = "add { a = s32[] parameter(0)\n b = s32[] parameter(1)\n ROOT c = s32[] add(a, b) }"
    file.write_text(f"HloModule m\n{add}\n{both}\nENTRY e {{ {values}\n ROOT r = {line} }}\n")
    assert run(["--cache=off", *flags, str(file)]) == 4
