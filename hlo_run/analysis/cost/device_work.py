"""Lists the work of an optimised module on the device: for each executed instruction what it computes and the bytes it moves.

Treats the modules of all compilers alike. An instruction in the body of a loop counts once. Bytes are those of XLA's
`HloCostAnalysis`, so a slice of an operand counts the bytes of the slice.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
from msgspec import Struct

from hlo_run.analysis.cost.module_cost import BYTES, OUTPUT_KEY, buffer_bytes, cost_analysis
from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.hlo.opcodes.traits import COMMUTATIVE, CONTROL_FLOW, DEVICE_ID, NO_CODE
from hlo_run.hlo.values.literal import Literal
from hlo_run.hlo.values.shape import Shape

# Instructions that only name existing values, and ends of asynchronous instructions.
_NO_WORK = NO_CODE | CONTROL_FLOW | DEVICE_ID | opcode_set("async-update async-done copy-done send-done recv-done")
# Attributes without influence on values, or specific to a compiler.
_SILENT = frozenset(
    """metadata origin statistics frontend_attributes sharding backend_config parameter_number literal channel_id kind
    custom_call_has_side_effect api_version output_to_operand_aliasing operand_precision""".split()
)
_MAX_LISTED_OPS = 8


class Work(Struct, frozen=True):
    """An instruction that runs on the device.

    `kind` is a fusion's kind, a custom call's target or the opcode. `ops` counts the computed instructions by opcode and shape.
    `digest` is equal for two instructions that compute the same, regardless of names and the order of operands.
    `bytes_accessed` are the bytes read and the bytes written.
    """

    name: str
    kind: str
    shape: str
    ops: Counter[str]
    digest: str
    bytes_accessed: int
    bytes_written: int

    @property
    def contents(self) -> str:
        """The computed instructions by opcode alone, the most frequent first."""
        counts: Counter[str] = Counter()
        for op, count in self.ops.items():
            counts[op.partition(" ")[0]] += count
        listed = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        words = [f"{count} {opcode}" if count > 1 else opcode for opcode, count in listed[:_MAX_LISTED_OPS]]
        return ", ".join([*words, "..."] if len(listed) > _MAX_LISTED_OPS else words)


def device_work(module: HloModule) -> list[Work]:
    """Return the work of all executed computations, callers first, in the order of their instructions."""
    costs = cost_analysis(module).instructions
    return [
        _work(instruction, costs[instruction])
        for computation in executed_computations(module)
        for instruction in computation.instructions
        if instruction.opcode not in _NO_WORK
    ]


def _work(instruction: HloInstruction, cost: Mapping[str, float]) -> Work:
    if instruction.opcode == "fusion":
        body = instruction.fused_computation
        inside = [i for i in body.instructions if i.opcode not in ("parameter", "tuple")]
        kind, digest = instruction.fusion_kind, _computation_digest(body)
    else:
        inside = [instruction]
        parameters = {operand: _hash(f"parameter {_words(operand.shape)}") for operand in instruction.operands}
        kind, digest = _kind(instruction), _digest(instruction, parameters)
    ops = Counter(f"{i.opcode} {_words(i.shape)}" for i in inside)
    total, written = _bytes(instruction, cost)
    return Work(instruction.name, kind, _words(instruction.shape), ops, digest, total, written)


def _kind(instruction: HloInstruction) -> str:
    return instruction.custom_call_target or instruction.opcode


def _words(shape: Shape) -> str:
    return shape.to_string()


def _bytes(instruction: HloInstruction, cost: Mapping[str, float]) -> tuple[int, int]:
    """Return the bytes accessed, and the bytes written among them. A library call accesses its operands and results."""
    if instruction.opcode != "custom-call":
        return int(cost[BYTES]), int(cost[OUTPUT_KEY])
    written = sum(buffer_bytes(leaf) for _, leaf in instruction.shape.leaves()) - _workspace_bytes(instruction)
    read = sum(buffer_bytes(leaf) for operand in dict.fromkeys(instruction.operands) for _, leaf in operand.shape.leaves())
    return read + written, written


def _workspace_bytes(instruction: HloInstruction) -> int:
    """Return the bytes of scratch memory, the last result of a library call."""
    if instruction.opcode != "custom-call" or not instruction.shape.is_tuple or len(instruction.shape.tuple_shapes) < 2:
        return 0
    last = instruction.shape.tuple_shapes[-1]
    return last.size_bytes if last.is_array and last.element_type in ("s8", "u8") and last.rank == 1 else 0


def _hash(text: str, *data: bytes) -> str:
    digest = hashlib.sha256(text.encode())
    for part in data:
        digest.update(part)
    return digest.hexdigest()[:16]


def _computation_digest(computation: HloComputation) -> str:
    """Return a digest of the set of returned values. Parameters count only by their shapes."""
    known: dict[HloInstruction, str] = {}
    for instruction in computation.post_order():
        if instruction.opcode == "parameter":
            known[instruction] = _hash(f"parameter {_words(instruction.shape)}")
        else:
            known[instruction] = _digest(instruction, known)
    root = computation.root
    results = sorted(known[operand] for operand in root.operands) if root.opcode == "tuple" else [known[root]]
    used = sorted(known[parameter] for parameter in computation.parameters if parameter.users)
    return _hash(f"{len(known)} {' '.join(results)} of {' '.join(used)}")


def _digest(instruction: HloInstruction, known: dict[HloInstruction, str]) -> str:
    operands = [known[operand] for operand in instruction.operands]
    if instruction.opcode in COMMUTATIVE:
        operands.sort()
    attributes = ";".join(f"{name}={instruction.attrs[name]!r}" for name in sorted(instruction.attrs) if name not in _SILENT)
    called = ";".join(_computation_digest(c) for _, group in sorted(instruction.called.items()) for c in group)
    literal = instruction.literal if instruction.opcode == "constant" else ()
    data = [np.ascontiguousarray(leaf).tobytes() for leaf in _leaves(literal)]
    return _hash(f"{_words(instruction.shape)} {instruction.opcode}({','.join(operands)}) {attributes} {called}", *data)


def _leaves(literal: Literal) -> Iterator[np.ndarray]:
    if isinstance(literal, tuple):
        for part in literal:
            yield from _leaves(part)
    else:
        yield literal
