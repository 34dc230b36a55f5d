"""Copies of a loop's instructions: their channels, control dependencies, scheduling groups, and marks of moved collectives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, field

from hlo_run.hlo.edit import DETACHED, clone_called, clone_with_fusions, copy_instruction
from hlo_run.hlo.frontend_attributes import frontend_attribute, set_frontend_attribute
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.opcodes.traits import COLLECTIVE, TRANSFER
from hlo_run.hlo.values.attribute_values import AttributeValue
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.collectives.communication.channels import free_channels
from hlo_run.hlo_passes.subgraphs.async_pairs import set_collective_config
from hlo_run.walks import post_order_of_all

Map = dict[HloInstruction, HloInstruction]
_GROUP = "_scheduling_group_id"
_TRANSFER_DONES: tuple[Opcode, ...] = ("recv-done", "send-done")


def made(opcode: Opcode, shape: Shape, operands: Sequence[HloInstruction] = (), **attributes: AttributeValue) -> HloInstruction:
    """Return a new instruction, named after its opcode, in no computation yet."""
    return DETACHED.add_with(opcode, shape, operands, attributes)


def element(computation: HloComputation, whole: HloInstruction, index: int) -> HloInstruction:
    """Add a get-tuple-element, also of a `tuple`."""
    return computation.add(made("get-tuple-element", whole.shape.tuple_shapes[index], [whole], index=index))


def group_of(instruction: HloInstruction) -> str | None:
    """Return the group of instructions that the scheduler keeps together, `GROUP` or `GROUP:ITERATION`; None without one."""
    return frontend_attribute(instruction, _GROUP)


def set_group(instruction: HloInstruction, group: str | None) -> None:
    """Set the group of the scheduler; None removes it."""
    set_frontend_attribute(instruction, _GROUP, group)


class Copier(Struct):
    """Adds copies of instructions to computations. Collectives and transfers to the host get channels that are free."""

    module: HloModule
    _channels: Iterator[int]
    _group: int
    _groups: dict[int, int] = field(default_factory=dict[int, int])

    @classmethod
    def of(cls, module: HloModule) -> Copier:
        """Return the copier of a module."""
        groups = [
            int(group.split(":")[0]) for i in module.instructions if (group := group_of(i)) and group.split(":")[0].isdigit()
        ]
        return cls(module, free_channels(module), max(groups, default=0) + 1)

    def copy(self, old: HloInstruction, into: HloComputation, operands: Sequence[HloInstruction], known: Map) -> HloInstruction:
        """Add a copy with other operands, after the copies in `known` of the original's control predecessors."""
        new = into.add(copy_instruction(old, operands))
        clone_called(self.module, new)
        if new.opcode == "while":
            new.called = {key: tuple(clone_with_fusions(self.module, c) for c in group) for key, group in old.called.items()}
        keep_order(old, new, known)
        self._set_channel(new)
        return new

    def copy_moved(
        self, old: HloInstruction, into: HloComputation, operands: Sequence[HloInstruction], has_own_channel: bool = True
    ) -> HloInstruction:
        """Add a copy of an instruction that runs in another iteration: collectives get a mark in their backend_config."""
        new = into.add(copy_instruction(old, operands))
        clone_called(self.module, new)
        if has_own_channel:
            self._set_channel(new)
        if new.opcode in COLLECTIVE:
            set_collective_config(new, is_pipelined=True)
        return new

    def renumber_group(self, new: HloInstruction) -> None:
        """Give a copy another group of the scheduler, the same one for all copies of a group."""
        group = group_of(new)
        if group is not None and group.split(":")[0].isdigit():
            number = int(group.split(":")[0])
            set_group(new, str(self._groups.setdefault(number, self._group + len(self._groups))))

    def _set_channel(self, new: HloInstruction) -> None:
        if new.channel_id is None or (new.opcode in TRANSFER and not new.is_host_transfer):
            return
        if new.opcode in _TRANSFER_DONES:
            channel = new.operands[0].channel_id
            assert channel is not None, "a done has the channel of its start"
            new.attrs["channel_id"] = channel
        else:
            new.attrs["channel_id"] = next(self._channels)


def keep_order(old: HloInstruction, new: HloInstruction, known: Map) -> None:
    """Let a copy wait for the copies, in its computation, of its original's control predecessors."""
    before = [known[p] for p in old.control_predecessors if p in known and known[p].parent is new.parent]
    new.control_predecessors = list(dict.fromkeys(before))


def clone_with(
    module: HloModule, computation: HloComputation, replaced: Mapping[HloInstruction, HloInstruction | None]
) -> tuple[HloComputation, Map]:
    """Add a copy of a computation named `NAME.clone`, in which others replace some instructions; return it and the copies.

    Operands of the replacements are originals, or replacements themselves. Those replaced by None are left out. The copies are
    listed by the originals and by the replacements. Their order is that of XLA's `CloneWithReplacements`.
    """

    def chosen(old: HloInstruction) -> HloInstruction | None:
        return replaced.get(old, old)

    def operands_of(source: HloInstruction) -> list[HloInstruction]:
        return [found for operand in source.operands if (found := chosen(operand)) is not None]

    clone, copies = HloComputation(f"{computation.name}.clone", computation.where), Map()
    clone.execution_thread = computation.execution_thread
    starts = (found for old in computation.instructions if (found := chosen(old)) is not None)
    for source in post_order_of_all(starts, lambda user: reversed(operands_of(user))):
        copies[source] = clone.add(copy_instruction(source, [copies[operand] for operand in operands_of(source)]))
        clone_called(module, copies[source])
    copies.update({old: copies[new] for old, new in replaced.items() if new is not None})
    for old in computation.instructions:
        if old.control_predecessors and old in copies:
            keep_order(old, copies[old], copies)
    root = chosen(computation.root)
    assert root is not None, "the root is kept or replaced"
    clone.root = copies[root]
    return module.add_computation(clone), copies
