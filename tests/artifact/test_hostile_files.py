"""Saved executables with changed records: a run ends with a documented exit code, soon, and never as an error of hlo-run."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from executable_mutations import executables, mutated, signed

from hlo_run.artifact.file import load
from hlo_run.cli import run
from hlo_run.errors import UsageError


@pytest.fixture(scope="module")
def originals() -> dict[str, bytes]:
    return executables()


@pytest.mark.parametrize("seed", range(10))
def test_changed_files_end_as_documented(
    originals: dict[str, bytes], seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`scripts/fuzz_executables.py` runs more of them."""
    source, file = random.Random(f"hostile {seed}"), tmp_path / "x.hlox"
    codes: list[int] = []
    for name in sorted(originals) * 3:
        file.write_bytes(mutated(originals[name], source))
        codes.append(run(["--platform=Host", "--timeout=5", "--cache=off", str(file)]))
        printed = "".join(capsys.readouterr())
        assert codes[-1] in range(6), printed
        assert "Traceback" not in printed
    assert 2 in codes


def _changed(data: bytes, path: list[int], value: Any) -> bytes:
    size = int.from_bytes(data[8:16], "little")
    content = json.loads(data[56 : 56 + size])
    node = content["executable"]
    for step in path[:-1]:
        node = node[step]
    node[path[-1]] = value
    return signed(json.dumps(content).encode(), data[56 + size :])


_KERNELS, _THUNKS, _ALLOCATIONS = 3, 4, 5
WRONG: dict[str, tuple[list[int], Any, str]] = {
    "a grid beyond CUDA": ([_KERNELS, 1, 3, 1], 2**40, r"grid of \(1099511627776, 1, 1\), CUDA's limit"),
    "a grid of nothing": ([_KERNELS, 1, 3, 2], 0, "has a grid of"),
    "a block beyond CUDA": ([_KERNELS, 1, 4], [0, 1024, 2, 1], "2048 threads per block"),
    "too few extents": ([_KERNELS, 1, 3], [0, 1], "Kernel.grid is a list of 1 values, not 3"),
    "a bool for a number": ([_KERNELS, 1, 5], True, "Kernel.shared_bytes is True, not an integer"),
    "a fraction for a number": ([_ALLOCATIONS, 1, 2], 64.0, "BufferAllocation.size_bytes is 64, not an integer"),
    "a number for a text": ([1], 5, "Executable.name is 5, not a text"),
    "half of a character": ([1], "\ud800", "surrogates not allowed"),
    "another record": ([_KERNELS, 1], ["Thing", 1], "Executable.kernels is a record 'Thing', not a Kernel"),
    "another kernel in the PTX": ([_KERNELS, 1, 1], "foo", "the PTX of kernel foo does not define it"),
    "a field too many": ([_KERNELS, 1], ["Kernel", *range(6)], "a Kernel has 5 fields, not 6"),
    "bytes that are missing": ([_ALLOCATIONS, 1, 4], ["ConstantData", "f32", [0], [0], [1, 2**62]], "are cut off"),
    "a huge number": ([_ALLOCATIONS, 1, 2], 10**100, "is a huge integer, not an integer of 64 bits"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_fields_are_named(originals: dict[str, bytes], name: str) -> None:
    path, value, message = WRONG[name]
    with pytest.raises(UsageError, match=message):
        load(_changed(originals["loop"], path, value), "m.hlox")


def test_deep_lists_are_refused(originals: dict[str, bytes]) -> None:
    for depth in (400, 100_000):
        with pytest.raises(UsageError, match="not a valid executable"):
            load(signed(b"[" * depth + b"]" * depth, b""), "m.hlox")
    deep: Any = 0
    for _ in range(200):
        deep = [0, deep]
    with pytest.raises(UsageError, match="not a valid executable"):
        load(_changed(originals["loop"], [7], deep), "m.hlox")


def test_deep_tuples_are_refused(originals: dict[str, bytes]) -> None:
    deep: Any = [0]
    for _ in range(310):
        deep = [0, deep]
    with pytest.raises(UsageError, match="nested too deeply"):
        load(_changed(originals["loop"], [7], deep), "m.hlox")


def test_the_module_must_be_that_of_the_kernels(
    originals: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = (
        'HloModule m\nENTRY e { x = f32[4,5] parameter(0)\n ROOT t = (f32[4,4], f32[3]) custom-call(x), custom_call_target="t" }'
    )
    (tmp_path / "m.hlox").write_bytes(_changed(originals["loop"], [9], other))
    assert run(["--platform=Host", "--reference_platform=", str(tmp_path / "m.hlox")]) == 2
    assert "different parameters or results" in capsys.readouterr().err
    (tmp_path / "m.hlox").write_bytes(_changed(originals["loop"], [9], other.replace("f32[4,5] parameter", "f33[4,5] parameter")))
    assert run(["--platform=Host", str(tmp_path / "m.hlox")]) == 3
