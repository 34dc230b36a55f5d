"""Random shardings on six meshes, and the judges of divided modules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hlo_run.errors import UsageError
from hlo_run.fuzz import against_shardings
from hlo_run.fuzz.check import Outcome, check, check_every_draw, options_of
from hlo_run.fuzz.judges import Judges, parse_against
from hlo_run.fuzz.shardings import MESHES, ODD_MESHES, STAGE, shard
from hlo_run.fuzz.subjects import Sources, Subject
from hlo_run.ops.parse import parse
from hlo_run.tool import run_tool

PRODUCT = """
f { a = f32[16,16] parameter(0) ROOT n = f32[16,16] negate(a) }
ENTRY e { p = f32[16,8] parameter(0) q = f32[8,16] parameter(1)
  d = f32[16,16] dot(p, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r = f32[16,16] fusion(d), kind=kLoop, calls=f }
"""
JUDGES = ["shardings", "host-shardings"]


def _sources(text: str) -> Sources:
    return Sources((("m.hlo", text),), as_is=True, sharded=True)


def _check(text: str, judges: list[str]) -> Outcome:
    return check_every_draw(Subject(1, text), options_of(1), Judges(judges).all)


def test_a_seed_gives_one_mesh_and_one_notation() -> None:
    texts = [_sources(PRODUCT).subject(seed).text for seed in range(30)]
    assert texts == [_sources(PRODUCT).subject(seed).text for seed in range(30)]
    assert len(set(texts)) > 20
    assert {parse(text).num_partitions for text in texts} > {1, 4, 6, 8}
    assert sum("num_partitions" in text for text in texts) > 20
    shardy = [text for text in texts if "sdy.mesh" in text]
    assert 0 < len(shardy) < len(texts)
    assert all(any(", ".join(f'"{n}"={s}' for n, s in mesh.axes) in text for mesh in (*MESHES, *ODD_MESHES)) for text in shardy)
    assert not any("fusion(" in text for text in texts if "num_partitions" in text)


def test_stages_divide_leading_dimensions() -> None:
    divided = [parse(_sources(PRODUCT).subject(seed).text) for seed in range(60)]
    of_stages = [module for module in divided if f'"{STAGE}"' in module.to_string()]
    assert of_stages
    assert not any(f'{{}}, {{\\"{STAGE}' in module.to_string() for module in of_stages)


@pytest.mark.parametrize(
    "text",
    [
        "ENTRY e { ROOT i = u32[] partition-id() }",
        "HloModule m, num_partitions=2\nENTRY e { p = f32[8] parameter(0) ROOT n = f32[8] negate(p) }",
        "ENTRY e { p = f32[] parameter(0) ROOT n = f32[] negate(p) }",
    ],
)
def test_modules_that_get_no_shardings(text: str) -> None:
    before = parse(text).to_string()
    for seed in range(8):
        module = parse(text)
        assert not shard(module, seed)
    assert parse(text).to_string() == before


@pytest.mark.parametrize("seed", [0, 1])
def test_divided_products_are_right(seed: int) -> None:
    subject = _sources(PRODUCT).subject(seed)
    assert "num_partitions" in subject.text
    outcome = check(subject, options_of(seed), Judges(JUDGES).all, 1)
    assert outcome.kind == "ok", outcome.faults


def test_a_wrong_division_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    join = against_shardings.join_results

    def last_differs(*arguments: Any) -> list[Any]:
        results = join(*arguments)
        return [*results[:-1], np.asarray(results[-1]) + 1]

    monkeypatch.setattr(against_shardings, "join_results", last_differs)
    outcome = check(_sources(PRODUCT).subject(0), options_of(0), Judges(JUDGES).all, 1)
    assert [fault.signature.bucket for fault in outcome.faults] == [f"{name}: mismatch: wrong values" for name in JUDGES]
    assert "on device " in outcome.faults[0].details


def test_a_module_of_one_device_is_left_out() -> None:
    assert _check(PRODUCT, ["shardings"]).kind == "left out"
    own = "HloModule m, num_partitions=2\nENTRY e { ROOT i = u32[] partition-id() }"
    assert _check(own, ["shardings"]).kind == "left out"


def test_its_judges_go_alone() -> None:
    assert parse_against("shardings,host-shardings") == ("shardings", "host-shardings")
    with pytest.raises(UsageError, match="--against=shardings"):
        parse_against("reference,shardings")


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tool(["fuzz", "--against=shardings", "--count=5", "--jobs=1"]) == 0
    assert "ok" in capsys.readouterr().out
