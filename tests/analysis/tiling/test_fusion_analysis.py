"""The emitter of a fusion, its reason, and how both are shown; small questions about shapes and widths."""

from __future__ import annotations

import pytest
from emitting import fusion_analysis, read_fusion

from hlo_run.analysis.bitcast_kind import is_reshape_or_transpose_bitcast, reshape_is_bitcast, transpose_is_bitcast
from hlo_run.analysis.tiling.fusion_analysis import NO_WIDTH_BITS
from hlo_run.analysis.tiling.index_width import index_width_bits
from hlo_run.hlo.values.shape import Shape

TRANSPOSE = "f { p = bf16[40,36] parameter(0) t = bf16[36,40] transpose(p), dimensions={1,0} "


def test_printed_form_names_roots_heroes_and_reasons() -> None:
    text = TRANSPOSE + "c = f32[36,40] convert(t) n = bf16[40,36] negate(p) ROOT r = (f32[36,40], bf16[40,36]) tuple(c, n) }"
    assert str(fusion_analysis(text)) == (
        "fusion fusion.1: transpose emitter\n"
        "  root c = f32[36,40]{1,0}, hero t\n"
        "  root n = bf16[40,36]{1,0}, hero itself\n"
        "  transpose t: [40, 36] -> [36, 40], permutation [1, 0], packed by 2, 40 rows of 36 columns\n"
        "  reduction? no: no hero is a reduce\n"
        "  transpose? yes: t exchanges elements in a tile"
    ).replace("fusion.1", fusion_analysis(text).fusion.name)


def test_widths_of_parameters_and_roots() -> None:
    analysis = fusion_analysis("f { p = f32[4] parameter(0) q = pred[4] parameter(1) ROOT r = s64[4] convert(p) }")
    assert (analysis.smallest_input_bits, analysis.smallest_output_bits) == (8, 64)
    assert fusion_analysis("f { ROOT c = f32[4] iota(), iota_dimension=0 }").smallest_input_bits == NO_WIDTH_BITS


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        ("s = bf16[36,40] slice(t), slice={[0:36], [0:40]} ROOT r = bf16[36,40] add(s, p2)", "no hero is a transpose"),
        ("s = bf16[3] slice(p1), slice={[0:3]} ROOT r = (bf16[36,40], bf16[3]) tuple(t, s)", "side output s does not lie like"),
        (
            "q = bf16[2,40,18] bitcast(p) u = bf16[2,18,40] transpose(q), dimensions={0,2,1} "
            "ROOT r = (bf16[36,40], bf16[2,18,40]) tuple(t, u)",
            "t and u transpose differently",
        ),
    ],
)
def test_reasons_against_a_transpose(rest: str, reason: str) -> None:
    extra = "p1 = bf16[9] parameter(1) p2 = bf16[36,40] parameter(2) "
    analysis = fusion_analysis(TRANSPOSE + extra + rest + " }")
    assert analysis.kind == "loop"
    assert analysis.heroes == analysis.roots
    decision = analysis.decision("transpose")
    assert decision is not None
    assert not decision
    assert reason in str(decision)


def test_reasons_against_a_concatenate() -> None:
    analysis = fusion_analysis("f { p = f32[8] parameter(0) ROOT c = f32[40] concatenate(p, p, p, p, p), dimensions={0} }")
    assert analysis.kind == "loop"
    assert "concatenate? no: c has 5 operands" in str(analysis)


@pytest.mark.parametrize(
    ("source", "target", "is_reshape", "is_either"),
    [
        (Shape.array("f32", (4, 6)), Shape.array("s8", (24,)), True, True),
        (Shape.array("f32", (4, 6)), Shape.array("f32", (25,)), False, False),
        (Shape.array("f32", (4, 6), (0, 1)), Shape.array("f32", (24,)), False, False),
        (Shape.array("f32", (4, 6), (0, 1)), Shape.array("f32", (6, 4)), False, True),
        (Shape.array("f32", (4, 1), (0, 1)), Shape.array("f32", (2, 2)), True, True),
        (Shape.array("f32", (4, 6), (0, 1)), Shape.array("f32", (4, 6), (0, 1)), True, True),
    ],
)
def test_bitcasts_between_shapes(source: Shape, target: Shape, is_reshape: bool, is_either: bool) -> None:
    assert reshape_is_bitcast(source, target) is is_reshape
    assert is_reshape_or_transpose_bitcast(source, target) is is_either


def test_transposes_that_move_no_byte() -> None:
    row_major = Shape.array("f32", (4, 6))
    assert transpose_is_bitcast(row_major, Shape.array("f32", (6, 4), (0, 1)), (1, 0))
    assert not transpose_is_bitcast(row_major, Shape.array("f32", (6, 4)), (1, 0))
    assert transpose_is_bitcast(Shape.array("f32", (4, 1)), Shape.array("f32", (1, 4)), (1, 0))


def test_index_width() -> None:
    wide = "f { p = s8[65536,32768] parameter(0) ROOT r = s8[65536,32768] negate(p) }"
    just = "f { p = s8[65535,32768] parameter(0) ROOT r = s8[65535,32768] negate(p) }"
    inside = """f { p = s8[] parameter(0) b = s8[65536,32768] broadcast(p), dimensions={}
      ROOT r = s8[2,2] slice(b), slice={[0:2], [0:2]} }"""
    assert index_width_bits(read_fusion(wide)[1]) == 64
    assert index_width_bits(read_fusion(just)[1]) == 32
    assert index_width_bits(read_fusion(inside)[1]) == 64
