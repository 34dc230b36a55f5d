"""The opcodes of each trait: sets made from the table once, because passes look up every instruction.

`TRAITS` of `hlo/opcodes/definition.py` says what each trait means. A set of opcodes in another file is that file's own
policy: which opcodes a pass rewrites, refuses or costs.
"""

from __future__ import annotations

from hlo_run.hlo.opcodes.names import Opcode, opcode_of
from hlo_run.hlo.opcodes.table import OPCODES


def _having(trait: str) -> frozenset[Opcode]:
    return frozenset(opcode.name for opcode in OPCODES.values() if trait in opcode.traits)


def _taking(attribute: str) -> frozenset[Opcode]:
    """Return the opcodes that have an attribute."""
    return frozenset(opcode.name for opcode in OPCODES.values() if attribute in opcode.attributes)


def _done(start: Opcode) -> Opcode:
    done = opcode_of(f"{start.removesuffix('-start')}-done")
    assert done is not None, f"{start} has no done"
    return done


ASSOCIATIVE = _having("associative")
ASYNC_START = _having("async_start")
ASYNC_DONE = _having("async_done")
COLLECTIVE = _having("collective")
COMMUTATIVE = _having("commutative")
CONTROL_FLOW = _having("control_flow")
DEVICE_ID = _having("device_id")
DYNAMIC_SIZE = _having("dynamic_size")
ELEMENTWISE = _having("elementwise")
KEEPS_LAYOUT = _having("keeps_layout")
MOVES_ELEMENTS = _having("moves_elements")
NO_CODE = _having("no_code")
SIDE_EFFECT = _having("side_effect")
TAKES_GLOBAL_IDS = _taking("use_global_device_ids")

# The three opcodes around a wrapped computation.
ASYNC: tuple[Opcode, ...] = ("async-start", "async-update", "async-done")
# They run their computations before the next instruction runs.
SYNC_CONTROL_FLOW = CONTROL_FLOW - ASYNC_START
# Collectives that combine the values of several devices.
REDUCING_COLLECTIVE = COLLECTIVE & _taking("to_apply")
# Collectives between pairs of devices.
PERMUTE = _taking("source_target_pairs")
# They send to, or receive from, the host or another device.
TRANSFER = ASYNC_START & _taking("is_host_transfer")
# The done of every start.
DONE_OF: dict[Opcode, Opcode] = {start: _done(start) for start in OPCODES if start in ASYNC_START}
# What a start begins and a done ends, without those of wrapped computations: `send` for `send` and `send-done`.
OPERATION_OF: dict[Opcode, Opcode] = {
    opcode: operation
    for opcode in ASYNC_START | ASYNC_DONE
    if (operation := opcode_of(opcode.removesuffix("-start").removesuffix("-done"))) is not None
}
# The part of operand 0 that the result is, by opcode.
FORWARDED_PART: dict[Opcode, tuple[int, ...]] = {
    opcode.name: opcode.forwards for opcode in OPCODES.values() if opcode.forwards is not None
}
# The result is operand 0 as it is, at once.
FORWARDING: frozenset[Opcode] = NO_CODE & {name for name, part in FORWARDED_PART.items() if not part}
