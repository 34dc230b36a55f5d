"""Signatures of failures: what is folded, the kinds, and the tables of buckets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hlo_run.cli import run
from hlo_run.errors import DeviceError, InternalError, Mismatch, OutOfTime, ParseError, Unsupported
from hlo_run.execution.signatures import bucket_table, fold, signature_of


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("'add.3' (add): shape f32[2,3]{1,0} differs", "'b' (add): shape bf16[7]{0} differs"),
        ("kernel '/tmp/x/y.hlo' took 12 s", "kernel '/other.hlo' took 0.5 s"),
        ("%fusion.12 has 3 users", "%x has 14 users"),
        ("cannot read /a/b/c.npz", "cannot read /d.npz"),
        ("result (f32[2], s32[]) is a tuple", "result (f32[9]) is a tuple"),
    ],
)
def test_equal_faults_fold_to_equal_messages(one: str, other: str) -> None:
    assert fold(one) == fold(other)


def test_different_words_stay_different() -> None:
    assert fold("'a' (add): expects one operand") != fold("'a' (add): expects two operands")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Unsupported("opcode 'x' on f8"), "unsupported"),
        (Mismatch("3 of 4 elements differ"), "mismatch"),
        (OutOfTime("kernel 'k' ran longer than 3 s"), "time-out"),
        (DeviceError("out of memory"), "device fault"),
        (
            InternalError("ptxas rejects the PTX for sm_90", notes=("ptxas x.ptx, line 3; error : Unknown symbol 'f'",)),
            "ptxas failure",
        ),
        (InternalError("LLVM died with SIGSEGV in kernel 'f'"), "crash"),
        (ParseError("bad"), "verifier"),
    ],
)
def test_kinds(error: Exception, kind: str) -> None:
    assert signature_of(error).kind == kind


def test_an_internal_error_has_the_type_the_row_and_the_innermost_function() -> None:
    notes = ("at xdsl.ir.f, line 3", "at hlo_run.hlo_passes.simplifiers.dce.Dce.apply, line 30")
    found = signature_of(InternalError("KeyError in row 'dce', kernel 'k_3': 'add.7'", notes=notes))
    assert found.bucket == "hlo passes: internal error: KeyError: NAME (dce: hlo_passes.simplifiers.dce.Dce.apply)"
    assert found.kernel == "k_3"


def test_an_exception_of_another_family_names_its_function() -> None:
    with pytest.raises(AttributeError) as raised:
        fold(3)  # pyright: ignore[reportArgumentType]
    assert signature_of(raised.value).place == "execution.signatures.fold"


def test_the_report_groups_the_failures(tmp_path: Path) -> None:
    files: list[str] = []
    for number, (shape, size) in enumerate((("f32[4]", 5), ("s32[7]", 9))):
        file = tmp_path / f"m{number}.hlo"
        head = f"HloModule m\nENTRY e {{ a{number} = {shape} parameter(0) "
        file.write_text(f"{head}ROOT r{number} = {shape[:3]}[{size}] add(a{number}, a{number}) }}\n", encoding="utf-8")
        files.append(str(file))
    report, junit = tmp_path / "r.json", tmp_path / "r.xml"
    assert run([*files, f"--report_json={report}", f"--report_junit={junit}"]) == 3
    record = json.loads(report.read_text(encoding="utf-8"))
    (bucket,) = record["buckets"]
    assert bucket["files"] == files
    assert bucket["bucket"] == record["files"][0]["signature"]["bucket"]
    assert "2 failures in 1 bucket" in junit.read_text(encoding="utf-8")


def test_a_table_has_the_largest_bucket_first_and_needs_two_failures() -> None:
    assert bucket_table([("a", "1")]) == []
    lines = bucket_table([("a", "1"), ("b", "2"), ("b", "3")])
    assert lines == ["3 failures in 2 buckets:", "    2  b  [2, 3]", "    1  a  [1]"]


@pytest.mark.parametrize("words", ["changed the meaning of m", "rewrote a part of m wrongly"])
def test_a_wrong_row_has_one_bucket_whatever_shows_it(words: str) -> None:
    signature = signature_of(Mismatch(f"row 'algsimp-9' of pipeline 'p' {words}"))
    assert signature.bucket == "hlo passes: mismatch: wrong rewrite (algsimp)"
