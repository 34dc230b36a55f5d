"""The face of an HLO pass and what a row may ask: target, options, observers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from hlo_run.hlo.graph import HloModule
from hlo_run.hlo_passes.fuel import Fuel
from hlo_run.hlo_passes.observer import Observer
from hlo_run.hlo_passes.replacements import Replacements
from hlo_run.options import CompileOptions, ShowOptions
from hlo_run.target import TargetSpec


@dataclass(frozen=True)
class PassContext:
    """What passes and rows may ask about a run. Passes of `fuel.COUNTED_REWRITES` take fuel before every rewrite.

    `show` is how texts look that observers get; what is made must not depend on it. With `locates` kernels say which HLO
    instruction each of their operations came from, in PTX as well.

    `assembles` says whether ptxas, where there is one, sees the PTX of every kernel.
    """

    target: TargetSpec
    options: CompileOptions
    observers: tuple[Observer, ...] = ()
    replacements: Replacements = field(default_factory=Replacements)
    show: ShowOptions = field(default_factory=ShowOptions)
    locates: bool = False
    fuel: Fuel = field(default_factory=Fuel)
    assembles: bool = True


class HloPass(Protocol):
    """A pass over an HLO module: edits in place, returns nothing; `HloModule.version` tells whether it changed something."""

    name: ClassVar[str]

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place; raises errors of the HloRunError family only."""
        ...
