"""Sharding rules that a module gives its instructions, most often its own custom calls.

    xla.sdy.sharding_rule="#sdy.op_sharding_rule<([i, kl], [kl, j])->([i, j]) {i=8, j=4, k=2, l=8} reduction={k, l}, custom>"

Letters from i to z are the factors 0 to 17, z_1, z_2, .. those after them. The words `reduction`, `need_replication`,
`permutation` and `blocked_propagation` name factors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from hlo_run.errors import Unsupported
from hlo_run.hlo.frontend_attributes import frontend_attribute
from hlo_run.hlo.graph import HloInstruction
from hlo_run.sharding.shardy.rule import Kind, Mapping, Rule

_NAME = "xla.sdy.sharding_rule"
_ARRAYS = r"\(([^()]*)\)"
_RULE = re.compile(
    rf"#sdy\.op_sharding_rule<\s*{_ARRAYS}\s*->\s*{_ARRAYS}\s*(?:\{{([^{{}}]*)\}})?((?:\s*\w+\s*=\s*\{{[^{{}}]*\}})*)\s*(,\s*custom\s*)?>"
)
_GROUP = re.compile(r"(\w+)\s*=\s*\{([^{}]*)\}")
_ARRAY = re.compile(r"\[([^\[\]]*)\]")
_FACTOR = re.compile(r"z_(\d+)|([i-z])")
_KINDS = {"reduction": Kind.REDUCTION, "need_replication": Kind.REPLICATE, "permutation": Kind.PERMUTE}
_BLOCKED = "blocked_propagation"


def given_rule(instruction: HloInstruction) -> Rule | None:
    """Return the rule in an instruction's attributes, or None. Raises Unsupported for one that cannot be read or does not fit."""
    text = frontend_attribute(instruction, _NAME)
    if text is None:
        return None
    try:
        rule = read_rule(text)
        _check(rule, instruction)
    except ValueError as error:
        raise Unsupported(f"{_NAME}: {error}", instruction.where) from error
    return rule


def read_rule(text: str) -> Rule:
    """Return the rule that Shardy prints as `text`. Raises ValueError for other text."""
    found = _RULE.fullmatch(text.replace('\\"', '"').strip())
    if found is None:
        raise ValueError(f"this is not a sharding rule: {text}")
    operands, results, sizes, groups, _ = found.groups()
    listed = [entry.partition("=") for entry in (sizes or "").split(",") if entry.strip()]
    names = [_factors(name) for name, _, _ in listed]
    numbers = [number.strip() for _, _, number in listed]
    if names != [(n,) for n in range(len(names))] or not all(number.isdecimal() for number in numbers):
        raise ValueError(f"the sizes of the factors are not in order: {text}")
    kinds = [Kind.PASS] * len(names)
    blocked: frozenset[int] = frozenset()
    for word, inside in _GROUP.findall(groups):
        chosen = [factor for entry in inside.split(",") for factor in _factors(entry)]
        if max(chosen, default=-1) >= len(kinds) or (word not in _KINDS and word != _BLOCKED):
            raise ValueError(f"a rule cannot have {word}={{{inside}}}: {text}")
        if word == _BLOCKED:
            blocked = frozenset(chosen)
            continue
        for factor in chosen:
            kinds[factor] = _KINDS[word]
    return Rule(_mappings(operands), _mappings(results), tuple(map(int, numbers)), tuple(kinds), blocked)


def _factors(text: str) -> tuple[int, ...]:
    text = text.strip()
    found = list(_FACTOR.finditer(text))
    if "".join(match[0] for match in found) != text:
        raise ValueError(f"'{text}' are no factors")
    return tuple(ord("z") - ord("i") + int(match[1]) if match[1] else ord(match[2]) - ord("i") for match in found)


def _mappings(text: str) -> tuple[Mapping, ...]:
    arrays = _ARRAY.findall(text)
    return tuple(tuple(map(_factors, array.split(","))) if array.strip() else () for array in arrays)


def _check(rule: Rule, instruction: HloInstruction) -> None:
    """Raise ValueError unless the rule has one mapping per array, and the factors of each dimension have its extent."""
    before = [leaf.dims for operand in instruction.operands for _, leaf in operand.shape.leaves() if leaf.is_array]
    after = [leaf.dims for _, leaf in instruction.shape.leaves() if leaf.is_array]
    if not (_fit(rule, rule.operands, before) and _fit(rule, rule.results, after)):
        raise ValueError(f"the rule does not fit the arrays of %{instruction.name}")


def _fit(rule: Rule, mappings: Sequence[Mapping], arrays: Sequence[tuple[int, ...]]) -> bool:
    def extents(mapping: Mapping) -> tuple[int, ...] | None:
        if any(factor >= len(rule.sizes) for factors in mapping for factor in factors):
            return None
        return tuple(math.prod(rule.sizes[factor] for factor in factors) for factors in mapping)

    pairs = zip(mappings, arrays, strict=False)
    return len(mappings) == len(arrays) and all(
        (found := extents(mapping)) is not None
        and len(found) == len(dims)
        # Where a factor is smaller in one array than in another, its size is the larger one.
        and all(size >= extent for size, extent in zip(found, dims, strict=True))
        for mapping, dims in pairs
    )
