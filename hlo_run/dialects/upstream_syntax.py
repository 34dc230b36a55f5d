"""Ops whose text xDSL prints or reads otherwise than upstream MLIR: attribute dictionaries that it drops, line breaks.

`PRINTERS` maps an op class to what our printer calls instead of the op's own `print`; `SYNTAX_OPS` are subclasses that
read the same text and give back instances of xDSL's class, so the rest of the code sees upstream's classes alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xdsl.ir import Operation
from xdsl.printer import Printer

PRINTERS: dict[type[Operation], Callable[[Printer, Any], None]] = {}
SYNTAX_OPS: tuple[type[Operation], ...] = ()
