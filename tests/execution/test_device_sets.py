"""`--inputs` for several devices: one set for all, one per replica, or one per device, in whole arrays or in tiles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hlo_run.cli import run
from hlo_run.errors import UsageError
from hlo_run.execution.device_sets import read_sets
from hlo_run.ops.parse import parse
from hlo_run.reference.evaluate.devices import DeviceGrid

SHARDED = """HloModule m, replica_count=2, num_partitions=4
ENTRY e {
  p = (f32[5,4], s32[3]) parameter(0), sharding={{devices=[2,2]<=[4]}, {devices=[2,2]<=[4] last_tile_dim_replicate}}
  q = f32[2] parameter(1)
  x = f32[5,4] get-tuple-element(p), index=0
  ROOT n = f32[5,4] negate(x), sharding={devices=[2,2]<=[4]}
}
"""
REPLICATED = "HloModule m, replica_count=2\nENTRY e { x = f32[2] parameter(0)\n ROOT n = f32[2] negate(x) }"
SHARDY = r"""HloModule m, num_partitions=2, frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["x"=2]>}}
ENTRY e {
  x = f32[4] parameter(0), frontend_attributes={xla.sdy.sharding="#sdy.sharding<@mesh, [{\"x\"}]>"}
  ROOT n = f32[4] negate(x)
}
"""
WHOLE = np.arange(20, dtype=np.float32).reshape(5, 4)
LINE, PAIR = np.arange(3, dtype=np.int32), np.array([7, 8], np.float32)

_Arrays = list[NDArray[Any]]


def _save(folder: Path, arrays: _Arrays) -> str:
    np.savez(folder / "in.npz", allow_pickle=False, **{f"arg{number}": array for number, array in enumerate(arrays)})
    return str(folder / "in.npz")


def _read(folder: Path, text: str, arrays: _Arrays) -> list[list[Any]]:
    module = parse(text)
    grid = DeviceGrid.of(module)
    return [list(values) for values in grid.split(read_sets(_save(folder, arrays), module, grid))]


def _tiles(device: int) -> _Arrays:
    """Return the set of a device of `SHARDED` in tiles; the last rows and the last number are padded."""
    row, column = divmod(device % 4, 2)
    padded, line = np.zeros((6, 4), np.float32), np.zeros(4, np.int32)
    padded[:5], line[:3] = WHOLE, LINE
    scale = device // 4 + 1
    return [padded[3 * row : 3 * row + 3, 2 * column : 2 * column + 2] * scale, line[2 * row : 2 * row + 2], PAIR]


@pytest.mark.parametrize("kind", ["one set", "a set per replica", "whole arrays", "tiles"])
def test_all_forms_give_whole_arrays_to_all_devices(kind: str, tmp_path: Path) -> None:
    scales = [1] * 8 if kind == "one set" else [1] * 4 + [2] * 4
    arrays: dict[str, _Arrays] = {
        "one set": [WHOLE, LINE, PAIR],
        "a set per replica": [WHOLE, LINE, PAIR, WHOLE * 2, LINE, PAIR],
        "whole arrays": [array for scale in scales for array in (WHOLE * scale, LINE, PAIR)],
        "tiles": [array for device in range(8) for array in _tiles(device)],
    }
    found = _read(tmp_path, SHARDED, arrays[kind])
    assert len(found) == 8
    for scale, (pair, other) in zip(scales, found, strict=True):
        np.testing.assert_array_equal(pair[0], WHOLE * scale)
        np.testing.assert_array_equal(pair[1], LINE)
        np.testing.assert_array_equal(other, PAIR)


def test_tiles_by_annotations_of_shardy(tmp_path: Path) -> None:
    found = _read(tmp_path, SHARDY, [PAIR, PAIR * 2])
    assert [np.asarray(values[0]).tolist() for values in found] == [[7, 8, 14, 16]] * 2


def test_addends_of_an_unreduced_parameter_are_added_and_equal_arrays_are_the_sum(tmp_path: Path) -> None:
    text = SHARDY.replace('[{\\"x\\"}]', '[{}], unreduced={\\"x\\"}').replace("f32[4]", "f32[2]")
    assert [np.asarray(values[0]).tolist() for values in _read(tmp_path, text, [PAIR, PAIR * 2])] == [[21, 24]] * 2
    assert [np.asarray(values[0]).tolist() for values in _read(tmp_path, text, [PAIR, PAIR])] == [[7, 8]] * 2


def test_programs_of_one_partition_keep_the_arrays_of_each_device(tmp_path: Path) -> None:
    assert [np.asarray(values[0]).tolist() for values in _read(tmp_path, REPLICATED, [PAIR, PAIR * 2])] == [[7, 8], [14, 16]]
    assert [np.asarray(values[0]).tolist() for values in _read(tmp_path, REPLICATED, [PAIR])] == [[7, 8]] * 2
    manual = REPLICATED.replace("replica_count", "num_partitions").replace("parameter(0)", "parameter(0), sharding={manual}")
    assert [np.asarray(values[0]).tolist() for values in _read(tmp_path, manual, [PAIR, PAIR * 2])] == [[7, 8], [14, 16]]


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has 3 arrays, but 'm' takes 1 \(one set for all devices\) or 2 \(one set for each"):
        _read(tmp_path, REPLICATED, [PAIR] * 3)
    sets = [_tiles(device) for device in range(8)]
    sets[5][2] = PAIR * 2
    with pytest.raises(UsageError, match=r"parameter 1 \(%q\) differs between devices 4 and 5, which hold the same piece"):
        _read(tmp_path, SHARDED, [array for arrays in sets for array in arrays])
    sets[5] = _tiles(5)
    sets[3][0] = WHOLE
    with pytest.raises(UsageError, match=r"device 0's parameter 0 \(%p\)\{0\} is f32\[5,4\]"):
        _read(tmp_path, SHARDED, [array for arrays in sets for array in arrays])


@pytest.mark.parametrize("mode", ["use_device_id_as_input", "use_random_normal_inputs"])
def test_saved_arguments_of_divided_modules_are_read_again(mode: str, tmp_path: Path) -> None:
    file, saved, out = tmp_path / "m.hlo", tmp_path / "in.npz", tmp_path / "out.npz"
    file.write_text(SHARDED, encoding="utf-8")
    flags = ["--platform=Host", f"--hlo_argument_mode={mode}", f"--save_inputs={saved}", f"--save_outputs={out}"]
    assert run([*flags, str(file)]) == 0
    assert run(["--platform=Host", f"--inputs={saved}", f"--expected_output={out}", str(file)]) == 0
    if mode == "use_device_id_as_input":
        with np.load(out) as found:
            assert found["out5"].tolist() == [[-4, -4, -5, -5]] * 3 + [[-6, -6, -7, -7]] * 2
