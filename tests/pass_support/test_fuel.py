"""`--xla_fuel`: passes stop when their fuel is used up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from hlo_run import parse
from hlo_run.cli import run
from hlo_run.errors import UsageError
from hlo_run.hlo.graph import HloModule
from hlo_run.options import Options
from hlo_run.pass_support.fuel import COUNTED_REWRITES, Fuel
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.runner import run_hlo_groups
from hlo_run.pipeline.table import HloGroup, HloRow
from hlo_run.target import DEFAULT_TARGET, preset

MODULE = "HloModule m\nENTRY e { ROOT p = f32[2] parameter(0) }\n"


@dataclass(frozen=True)
class _Edits:
    """Makes one edit per run; with `asks`, takes fuel for the pass of that name and makes at most five."""

    name: ClassVar[str] = "edits"

    done: list[int]
    asks: str = ""

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        for _ in range(5 if self.asks else 1):
            if not self.asks or ctx.fuel.take(self.asks):
                self.done.append(1)
                module.version += 1


def _edits(fuel: str, asks: str = "") -> int:
    done: list[int] = []
    name = asks or "edits"
    group = HloGroup("g", (HloRow(name, lambda c: _Edits(done, asks)),), repeat=3)
    run_hlo_groups((group,), PassContext(preset(DEFAULT_TARGET), Options(xla_fuel=fuel)), parse(MODULE))
    return len(done)


def test_a_pass_that_does_not_ask_has_runs_for_units() -> None:
    assert _edits("") == 3
    assert _edits("edits=2") == 2
    assert _edits("edits=0") == 0
    assert _edits("other=0") == 3


def test_a_pass_that_asks_has_rewrites_for_units() -> None:
    assert "algsimp" in COUNTED_REWRITES
    assert _edits("", "algsimp") == 15
    assert _edits("algsimp=7", "algsimp") == 7


def test_dashes_and_underscores_are_the_same() -> None:
    fuel = Fuel(["constant_folding=1"])
    assert fuel.take("constant-folding")
    assert not fuel.take("constant_folding")


@pytest.mark.parametrize("limit", ["dce", "dce=", "=1", "dce=1.5", "dce=x"])
def test_limits_that_are_none_are_refused(limit: str) -> None:
    with pytest.raises(UsageError, match="not of the form PASS=N"):
        Fuel([limit])


def test_a_pass_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--xla_fuel=dcee=1", "none.hlo"]) == 2
    err = capsys.readouterr().err
    assert "no HLO pass is called 'dcee'" in err
    assert "did you mean dce?" in err


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("cs=1", "no kernel pass is called 'cs'"),
        ("lower-tensors=1", "pass 'lower-tensors' is required"),
        ("cse", "--kernel_fuel=cse is not of the form PASS=N"),
    ],
)
def test_fuel_of_kernel_rows_is_checked(limit: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([f"--kernel_fuel={limit}", "none.hlo"]) == 2
    assert message in capsys.readouterr().err


_LOOPS = """HloModule m
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
ENTRY e {
  p = f32[64,1000]{1,0} parameter(0)
  z = f32[] constant(0)
  r = f32[64]{0} reduce(p, z), dimensions={1}, to_apply=add
  ROOT t = f32[64,1000]{1,0} subtract(p, p)
}
"""


def test_all_kernels_share_the_fuel_of_a_kernel_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With more fuel more loops are unrolled, until the fuel is enough for all."""
    file = tmp_path / "m.hlo"
    file.write_text(
        _LOOPS.replace("ROOT t", "t").replace(
            "subtract(p, p)", "negate(p)\n  ROOT u = (f32[64]{0}, f32[64,1000]{1,0}) tuple(r, t)"
        )
    )
    texts: list[str] = []
    for limit in (0, 1, 2, 1000):
        assert (
            run(
                [
                    "--cache=off",
                    "--compile_processes=2",
                    f"--kernel_fuel=optimize-loops={limit}",
                    "--stage=optimize-loops",
                    str(file),
                ]
            )
            == 0
        )
        texts.append(capsys.readouterr().out)
    assert run(["--cache=off", "--stage=optimize-loops", str(file)]) == 0
    assert texts[-1] == capsys.readouterr().out
    assert len(set(texts)) == 4


_ROWS = """HloModule m
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
ENTRY e {
  p = f32[8,1000]{1,0} parameter(0)
  z = f32[] constant(0)
  x = f32[8,1000]{1,0} multiply(p, p)
  ROOT r = f32[8]{0} reduce(x, z), dimensions={1}, to_apply=add
}
"""
_TURNED = """HloModule m
ENTRY e {
  q = f16[70,65]{1,0} parameter(0)
  s = f16[65,70]{1,0} transpose(q), dimensions={1,0}
  ROOT g = f16[65,70]{1,0} negate(s)
}
"""


@pytest.mark.parametrize(
    ("name", "row", "some", "text"),
    [
        ("canonicalize", "canonicalize", 3, _TURNED),
        ("simplify-arith", "simplify-arith-3", 50, _ROWS),
        ("inliner", "inliner", 1, _ROWS),
        ("vectorize-loads-stores", "vectorize-loads-stores", 1, _ROWS),
    ],
    ids=lambda value: "" if isinstance(value, str) and "\n" in value else None,
)
def test_kernel_passes_stop_between_two_rewrites(
    name: str, row: str, some: int, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With some fuel the kernel is neither that without the pass nor that with all of it, and results stay right."""
    file = tmp_path / "m.hlo"
    file.write_text(text)
    texts: list[str] = []
    for limit in (0, some, 100000):
        assert run(["--cache=off", f"--kernel_fuel={name}={limit}", f"--stage={row}", str(file)]) == 0
        texts.append(capsys.readouterr().out)
    assert run(["--cache=off", f"--stage={row}", str(file)]) == 0
    assert texts[-1] == capsys.readouterr().out
    assert len(set(texts)) == 3
    assert run(["--cache=off", f"--kernel_fuel={name}={some}", "--platform=Host", str(file)]) == 0
