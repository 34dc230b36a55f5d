"""Messages by channel: the send, recv, send-done and recv-done of one channel, and where loops carry them on.

XLA's pipelining moves a message over the back edge of a loop. Then the loop body has all four, and so has the computation of the
loop. Two messages that belong together (the last device's to the first one, and all others) run on the pipelines 0 and 1.
"""

from __future__ import annotations

from msgspec import Struct, field

from hlo_run.analysis.latency.async_kinds import async_kind
from hlo_run.errors import InternalError
from hlo_run.hlo.frontend_attributes import frontend_attribute
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.opcodes.traits import ASYNC_START, COLLECTIVE, TRANSFER

_PIPELINE = "_xla_send_recv_pipeline"
_PARTS: tuple[Opcode, ...] = ("recv", "send", "recv-done", "send-done")
_MOST_IN_LOOP = 2


class Message(Struct, eq=False):
    """The parts of a message in one computation by opcode. `loop` is the loop that carries it on, known only beside the loop."""

    computation: HloComputation
    parts: dict[str, HloInstruction] = field(default_factory=dict[str, HloInstruction])
    loop: HloInstruction | None = None

    def part(self, opcode: Opcode) -> HloInstruction:
        """Return the instruction with an opcode of `recv`, `send`, `recv-done` and `send-done`."""
        return self.parts[opcode]

    @property
    def is_whole(self) -> bool:
        """True if all four instructions exist."""
        return len(self.parts) == len(_PARTS)

    @property
    def pipeline(self) -> str:
        """The pipeline of send and recv; empty if they differ or have none."""
        one, two = (frontend_attribute(self.parts[opcode], _PIPELINE) or "" for opcode in ("send", "recv"))
        return one if one == two and one in ("0", "1") else ""


class Chain(Struct, eq=False):
    """The message of a channel. `beside` is its part beside the loop whose body has `inner`; None without a loop.

    `partner` is the chain of the other pipeline, if both belong together.
    """

    inner: Message
    beside: Message | None = None
    partner: Chain | None = None
    pipeline: str = ""
    is_unusual: bool = False

    def message(self, computation: HloComputation) -> Message:
        """Return the part in a computation."""
        if self.beside is None or computation is self.inner.computation:
            return self.inner
        return self.beside

    def is_carried_in(self, computation: HloComputation) -> bool:
        """Return True for the body of a loop that carries the message."""
        return self.beside is not None and computation is self.inner.computation

    def ends(self, computation: HloComputation) -> tuple[HloInstruction, HloInstruction]:
        """Return the first recv and the last send-done in a computation, which belong to the pipelines 0 and 1 of a pair."""
        first = last = self
        if self.partner is not None:
            first, last = (self.partner, self) if self.pipeline == "1" else (self, self.partner)
        return first.message(computation).part("recv"), last.message(computation).part("send-done")


class Chains:
    """The chains of a module by channel, from computations in call order, callees first.

    `channels` has the channels of each computation with messages. `communicating` are the computations with collectives.
    """

    def __init__(self) -> None:
        self.by_channel: dict[int, Chain] = {}
        self.channels: dict[HloComputation, set[int]] = {}
        self.communicating: set[HloComputation] = set()

    def add(self, computation: HloComputation) -> None:
        """Find the messages of the next computation. Raises InternalError for loops that carry more than two of them."""
        loops: list[HloInstruction] = []
        for instruction in computation.post_order():
            if self.communicates(instruction):
                self.communicating.add(computation)
            if instruction.opcode == "while":
                loops.append(instruction)
            elif is_message(instruction):
                self._add_part(instruction, computation)
        for loop in loops:
            self._add_loop(loop, computation)
        for channel, chain in list(self.by_channel.items()):
            if not _settle(chain):
                del self.by_channel[channel]
        for chain in self.by_channel.values():
            if (
                chain.pipeline == "1"
                and chain.partner is None
                and not (chain.beside and chain.beside.computation is not computation)
            ):
                self._find_partner(chain)

    def communicates(self, instruction: HloInstruction) -> bool:
        """Return True for collectives, ends of asynchronous ones and of messages, custom calls, and calls with one of these."""
        opcode, kind = instruction.opcode, async_kind(instruction)
        if opcode == "custom-call" or opcode in COLLECTIVE - ASYNC_START:
            return True
        if kind.phase == "done" and (kind.inner in COLLECTIVE or kind.inner in TRANSFER):
            return True
        return any(callee in self.communicating for callee in instruction.called_computations)

    def of(self, instruction: HloInstruction) -> Chain | None:
        """Return the chain of a send, recv, send-done or recv-done."""
        channel = instruction.channel_id
        return self.by_channel.get(channel) if channel is not None else None

    def _add_part(self, instruction: HloInstruction, computation: HloComputation) -> None:
        channel = instruction.channel_id
        if channel is None:
            return
        self.channels.setdefault(computation, set()).add(channel)
        chain = self.by_channel.setdefault(channel, Chain(Message(computation)))
        message = chain.inner
        if computation is not chain.inner.computation:
            message = chain.beside = chain.beside or Message(computation)
        if message.computation is not computation or instruction.opcode in message.parts:
            chain.is_unusual = True
        else:
            message.parts[instruction.opcode] = instruction

    def _add_loop(self, loop: HloInstruction, computation: HloComputation) -> None:
        state = loop.operands[0]
        inside = self.channels.get(loop.while_body, set())
        if state.opcode != "tuple":
            return
        carried = 0
        for value in state.operands:
            chain = self.of(value) if value.opcode == "send-done" and value.channel_id in inside else None
            if chain is None or chain.beside is None or chain.is_unusual:
                continue
            carried += 1
            if carried > _MOST_IN_LOOP:
                raise InternalError(f"'{loop.name}' carries more than {_MOST_IN_LOOP} messages")
            if chain.beside.loop is not None or chain.beside.computation is not computation:
                chain.is_unusual = True
            chain.beside.loop = loop

    def _find_partner(self, chain: Chain) -> None:
        for other in self.by_channel.values():
            if other is chain or other.inner.computation is not chain.inner.computation:
                continue
            one, two = chain.beside, other.beside
            is_same_loop = one is not None and two is not None and one.computation is two.computation
            if is_same_loop and other.pipeline != "0":
                name = chain.inner.computation.name
                raise InternalError(f"a loop carries two messages of one pipeline into '{name}'")
            if is_same_loop or (two is None and other.pipeline == "0"):
                chain.partner, other.partner = other, chain


def _settle(chain: Chain) -> bool:
    """Set the pipeline of a chain. Return False if it is none of those that the scheduler knows."""
    if chain.is_unusual or not chain.inner.is_whole:
        return False
    chain.pipeline = chain.inner.pipeline
    beside = chain.beside
    if beside is None:
        return True
    return beside.is_whole and beside.loop is not None and beside.pipeline == chain.pipeline != ""


def is_message(instruction: HloInstruction) -> bool:
    """Return True for the four opcodes of messages between devices, False for transfers with the host."""
    return instruction.opcode in _PARTS and not instruction.is_host_transfer


def start_of(done: HloInstruction) -> HloInstruction:
    """Return the start of a done, and any other instruction as it is."""
    named = ("all-reduce-done", "all-gather-done", "collective-permute-done", "send-done", "recv-done")
    return done.operands[0] if done.opcode in named else done
