"""The interface of an HLO pass, and the context that passes get: target, options, observers."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar, Protocol

from msgspec import Struct, field

from hlo_run.hlo.graph import HloModule
from hlo_run.options import CompileOptions, ShowOptions
from hlo_run.options.compile import RowSelection
from hlo_run.pass_support.fuel import Fuel
from hlo_run.pass_support.observer import Observer
from hlo_run.pass_support.replacements import Replacements
from hlo_run.target import TargetSpec


class PassContext(Struct, frozen=True, dict=True):
    """The context of a pass run. Passes of `fuel.COUNTED_REWRITES` take fuel before every rewrite.

    `show` controls the texts that observers get; the result of a pass must not depend on it. With `locates`, kernels record for
    each operation the HLO instruction that it came from, in PTX as well.

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
