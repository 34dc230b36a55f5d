"""Mutated texts: they raise only our errors, quickly and with little memory, and accepted modules parse back.

`scripts/fuzz_text.py` does the same without a time limit. Its findings are in `tests/data/fuzz/found_*.hlo`.
"""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
import text_mutations
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

_FILES = sorted(text_mutations.FOLDER.glob("*.hlo"))
_TEXTS = [file.read_text(encoding="utf-8") for file in _FILES if not file.name.startswith("found_")]
# Other tests cover deep nesting, which takes long.
_NESTING = {text_mutations.MUTATIONS.index(mutation) for mutation in text_mutations.NESTING_MUTATIONS}
_STEPS = st.tuples(
    st.integers(0, len(text_mutations.MUTATIONS) - 1).filter(lambda which: which not in _NESTING), st.integers(0, 2**32 - 1)
)
_SETTINGS = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=250,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    print_blob=False,
)


@_SETTINGS
@given(st.sampled_from(_TEXTS), st.lists(_STEPS, min_size=1, max_size=4))
def test_mutated_texts_end_in_a_module_or_an_error_of_ours(text: str, steps: list[tuple[int, int]]) -> None:
    text_mutations.check(text_mutations.mutate(text, steps))


@settings(_SETTINGS, max_examples=60)
@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=60))
def test_any_text_ends_in_a_module_or_an_error_of_ours(text: str) -> None:
    text_mutations.check(text)
    text_mutations.check(f"HloModule m\nENTRY e {{ {text} }}")


@pytest.mark.parametrize("number", [11, 900_006])
@pytest.mark.parametrize("which", sorted(_NESTING))
def test_deep_nesting_ends_in_a_module_or_an_error_of_ours(which: int, number: int) -> None:
    text_mutations.check(text_mutations.mutate(_TEXTS[number % len(_TEXTS)], [(which, number)]))


@pytest.mark.parametrize("file", _FILES, ids=[file.stem for file in _FILES])
def test_what_was_mutated_is_a_module(file: Path) -> None:
    assert text_mutations.check(file.read_text(encoding="utf-8")) or file.name.startswith("found_")


def test_memory_is_bounded() -> None:
    # A large size in a text takes no memory, except for elided constants.
    shapes = ("f32[1048576,1048576]", "f64[<=1099511627776]", "s4[1099511627775]", "(pred[68719476736], c128[68719476736])")
    texts = [f"HloModule m\nENTRY e {{ p = {shape} parameter(0)\n ROOT t = ({shape}) tuple(p) }}" for shape in shapes]
    texts += ["HloModule m\nENTRY e { c = f32[1048576,1048576] constant({1, 2}) }"]
    texts += ["HloModule m\nENTRY e { c = f32[1048576,1048576] iota(), iota_dimension=1\n ROOT r = f32[] parameter(99999999) }"]
    texts += ["HloModule m\nENTRY e { p = f32[4] parameter(0), sharding={devices=[99999999]<=[99999999]} }"]
    tracemalloc.start()
    try:
        for text in texts:
            text_mutations.check(text)
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()
