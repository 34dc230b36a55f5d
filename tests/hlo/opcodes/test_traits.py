"""The definitions of opcodes fit together: traits, attributes and pairs of opcodes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from hlo_run.codegen.elemental import elementwise as emitted
from hlo_run.codegen.elemental.table import STRUCTURED
from hlo_run.hlo.attributes.table import CALLED_ATTRIBUTES, attribute_kind
from hlo_run.hlo.opcodes import traits
from hlo_run.hlo.opcodes.definition import TRAITS, read_rows
from hlo_run.hlo.opcodes.table import OPCODES
from hlo_run.ops import index, infer
from hlo_run.ops.elementwise import INFER
from hlo_run.reference.numerics import elementwise


def test_every_attribute_is_one_that_can_be_read() -> None:
    for opcode in OPCODES.values():
        for name in opcode.attributes:
            assert name in CALLED_ATTRIBUTES or attribute_kind(opcode.name, name)


def test_every_trait_is_of_some_opcode() -> None:
    assert TRAITS.keys() == {trait for opcode in OPCODES.values() for trait in opcode.traits}


def test_every_start_has_its_done() -> None:
    assert set(traits.DONE_OF.values()) == traits.ASYNC_DONE


def test_elementwise_opcodes_have_shape_rules() -> None:
    assert INFER.keys() | {"map"} == traits.ELEMENTWISE
    assert all(opcode.arity in (1, 2) for opcode in OPCODES.values() if opcode.takes)


def test_tables_have_rows_of_opcodes_alone() -> None:
    for table in (infer.INFER, index.OPERAND, index.USER, elementwise.EVALUATE, emitted.EMIT, STRUCTURED):
        assert not table.keys() - OPCODES.keys()


def test_traits_fit_together() -> None:
    assert traits.COMMUTATIVE <= traits.ELEMENTWISE
    assert all(OPCODES[name].arity == 2 for name in traits.COMMUTATIVE | traits.ASSOCIATIVE)
    assert {"copy"} == traits.MOVES_ELEMENTS & traits.ELEMENTWISE
    assert all(OPCODES[name].arity == 1 for name in traits.MOVES_ELEMENTS)
    calling = {opcode.name for opcode in OPCODES.values() if CALLED_ATTRIBUTES & set(opcode.attributes)}
    assert calling >= traits.CONTROL_FLOW
    assert not traits.NO_CODE & traits.SIDE_EFFECT


def test_a_row_says_traits_that_exist() -> None:
    with pytest.raises(AssertionError, match=r"no such trait: .*elementwize"):
        read_rows("abs | 1 | | elementwize | float", {})


# From this many opcodes on, a list that holds a whole trait is no coincidence.
_LARGE = 7


def test_no_other_file_lists_the_opcodes_of_a_large_trait() -> None:
    """A list of opcodes that holds all of a trait is made from the trait; what is then left of it is that file's policy."""
    package = Path(traits.__file__).resolve().parents[2]
    large = {trait: names for trait in TRAITS if len(names := _having(trait)) >= _LARGE}
    for path in package.rglob("*.py"):
        text = path.read_text()
        if path.parent.name != "opcodes" and any(all(name in text for name in names) for names in large.values()):
            for words in _word_lists(ast.parse(text)):
                assert not [trait for trait, names in large.items() if names <= words], f"{path}: {sorted(words)}"


def _having(trait: str) -> set[str]:
    return {opcode.name for opcode in OPCODES.values() if trait in opcode.traits}


def _word_lists(tree: ast.AST) -> Iterator[set[str]]:
    """Yield the words of every list, tuple and set of strings and of every `"..".split()`."""
    for node in ast.walk(tree):
        match node:
            case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
                yield {item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)}
            case ast.Call(func=ast.Attribute(attr="split", value=ast.Constant(value=str(text)))):
                yield set(text.split())
            case _:
                pass
