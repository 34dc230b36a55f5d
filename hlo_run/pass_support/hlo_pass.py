"""The interface of an HLO pass, and the context that passes get: target, options, observers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Protocol

from msgspec import Struct, field

from hlo_run.hlo.graph import HloModule
from hlo_run.options import CompileOptions, ShowOptions
from hlo_run.options.compile import RowSelection
from hlo_run.pass_support.fuel import Fuel
from hlo_run.pass_support.observer import Observer, Step
from hlo_run.pass_support.replacements import Replacements
from hlo_run.target import TargetSpec

if TYPE_CHECKING:
    from hlo_run.analysis.fusion.fusion_process import AnyFusionStep


class PassContext(Struct, frozen=True, dict=True):
    """The context of a pass run. Passes of `fuel.COUNTED_REWRITES` take fuel before every rewrite.

    `show` controls the texts that observers get; the result of a pass must not depend on it. Passes tell observers through the
    methods below, and do not read `observers`. With `locates`, kernels record for each operation the HLO instruction that it came
    from, in PTX as well.

    With `assembles`, ptxas (if it is installed) assembles the PTX of every kernel.
    """

    target: TargetSpec
    options: CompileOptions
    observers: tuple[Observer, ...] = ()
    replacements: Replacements = field(default_factory=Replacements)
    show: ShowOptions = field(default_factory=ShowOptions)
    locates: bool = False
    fuel: Fuel = field(default_factory=Fuel)
    assembles: bool = True

    def wants(self, title: str) -> bool:
        """Return True if someone listens to a note that costs work while the pass runs."""
        return any(observer.wants_note(title) for observer in self.observers)

    def note(self, title: str, text: Callable[[], str], *, if_wanted: bool = False) -> None:
        """Tell the listeners, or the listeners that want such notes, a text about the module. It is made only if one reads it."""
        for observer in self.observers:
            if not if_wanted or observer.wants_note(title):
                observer.note("", title, text)

    def decided(self, row: str, steps: Sequence[AnyFusionStep]) -> None:
        """Tell the listeners the steps that a fusion pass tried, in order."""
        for observer in self.observers:
            observer.decided(row, steps)

    def ran(self, title: str, step: Callable[[], Step]) -> None:
        """Tell the listeners to a kind of notes that a row inside the pass ran."""
        for observer in self.observers:
            if observer.wants_note(title):
                observer.after(step())

    @property
    def records_decisions(self) -> bool:
        """True if someone listens to more than times, so that decisions are worth recording."""
        return not all(observer.only_times for observer in self.observers)

    @cached_property
    def rows(self) -> RowSelection:
        """The rows that the flags select in the table of this context."""
        return self.options.hlo_rows


class HloPass(Protocol):
    """A pass over an HLO module. It edits in place and returns nothing; `HloModule.version` grows if it changed something."""

    name: ClassVar[str]

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place; raises only errors of the HloRunError family."""
        ...
