"""Names the attribute that tells which HLO instruction an operation comes from."""

from __future__ import annotations

from typing import Final

HLO_OP: Final = "hlo.op"
