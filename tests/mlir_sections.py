"""Runs a section of a `.mlir` test: parse, the rows of `--only`, print.

Flags: `--only=ROW,ROW{option=value}` (rows of the kernel table, in order; none: only parse and print), `--twice` (running
the rows again must change nothing), `--print_locations`, `--print_ir_generic`.
"""

from __future__ import annotations

import re
from importlib import import_module

from text_sections import Section, SectionFailure
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.utils.arg_spec import parse_pipeline

from hlo_run.dialects.context import make_context
from hlo_run.dialects.parse import parse_module
from hlo_run.dialects.printer import print_module

_FOLDERS = {"lower-to-llvm-gpu": "to_llvm", "insert-pdl": "kernel_passes.pdl", "lower-pdl-wait": "kernel_passes.pdl"}
_SWITCHES = ("--twice", "--print_locations", "--print_ir_generic")


def run_mlir(section: Section) -> str:
    """Return the text of the module after the section's rows; the module is verified after each of them."""
    unknown = [flag for flag in section.flags if flag not in _SWITCHES and not flag.startswith("--only=")]
    if unknown:
        raise SectionFailure(f"unknown flags {unknown}")
    passes = [row for flag in section.flags if flag.startswith("--only=") for row in _rows(flag.removeprefix("--only="))]
    module = parse_module(section.text, section.path.name)
    output = _run(passes, module, section)
    if "--twice" in section.flags and (again := _run(passes, module, section)) != output:
        raise SectionFailure(f"a second run changes more; first:\n{output}\nsecond:\n{again}")
    return output


def _run(passes: list[ModulePass], module: ModuleOp, section: Section) -> str:
    for row in passes:
        row.apply(make_context(), module)
        module.verify()
    return print_module(
        module,
        generic="--print_ir_generic" in section.flags,
        print_locations="--print_locations" in section.flags,
    )


def _rows(text: str) -> list[ModulePass]:
    """Return the passes of a comma list; a row's number (`cse-2`) does not count, options stand in braces."""
    passes: list[ModulePass] = []
    for spec in parse_pipeline(text):
        name = re.sub(r"-\d+$", "", spec.name)
        folder = _FOLDERS.get(name, "kernel_passes")
        module = import_module(f"hlo_run.codegen.{folder}.{name.replace('-', '_')}")
        passes.append(getattr(module, "".join(word.capitalize() for word in name.split("-"))).from_spec(spec))
    return passes
