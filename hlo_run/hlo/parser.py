"""HLO text to graph: the module's header, then its computations.

Shapes that the text leaves out stay open (`UNKNOWN_SHAPE`); `ops.infer` fills them.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable

from hlo_run.hlo.attribute_text import (
    parse_bool,
    parse_entry_layout,
    parse_frontend_attributes,
    parse_input_output_alias,
    parse_int,
    parse_raw,
)
from hlo_run.hlo.attributes import AttributeValue, RawText
from hlo_run.hlo.computation_parser import NAME_KINDS, UNKNOWN_SHAPE, ComputationParser
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.lexer import Lexer

__all__ = ["HEADER_ATTRIBUTES", "UNKNOWN_SHAPE", "parse_module"]

HEADER_ATTRIBUTES: dict[str, Callable[[Lexer], AttributeValue]] = {
    "is_scheduled": parse_bool,
    "alias_passthrough_params": parse_bool,
    "replica_count": parse_int,
    "num_partitions": parse_int,
    "entry_computation_layout": parse_entry_layout,
    "frontend_attributes": parse_frontend_attributes,
    "input_output_alias": parse_input_output_alias,
    "buffer_donor": parse_raw,
    "allow_spmd_sharding_propagation_to_parameters": parse_raw,
    "allow_spmd_sharding_propagation_to_output": parse_raw,
    "origin_recovery_table": parse_raw,
    "debug_attributes": parse_raw,
}
# The tables end where a line begins a computation.
_STACK_FRAMES = re.compile(r"FileNames\b.*?(?=\n[ \t]*(?:ENTRY\b|%|[A-Za-z_][\w.\-]*[ \t]*(?:\([^\n]*)?\{[ \t]*\n))", re.DOTALL)


def parse_module(text: str, file: str = "<text>") -> HloModule:
    """Return the module that `text` spells, with `file` as the name in every `where`.

    Raises ParseError for text that is not HLO and Unsupported for valid HLO beyond us. Shapes are not checked here.
    """
    # Nothing of a growing graph is garbage, yet the collector would walk it again and again: a third of the time.
    collects = gc.isenabled()
    gc.disable()
    try:
        return _module(Lexer(text, file))
    finally:
        if collects:
            gc.enable()


def _module(lexer: Lexer) -> HloModule:
    if lexer.kind == "eof":
        raise lexer.error("the text is empty", hint="a module begins with 'HloModule name'")
    if lexer.value == "HloModule" and lexer.kind == "ident":
        name, attributes = _header(lexer)
        module = _computations(lexer, name)
        module.attrs = attributes
        if attributes.get("is_scheduled"):
            module.schedule = {c: list(c.instructions) for c in module.computations if not c.is_fusion}
        return module
    if lexer.value == "ENTRY" or lexer.text[lexer.pos :].lstrip()[:1] == "{":
        return _computations(lexer, None)
    raise lexer.error(
        f"expects 'HloModule', 'ENTRY' or a computation, but sees {lexer.seen()}",
        hint="a module begins with 'HloModule name'; is this an HLO text file?",
    )


def _header(lexer: Lexer) -> tuple[str, dict[str, AttributeValue]]:
    lexer.advance()
    name = _module_name(lexer)
    lexer.take(":")
    attributes: dict[str, AttributeValue] = {}
    while lexer.take(","):
        attribute = lexer.value
        if lexer.kind != "attr":
            raise lexer.error(f"expects a module attribute, but sees {lexer.seen()}")
        if attribute in attributes:
            raise lexer.error(f"attribute {attribute} already exists")
        if attribute not in HEADER_ATTRIBUTES:
            raise lexer.error(f'unexpected attribute "{attribute}". Allowed attributes: {", ".join(sorted(HEADER_ATTRIBUTES))}')
        attributes[attribute] = HEADER_ATTRIBUTES[attribute](lexer)
    if lexer.value == "FileNames":
        attributes["stack_frames"] = _stack_frames(lexer)
    return name, attributes


def _module_name(lexer: Lexer) -> str:
    if lexer.kind not in (*NAME_KINDS, "colon"):
        raise lexer.error(f"expects a module name, but sees {lexer.seen()}")
    name = lexer.value
    lexer.advance()
    return name


def _stack_frames(lexer: Lexer) -> RawText:
    """Return the four tables as written; they matter to `metadata` alone, which is kept as written as well."""
    found = _STACK_FRAMES.match(lexer.text, lexer.start)
    if found is None:
        raise lexer.error("the stack-frame tables are not followed by a computation")
    lexer.jump(found.end())
    return RawText(found[0].strip())


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
