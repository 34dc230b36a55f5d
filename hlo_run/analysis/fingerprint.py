"""Computes digests of computations. Equal digests mean equal results; names, metadata and places in the text do not count."""

from __future__ import annotations

import hashlib

import numpy as np

from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.values.literal import Array, Literal

# Attributes without influence on the value.
_NO_MEANING = frozenset(("metadata", "origin", "statistics", "frontend_attributes", "sharding"))


def computation_fingerprint(computation: HloComputation) -> str:
    """Return a digest of the instructions reachable from the root, in post-order, with literals in full.

    Layouts count, because they decide which element a kernel reads.
    """
    digest = hashlib.sha256()
    numbers: dict[HloInstruction, int] = {}
    for instruction in computation.post_order():
        numbers[instruction] = len(numbers)
        digest.update(_words(instruction, numbers).encode())
        for leaf in _leaves(instruction.literal) if instruction.opcode == "constant" else ():
            digest.update(np.ascontiguousarray(leaf).tobytes())
    digest.update(f"root {numbers[computation.root]}".encode())
    return digest.hexdigest()


def _words(instruction: HloInstruction, numbers: dict[HloInstruction, int]) -> str:
    operands = ",".join(str(numbers[operand]) for operand in instruction.operands)
    hidden = _NO_MEANING | {"literal"} if instruction.opcode == "constant" else _NO_MEANING
    names = [name for name in sorted(instruction.attrs) if name not in hidden]
    attributes = ";".join(f"{name}={instruction.attrs[name]!r}" for name in names)
    called = ";".join(
        f"{name}={','.join(computation_fingerprint(c) for c in group)}" for name, group in sorted(instruction.called.items())
    )
    return f"{instruction.shape.to_string()} {instruction.opcode}({operands}) {attributes} {called}\n"


def _leaves(literal: Literal) -> list[Array]:
    return [leaf for part in literal for leaf in _leaves(part)] if isinstance(literal, tuple) else [literal]
