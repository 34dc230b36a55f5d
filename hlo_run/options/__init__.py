"""The flags as frozen records, one field per flag: run, compile, show, flag files. Passes see only CompileOptions."""

from __future__ import annotations

from dataclasses import fields

from hlo_run.options.compile import CompileOptions
from hlo_run.options.flag import flag_record
from hlo_run.options.flag_files import FlagOptions
from hlo_run.options.run import RunOptions
from hlo_run.options.show import ShowOptions

__all__ = ["CompileOptions", "FlagOptions", "Options", "RunOptions", "ShowOptions"]


# Dataclass fields follow the bases from last to first, and --help follows the fields.
@flag_record
class Options(FlagOptions, ShowOptions, CompileOptions, RunOptions):
    """All flags of one command. A field has the name, type and default of its flag."""

    @property
    def compile(self) -> CompileOptions:
        """Only the flags of compilation, for passes."""
        return CompileOptions(**{field.name: getattr(self, field.name) for field in fields(CompileOptions)})

    @property
    def show(self) -> ShowOptions:
        """Only the flags that decide about output."""
        return ShowOptions(**{field.name: getattr(self, field.name) for field in fields(ShowOptions)})
