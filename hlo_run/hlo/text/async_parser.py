"""Parse async ops: check them, and expand their short form.

`add-start(a, b)` is short for an `async-start` of a computation with one `add`; this file makes the computation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hlo_run.hlo.async_ops import MAIN_THREAD, async_start, execution_thread
from hlo_run.hlo.attributes.lexer import Lexer
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.names import Opcode, opcode_of
from hlo_run.hlo.opcodes.traits import ASYNC_START
from hlo_run.hlo.text.instruction_rules import Draft, apply_rules
from hlo_run.hlo.text.pending import Attributes, Pending, check_required
from hlo_run.walks import walk

# These attributes of an async op are set on the wrapped instruction too; the last async op of the chain wins.
_SHARED_ATTRIBUTES = ("metadata", "backend_config", "frontend_attributes", "origin")
_SUGAR = re.compile(r"(.+)-(start|update|done)")
_WITHOUT_SUGAR = frozenset(start.removesuffix("-start") for start in ASYNC_START)


def split_sugar(word: str) -> tuple[Opcode, Opcode] | None:
    """Return (`add`, `async-start`) for `add-start`; None if `word` is not the short form of an async op."""
    found = _SUGAR.fullmatch(word)
    wrapped = opcode_of(found[1]) if found is not None else None
    if found is None or wrapped is None or wrapped in _WITHOUT_SUGAR:
        return None
    chain = opcode_of(f"async-{found[2]}")
    assert chain is not None, "the three words of the expression have an opcode"
    return wrapped, chain


def share_attributes(instruction: HloInstruction) -> None:
    """Copy an async op's metadata, backend config and frontend attributes to the root of its computation."""
    start = async_start(instruction)
    if start is None or "calls" not in start.called:
        return
    root = start.called["calls"][0].root
    for name in _SHARED_ATTRIBUTES:
        if name in instruction.attrs:
            root.attrs[name] = instruction.attrs[name]


def finish_async(lexer: Lexer, pending: Pending) -> HloComputation | None:
    """Check an async op. A start in short form gets its wrapped computation, which is returned; else returns None."""
    if pending.opcode.name != "async-start":
        _check_chain(lexer, pending)
        return None
    operands = pending.shape.tuple_shapes[:1]
    if len(pending.shape.tuple_shapes) < 2 or not pending.shape.is_tuple or not operands[0].is_tuple:
        message = "AsyncStart expects the op shape to be in the form of ((async-operands), async-outputs, state)."
        raise lexer.error(message, pending.start)
    body = None
    if pending.wrapped is not None:
        body = _wrap(lexer, pending)
        pending.called = {"calls": (body,)}
    _set_thread(pending.called.get("calls", ()), str(pending.attributes.get("async_execution_thread", MAIN_THREAD)))
    return body


def _set_thread(computations: Iterable[HloComputation], thread: str) -> None:
    """Let computations, and those that they call, run on a thread; asynchronous ops in them start others on it, too."""
    for computation in walk(computations, lambda caller: [c for i in caller.instructions for c in i.called_computations]):
        computation.execution_thread = thread
        for instruction in computation.instructions:
            if instruction.opcode == "async-start":
                instruction.attrs.pop("async_execution_thread", None)
                if thread != MAIN_THREAD:
                    instruction.attrs["async_execution_thread"] = thread


def _wrap(lexer: Lexer, pending: Pending) -> HloComputation:
    """Move the attributes of the wrapped opcode to an instruction in a new computation; return the computation."""
    wrapped = pending.wrapped
    assert wrapped is not None
    own = {name: pending.attributes.pop(name) for name in wrapped.attributes if name in pending.attributes}
    check_required(lexer, wrapped, (*own, *pending.called), pending.start)
    count = len(pending.shape.tuple_shapes[0].tuple_shapes)
    if wrapped.arity is not None and wrapped.arity != count:
        raise lexer.error(f"expects {wrapped.arity} operands, but has {count} operands", pending.start)
    if wrapped.has_argument:
        raise lexer.error(f"'{wrapped.name}' cannot be async", pending.start)
    return _wrapping_computation(lexer, pending, wrapped.name, own)


def _wrapping_computation(lexer: Lexer, pending: Pending, opcode: Opcode, attributes: Attributes) -> HloComputation:
    """Return a computation of parameters and one `opcode` on them, as XLA's parser makes for `opcode-start`."""
    where, start_shape = lexer.where(pending.start), pending.shape
    computation = HloComputation("async_wrapped", where)
    operands: list[HloInstruction] = []
    for number, shape in enumerate(start_shape.tuple_shapes[0].tuple_shapes):
        parameter = HloInstruction("async_param", "parameter", shape, attrs={"parameter_number": number}, where=where)
        operands.append(computation.add(parameter))
    draft = Draft(pending.name, opcode, start_shape.tuple_shapes[1], operands, attributes, pending.called)
    apply_rules(lexer, pending.start, draft)
    root = HloInstruction(opcode, opcode, draft.shape, draft.operands, attributes, draft.called, where)
    computation.add(root, is_root=True)
    return computation


def _check_chain(lexer: Lexer, pending: Pending) -> None:
    """Compare the computation and thread of an async-update or async-done with its start's, and drop them."""
    start = None
    if len(pending.operands) == 1 and pending.operands[0].opcode in ("async-start", "async-update"):
        start = async_start(pending.operands[0])
    if start is None:
        raise lexer.error("AsyncUpdate and AsyncDone expect a single async op as their operand.", pending.start)
    # What a backend keeps in the context, after operands and results, does not matter.
    if pending.opcode.name == "async-update" and pending.shape.tuple_shapes[:2] != pending.operands[0].shape.tuple_shapes[:2]:
        raise lexer.error("AsyncUpdate expects the op shape to be the same as the operand shape.", pending.start)
    computation = start.called["calls"][0]
    for named in pending.called.pop("calls", ()):
        if named is not computation:
            message = f"Expect async_wrapped_computation to be {computation.name}, but got {named.name}"
            raise lexer.error(message, pending.start)
    if pending.wrapped is not None and computation.root.opcode != pending.wrapped.name:
        message = f"Expect async wrapped opcode to be {computation.root.opcode}, but got {pending.wrapped.name}"
        raise lexer.error(message, pending.start)
    thread = pending.attributes.pop("async_execution_thread", None)
    if thread is not None and str(thread) != execution_thread(start):
        message = f"Expect async_execution_thread to be {execution_thread(start)}, but got {thread}"
        raise lexer.error(message, pending.start)
