"""The text of indexing maps: printing, parsing, and errors with their positions."""

from __future__ import annotations

import pytest
from hypothesis import given
from indexing_strategies import checked, indexing_maps

from hlo_run.errors import ParseError
from hlo_run.indexing import IndexingMap, Interval, attribute_text, map_to_string, parse_indexing_map

# The loop emitter's map in the text "XLA:GPU Emitters", and its flattened form.
SEED = (
    "(th_x, bl_x)[vector_index] -> (bl_x floordiv 4096, (bl_x floordiv 8) mod 512, (bl_x mod 8) * 512 + th_x * 4 + vector_index),"
    " domain: th_x in [0, 127], bl_x in [0, 24575], vector_index in [0, 3]"
)
SEED_FLAT = (
    "(th_x, bl_x, vector_index) -> (th_x * 4 + bl_x * 512 + vector_index), "
    "domain: th_x in [0, 127], bl_x in [0, 24575], vector_index in [0, 3]"
)


@pytest.mark.parametrize("text", [SEED, SEED_FLAT, "() -> ()", "(d0) -> (), domain: d0 in [0, 3]"])
def test_prints_as_it_was_written(text: str) -> None:
    assert str(parse_indexing_map(text)) == text


@checked
@given(indexing_maps(has_runtime_variable=True))
def test_round_trip(original: IndexingMap) -> None:
    again = parse_indexing_map(attribute_text(original))
    assert again == original
    assert attribute_text(again) == attribute_text(original)


def test_known_empty_and_undefined() -> None:
    empty = IndexingMap.from_sizes((), (4,), (2,)).with_constraint(IndexingMap.identity((4,)).results[0], Interval(9, 9))
    assert str(empty) == "KNOWN EMPTY"
    assert attribute_text(empty) == "(d0)[s0] -> (), domain: d0 in [0, -1], s0 in [0, -1]"
    assert parse_indexing_map(attribute_text(empty)) == empty
    assert parse_indexing_map("KNOWN EMPTY").is_known_empty
    assert map_to_string(None) == "UNDEFINED"


@pytest.mark.parametrize(
    ("written", "printed"),
    [
        ("a / 4", "a floordiv 4"),
        ("a floorDiv 4", "a floordiv 4"),
        ("a ceilDiv 4", "a ceildiv 4"),
        ("a floordiv 2 floordiv 3", "(a floordiv 2) floordiv 3"),
        ("a mod 8 * 2", "(a mod 8) * 2"),
        ("(a + b) mod 8", "(a + b) mod 8"),
        ("a - b", "a - b"),
        ("a - b * 3", "a - b * 3"),
        ("a + b * -3", "a - b * 3"),
        ("a * -3 + b", "a * -3 + b"),
        ("-a + 19", "-a + 19"),
        ("-(a + b)", "-(a + b)"),
        ("a - (b - 1)", "a - (b - 1)"),
        ("a -1", "a - 1"),
        ("a + -1", "a - 1"),
        ("a - -1", "a + 1"),
        ("(-a) floordiv 2", "(-a) floordiv 2"),
        ("min(a, b + 1) + max(a, 3)", "min(a, b + 1) + max(a, 3)"),
        ("-5", "-5"),
    ],
)
def test_spellings(written: str, printed: str) -> None:
    domain = "domain: a in [0, 9], b in [-5, 9]"
    parsed = parse_indexing_map(f"(a, b) -> ({written}), {domain}")
    assert str(parsed) == f"(a, b) -> ({printed}), {domain}"
    assert parse_indexing_map(str(parsed)) == parsed


def test_all_kinds_of_variables_and_sorted_constraints() -> None:
    text = "(a)[b]{c} -> (a + b + c), domain: a in [0, 1], b in [0, 2], c in [0, 3]"
    parsed = parse_indexing_map(f"{text}, b + c in [0, 4], a + b in [0, 2],")
    assert str(parsed) == f"{text}, a + b in [0, 2], b + c in [0, 4]"
    assert [v.name for v in parsed.rts] == ["c"]


def test_default_names_are_not_stored() -> None:
    parsed = parse_indexing_map("(d0, d3)[s0]{rt0} -> (d3), domain: d0 in [0, 1], d3 in [0, 1], s0 in [0, 1], rt0 in [0, 1]")
    assert [v.name for v in (*parsed.dims, *parsed.symbols)] == ["", "d3", "", ""]


@pytest.mark.parametrize(
    ("text", "message", "column"),
    [
        ("", "expected '(' in an indexing map, found 'its end'", 1),
        ("(a) -> (b), domain: a in [0, 1]", "expected an expression in an indexing map, found 'b'", 9),
        ("(a) -> (a)", "expected ',' in an indexing map, found 'its end'", 11),
        ("(a, b) -> (a), domain: b in [0, 1], a in [0, 1]", "expected the interval of variable 'a', found 'b'", 24),
        ("(a, a) -> (a), domain: a in [0, 1]", "variable 'a' is declared twice in an indexing map", 5),
        ("(mod) -> (), domain: mod in [0, 1]", "expected the name of a variable in an indexing map, found 'mod'", 2),
        ("(a) -> (a), domain: a in [0 1]", "expected ',' in an indexing map, found '1'", 29),
        ("(a) -> (a), domain: a in [0, x]", "expected an integer in an indexing map, found 'x'", 30),
        ("(a) -> (a $ 1), domain: a in [0, 1]", "expected ')' in an indexing map, found '$'", 11),
        ("(a) -> (a), domain: a in [0, 1] a in [0, 1]", "expected ',' between the intervals of an indexing map, found 'a'", 33),
    ],
)
def test_refusals(text: str, message: str, column: int) -> None:
    with pytest.raises(ParseError) as caught:
        parse_indexing_map(text)
    assert caught.value.message == message
    assert caught.value.where is not None
    assert caught.value.where.column == column
