"""Profiles of programs: files, folders, and the estimates from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hlo_run import parse
from hlo_run.analysis.latency.estimator import TShirtSizes
from hlo_run.analysis.latency.profile import ProfileGuided, missing_instructions, read_profile
from hlo_run.errors import UsageError
from hlo_run.formats.wire import delimited, double

_TEXT = """# of a run
costs { name: "f" cost_us: 2.5 }
costs: { name: "abc::s", cost_us: 40 } costs { name: "other::g" cost_us: 1 }
latencies { source: "s" target: "d" latency_us: 7 }
"""


def test_text_binary_and_folder(tmp_path: Path) -> None:
    binary = b"".join(
        delimited(1, delimited(1, name) + double(2, cost)) for name, cost in (("f", 2.5), ("abc::s", 40.0), ("other::g", 1.0))
    )
    (tmp_path / "abc.pbtxt").write_text(_TEXT)
    (tmp_path / "p.pb").write_bytes(binary)
    wanted = {"f": 2.5, "s": 40.0}
    assert read_profile(str(tmp_path / "abc.pbtxt"), "abc") == wanted
    assert read_profile(str(tmp_path / "p.pb"), "abc") == wanted
    assert read_profile(str(tmp_path), "abc") == wanted
    assert read_profile(str(tmp_path), "xyz") is None


def test_copies_of_rematerialisation_count_with_their_original(tmp_path: Path) -> None:
    file = tmp_path / "p.pbtxt"
    file.write_text('costs { name: "f" cost_us: 1 } costs { name: "f.remat2" cost_us: 3 } costs { name: "g" cost_us: 5 }')
    assert read_profile(str(file), "") == {"f": 2.0, "g": 5.0}


@pytest.mark.parametrize(
    ("name", "content"), [("p.pbtxt", b"costs { name"), ("p.pb", b"\x0a\xff"), ("p.txt", b""), ("no.pb", None)]
)
def test_a_file_that_is_no_profile(tmp_path: Path, name: str, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=name.replace(".", r"\.")):
        read_profile(str(tmp_path / name), "")


def test_what_the_profile_lacks_is_estimated() -> None:
    module = parse("""HloModule m, replica_count=2
c { x = f32[4] parameter(0) ROOT y = f32[4] negate(x) }
h { x = f32[4] parameter(0) ROOT y = f32[4] negate(x) }
ENTRY e {
  p = f32[4] parameter(0)
  s = (f32[4], f32[8]) all-gather-start(p), replica_groups={{0,1}}, dimensions={0}
  d = f32[8] all-gather-done(s)
  f = f32[4] fusion(p), kind=kLoop, calls=c
  g = f32[4] fusion(f), kind=kLoop, calls=h
  ROOT t = (f32[8], f32[4]) tuple(d, g)
}""")
    found = {instruction.name: instruction for instruction in module.entry.instructions}
    estimator = ProfileGuided({"f": 2.5, "s": 40.0}, TShirtSizes())
    assert [estimator.cost(found[name]) for name in "sdfg"] == [1, 1, 2.5, 1000]
    assert estimator.latency(found["s"], found["d"]) == 40
    assert estimator.latency(found["f"], found["g"]) == 1


def test_instructions_that_a_profile_lacks() -> None:
    module = parse("""HloModule m, num_partitions=2
    f { x = f32[4] parameter(0) ROOT y = f32[4] tanh(x) }
    h { x = f32[4] parameter(0) ROOT y = f32[4] sine(x) }
    body { t = (f32[4]) parameter(0) x = f32[4] get-tuple-element(t), index=0 n = f32[4] fusion(x), kind=kLoop, calls=f
      ROOT r = (f32[4]) tuple(n) }
    cond { t = (f32[4]) parameter(0) ROOT c = pred[] constant(false) }
    ENTRY e {
      p = f32[4] parameter(0)
      s = (f32[4], f32[8]) all-gather-start(p), channel_id=1, replica_groups={{0,1}}, dimensions={0}, use_global_device_ids=true
      d = f32[8] all-gather-done(s)
      k = f32[4] copy(p)
      g = f32[4] fusion(k), kind=kLoop, calls=h
      t = (f32[4]) tuple(g)
      w = (f32[4]) while(t), condition=cond, body=body
      ROOT o = ((f32[4]), f32[8]) tuple(w, d)
    }""")
    assert [instruction.name for instruction in missing_instructions(module, {})] == ["n", "s", "g"]
    assert [instruction.name for instruction in missing_instructions(module, {"s": 1.0, "g": 2.0})] == ["n"]
