"""Stop if the profile for the latency-hiding scheduler lacks the time of an instruction. Changes nothing.

XLA's `PGLEAccuracyChecker`. It looks at the entry and at loops.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.latency.choice import profile_of
from hlo_run.analysis.latency.profile import missing_instructions
from hlo_run.errors import UsageError
from hlo_run.hlo.graph import HloModule
from hlo_run.pass_support.hlo_pass import PassContext

_SHOWN = 5


class PgleAccuracyChecker(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "pgle-accuracy-checker"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Raise UsageError if instructions are missing in the profile."""
        path = ctx.options.xla_gpu_pgle_profile_file_or_directory_path
        profile = profile_of(ctx.options, module)
        missing = [] if profile is None else missing_instructions(module, profile)
        if missing:
            names = ", ".join(instruction.name for instruction in missing[:_SHOWN])
            more = ", .." if len(missing) > _SHOWN else ""
            raise UsageError(
                f"the profile {path} lacks {len(missing)} instructions: {names}{more}",
                hint="leave out --xla_gpu_pgle_accuracy_checker: the scheduler estimates what is missing",
            )
