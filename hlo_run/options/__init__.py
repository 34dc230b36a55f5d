"""The flags as frozen records: of a run, of compilation, of what is shown. A flag is a field; passes see compilation's alone."""

from __future__ import annotations

from dataclasses import dataclass, fields

from hlo_run.options.compile import CompileOptions
from hlo_run.options.flag_files import FlagOptions
from hlo_run.options.run import RunOptions
from hlo_run.options.show import ShowOptions

__all__ = ["CompileOptions", "FlagOptions", "Options", "RunOptions", "ShowOptions"]


# The first base comes last in the fields, and in --help.
@dataclass(frozen=True)
class Options(FlagOptions, ShowOptions, CompileOptions, RunOptions):
    """All flags of one command; a field's name is the flag's name, its type and default are the flag's."""

    @property
    def compile(self) -> CompileOptions:
        """The flags of compilation alone, for passes."""
        return CompileOptions(**{field.name: getattr(self, field.name) for field in fields(CompileOptions)})

    @property
    def show(self) -> ShowOptions:
        """The flags of what is shown alone."""
        return ShowOptions(**{field.name: getattr(self, field.name) for field in fields(ShowOptions)})
