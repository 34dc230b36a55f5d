"""Split collective-permutes without cycles in loops into messages, which later iterations can begin early.

    p = f32[8] collective-permute(x), source_target_pairs={{0,1},{1,2}}
        =>   t = token[] after-all()
             r = (f32[8], u32[], token[]) recv(t),    frontend_attributes={_xla_send_recv_source_target_pairs={{0,1},{1,2}}}
             s = (f32[8], u32[], token[]) send(x, t), frontend_attributes={..}, control-predecessors={r}
             d = (f32[8], token[]) recv-done(r), control-predecessors={s}
             p = f32[8] get-tuple-element(d), index=0                                               (and send-done(s))

The first permute of an element of a loop's state, and a second one that closes a cycle with it, are marked for pipelining:
`_xla_send_recv_pipeline`. Messages follow one another, and collectives that conflict with them follow the last. XLA's
`CollectivePermuteDecomposer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, remove_unused
from hlo_run.hlo.frontend_attributes import set_frontend_attribute
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.attribute_values import FrontendAttributes
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.verify.transfers import PAIRS
from hlo_run.hlo_passes.collectives.communication.channels import is_ordered
from hlo_run.hlo_passes.collectives.communication.conflicts import conflicting_collectives
from hlo_run.pass_support.hlo_pass import PassContext

_PIPELINE = "_xla_send_recv_pipeline"
_STREAM = ("_xla_gpu_collective_stream", "p2p")

Pairs = Sequence[tuple[int, ...]]


class _Messages(Struct, frozen=True):
    """The two halves of the send and of the receive that a permute became."""

    send: HloInstruction
    send_done: HloInstruction
    recv: HloInstruction
    recv_done: HloInstruction


class CollectivePermuteDecomposer(Struct, frozen=True):
    """The pass; see the module's docstring.

    Values of less than `threshold_in_bytes` stay. If `overlaps_stages`, only permutes of an element of the state are split,
    whatever their size, one per loop, and run with what conflicts with them on a stream of their own.
    """

    name: ClassVar[str] = "collective-permute-decomposer"
    threshold_in_bytes: int = 0
    overlaps_stages: bool = False

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        if not module.instructions_of("collective-permute"):
            return
        callers = _callers(module)
        for computation in callers:
            loops = callers[computation]
            if len(loops) == 1 and loops[0].opcode == "while":
                self._split_all(computation, is_body=loops[0].while_body is computation)

    def _split_all(self, computation: HloComputation, is_body: bool) -> None:
        permutes = [i for i in computation.post_order() if i.opcode == "collective-permute" and self._takes(i)]
        marked = _pipelined(permutes) if is_body else ()
        if self.overlaps_stages and permutes:
            permutes = [max(permutes, key=lambda permute: len(permute.source_target_pairs))]
        conflicting = conflicting_collectives(computation, permutes)
        made = [self._split(p, str(marked.index(p)) if p in marked else "") for p in permutes]
        if self.overlaps_stages:
            for instruction in (*conflicting, *(half for one in made for half in (one.send, one.recv))):
                set_frontend_attribute(instruction, *_STREAM)
        for first, second in pairwise(made):
            second.recv.control_predecessors = [*second.recv.control_predecessors, first.send]
            second.recv_done.control_predecessors = [*second.recv_done.control_predecessors, first.send_done]
        for instruction in conflicting if made else ():
            instruction.control_predecessors = [*instruction.control_predecessors, made[-1].send_done]

    def _takes(self, permute: HloInstruction) -> bool:
        if len(permute.operands) != 1 or not permute.shape.is_array or is_ordered(permute):
            return False
        is_wanted = _is_element(permute) if self.overlaps_stages else permute.shape.size_bytes >= self.threshold_in_bytes
        return is_wanted and not _has_cycle(permute.source_target_pairs)

    def _split(self, permute: HloInstruction, stage: str) -> _Messages:
        """Replace a permute by messages. `stage` is the mark of a pipelined one, otherwise empty."""
        editor, (value,), name = Editor(permute), permute.operands, permute.name
        pairs = ",".join(f"{{{source},{target}}}" for source, target in permute.source_target_pairs)
        given = permute.frontend_attributes
        of_done = ((_PIPELINE, stage),) if stage else ()
        # A dictionary: what the permute had goes first and is replaced by what has the same name.
        entries = dict([*(given.entries if given else ()), (PAIRS, f"{{{pairs}}}"), *of_done])
        attributes, marks = FrontendAttributes(tuple(sorted(entries.items()))), FrontendAttributes(of_done)
        plain = Editor(permute, derives=False)
        token = Shape("token")
        context = Shape.make_tuple((value.shape, Shape.array("u32", ()), token))
        received = Shape.make_tuple((value.shape, token))
        first = plain.add("after-all", token, name=f"{name}-after-all")
        recv = editor.add("recv", context, [first], name=f"{name}-recv")
        send = editor.add("send", context, [value, first], name=f"{name}-send")
        recv_done = plain.add("recv-done", received, [recv], name=f"{name}-recv-done")
        send_done = plain.add("send-done", token, [send], name=f"{name}-send-done")
        for half, own in ((recv, attributes), (send, attributes), (recv_done, marks), (send_done, marks)):
            if permute.channel_id is not None:
                half.attrs["channel_id"] = permute.channel_id
            if own.entries:
                half.attrs["frontend_attributes"] = own
        data = plain.add("get-tuple-element", value.shape, [recv_done], name=f"{name}-recv-data", index=0)
        assert editor.computation.module is not None, "the computation is in a module"
        editor.computation.module.replace_uses(permute, data)
        editor.computation.remove(permute)
        remove_unused([value])
        if self.overlaps_stages:
            send.control_predecessors = [recv_done]
        else:
            send.control_predecessors, recv_done.control_predecessors = [recv], [send]
        return _Messages(send, send_done, recv, recv_done)


def _callers(module: HloModule) -> dict[HloComputation, list[HloInstruction]]:
    """Return the instructions that call each computation that has permutes."""
    callers: dict[HloComputation, list[HloInstruction]] = {}
    for instruction in module.instructions:
        for called in instruction.called_computations:
            callers.setdefault(called, []).append(instruction)
    owners = {permute.parent for permute in module.instructions_of("collective-permute")}
    return {computation: callers[computation] for computation in callers if computation in owners}


def _is_element(permute: HloInstruction) -> bool:
    (value,) = permute.operands
    return value.opcode == "get-tuple-element" and value.operands[0].opcode == "parameter"


def _has_cycle(pairs: Pairs) -> bool:
    targets: dict[int, int] = {pair[0]: pair[1] for pair in pairs}
    while targets:
        seen, device = set[int](), next(iter(targets))
        while device in targets and device not in seen:
            seen.add(device)
            device = targets[device]
        if device in seen:
            return True
        targets = {source: target for source, target in targets.items() if source not in seen}
    return False


def _pipelined(permutes: Sequence[HloInstruction]) -> Sequence[HloInstruction]:
    """Return the permutes to pipeline: at most two, which make a cycle, the edge that closes it first."""
    first, *others = [permute for permute in permutes if _is_element(permute)] or [None]
    if first is None:
        return ()
    for other in others:
        assert other is not None, "only the first one may be missing"
        for back, forward in ((first, other), (other, first)):
            if _closes(back.source_target_pairs, forward.source_target_pairs):
                return (back, forward)
    return (first,)


def _closes(back: Pairs, forward: Pairs) -> bool:
    """True if one pair makes a cycle with the others, which count up or down all devices."""
    last = len(forward)
    up, down = [(n, n + 1) for n in range(last)], [(n + 1, n) for n in range(last)]
    pairs = [tuple(pair) for pair in forward]
    return [tuple(pair) for pair in back] in ([(last, 0)] if pairs == up else None, [(0, last)] if pairs == down else None)
