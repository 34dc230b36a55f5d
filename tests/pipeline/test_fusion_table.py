"""`--stage=fusion-analysis`: a row per fusion with its kernel. Fusions of only copies have no kernel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hlo_run
from hlo_run.artifact import CopyThunk, KernelThunk
from hlo_run.cli import run
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import compile_module
from hlo_run.target import preset

MANY = """HloModule many, is_scheduled=true
add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b) }
body { s = (s32[], f32[7]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[7] get-tuple-element(s), index=1
  n = f32[7] negate(x)
  one = s32[] constant(1)
  j = s32[] add(i, one)
  ROOT t = (s32[], f32[7]) tuple(j, n) }
cond { s = (s32[], f32[7]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT }
rows { p = f32[64,1000] parameter(0)
  z = f32[] constant(0)
  e = f32[64,1000] exponential(p)
  r = f32[64] reduce(e, z), dimensions={1}, to_apply=add
  ROOT l = f32[64] log(r) }
turn { p = f32[20,160,170] parameter(0)
  ROOT turn.t = f32[170,160,20] transpose(p), dimensions={2,1,0} }
twice { p = bf16[6,512,4096] parameter(0)
  ROOT sum = bf16[6,512,4096] add(p, p) }
both { p = f32[8] parameter(0)
  q = f32[9] parameter(1)
  second = f32[9] copy(q)
  first = f32[8] copy(p)
  ROOT t = (f32[9], f32[8]) tuple(second, first) }
less { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT l = pred[] compare(a, b), direction=LT }
sorted { p = f32[8] parameter(0)
  ROOT sorted.s = f32[8] sort(p), dimensions={0}, to_apply=less }
ENTRY e { a = f32[64,1000] parameter(0)
  b = f32[20,160,170] parameter(1)
  c = bf16[6,512,4096] parameter(2)
  d = f32[8] parameter(3)
  f = f32[9] parameter(4)
  g = (s32[], f32[7]) parameter(5)
  row_sums = f32[64] fusion(a), kind=kInput, calls=rows
  turned = f32[170,160,20] fusion(b), kind=kInput, calls=turn
  doubled = bf16[6,512,4096] fusion(c), kind=kLoop, calls=twice
  copies = (f32[9], f32[8]) fusion(d, f), kind=kLoop, calls=both
  mine = f32[8] fusion(d), kind=kCustom, calls=sorted, backend_config={"fusion_backend_config":{"kind":"__triton"}}
  w = (s32[], f32[7]) while(g), condition=cond, body=body
  ROOT t = tuple(row_sums, turned, doubled, copies, mine, w)
}
"""


def _rows(text: str) -> dict[str, list[str]]:
    """Return the cells by fusion; cells are two blanks apart."""
    lines = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()]
    return {cells[0]: cells[1:] for cells in lines}


@pytest.fixture
def many(tmp_path: Path) -> str:
    file = tmp_path / "many.hlo"
    file.write_text(MANY)
    return str(file)


def test_the_table(many: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--stage=fusion-analysis", "--target=h100", many]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("target h100_sxm: sm_90, 132 SMs, 2048 threads each, 49152 bytes of shared memory per block\n")
    rows = _rows(out)
    assert rows["fusion"] == ["kind", "heroes", "emitter", "launch", "vector", "shared", "bytes in", "bytes out"]
    # The figures of the reduction are those of XLA's tiling: 64 threads a row, 4 rows a block, a tile of 4x2.
    assert rows["row_sums"] == ["kInput", "r", "reduction", "grid 16x1x1 block 256x1x1", "2", "32", "256000", "256"]
    size = str(20 * 160 * 170 * 4)
    assert rows["turned"] == ["kInput", "turn.t", "transpose", "grid 960x1x1 block 128x1x1", "1", str(32 * 33 * 4), size, size]
    assert rows["doubled"][1:5] == ["sum", "loop", "grid 24576x1x1 block 128x1x1", "4"]
    assert rows["copies"] == ["kLoop", "second, first", "copies", "no kernel", "-", "-", "68", "68"]
    # Of a sort the first kernel.
    assert rows["mine"][2:5] == ["sort", "grid 1x1x1 block 2x1x1", "1"]
    assert rows["wrapped_negate"][3] == "grid 1x1x1 block 7x1x1", "fusions in loops are there too"


def test_each_target_has_a_table(many: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--stage=fusion-analysis", "--target=v100,b200", many]) == 0
    first, second = capsys.readouterr().out.split("target b200")
    assert first.startswith("target v100: sm_70, 80 SMs")
    assert _rows(first)["doubled"][4] == "4"
    assert _rows(second)["doubled"][4] == "8", "Blackwell reads wider vectors"
    assert run(["--stage=ptx", "--target=v100,b200", many]) == 2


def test_verbosity_four_shows_it(many: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "one.hlo"
    file.write_text("ENTRY e { p = f32[4] parameter(0)\n ROOT n = f32[4] negate(p) }")
    assert run(["--platform=Host", "--v=4", str(file)]) == 0
    err = capsys.readouterr().err
    assert "// -----// fusion-analysis //----- //\ntarget h100" in err


def test_a_fusion_of_copies_is_no_kernel() -> None:
    module = hlo_run.parse("""HloModule copies
    both { p = f32[8,3] parameter(0)
      q = f32[9] parameter(1)
      c = f32[9] copy(q)
      d = f32[8,3] copy(p)
      ROOT t = (f32[9], f32[8,3]) tuple(c, d) }
    ENTRY e { p = f32[8,3] parameter(0)
      q = f32[9] parameter(1)
      ROOT f = (f32[9], f32[8,3]) fusion(p, q), kind=kLoop, calls=both }""")
    executable = compile_module(PassContext(preset("h100"), Options()), module.clone())
    assert [type(thunk) for thunk in executable.thunks] == [CopyThunk, CopyThunk]
    random = np.random.default_rng(3)
    p, q = random.standard_normal((8, 3)).astype(np.float32), random.standard_normal(9).astype(np.float32)
    first, second = hlo_run.run(module, p, q, platform="Host")
    np.testing.assert_array_equal(np.asarray(first), q)
    np.testing.assert_array_equal(np.asarray(second), p)


@pytest.mark.parametrize("root", ["f32[8,3]{0,1} copy(p)", "f32[8,3] negate(p)"])
def test_a_copy_to_another_layout_is_a_kernel(root: str) -> None:
    shape = root.split()[0]
    module = hlo_run.parse(f"""HloModule turned
    body {{ p = f32[8,3] parameter(0)
      ROOT d = {root} }}
    ENTRY e {{ p = f32[8,3] parameter(0)
      ROOT f = {shape} fusion(p), kind=kLoop, calls=body }}""")
    executable = compile_module(PassContext(preset("h100"), Options()), module)
    assert [type(thunk) for thunk in executable.thunks] == [KernelThunk]
