"""Make kernels with several results: fuse siblings that read the same operand, and a producer with one of its users.

    a = f32[8] fusion(p), calls=..                (f32[8], f32[8]) fusion(p), calls={ .. ROOT tuple(a, b) }
    b = f32[8] negate(p)                    =>    get-tuple-element(fusion), index=0  and  index=1

Visits users before producers. First the users of an instruction are fused with each other, then the instruction with the
best of them, unless XLA's cost model predicts a slowdown. XLA's `multi_output_fusion.cc`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.cost.node_cost import CostAnalysis
from hlo_run.analysis.cost.run_time_model import LAUNCH_TICKS, TICKS_PER_MICROSECOND, RunTimeModel
from hlo_run.analysis.decision import YES, Decision, no
from hlo_run.analysis.executed_computations import fusible_computations
from hlo_run.analysis.fusion.fusion_frames import FusionFrames
from hlo_run.analysis.fusion.fusion_process import AnyFusionStep, Joined, KeptApart
from hlo_run.analysis.fusion.fusion_rules import FusionRules
from hlo_run.analysis.fusion.multi_output_rules import MultiOutputRules
from hlo_run.analysis.fusion.node_order import NodeOrder
from hlo_run.analysis.tiling.fusion_launch import KernelPlanner
from hlo_run.analysis.tiling.node_facts import Facts
from hlo_run.hlo.fusion_graph import FusionGraph, Node
from hlo_run.hlo.graph import HloComputation, HloModule
from hlo_run.pass_support.fuel import Fuel
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pass_support.observer import FUSION_FRAMES
from hlo_run.target import TargetSpec


class MultiOutputFusion(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "multi_output_fusion"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        steps: list[AnyFusionStep] = []
        frames = FusionFrames() if ctx.wants(FUSION_FRAMES) else None
        for computation in fusible_computations(module):
            _ComputationFusion(computation, ctx.target, ctx.fuel, steps, ctx.records_decisions, frames).run()
        ctx.decided(self.name, steps)
        if frames is not None:
            ctx.note(FUSION_FRAMES, frames.to_json)


class _ComputationFusion:
    """The fusion of one computation. Unless `records_reasons`, a refused step may be recorded with another valid reason.

    `frames`, if not None, gets what each fusion is about to do and has done.
    """

    def __init__(
        self,
        computation: HloComputation,
        target: TargetSpec,
        fuel: Fuel,
        steps: list[AnyFusionStep],
        records_reasons: bool,
        frames: FusionFrames | None,
    ) -> None:
        self._fuel = fuel
        self._records_reasons = records_reasons
        self._steps = steps
        self._frames = frames
        self._graph = FusionGraph(computation)
        self._facts = Facts()
        self._costs = CostAnalysis(target)
        planner = KernelPlanner(self._facts, target)
        self._model = RunTimeModel(self._costs, self._facts, planner, target)
        self._rules = FusionRules(self._facts, self._costs, planner, target)
        self._outputs = MultiOutputRules(self._facts, planner)
        self._order = NodeOrder(self._graph.post_order())

    def run(self) -> None:
        """Fuse, and write the fusions into the module."""
        for node in reversed(self._graph.post_order()):
            if node.opcode == "constant" or node.kind == "kCustom":
                continue
            self._fuse_users(node)
            self._fuse_with_user(node)
        self._graph.write()

    def _fuse_users(self, node: Node) -> None:
        """Fuse users of `node` with each other: multi-output fusions first, then other fusions, which absorb instructions."""
        if node.shape.is_array and node.shape.element_count == 1:
            return
        siblings = sorted(filter(self._is_sibling, node.users), key=_rank, reverse=True)
        for number, one in enumerate(siblings):
            if not one.is_fusion:
                continue
            later = number + 1
            connected: set[Node] | None = None  # slow to compute, and most pairs are refused for another reason
            while later < len(siblings):
                two = siblings[later]
                decision = self._may_join(one, two, node)
                if decision or self._records_reasons:
                    if connected is None:
                        connected = self._order.connected(one, siblings[later:])
                    if two in connected:
                        decision = no(f"{one.name} and {two.name} are connected")
                if not decision:
                    self._steps.append(KeptApart(one.name, two.name, decision.reason, node.name))
                    self._show(f"Not fusing siblings |{one.name}| and |{two.name}| due to: {decision.reason}", one, node)
                if not decision or not self._fuel.take(MultiOutputFusion.name):
                    later += 1
                    continue
                kind = "kInput" if "kInput" in (one.kind, two.kind) else one.kind
                self._order.join(two, one)
                self._show(f"About to fuse sibling |{two.name}| into sibling |{one.name}| inside multi-output fusion", one, two)
                self._steps.append(Joined(one.name, one.name, two.name, node.name))
                readers = self._graph.fuse_sibling(two, one, kind)
                self._show(f"Fused into |{one.name}| inside multi-output fusion", one)
                self._changed(one, two, *readers)
                del siblings[later]
                connected = None

    def _show(self, label: str, consumer: Node, producer: Node | None = None) -> None:
        if self._frames is not None:
            self._frames.add(self._graph.computation.name, label, consumer, producer)

    def _is_sibling(self, node: Node) -> bool:
        if not node.users or not self._outputs.is_root(node):
            return False
        # A loop that reduces several arrays computes them in each thread, and stays alone.
        if node.kind == "kLoop" and node.root.opcode == "reduce" and node.root.instruction.shape.is_tuple:
            return False
        return not node.is_multi_output or all(user.opcode == "get-tuple-element" for user in node.users)

    def _may_join(self, one: Node, two: Node, source: Node) -> Decision:
        decision = self._outputs.judge_siblings(one, two, source)
        return self._rules.judge_budget(two, one, into_consumer=False) if decision else decision

    def _fuse_with_user(self, producer: Node) -> None:
        """Fuse `producer` into its best user, which then returns both results."""
        users = [user for user in producer.users if user.opcode != "get-tuple-element"]
        if not self._outputs.is_producer(producer) or not users:
            return
        # Producer-consumer fusion has already refused a single user with one result.
        if len(producer.users) == 1 and not users[0].is_multi_output:
            return
        candidates = [user for user in producer.users if self._is_candidate(producer, user)]
        if not candidates or not self._fuel.take(MultiOutputFusion.name):
            return
        consumer = max(candidates, key=_rank)
        kind = consumer.kind or self._kind(producer, consumer)
        self._order.join(producer, consumer)
        times = self._times(producer, consumer)
        name = consumer.name
        self._show(
            f"About to fuse producer |{producer.name}| into consumer |{name}| inside multi-output fusion", consumer, producer
        )
        readers = self._graph.fuse_and_return(producer, consumer, kind)
        self._show(f"Fused into |{consumer.name}| inside multi-output fusion", consumer)
        self._steps.append(Joined(consumer.name, name, producer.name, "", *(time / TICKS_PER_MICROSECOND for time in times)))
        self._changed(producer, consumer, *readers)

    def _kind(self, producer: Node, consumer: Node) -> str:
        reads_all = any(self._facts.node(node).is_input_reduction for node in (producer, consumer))
        tiled = any(self._facts.node(node).has_tiled_transpose for node in (producer, consumer))
        return "kInput" if reads_all or tiled else "kLoop"

    def _is_candidate(self, producer: Node, consumer: Node) -> bool:
        decision = self._may_return(producer, consumer)
        if not decision:
            self._steps.append(KeptApart(consumer.name, producer.name, decision.reason))
            names = f"|{producer.name}| into consumer |{consumer.name}|"
            self._show(f"Not considering fusion of producer {names} due to: {decision.reason}", consumer, producer)
        return bool(decision)

    def _may_return(self, producer: Node, consumer: Node) -> Decision:
        if not self._outputs.is_root(consumer):
            return no("consumer not eligible as multi-output fusion root.")
        for decision in (
            self._outputs.judge_shapes(consumer, producer),
            self._rules.judge_budget(producer, consumer, into_consumer=False),
        ):
            if not decision:
                return decision
        if self._rules.is_too_large(producer, consumer):
            return no("will generate too large IR")
        if self._order.reaches_operand(producer, consumer):
            return no(f"{producer.name} would introduce a cycle when fused")
        fused, unfused = self._times(producer, consumer)
        if fused > unfused:
            times = (f"{ticks / TICKS_PER_MICROSECOND:.2f} us" for ticks in (fused, unfused))
            return no("will execute slower if fused: {} fused, {} unfused".format(*times))
        return YES

    def _times(self, producer: Node, consumer: Node) -> tuple[int, int]:
        """Return the run times, in ticks, of one fused kernel and of two kernels, launches included."""
        apart = self._model.alone(producer).execution + self._model.alone(consumer).execution + 2 * LAUNCH_TICKS
        return self._model.together(producer, consumer, writes_both=True) + LAUNCH_TICKS, apart

    def _changed(self, *nodes: Node) -> None:
        for node in nodes:
            self._facts.forget(node)
            self._costs.forget(node)
            self._model.forget(node)


def _rank(node: Node) -> int:
    return int(node.is_fusion) + int(node.is_multi_output)
