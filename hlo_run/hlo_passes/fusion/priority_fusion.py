"""Fuse producers into all their users, in the order of the time saved by XLA's cost model.

    e = f32[8] exponential(p)
    ROOT n = f32[8] negate(e)    =>    ROOT fusion = f32[8] fusion(p), kind=kLoop, calls={ e = exponential(q)  negate(e) }

A priority queue holds every producer that may be fused into all its users, by the time saved. The pass fuses the first, and
updates the priorities of the instructions around it. Bitcasts come first, since they cost nothing; constants of one element
come last. Leaves constants without users. With `--block_level_fusions` a block-level fusion grows by what can be tiled with it,
and its configuration is chosen again. XLA's `priority_fusion.cc`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Sequence
from typing import ClassVar

from msgspec import Struct, field

from hlo_run.analysis.block_level.block_level_nodes import BlockLevelNodes
from hlo_run.analysis.block_level.config import TRITON, fusion_record
from hlo_run.analysis.block_level.tiled_cost import Configurations
from hlo_run.analysis.cost.node_cost import CostAnalysis
from hlo_run.analysis.cost.run_time_model import LAUNCH_TICKS, TICKS_PER_MICROSECOND, RunTimeModel
from hlo_run.analysis.decision import YES, Decision, no
from hlo_run.analysis.executed_computations import fusible_computations
from hlo_run.analysis.fusion.fusion_frames import FusionFrames
from hlo_run.analysis.fusion.fusion_process import Fused, FusionStep, Refused, Weighed, process_text
from hlo_run.analysis.fusion.fusion_rules import FusionRules, is_fusible, is_fusible_bitcast, judge_scatter
from hlo_run.analysis.tiling.fusion_launch import KernelPlanner
from hlo_run.analysis.tiling.node_facts import Facts
from hlo_run.hlo.edit import has_side_effect
from hlo_run.hlo.fusion_graph import FusionGraph, Node
from hlo_run.hlo.graph import HloComputation, HloModule
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.print_options import SHORT_PARSABLE
from hlo_run.hlo.printer import module_to_string
from hlo_run.hlo_passes.subgraphs.library_calls import gpu_backend_config
from hlo_run.pass_support.fuel import Fuel
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pass_support.observer import FUSION_FRAMES, PRIORITY_FUSION_DUMP
from hlo_run.target import TargetSpec

_NEVER = -math.inf
# Not producers: to fuse them saves nothing.
_NOT_WEIGHED = opcode_set("parameter tuple get-tuple-element domain while conditional call")
# Whatever their computations do.
_WITHOUT_EFFECT: frozenset[Opcode] = frozenset(("map", "reduce", "reduce-window"))


class PriorityFusion(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "priority-fusion"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        grows, makes = ctx.options.block_level_fusions, ctx.options.xla_gpu_experimental_enable_triton_heroless_priority_fusion
        if not ctx.records_decisions:
            _fuse_all(module, ctx.target, ctx.fuel, None, None, grows, makes)
            return
        before = f"{module_to_string(module, SHORT_PARSABLE).rstrip()}\n\n"
        steps: list[FusionStep] = []
        frames = FusionFrames() if ctx.wants(FUSION_FRAMES) else None
        _fuse_all(module, ctx.target, ctx.fuel, steps, frames, grows, makes)
        ctx.decided(self.name, steps)
        if frames is not None:
            ctx.note(FUSION_FRAMES, frames.to_json)
        ctx.note(PRIORITY_FUSION_DUMP, lambda: process_text(steps, ctx.target, before))


def priority_fusion_steps(module: HloModule, target: TargetSpec, fuel: Fuel) -> list[FusionStep]:
    """Fuse in place, and return the tried steps in order."""
    steps: list[FusionStep] = []
    _fuse_all(module, target, fuel, steps)
    return steps


def _fuse_all(
    module: HloModule,
    target: TargetSpec,
    fuel: Fuel,
    steps: list[FusionStep] | None,
    frames: FusionFrames | None = None,
    grows_blocks: bool = False,
    makes_blocks: bool = False,
) -> None:
    blocks = Configurations(target) if grows_blocks else None
    for computation in fusible_computations(module):
        _ComputationFusion(computation, target, fuel, steps, frames, blocks, makes_blocks).run()


class _FusionSavings(Struct):
    """The state of fusing a producer: the users not judged yet, one that refuses, the ticks saved with each judged user."""

    unknown: dict[Node, None]
    refusing: Node | None = None
    refusal: Decision = YES
    savings: dict[Node, int] = field(default_factory=dict[Node, int])
    total: int = 0
    # The savings with other users are from before the producer itself changed; these users must be judged again.
    is_stale: bool = False
    is_judged: bool = True

    def keep(self) -> None:
        """Keep the total savings with the users judged before, as XLA's incremental update does.

        A user that something is fused into later is counted a second time.
        """
        self.savings.clear()
        self.refusing, self.is_stale, self.is_judged = None, True, False

    def drop(self, user: Node) -> None:
        """Forget a user and its savings."""
        self.unknown.pop(user, None)
        self.total -= self.savings.pop(user, 0)
        if self.refusing is user:
            self.refusing = None


class _Replaced(Struct, frozen=True):
    """The ticks of the kernels that a fusion replaces: of the users, of the users with a producer in them, of the producer."""

    apart: int
    together: int
    producer: int


class _ComputationFusion:
    """The fusion of one computation; tried steps are added to `steps` if it is not None. A step names all users of a producer.

    `frames`, if not None, gets what each fusion is about to do and has done.
    """

    def __init__(
        self,
        computation: HloComputation,
        target: TargetSpec,
        fuel: Fuel,
        steps: list[FusionStep] | None,
        frames: FusionFrames | None,
        blocks: Configurations | None,
        makes_blocks: bool,
    ) -> None:
        self._graph = FusionGraph(computation)
        self._facts = Facts()
        self._costs = CostAnalysis(target)
        self._planner = KernelPlanner(self._facts, target)
        self._model = RunTimeModel(self._costs, self._facts, self._planner, target)
        self._rules = FusionRules(self._facts, self._costs, self._planner, target)
        self._block_level: BlockLevelNodes | None = None
        if blocks is not None:
            self._block_level = BlockLevelNodes(self._graph, self._rules, blocks, target, makes_blocks)
        self._fuel = fuel
        self._steps = steps
        self._frames = frames
        self._outlooks: dict[Node, _FusionSavings] = {}
        self._queue: list[tuple[float, int, Node]] = []
        self._keys: dict[Node, tuple[float, int]] = {}
        # Of the fusion under way, for the record: the users that it changed, and what it replaced for their operands.
        self._new_users: list[Node] = []
        self._replaced: dict[Node, _Replaced] = {}

    def run(self) -> None:
        """Fuse, and write the fusions into the module."""
        # The record also names producers that no kernel can hold.
        weighs_all = self._steps is not None
        nodes = filter(_is_considered, self._graph.post_order())
        self._weigh(node for node in nodes if weighs_all or self._is_fusible(node))
        while (producer := self._next()) is not None:
            self._fuse_producer(producer)
        self._fuse_constants()
        self._graph.write()
        if self._block_level is not None:
            for node, config in self._block_level.configs.items():
                if node.is_changed:
                    record = fusion_record(TRITON, config)
                    node.instruction.attrs["backend_config"] = gpu_backend_config("fusion_backend_config", record)

    def _next(self) -> Node | None:
        """Pop the producer with the largest savings."""
        while self._queue:
            priority, number, node = heapq.heappop(self._queue)
            if self._keys.get(node) == (priority, number):
                del self._keys[node]
                return node
        return None

    def _weigh(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            priority = self._priority(node)
            if priority < 0 and node in self._outlooks and self._outlooks[node].is_stale:
                del self._outlooks[node]
            key = (-priority, -node.number)
            if self._keys.get(node) == key:
                continue
            self._keys.pop(node, None)
            if priority >= 0:
                self._keys[node] = key
                heapq.heappush(self._queue, (*key, node))

    def _priority(self, producer: Node) -> float:
        """Return the ticks saved by fusing a producer into all its users; -inf if it must not be fused."""
        if is_fusible_bitcast(producer):
            return math.inf
        if producer.opcode == "constant":
            return _NEVER
        outlook = self._outlooks.get(producer)
        if outlook is None:
            outlook = self._outlooks[producer] = _FusionSavings(dict.fromkeys(producer.users))
        if outlook.refusing is not None:
            if self._steps is not None:
                self._note_refusal(producer, outlook, self._first_refusal(producer, outlook))
            return _NEVER
        refusal = self._ask_users(producer, outlook)
        if refusal is not None:
            self._note_refusal(producer, outlook, refusal)
            return _NEVER
        saved = self._alone(producer) + LAUNCH_TICKS + outlook.total
        self._note_times(producer, outlook)
        return saved

    def _ask_users(self, producer: Node, outlook: _FusionSavings) -> Decision | None:
        """Judge the users not judged yet; return the first refusal."""
        if all(map(is_fusible_bitcast, producer.users)):
            return no("not fusing because there are only bitcast users" if producer.users else "No users to fuse")
        if not outlook.is_judged:
            for user in producer.users:
                if user not in outlook.unknown and not is_fusible_bitcast(user):
                    decision = self._judge(producer, user)
                    if not decision:
                        outlook.refusing, outlook.refusal = user, decision
                        return decision
            outlook.is_judged = True
        for user in list(outlook.unknown):
            if not is_fusible_bitcast(user):
                decision = self._judge(producer, user)
                if not decision:
                    outlook.refusing, outlook.refusal = user, decision
                    return decision
            del outlook.unknown[user]
            saving = self._alone(user) - self._together(producer, user)
            outlook.savings[user] = saving
            outlook.total += saving
        return None

    def _first_refusal(self, producer: Node, outlook: _FusionSavings) -> Decision:
        """Return the refusal of the first user that refuses, for the record: users that changed may come before the known one."""
        for user in producer.users:
            if user is outlook.refusing:
                break
            if user in outlook.unknown and not is_fusible_bitcast(user):
                decision = self._judge(producer, user)
                if not decision:
                    outlook.refusing, outlook.refusal = user, decision
                    break
        return outlook.refusal

    def _note_refusal(self, producer: Node, outlook: _FusionSavings, refusal: Decision) -> None:
        if self._steps is None:
            return
        refusing = outlook.refusing.name if outlook.refusing is not None else ""
        if outlook.refusing is not None:
            what = f"Cannot fuse producer |{producer.name}| with consumer |{refusing}|: {refusal.reason}"
            self._show(what, outlook.refusing, producer)
        self._show(f"Ineligible |{producer.name}|: {refusal.reason}", producer)
        users = tuple(user.name for user in producer.users)
        self._steps.append(Refused(producer.name, refusal.reason, users, refusing))

    def _note_times(self, producer: Node, outlook: _FusionSavings) -> None:
        if self._steps is None:
            return
        alone = self._alone(producer)
        users = tuple(outlook.savings)
        fused, apart = self._times(users, outlook)
        apart += alone + LAUNCH_TICKS
        dumped = fused, apart
        replaced = self._replaced.get(producer)
        if replaced is not None:
            together, parts = self._times([user for user in self._new_users if producer in user.operands], outlook)
            dumped = together - replaced.together, parts + alone - replaced.apart - replaced.producer
        step = Weighed(
            producer.name,
            tuple(user.name for user in users),
            fused / TICKS_PER_MICROSECOND,
            apart / TICKS_PER_MICROSECOND,
            tuple(saving / TICKS_PER_MICROSECOND for saving in outlook.savings.values()),
            tuple(user.name for user in producer.users),
            (dumped[0] / TICKS_PER_MICROSECOND, dumped[1] / TICKS_PER_MICROSECOND),
        )
        self._steps.append(step)

    def _times(self, users: Collection[Node], outlook: _FusionSavings) -> tuple[int, int]:
        """Return the ticks of kernels of `users`, with launches: with the producer in them, and as they are."""
        apart = sum(self._alone(user) for user in users) + LAUNCH_TICKS * len(users)
        return apart - sum(outlook.savings[user] for user in users), apart

    def _note_replaced(self, producer: Node, users: Sequence[Node]) -> None:
        """Note the ticks that a fusion of `producer` into `users` makes obsolete, for each of their weighed operands."""
        self._new_users, self._replaced = list(users), {}
        if self._steps is None:
            return
        gone = {user for user in users if not user.is_fusion}
        for operand in dict.fromkeys(operand for node in (*users, producer) for operand in node.operands):
            outlook = self._outlooks.get(operand)
            if outlook is None or operand in gone or operand is producer or operand not in self._keys:
                continue
            kernels = [user for user in (*users, producer) if user in outlook.savings]
            apart = sum(self._alone(user) for user in kernels)
            together = apart - sum(outlook.savings[user] for user in kernels)
            self._replaced[operand] = _Replaced(apart, together, self._alone(operand))

    def _fuse_producer(self, producer: Node) -> None:
        users = list(producer.users)
        if is_fusible_bitcast(producer):
            users = [user for user in users if self._judge(producer, user)]
        users = [user for user in users if not is_fusible_bitcast(user) and self._fuel.take(PriorityFusion.name)]
        weighed = [user for user in users if user.is_fusion and user in self._keys and self._outlooks[user].savings]
        self._note_replaced(producer, users)
        waiting = [operand for operand in dict.fromkeys(producer.operands) if operand in self._keys]
        for user in users:
            self._fuse(producer, user)
        if not producer.users:
            self._remove(producer)
        else:
            self._count_off(producer, [node for node in waiting if any(node in user.operands for user in users)])
        read = {operand for user in users for operand in user.operands} if weighed else set[Node]()
        changed: dict[Node, None] = {}
        for user in users:
            # As in XLA, which updates its priority with the new users only.
            if user in read and user in weighed:
                self._outlooks[user].keep()
            else:
                self._outlooks[user] = _FusionSavings(dict.fromkeys(user.users))
            for operand in user.operands:
                if operand is not producer and operand.opcode != "constant" and _is_considered(operand):
                    changed[operand] = None
            changed[user] = None
        self._weigh(changed)

    def _count_off(self, producer: Node, waiting: Iterable[Node]) -> None:
        """Count off the savings of operands with a producer that stays for other users, as XLA's incremental update does."""
        for operand in waiting:
            outlook = self._outlooks.get(operand)
            if outlook is not None:
                outlook.total -= outlook.savings.get(producer, 0)

    def _judge(self, producer: Node, user: Node) -> Decision:
        """Decide whether a user may compute the producer itself."""
        blocks = self._block_level
        if blocks is not None and blocks.takes(producer, user):
            return blocks.judge(producer, user)
        return self._rules.judge(producer, user, self._graph.root)

    def _is_fusible(self, node: Node) -> bool:
        return is_fusible(node) if self._block_level is None else self._block_level.is_fusible(node)

    def _alone(self, node: Node) -> int:
        """Return the ticks of the kernel of a node."""
        blocks = self._block_level
        if blocks is not None and node in blocks.configs:
            return blocks.alone(node)
        return self._model.alone(node).execution

    def _together(self, producer: Node, user: Node) -> int:
        """Return the ticks of the kernel of a user that computes the producer itself."""
        blocks = self._block_level
        if blocks is not None and is_fusible_bitcast(user):  # which is not judged
            if producer in blocks.configs:
                return blocks.into_bitcast(producer, user, self._model)
        elif blocks is not None and blocks.takes(producer, user):
            return blocks.together(producer, user)
        return self._model.together(producer, user)

    def _fuse(self, producer: Node, user: Node, is_constant: bool = False) -> None:
        kind = self._absorb(producer, user, is_constant)
        name = user.name
        if not is_constant:
            self._show(f"About to fuse |{producer.name}| into |{name}| inside PriorityFusion", user, producer)
        self._graph.fuse(producer, user, kind)
        for operand in user.operands:
            outlook = self._outlooks.get(operand)
            if outlook is not None:
                outlook.drop(user)
                outlook.unknown[user] = None
        outlook = self._outlooks.get(producer)
        if outlook is not None:
            outlook.drop(user)
        if self._steps is not None:
            self._steps.append(Fused(user.name, producer.name, name, is_constant))
        if not is_constant:
            self._show(f"Fused |{producer.name}| into |{user.name}| inside PriorityFusion", user)

    def _absorb(self, producer: Node, user: Node, is_constant: bool) -> str:
        """Record that a user computes the producer itself, and return the kind of the fusion that it becomes."""
        blocks = self._block_level
        if blocks is not None and (user in blocks.configs if is_constant else blocks.takes(producer, user)):
            if not is_constant:
                blocks.absorb(producer, user)
            self._costs.forget(user)
            self._model.forget(user)
            self._facts.forget(user)
            return "kCustom"
        kind = "kLoop" if self._planner.kind(producer, user) == "loop" else "kInput"
        self._costs.absorb(producer, user)
        self._model.absorb(producer, user)
        self._facts.absorb(producer, user, kind)
        if blocks is not None:
            blocks.change(user)
        return kind

    def _show(self, what: str, user: Node, producer: Node | None = None) -> None:
        if self._frames is not None:
            self._frames.add(self._graph.computation.name, what, user, producer)

    def _remove(self, producer: Node) -> None:
        self._graph.remove(producer)
        if self._block_level is not None:
            self._block_level.forget(producer)
        self._keys.pop(producer, None)
        for operand in producer.operands:
            outlook = self._outlooks.get(operand)
            if outlook is not None:
                outlook.drop(producer)

    def _fuse_constants(self) -> None:
        """Fuse constants of one element, which become part of the code; a kernel reads larger ones like parameters anyway."""
        constants = [node for node in self._graph if node.opcode == "constant" and _is_small(node)]
        for constant in constants:
            for user in list(constant.users):
                if self._can_take(user, constant):
                    self._fuse(constant, user, is_constant=True)

    def _can_take(self, user: Node, constant: Node) -> bool:
        blocks = self._block_level
        if blocks is not None and user in blocks.configs:
            return blocks.can_take_constant(constant)
        return is_fusible(user) and bool(judge_scatter(constant, user))


def _is_small(node: Node) -> bool:
    return node.shape.is_array and node.shape.element_count <= 1


def _is_considered(node: Node) -> bool:
    """True for a node with users that could be in a kernel if one could compute it."""
    if not node.users or node.opcode in _NOT_WEIGHED:
        return False
    if node.opcode == "rng":
        return len(node.users) == 1
    return node.is_fusion or node.opcode in _WITHOUT_EFFECT or not has_side_effect(node.instruction)
