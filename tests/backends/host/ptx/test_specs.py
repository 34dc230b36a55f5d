"""The records of what instructions do: both engines know all of them, and the decoder refuses what PTX lacks."""

from __future__ import annotations

from typing import get_args

import pytest

from hlo_run.backends.host.emulator import program
from hlo_run.backends.host.jit import emitters
from hlo_run.backends.host.ptx import specs
from hlo_run.backends.host.ptx.instruction_set import SPELLINGS, decode
from hlo_run.backends.host.ptx.spec_table import READERS
from hlo_run.backends.host.ptx.syntax import Instruction
from hlo_run.errors import Unsupported


def spec_of(spelling: str) -> specs.Spec:
    opcode, *modifiers = spelling.split(".")
    return decode(Instruction(opcode, tuple(modifiers), (), None, 1)).spec


def test_both_engines_have_a_row_for_every_record() -> None:
    records = set(get_args(specs.Spec)) - {specs.Control}
    assert set(program.EMITTERS) == records
    assert set(emitters.EMITTERS) == records


def test_every_opcode_has_a_reader() -> None:
    assert READERS.keys() == SPELLINGS.keys()


@pytest.mark.parametrize(
    ("spelling", "spec"),
    [
        ("setp.lo.u32", specs.Compare("lt", False, "u32", 1, flushes=False, logic="")),
        ("setp.ltu.and.ftz.f32", specs.Compare("lt", True, "f32", 1, flushes=True, logic="and")),
        ("ld.global.nc.u8", specs.Load("global", "u8", "u8", 1, is_ordered=False, is_constant=True)),
        ("ld.volatile.shared::cta.f16x2", specs.Load("shared", "f16x2", "u32", 4, is_ordered=True, is_constant=False)),
        ("cvt.rni.s32.f32", specs.FloatToInteger("s32", "f32", "rni", flushes=False)),
        ("subc.cc.u32", specs.Sum("u32", subtracts=True, saturates=False, carry_in=True, carry_out=True)),
    ],
)
def test_a_spelling_has_a_record(spelling: str, spec: specs.Spec) -> None:
    assert spec_of(spelling) == spec


@pytest.mark.parametrize(
    "spelling",
    [
        "setp.lo.s32",  # for unsigned types
        "setp.ltu.s32",  # for floats
        "cvta.u64",  # from which space?
        "ld.global.shared.b32",
        "cvt.rni.f32.f64",  # rounds to an integer of the same format
        "div.approx.f64",
        "add.sat.u32",
        "mov.b128",
        "shfl.up.b32",  # needs .sync
    ],
)
def test_spellings_that_ptx_lacks_are_refused(spelling: str) -> None:
    with pytest.raises(Unsupported, match=spelling):
        spec_of(spelling)
