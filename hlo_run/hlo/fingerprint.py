"""Compute the digest of a module's meaning, independent of names, metadata and the order of computations."""

from __future__ import annotations

import hashlib

from hlo_run.hlo.graph import HloComputation, HloModule
from hlo_run.hlo.instruction_printer import InstructionPrinter
from hlo_run.hlo.print_options import FINGERPRINT, PrintOptions
from hlo_run.hlo.printer import computation_order, header_to_string, instruction_order
from hlo_run.records import replace

# XLA's fingerprint leaves out most constants; this one leaves out nothing that has a meaning.
_OPTIONS = replace(
    FINGERPRINT, essential_constants=False, large_constants=True, backend_config=True, feed_configs=True, origin=False
)


def module_fingerprint(module: HloModule) -> str:
    """Return a SHA-256 digest (hex) of the header and all computations."""
    digests: dict[HloComputation, str] = {}
    for computation in computation_order(module):
        digests[computation] = _digest(computation, digests)
    lines = [header_to_string(module, _OPTIONS), digests[module.entry]]
    lines += sorted(digest for computation, digest in digests.items() if not computation.callers)
    return _sha256(lines)


def _digest(computation: HloComputation, digests: dict[HloComputation, str]) -> str:
    """Return the digest of one computation; its text has the digests of called computations in place of their names."""

    def called(callee: HloComputation, options: PrintOptions, indent: int) -> str:
        # A computation in a cycle of calls has no digest; other code refuses such a module.
        return digests.get(callee, "itself")

    printer = InstructionPrinter(_OPTIONS, 0, called)
    lines = [computation.execution_thread]
    for instruction in instruction_order(computation):
        lines.append(printer.text(instruction))
        lines += [f"after {printer.name(predecessor)}" for predecessor in instruction.control_predecessors]
    lines.append(f"root {printer.name(computation.root)}")
    return _sha256(lines)


def _sha256(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
