"""The verifier: what must hold of a module that XLA accepts, from its graph to the shapes of its instructions."""

from __future__ import annotations

from dataclasses import dataclass

from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.verify.chains import verify_chains
from hlo_run.hlo.verify.config import verify_buffers, verify_schedule
from hlo_run.hlo.verify.module import verify_entry_layout, verify_module
from hlo_run.hlo.verify.transfers import verify_transfers
from hlo_run.ops.buffer_calls import verify_buffer_calls
from hlo_run.ops.infer import infer_module
from hlo_run.ops.layouts import check_layouts
from hlo_run.ops.precision import check_precision


@dataclass(frozen=True, slots=True)
class Strictness:
    """What the verifier refuses beyond what no module may have.

    `mixed_precision` False refuses floats of different widths where an opcode does not say that it takes them;
    `device_pairs` True asks of a send or recv to another device that it says between which ones; `layouts` True holds
    layouts too, which is for modules whose layouts are settled.
    """

    mixed_precision: bool = True
    device_pairs: bool = False
    layouts: bool = False


# What run_hlo_module asks of the modules that it reads, what XLA:GPU asks of those that it compiles, and what its passes
# after layout assignment leave.
READING = Strictness()
COMPILING = Strictness(mixed_precision=False, device_pairs=True)
LAID_OUT = Strictness(mixed_precision=False, device_pairs=True, layouts=True)


def verify(module: HloModule, strictness: Strictness = READING) -> None:
    """Raise ParseError at the first thing that XLA's verifier refuses; shapes that are open are filled on the way."""
    verify_module(module)
    infer_module(module, strictness.mixed_precision)
    verify_entry_layout(module)
    verify_chains(module)
    verify_schedule(module)
    verify_buffers(module)
    verify_buffer_calls(module)
    if not strictness.mixed_precision:
        check_precision(module)
    if strictness.device_pairs:
        verify_transfers(module)
    if strictness.layouts:
        check_layouts(module)
