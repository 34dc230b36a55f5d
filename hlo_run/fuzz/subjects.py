"""The subjects of a hunt: modules of the generator, mutations of given modules, or given modules as they are."""

from __future__ import annotations

import random

from msgspec import Struct

from hlo_run.errors import HloRunError
from hlo_run.fuzz.generate import RandomModule, random_module
from hlo_run.module_edits.texts import PRINTED
from hlo_run.records import replace

# Of the modules of a hunt with given modules, the generator makes one in so many.
_GENERATED = 4


class Subject(Struct, frozen=True):
    """A module to check. `made` has the generator's predictions; None for other modules.

    The seed also draws the arguments and the options. `source` is the given file, with the names of the mutations.
    """

    seed: int
    text: str
    made: RandomModule | None = None
    source: str = ""

    @staticmethod
    def of(made: RandomModule) -> Subject:
        """Return a module of the generator as a subject."""
        return Subject(made.seed, made.text, made)


class Sources(Struct, frozen=True):
    """The given modules: (file, text) each. With `as_is` they are checked as they are, one per seed from `first`.

    With `sharded` every module for one device gets the shardings of its seed.
    """

    given: tuple[tuple[str, str], ...] = ()
    as_is: bool = False
    first: int = 0
    sharded: bool = False

    def subject(self, seed: int) -> Subject:
        """Return the module of a seed."""
        subject = self._whole(seed)
        return _sharded(subject) if self.sharded else subject

    def _whole(self, seed: int) -> Subject:
        if self.as_is:
            name, text = self.given[(seed - self.first) % len(self.given)]
            return Subject(seed, text, source=name)
        if not self.given or seed % _GENERATED == 0:
            return Subject.of(random_module(seed))
        from hlo_run.fuzz.mutations.mutate import mutated

        rng = random.Random(seed)
        name, text = rng.choice(self.given)
        donors = [other for _, other in rng.sample(self.given, min(3, len(self.given)))]
        changed, names = mutated(rng, text, [*donors, random_module(seed).text])
        return Subject(seed, changed, source=f"{name}: {', '.join(names)}")


def _sharded(subject: Subject) -> Subject:
    """Return the module with shardings; the module itself if it has some, or fits none."""
    from hlo_run.fuzz.shardings import shard
    from hlo_run.ops.parse import parse

    try:
        module = parse(subject.text)
    except HloRunError:
        return subject
    return replace(subject, text=module.to_string(PRINTED)) if shard(module, subject.seed) else subject
