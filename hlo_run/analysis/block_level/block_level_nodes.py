"""Judges and prices the block-level fusions of a fusion graph, which grow by producers and into consumers.

A fusion stays a block-level one: what cannot be tiled with it is not fused. A pair gets the configuration that is fastest for
both. XLA's `CanFuseTriton` of `priority_fusion.cc`.
"""

from __future__ import annotations

from math import prod

from hlo_run.analysis.block_level.config import TRITON, BlockLevelConfig, block_level_config
from hlo_run.analysis.block_level.fused_ops import ops_of_nodes
from hlo_run.analysis.block_level.support import is_supported
from hlo_run.analysis.block_level.tiled_cost import Configurations, TiledCost, TiledTime
from hlo_run.analysis.block_level.tiling import tile
from hlo_run.analysis.cost.run_time_model import RunTimeModel
from hlo_run.analysis.decision import YES, Decision, no
from hlo_run.analysis.fusion.fusion_rules import FusionRules, is_fusible
from hlo_run.analysis.fusion_owner import fusion_owner
from hlo_run.hlo.fusion_graph import FusionGraph, Node
from hlo_run.target import WARP_THREADS, TargetSpec


class BlockLevelNodes:
    """The block-level fusions of a graph, with their configurations. With `makes_new`, native nodes may become new ones."""

    def __init__(
        self,
        graph: FusionGraph,
        rules: FusionRules,
        configurations: Configurations,
        target: TargetSpec,
        makes_new: bool = False,
    ) -> None:
        self._graph = graph
        self._rules = rules
        self._makes_new = makes_new
        self._target = target
        self._configurations = configurations
        self._alone: dict[Node, TiledTime | None] = {}
        self._pairs: dict[tuple[Node, Node], tuple[int, int, TiledTime | Decision]] = {}
        self._changes: dict[Node, int] = {}
        self.configs: dict[Node, BlockLevelConfig] = {}
        for node in graph:
            if node.kind == "kCustom" and fusion_owner(node.instruction) == TRITON:
                config = block_level_config(node.instruction)
                if config is not None and len(config.output_tiles) == 1:
                    self.configs[node] = config

    def has_one(self, producer: Node, consumer: Node) -> bool:
        """True if one of the nodes is a block-level fusion, so that both together can only be one as well."""
        return bool(self.configs) and (producer in self.configs or consumer in self.configs)

    def takes(self, producer: Node, consumer: Node) -> bool:
        """True if both nodes, of which `judge` or native rules allow the fusion, become a block-level fusion."""
        if self.has_one(producer, consumer):
            return True
        return self._makes_new and bool(self.judge(producer, consumer))

    def is_fusible(self, node: Node) -> bool:
        """True if a node may be part of a larger kernel."""
        return is_fusible(node) or (node in self.configs and not node.is_ordered)

    def alone(self, node: Node) -> int:
        """Return the ticks of the kernel of a block-level fusion with its configuration."""
        time = self._time(node)
        return 0 if time is None else time.ticks

    def into_bitcast(self, producer: Node, bitcast: Node, model: RunTimeModel) -> int:
        """Return the ticks of a bitcast that computes a block-level fusion itself: XLA asks its model of native kernels.

        That takes the tile of the fusion for one of the bitcast's result, whatever its dimensions are.
        """
        config, time = self.configs[producer], self._time(producer)
        pairs = zip(bitcast.shape.dims, config.output_tiles[0], strict=False)
        blocks = prod([-(-dim // size) for dim, size in pairs])
        flops = 0 if time is None else time.flops
        return model.into_bitcast(producer, bitcast, flops, blocks, config.num_warps * WARP_THREADS)

    def _time(self, node: Node) -> TiledTime | None:
        if node not in self._alone:
            config, tiled = self.configs[node], tile(ops_of_nodes(node))
            time = None
            if not isinstance(tiled, Decision):
                time = TiledCost(tiled, self._target).at(config.output_tiles[0], config.num_warps)
            self._alone[node] = None if isinstance(time, Decision) else time
        return self._alone[node]

    def judge(self, producer: Node, consumer: Node) -> Decision:
        """Return whether both nodes can be one block-level fusion."""
        if producer is self._graph.root:
            return no("not fusing into the output of the root instruction")
        for node, name in ((producer, "producer"), (consumer, "consumer")):
            if not self.is_fusible(node):
                return no(f"the {name} is not fusible")
        for node in (producer, consumer):
            if node not in self.configs and not (found := self._is_supported(node)):
                return found
        fits = self._rules.judge_parameters(producer, consumer)
        if not fits:
            return fits
        time = self._pair(producer, consumer)
        return no(f"Fusion can not be tiled: {time.reason}") if isinstance(time, Decision) else YES

    def can_take_constant(self, constant: Node) -> bool:
        """True if a block-level fusion can hold a constant."""
        return bool(is_supported(constant.instruction, self._target))

    def together(self, producer: Node, consumer: Node) -> int:
        """Return the ticks of the kernel of two nodes that may be fused."""
        time = self._pair(producer, consumer)
        assert isinstance(time, TiledTime), "the pair was judged"
        return time.ticks

    def absorb(self, producer: Node, consumer: Node) -> None:
        """Make `consumer` the block-level fusion that computes `producer` itself. Call it before the graph fuses them."""
        time = self._pair(producer, consumer)
        assert isinstance(time, TiledTime), "the pair was judged"
        self.configs[consumer] = time.config
        self._alone[consumer] = time
        self._changes[consumer] = self._changes.get(consumer, 0) + 1

    def change(self, node: Node) -> None:
        """Record that a node other than a block-level fusion computes more ops than before."""
        self._changes[node] = self._changes.get(node, 0) + 1

    def forget(self, node: Node) -> None:
        """Drop a node that is removed."""
        self.configs.pop(node, None)

    def _is_supported(self, node: Node) -> Decision:
        return next((found for op in node.ops if not (found := is_supported(op.instruction, self._target))), YES)

    def _pair(self, producer: Node, consumer: Node) -> TiledTime | Decision:
        key = producer, consumer
        one, two = self._changes.get(producer, 0), self._changes.get(consumer, 0)
        found = self._pairs.get(key)
        if found is None or found[:2] != (one, two):
            found = self._pairs[key] = one, two, self._configurations.best(ops_of_nodes(consumer, producer))
        return found[2]
