"""Make a valid module from a given one by a few random mutations."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from hlo_run.errors import HloRunError
from hlo_run.fuzz.mutations import structure, values
from hlo_run.hlo.graph import HloModule
from hlo_run.module_edits import attributes
from hlo_run.module_edits.structure import tidy
from hlo_run.module_edits.texts import PRINTED
from hlo_run.ops.parse import parse
from hlo_run.ops.verify import COMPILING, verify

__all__ = ["MUTATIONS", "PRINTED", "apply", "mutated", "prepared"]

Mutation = Callable[[random.Random, HloModule], "bool | str"]

# Name, weight, mutation.
MUTATIONS: tuple[tuple[str, float, Mutation], ...] = (
    ("opcode", 2.0, values.opcode),
    ("reducer", 0.6, values.reducer),
    ("element type", 1.0, values.element_type),
    ("constant", 0.7, values.constant),
    ("operand", 1.0, values.operand),
    ("attribute", 3.0, values.attribute),
    ("size", 1.0, values.size),
    ("layout", 0.8, values.layout),
    ("copy", 0.6, values.copy),
    ("bypass", 0.6, values.bypass),
    ("call", 0.4, structure.call),
    ("fusion", 0.7, structure.fusion),
    ("conditional", 0.4, structure.conditional),
    ("loop", 0.6, structure.loop),
)
_SPLICE = ("splice", 3.0)
# A mutation applies to random places, and the verifier refuses some results.
_ATTEMPTS = 30
_MOST_ELEMENTS = 1 << 16
_MOST_INSTRUCTIONS = 400
# What an edit of a module that does not fit it raises.
_REFUSALS = (HloRunError, AssertionError, ArithmeticError, LookupError, ValueError, TypeError, AttributeError)


def prepared(module: HloModule) -> str:
    """Return the text of a module to mutate: without its schedule, header, metadata, shardings and configurations."""
    attributes.without_header(module)
    attributes.without_remarks(module)
    attributes.without_order(module)
    tidy(module)
    return module.to_string(PRINTED)


def mutated(rng: random.Random, text: str, donors: Sequence[str], most: int = 6) -> tuple[str, list[str]]:
    """Return a valid module that up to `most` mutations made of `text`, and the names of the mutations.

    `text` is that of `prepared`, as those of `donors`, from which parts are taken. The verifier accepts each step.
    """
    wanted = rng.randint(1, most)
    done: list[str] = []
    for _ in range(_ATTEMPTS):
        if len(done) == wanted:
            break
        name, mutation = _choose(rng, donors)
        made = apply(rng, mutation, text)
        if made is not None and made != text:
            text = made
            done.append(name)
    return text, done


def _choose(rng: random.Random, donors: Sequence[str]) -> tuple[str, Mutation]:
    weights = [weight for _, weight, _ in MUTATIONS] + [_SPLICE[1] if donors else 0.0]
    number = rng.choices(range(len(weights)), weights)[0]
    if number < len(MUTATIONS):
        return MUTATIONS[number][0], MUTATIONS[number][2]
    return _SPLICE[0], partial(structure.splice, donors=[parse(rng.choice(donors))])


def apply(rng: random.Random, mutation: Mutation, text: str) -> str | None:
    """Return the text after one mutation; None if it does not apply or makes an invalid or a large module."""
    try:
        module = parse(text)
        made = mutation(rng, module)
        if made is False:
            return None
        if isinstance(made, str):
            module = parse(made)
        tidy(module)
        result = module.to_string(PRINTED)
        checked = parse(result)
        verify(checked, COMPILING)
    except _REFUSALS:
        return None
    return result if _is_small(checked) else None


def _is_small(module: HloModule) -> bool:
    count = 0
    for instruction in module.instructions:
        count += 1
        if any(leaf.is_array and leaf.element_count > _MOST_ELEMENTS for _, leaf in instruction.shape.leaves()):
            return False
    return count <= _MOST_INSTRUCTIONS
