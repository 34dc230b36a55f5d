"""The flags of the programs `hlo-run` and `hlo-opt`, by the sections of --help."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from hlo_run.options import CompileOptions, FlagOptions, Options, RunOptions, ShowOptions
from hlo_run.options.dump import DumpOptions
from hlo_run.options.opt import OptFlags
from hlo_run.options.xla_flags import XlaFlags

FieldTable: TypeAlias = "Mapping[str, dataclasses.Field[object]]"


@dataclass(frozen=True, slots=True)
class Flags:
    """The flags of a program by the sections of its help. `short_names` maps a second spelling to the name of its flag."""

    sections: Mapping[str, FieldTable]
    short_names: Mapping[str, str]

    @property
    def fields(self) -> dict[str, dataclasses.Field[object]]:
        """All flags by name."""
        return {name: field for table in self.sections.values() for name, field in table.items()}


def _fields_of(record: Any) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(record) if not field.metadata.get("hidden")}


FIELDS = _fields_of(Options)
_SECTIONS = {
    "Run": _fields_of(RunOptions),
    "Compile": {name: field for name, field in _fields_of(CompileOptions).items() if name not in _fields_of(XlaFlags)},
    "Show": {name: field for name, field in _fields_of(ShowOptions).items() if name not in _fields_of(DumpOptions)},
    "Dump": _fields_of(DumpOptions),
    "XLA": _fields_of(XlaFlags),
    "Flags": _fields_of(FlagOptions),
}
_SHORT_NAMES = {
    "only": "xla_enable_hlo_passes_only",
    "disable": "xla_disable_hlo_passes",
    "o": "output_file",
    "xla_flagfile": "flagfile",
}
# Flags of XLA's hlo_runner_main that mean the same as one of ours, and a flag of XLA that has another name than its field.
_XLA_NAMES = {
    "random_seed": "seed",
    "device_type": "platform",
    "disable_all_hlo_passes": "xla_disable_all_hlo_passes",
    "xla_dump_as_text": "xla_dump_hlo_as_text",
    "xla_dump_as_proto": "xla_dump_hlo_as_proto",
    "xla_gpu_executable_terminate_timeout": "xla_gpu_executable_terminate_timeout_seconds",
}
FLAGS = Flags(_SECTIONS, {**_SHORT_NAMES, "j": "jobs", **_XLA_NAMES})
OWN_OPT_FLAGS = tuple(_fields_of(OptFlags))
_RUNS_ONLY = frozenset(
    """output output_format kernel_ir_file compile_processes xla_diff explain run_test_hlo_passes run_xla_backend_only
    is_spmd_partitioned_module list_passes
    check_each_pass golden_dir golden_stages golden_tolerance update_goldens""".split()
)


def _without_runs(section: str) -> dict[str, dataclasses.Field[object]]:
    return {name: field for name, field in _SECTIONS[section].items() if name not in _RUNS_ONLY}


# `hlo-opt` has none of the flags that only matter when a module runs.
OPT_FLAGS = Flags(
    {
        "Run": {**_fields_of(OptFlags), "input_format": FIELDS["input_format"]},
        **{section: _without_runs(section) for section in ("Compile", "Show", "Dump", "XLA", "Flags")},
    },
    {**_SHORT_NAMES, "format": "input_format"},
)
