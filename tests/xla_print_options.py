"""Our options for each set of options that real XLA is asked with (`OPTIONS` of scripts/xla_text.py)."""

from __future__ import annotations

from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.printer import CANONICAL, DEFAULT, FINGERPRINT, SHORT_PARSABLE
from hlo_run.records import replace

OPTIONS = {
    "default": DEFAULT,
    "short_parsable": SHORT_PARSABLE,
    "canonical": CANONICAL,
    "fingerprint": FINGERPRINT,
    "no_layout": replace(DEFAULT, layouts=False, operand_shapes=True, compact_operands=True),
    "no_ids": replace(DEFAULT, ids=False, metadata=False, backend_config=False, indent=1),
}


def as_xla_prints(module: HloModule, label: str) -> str:
    """Return our text of the options `label`, with what we print otherwise on purpose as XLA prints it."""
    found = module.to_string(OPTIONS[label])
    if OPTIONS[label].large_constants:
        # XLA prints -0, which nobody reads as a negative zero, the smallest f8e8m0fnu with two digits, which are another
        # number, and a module's name bare; ours must read back.
        return found.replace("-0.0", "-0").replace("5.8774717541114375e-39", "5.9e-39").replace("HloModule %", "HloModule ")
    return found
