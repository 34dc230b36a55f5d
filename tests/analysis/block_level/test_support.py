"""Which instructions block-level fusions of the release contain; pads are in none, though its emitter has them."""

from __future__ import annotations

import pytest

from hlo_run.analysis.block_level.support import is_supported, is_supported_computation
from hlo_run.hlo.text.parser import parse_module
from hlo_run.ops.infer import infer_module
from hlo_run.target import preset


@pytest.mark.parametrize(
    ("body", "is_fused"),
    [
        ("ROOT r = f32[4,8] exponential(p)", True),
        ("ROOT r = f32[8,4] transpose(p), dimensions={1,0}", True),
        ("ROOT r = bf16[4,8] convert(p)", True),
        ("ROOT r = f32[4,12] pad(p, z), padding=0_0x0_4", False),
        ("ROOT r = f32[4,8] reverse(p), dimensions={1}", False),
        ("i = s32[] constant(0) ROOT r = f32[2,8] dynamic-slice(p, i, i), dynamic_slice_sizes={2,8}", False),
        ("ROOT r = f32[8,8] concatenate(p, p), dimensions={0}", False),
    ],
)
def test_instruction(body: str, is_fused: bool) -> None:
    module = parse_module(f"HloModule m\nENTRY e {{ p = f32[4,8] parameter(0) z = f32[] constant(0) {body} }}")
    infer_module(module)
    assert bool(is_supported(module.entry.root, preset("h100"))) is is_fused
    assert bool(is_supported_computation(module.entry, preset("h100"))) is is_fused
