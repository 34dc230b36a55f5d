"""Dumps are the same bytes whatever Python's hash seed: no set order, address, path or time reaches them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MANY = """HloModule many
shared {
  p = f32[20,16,34] parameter(0)
  q = s32[20,16,34] parameter(1)
  c = f32[20,16,34] convert(q)
  l = f32[20,16,34] log-plus-one(p)
  t = f32[34,16,20] transpose(l), dimensions={2,1,0}
  u = f32[34,16,20] transpose(c), dimensions={2,1,0}
  a = f32[34,16,20] add(t, u)
  ROOT r = (f32[34,16,20], f32[20,16,34]) tuple(a, l)
}
ENTRY e {
  p = f32[20,16,34] parameter(0)
  q = s32[20,16,34] parameter(1)
  f = (f32[34,16,20], f32[20,16,34]) fusion(p, q), kind=kInput, calls=shared
  x = f32[34,16,20] get-tuple-element(f), index=0
  y = f32[20,16,34] get-tuple-element(f), index=1
  s = f32[10,16,17] slice(y), slice={[0:20:2], [0:16], [0:34:2]}
  k = f32[] constant(0.25)
  b = f32[10,16,17] broadcast(k), dimensions={}
  m = f32[10,16,17] maximum(s, b)
  w = f32[12,18,19] pad(m, k), padding=1_1x1_1x1_1
  ROOT r = (f32[34,16,20], f32[12,18,19]) tuple(x, w)
}
"""


def _dump(files: list[Path], folder: Path, seed: str) -> tuple[dict[str, bytes], str]:
    command = [sys.executable, "-m", "hlo_run", "--platform=Host", "--print_literals", "--print_locations"]
    done = subprocess.run(
        [*command, f"--xla_dump_to={folder}", "--xla_dump_hlo_pass_re=.*", "--dump_kernel_rows", *map(str, files)],
        env={**os.environ, "PYTHONHASHSEED": seed},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # Texts about flags name the folder.
    return {path.name: path.read_bytes().replace(str(folder).encode(), b"") for path in folder.iterdir()}, done.stdout


def test_the_hash_seed_does_not_matter(tmp_path: Path) -> None:
    many, gelu = tmp_path / "many.hlo", tmp_path / "gelu.hlo"
    many.write_text(MANY)
    # With fewer elements: printing twelve million literals is not the point.
    gelu.write_text((ROOT / "examples" / "gelu.hlo").read_text(encoding="utf-8").replace("6,512,4096", "2,8,256"))
    first, first_out = _dump([many, gelu], tmp_path / "a", "1")
    second, second_out = _dump([many, gelu], tmp_path / "b", "2")
    assert first_out == second_out
    assert sorted(first) == sorted(second)
    assert len([text for text in first if text.endswith(".mlir")]) > 20
    different = [text for text in first if first[text] != second[text]]
    assert not different
