"""Parse HLO text: a module with its header, bare computations, or a single instruction.

Shapes that the text omits are `UNKNOWN_SHAPE`; `ops.infer` fills them in.
"""

from __future__ import annotations

from hlo_run.errors import ParseError
from hlo_run.garbage_collection import paused_collection
from hlo_run.hlo.attributes.lexer import Lexer
from hlo_run.hlo.attributes.shape_text import starts_shape
from hlo_run.hlo.attributes.stack_frames import FrameTables
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.printer import install as print_parts
from hlo_run.hlo.text.computation_parser import UNKNOWN_SHAPE, ComputationParser
from hlo_run.hlo.text.module_header import HEADER_ATTRIBUTES, parse_header
from hlo_run.hlo.values.metadata import OpMetadata
from hlo_run.records import replace

__all__ = ["HEADER_ATTRIBUTES", "UNKNOWN_SHAPE", "parse_module"]

print_parts()


def parse_module(text: str, file: str = "<text>") -> HloModule:
    """Parse `text` into a module; `file` is the name in every `where`.

    Raises ParseError for text that is not HLO, and Unsupported for valid HLO that we do not handle. Shapes are not checked.
    """
    try:
        with paused_collection():
            return _module(Lexer(text, file))
    except RecursionError:
        # Shapes and computations use explicit stacks; anything else is nested deeply only in meaningless text.
        raise ParseError("maximum recursion depth exceeded", hint="something in the text is nested very deep") from None


def _module(lexer: Lexer) -> HloModule:
    if lexer.kind == "eof":
        raise lexer.error("the text is empty", hint="a module begins with 'HloModule name'")
    if lexer.value == "HloModule" and lexer.kind == "ident":
        name, attributes = parse_header(lexer)
        tables = FrameTables(lexer) if lexer.sees("FileNames") else None
        module = _computations(lexer, name)
        module.attrs.update(attributes)
        if attributes.get("is_scheduled"):
            _schedule_as_written(module)
        _number_frames(module, tables)
        return module
    if lexer.value == "ENTRY" or lexer.is_followed_by("{"):
        return _computations(lexer, None)
    return _single_instruction(lexer)


def _computations(lexer: Lexer, name: str | None) -> HloModule:
    parser = ComputationParser(lexer)
    parser.computation()
    while lexer.kind != "eof":
        parser.computation()
    entry = parser.entry or parser.ordered[-1]
    module = HloModule(name or f"module_{entry.name}", has_header=name is not None, has_entry=parser.entry is not None)
    for computation in parser.ordered:
        module.add_computation(computation, is_entry=computation is entry)
    return module


def _single_instruction(lexer: Lexer) -> HloModule:
    """Return a scheduled module `_` with one instruction in its entry, also `_`."""
    is_named = lexer.value == "ROOT" or (lexer.at_name and lexer.is_followed_by("="))
    if not is_named and not starts_shape(lexer):
        raise lexer.error(
            f"expects 'HloModule', 'ENTRY', a computation or an instruction, but sees {lexer.seen()}",
            hint="a module begins with 'HloModule name'; is this an HLO text file?",
        )
    parser = ComputationParser(lexer)
    entry = parser.single_instruction()
    module = HloModule("_")
    module.add_computation(entry, is_entry=True)
    for computation in parser.ordered:
        if computation is not entry:
            module.add_computation(computation)
    _schedule_as_written(module)
    module.has_default_entry_layout = True
    return module


def _schedule_as_written(module: HloModule) -> None:
    module.schedule = {c: list(c.instructions) for c in module.computations if not c.is_fusion}


def _number_frames(module: HloModule, tables: FrameTables | None) -> None:
    """Renumber the stack frames of instructions by first use; drop a frame that is not in the tables."""
    if tables is not None:
        module.attrs["stack_frames"] = tables.used
    for instruction in module.instructions:
        metadata = instruction.metadata
        if isinstance(metadata, OpMetadata) and metadata.stack_frame_id:
            number = tables.resolve(metadata.stack_frame_id) if tables else 0
            instruction.attrs["metadata"] = replace(metadata, stack_frame_id=number)
