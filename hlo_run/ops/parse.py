"""HLO text to a valid module: parser, shape inference and verifier in one call."""

from __future__ import annotations

from hlo_run.garbage_collection import paused_collection
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.text.parser import parse_module
from hlo_run.ops.infer import fill_shapes
from hlo_run.ops.verify import verify


def parse(text: str, file: str = "<text>", verified: bool = True) -> HloModule:
    """Return the module of HLO `text`, with every shape filled in, and verified unless `verified` is False.

    `file` is the name that errors and `where` show. The verifier is that of XLA's `run_hlo_module`: layouts may be
    inconsistent, and an instruction may mix float widths. Raises ParseError for invalid HLO, Unsupported for valid HLO that
    hlo-run does not handle.
    """
    with paused_collection():
        module = parse_module(text, file)
        if verified:
            verify(module)
        else:
            fill_shapes(module)
    return module
