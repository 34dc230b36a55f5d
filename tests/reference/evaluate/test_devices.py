"""Grids of devices: from the header or the flags, arguments and results of all devices together, at the command line."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import hlo_run
from hlo_run.cli import run
from hlo_run.errors import UsageError
from hlo_run.reference.evaluate.devices import DeviceGrid, is_unpartitioned
from hlo_run.reference.evaluate.evaluate import Reference
from hlo_run.reference.values import Value

GATHER = """HloModule gather, replica_count=2
ENTRY e {
  x = s32[3] parameter(0)
  y = s32[1] parameter(1)
  g = s32[6] all-gather(x), replica_groups={}, dimensions={0}
  ROOT t = (s32[6], s32[1]) tuple(g, y)
}
"""
SHARDED = """HloModule sharded, num_partitions=2
ENTRY e {
  x = f32[4] parameter(0)
  s = f32[4] custom-call(x), custom_call_target="Sharding", sharding={devices=[2]<=[2]}
  m = f32[2] custom-call(s), custom_call_target="SPMDFullToShardShape", sharding={manual}
  n = f32[2] negate(m)
  ROOT r = f32[4] custom-call(n), custom_call_target="SPMDShardToFullShape", sharding={devices=[2]<=[2]}
}
"""
ILL = """HloModule ill
ENTRY e {
  x = f32[4] parameter(0)
  big = f32[] constant(1e7)
  b = f32[4] broadcast(big), dimensions={}
  s = f32[4] add(x, b)
  ROOT r = f32[4] subtract(s, b)
}
"""
INTERPRETER = "--platform=Interpreter"


@pytest.fixture(autouse=True)
def no_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)


def _file(folder: Path, text: str) -> str:
    path = folder / "module.hlo"
    path.write_text(text)
    return str(path)


def test_the_header_says_how_many_unless_told_otherwise() -> None:
    module = hlo_run.parse(GATHER)
    assert DeviceGrid.of(module) == DeviceGrid(2, 1)
    assert DeviceGrid.of(module, 3, 4) == DeviceGrid(3, 4)
    assert DeviceGrid.of(hlo_run.parse(SHARDED)) == DeviceGrid(1, 2)


def test_arguments_stand_device_by_device() -> None:
    module = hlo_run.parse(GATHER)
    grid = DeviceGrid(2, 1)
    numbers = iter(range(10))
    values = grid.make_arguments(module, lambda: [np.array(next(numbers)), np.array(next(numbers))])
    assert [int(np.asarray(value)) for value in values] == [0, 1, 2, 3]
    assert grid.split([np.array(k) for k in range(4)]) == [[0, 1], [2, 3]]
    assert [shape.to_string(layout=False) for shape in grid.argument_shapes(module)] == ["s32[3]", "s32[1]"] * 2
    assert grid.argument_titles(module)[2] == "Argument 0 of device 1"
    assert DeviceGrid().argument_titles(module) == ["Argument 0", "Argument 1"]


def test_partitions_of_whole_arrays_share_their_arguments() -> None:
    module = hlo_run.parse(SHARDED)
    assert is_unpartitioned(module)
    assert not is_unpartitioned(hlo_run.parse(GATHER))
    numbers = iter(range(10))
    values = DeviceGrid(2, 2).make_arguments(module, lambda: [np.array(next(numbers))])
    assert [int(np.asarray(value)) for value in values] == [0, 0, 1, 1]


def test_devices_in_python() -> None:
    arguments: list[list[Value]] = [[np.arange(3, dtype=np.int32) + 10 * k, np.array([k], np.int32)] for k in range(2)]
    reference = Reference(hlo_run.parse(GATHER))
    first, second = reference.run(arguments, replicas=2)
    assert isinstance(first, tuple)
    assert isinstance(second, tuple)
    assert np.array_equal(np.asarray(first[0]), [0, 1, 2, 10, 11, 12])
    assert np.array_equal(np.asarray(second[1]), [1])
    with pytest.raises(UsageError, match="3 devices need as many lists of arguments, but 2 are given"):
        reference.run(arguments, replicas=3)


def test_a_run_of_two_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, inputs, outputs = _file(tmp_path, GATHER), tmp_path / "in.npz", tmp_path / "out.npz"
    assert run([INTERPRETER, "--print_literals", f"--save_inputs={inputs}", f"--save_outputs={outputs}", file]) == 0
    stdout, stderr = capsys.readouterr()
    assert "** Argument 1 of device 1 **" in stdout
    assert "numpy, 2 replicas x 1 partitions" in stderr
    with np.load(inputs) as given, np.load(outputs) as found:
        whole = np.concatenate([given["arg0"], given["arg2"]])
        assert not np.array_equal(given["arg0"], given["arg2"])
        assert np.array_equal(found["out0"], whole)
        assert np.array_equal(found["out2"], whole)
        assert np.array_equal(found["out3"], given["arg3"])
        wrong = {key: found[key].copy() for key in found.files}
    wrong["out3"][0] += 1
    np.savez(outputs, **wrong)  # pyright: ignore[reportArgumentType] - no key is `allow_pickle`
    assert run([INTERPRETER, f"--inputs={inputs}", f"--expected_output={outputs}", file]) == 1
    assert "{1,1}" in capsys.readouterr().out


def test_a_run_of_whole_arrays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inputs, outputs = tmp_path / "in.npz", tmp_path / "out.npz"
    flags = [INTERPRETER, f"--save_inputs={inputs}", f"--save_outputs={outputs}"]
    assert run([*flags, _file(tmp_path, SHARDED)]) == 0
    with np.load(inputs) as given, np.load(outputs) as found:
        assert np.array_equal(found["out0"], -given["arg0"])
        assert np.array_equal(found["out1"], -given["arg0"])
    assert run([INTERPRETER, "--num_partitions=1", _file(tmp_path, SHARDED)]) == 4
    assert "--num_partitions=2" in capsys.readouterr().err


def test_host_runs_several_devices_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--platform=Host", _file(tmp_path, GATHER)]) == 0
    assert "2 replicas x 1 partitions" in capsys.readouterr().err


def test_the_reference_in_float64_shows_what_rounding_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = _file(tmp_path, ILL)
    assert run([INTERPRETER, file]) == 0
    assert run([INTERPRETER, "--reference_precision=f64", "--fixed_bounds", file]) == 1
    assert "4 of 4 elements differ" in capsys.readouterr().err
    assert run([INTERPRETER, "--reference_precision=f64", file]) == 0
    error = capsys.readouterr().err
    assert "4 may be off by more than their value" in error
    assert re.search(r"integers in \[-4, 8\]: \d beyond the bounds are within the rounding", error), "of a later try, too"


def test_a_token_passes_a_manual_computation_as_it_is() -> None:
    shardings = r"#sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{\"x\"}]>]>"
    manual = r'xla.sdy.manual_axes="#sdy<manual_axes{\"x\"}>"'
    text = f"""HloModule m, num_partitions=2, frontend_attributes={{xla.sdy.meshes={{mesh = #sdy.mesh<["x"=2]>}}}}
ENTRY e {{
  t = token[] after-all()
  x = f32[4] parameter(0)
  g = (token[], f32[2]) custom-call(t, x), custom_call_target="xla.sdy.GlobalToLocalShape",
    frontend_attributes={{xla.sdy.in_shardings="{shardings}",{manual}}}
  u = token[] get-tuple-element(g), index=0
  p = f32[2] get-tuple-element(g), index=1
  w = (token[], f32[4]) custom-call(u, p), custom_call_target="xla.sdy.LocalToGlobalShape",
    frontend_attributes={{xla.sdy.out_shardings="{shardings}",{manual}}}
  ROOT r = f32[4] get-tuple-element(w), index=1
}}"""
    whole = np.arange(4, dtype=np.float32)
    for result in Reference(hlo_run.parse(text)).run([[whole], [whole]], partitions=2):
        assert np.array_equal(np.asarray(result), whole)


def test_a_manual_computation_in_another_joins_the_tiles_of_its_own_group() -> None:
    text = """HloModule nested, num_partitions=4
ENTRY e {
  x = f32[4] parameter(0)
  s = f32[4] custom-call(x), custom_call_target="Sharding", sharding={devices=[2,2]<=[4] last_tile_dim_replicate}
  m = f32[2] custom-call(s), custom_call_target="SPMDFullToShardShape",
    sharding={devices=[1,2,2]<=[4] last_tile_dims={manual, replicated}}
  t = f32[2] custom-call(m), custom_call_target="Sharding", sharding={devices=[2,2]<=[2,2]T(1,0) last_tile_dims={manual}}
  i = f32[1] custom-call(t), custom_call_target="SPMDFullToShardShape", sharding={manual}
  n = f32[1] negate(i)
  o = f32[2] custom-call(n), custom_call_target="SPMDShardToFullShape",
    sharding={devices=[2,2]<=[2,2]T(1,0) last_tile_dims={manual}}
  ROOT r = f32[4] custom-call(o), custom_call_target="SPMDShardToFullShape", sharding={devices=[2,2]<=[4] last_tile_dim_replicate}
}
"""
    arguments: list[Value] = [np.arange(4, dtype=np.float32)]
    for found in Reference(hlo_run.parse(text)).run([arguments] * 4, 1, 4, 42):
        np.testing.assert_array_equal(np.asarray(found), [-0.0, -1, -2, -3])
