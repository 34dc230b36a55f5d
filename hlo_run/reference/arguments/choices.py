"""The choices for a module's arguments: the meaning of its integers, and the ranges of floats that keep its values useful."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy

from msgspec import Struct

from hlo_run.hlo.graph import HloModule
from hlo_run.reference.arguments.distributions import distributions
from hlo_run.reference.arguments.meanings import Meaning, meaning_of
from hlo_run.reference.arguments.recipes import Leaf, Recipe
from hlo_run.reference.arguments.value_ranges import ValueRanges
from hlo_run.reference.random import HIGH, LOW

_MOST_NAMED = 4
# Integers that make sense for arithmetic with floats.
_NUMBERS = Meaning("numbers", (1, 100))


class Choice(Struct, frozen=True):
    """The choices for one array: the meaning of its integers, or the distribution of its floats."""

    meaning: Meaning | None = None
    recipe: Recipe = Recipe()


NO_CHOICE = Choice()


class Choices:
    """The meanings of a module's integers, found once, and the recipes of its floats, which a user may replace."""

    def __init__(self, module: HloModule) -> None:
        self.recipes: Mapping[Leaf, Recipe] = {leaf: Recipe(rows=dim) for leaf, dim in distributions(module).items()}
        self.meanings: dict[Leaf, Meaning] = {}
        self._names = [parameter.name for parameter in module.entry.parameters]
        self._integers: set[Leaf] = set()
        ranges = ValueRanges()
        for number, parameter in enumerate(module.entry.parameters):
            for path, leaf in parameter.shape.leaves():
                if leaf.is_array and leaf.dtype.is_integer:
                    self._integers.add((number, path))
                    if (meaning := meaning_of(parameter, path, ranges)) is not None:
                        self.meanings[number, path] = meaning

    def of(self, number: int, path: tuple[int, ...]) -> Choice:
        """Return the choice for a leaf of an entry parameter."""
        recipe, meaning = self.recipes.get((number, path)), self.meanings.get((number, path))
        if recipe is None:
            return NO_CHOICE if meaning is None else Choice(meaning)
        return Choice(meaning or _NUMBERS, recipe)

    def copy(self) -> Choices:
        """Return the same choices, whose recipes may be replaced without an effect on these."""
        return copy(self)

    def lines(self) -> list[str]:
        """Return one line per choice: the names of the arrays, and their range."""
        groups: dict[str, list[str]] = {}
        for leaf in sorted({*self.meanings, *self.recipes}):
            choice = self.of(*leaf)
            of_floats = "in [{:.3g}, {:.3g})".format(*choice.recipe.floats(LOW, HIGH))
            if choice.recipe.rows >= 0:
                of_floats = "probabilities"
            groups.setdefault(str(choice.meaning) if leaf in self._integers else of_floats, []).append(f"%{self._name(leaf)}")
        return [f"{_shortened(names)} {text}" for text, names in groups.items()]

    def __str__(self) -> str:
        lines = self.lines()
        more = f"; {len(lines) - _MOST_NAMED} more" if len(lines) > _MOST_NAMED else ""
        return "; ".join(lines[:_MOST_NAMED]) + more

    def _name(self, leaf: Leaf) -> str:
        number, path = leaf
        return self._names[number] + ("{" + ",".join(map(str, path)) + "}" if path else "")


def _shortened(names: Sequence[str]) -> str:
    """Return a few of the names, and how many more there are."""
    if len(names) <= _MOST_NAMED:
        return ", ".join(names)
    return f"{', '.join(names[: _MOST_NAMED - 1])} and {len(names) - _MOST_NAMED + 1} more"
