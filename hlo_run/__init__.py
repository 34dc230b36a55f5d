"""hlo-run: a compiler driver for HLO text that mirrors XLA:GPU, in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hlo_run.hlo.graph import HloModule

__version__ = "0.1.0"


def parse(text: str, file: str = "<text>") -> HloModule:
    """Return the module that HLO `text` spells: parsed, with every shape filled and checked, and verified.

    `file` is the name that errors and `where` show. Raises ParseError for text that is not valid HLO, Unsupported for
    valid HLO beyond us.
    """
    # Imported late, so that `import hlo_run` (and `hlo-run --help`) loads no numpy.
    from hlo_run.hlo.parser import parse_module
    from hlo_run.hlo.verify import verify_module
    from hlo_run.ops.infer import infer_module

    module = parse_module(text, file)
    infer_module(module)
    verify_module(module)
    return module
