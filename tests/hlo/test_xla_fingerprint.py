"""The fingerprint of a module, against what XLA wrote into dumps."""

from __future__ import annotations

import pytest

import hlo_run
from hlo_run.hlo.frontend_attributes import frontend_attribute
from hlo_run.hlo.highway_hash import highway_hash_128
from hlo_run.hlo.xla_fingerprint import xla_fingerprint
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import optimize
from hlo_run.target import DEFAULT_TARGET, preset

_ADD = """HloModule binary_add_f32, entry_computation_layout={(f32[16,33]{1,0}, f32[16,33]{1,0})->f32[16,33]{1,0}}

%wrapped_add_computation (param_0: f32[16,33], param_1: f32[16,33]) -> f32[16,33] {
  %param_0 = f32[16,33]{1,0} parameter(0)
  %param_1 = f32[16,33]{1,0} parameter(1)
  ROOT %add.1.1 = f32[16,33]{1,0} add(%param_0, %param_1)
}

ENTRY %main.1 (x.1: f32[16,33], y.1: f32[16,33]) -> f32[16,33] {
  %x.1 = f32[16,33]{1,0} parameter(0)
  %y.1 = f32[16,33]{1,0} parameter(1)
  ROOT %wrapped_add = f32[16,33]{1,0} fusion(%x.1, %y.1), kind=kLoop, calls=%wrapped_add_computation
}
"""


def test_equals_that_of_a_dump() -> None:
    assert xla_fingerprint(hlo_run.parse(_ADD)) == "a401cd549d44fd0a05669b6900670c03"


def test_names_of_computations_count_and_those_of_instructions_do_not() -> None:
    first = xla_fingerprint(hlo_run.parse(_ADD))
    assert xla_fingerprint(hlo_run.parse(_ADD.replace("param_0", "left"))) == first
    assert xla_fingerprint(hlo_run.parse(_ADD.replace("main.1", "main.2"))) != first


def test_groups_of_devices_as_lists() -> None:
    module = hlo_run.parse("""HloModule short, replica_count=4
    ENTRY e {
      x = f32[4] parameter(0)
      ROOT r = f32[8] all-gather(x), replica_groups={{0,2},{1,3}}, dimensions={0}
    }""")
    optimize(PassContext(preset(DEFAULT_TARGET), Options()), module)
    assert frontend_attribute(module, "fingerprint_before_lhs") == "d656d1a43542d456d978ea418cf15a9c"


@pytest.mark.parametrize("count", [0, 1, 3, 16, 31, 32, 33, 100])
def test_every_byte_of_the_data_counts(count: int) -> None:
    data = bytes(range(count))
    key = (1, 2, 3, 4)
    hashes = {highway_hash_128(data[:place] + b"\xff" + data[place + 1 :], key) for place in range(count)}
    assert len(hashes | {highway_hash_128(data, key)}) == count + 1


def test_sizes_of_more_than_61_bits() -> None:
    sizes = (f"pred[{size}]" for size in ((1 << 63) - 1, (1 << 63) - 2, 1 << 62))
    texts = [f"HloModule m\nENTRY e {{ ROOT p = {shape} parameter(0) }}" for shape in sizes]
    assert len({xla_fingerprint(hlo_run.parse(text)) for text in texts}) == 3
