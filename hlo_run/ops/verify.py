"""The verifier: check a module as XLA does, from its graph to the shapes of its instructions."""

from __future__ import annotations

from msgspec import Struct

from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.verify.chains import verify_chains
from hlo_run.hlo.verify.config import verify_buffers, verify_schedule
from hlo_run.hlo.verify.module import verify_entry_layout, verify_module
from hlo_run.hlo.verify.transfers import verify_transfers
from hlo_run.ops.buffer_calls import verify_buffer_calls
from hlo_run.ops.infer import infer_module
from hlo_run.ops.layouts import check_broadcasts, check_layouts, check_windows
from hlo_run.ops.precision import check_precision


class Strictness(Struct, frozen=True):
    """The optional checks of the verifier.

    - `mixed_precision=False` refuses operands with different float widths, except for opcodes that support them.
    - `device_pairs=True` requires source-target pairs on sends and recvs between devices.
    - `layouts=True` checks layouts, after layout assignment.
    - `windows=True` requires ascending window dimensions of scatters, before layout normalization.
    - `broadcasts=True` requires ascending dimensions of broadcasts, after broadcast_canonicalizer.
    """

    mixed_precision: bool = True
    device_pairs: bool = False
    layouts: bool = False
    windows: bool = True
    broadcasts: bool = False


# The checks of run_hlo_module for modules that it reads, of XLA:GPU for modules that it compiles, and after its layout
# assignment.
READING = Strictness()
COMPILING = Strictness(mixed_precision=False, device_pairs=True)
LAID_OUT = Strictness(mixed_precision=False, device_pairs=True, layouts=True, windows=False)


def verify(module: HloModule, strictness: Strictness = READING) -> None:
    """Raise ParseError at the first error that XLA's verifier refuses as well; fills open shapes."""
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
    if strictness.windows:
        check_windows(module)
    if strictness.broadcasts:
        check_broadcasts(module)
