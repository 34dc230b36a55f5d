"""The JIT's instruction table: the record of what an instruction does to the function that writes its code."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from hlo_run.backends.host.jit import convert, floating, integer, memory, move, threads

EMITTERS: Mapping[type[Struct], integer.Emit] = {
    **integer.EMITTERS,
    **floating.EMITTERS,
    **move.EMITTERS,
    **convert.EMITTERS,
    **memory.EMITTERS,
    **threads.EMITTERS,
}
