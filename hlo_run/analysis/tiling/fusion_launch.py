"""Plans the kernel of a fusion-graph node, alone or with a producer: the emitter kind and the launch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import overload

from hlo_run.analysis.elementwise import is_elementwise
from hlo_run.analysis.tiling.analyze_fusion import analysis_of
from hlo_run.analysis.tiling.emitter_kind import LAUNCHES, EmitterKind, choose_emitter_kind
from hlo_run.analysis.tiling.fusion_analysis import FusionAnalysis
from hlo_run.analysis.tiling.launch_dimensions import LaunchDimensions, calculate_launch
from hlo_run.analysis.tiling.node_facts import Facts, NodeFacts
from hlo_run.analysis.tiling.transpose_description import TransposeDescription
from hlo_run.analysis.tiling.unroll_factor import MAX_UNROLL_FACTOR, unroll_factor
from hlo_run.hlo.fusion_graph import Node, Op
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.shape import Shape
from hlo_run.target import TargetSpec

# The opcodes of heroes of the emitter kinds other than loop.
_SHAPES_KERNEL: frozenset[Opcode] = frozenset(("reduce", "transpose", "concatenate", "scatter", "sort"))
_LOOP = EmitterKind("loop", None, ())


class PlannedKernel:
    """The emitter kind and the launch of a planned kernel, and the counts of the launch."""

    __slots__ = ("blocks", "kind", "launch", "threads_per_block")

    def __init__(self, kind: str, launch: LaunchDimensions) -> None:
        self.kind = kind
        self.launch = launch
        self.blocks = launch.blocks
        self.threads_per_block = launch.threads_per_block


class _ConsumerKernels:
    """The kernels of a consumer with a producer that has no hero, valid while the consumer's `facts` are.

    `plain` is its kernel with a producer that may be unrolled, `rolled` with one that may not. Both are None if the kernel
    depends on other properties of the producer, too.
    """

    __slots__ = ("facts", "plain", "rolled")

    def __init__(self, facts: NodeFacts, plain: PlannedKernel | None, rolled: PlannedKernel | None) -> None:
        self.facts = facts
        self.plain = plain
        self.rolled = rolled


class _InstructionsOf(Sequence[HloInstruction]):
    """The instructions of nodes, computed at the first access. Most requests about a pair need none."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes

    def __iter__(self) -> Iterator[HloInstruction]:
        return (op.instruction for node in self._nodes for op in node.ops)

    def __len__(self) -> int:
        return sum(len(node.ops) for node in self._nodes)

    @overload
    def __getitem__(self, index: int) -> HloInstruction: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[HloInstruction]: ...

    def __getitem__(self, index: int | slice) -> HloInstruction | Sequence[HloInstruction]:
        return list(self)[index]


class KernelPlanner:
    """Plans kernels for nodes and pairs of nodes."""

    def __init__(self, facts: Facts, target: TargetSpec) -> None:
        self._facts = facts
        self._target = target
        self._kinds: dict[tuple[HloInstruction, ...], EmitterKind] = {}
        self._tiled: dict[tuple[int | HloInstruction, ...], PlannedKernel] = {}
        self._widths: dict[Node, int | None] = {}
        self._longest: dict[HloInstruction, tuple[int, int]] = {}
        self._concatenates: dict[tuple[int, int], PlannedKernel] = {}
        self._loops: dict[tuple[int, int], PlannedKernel] = {}
        self._hosts: dict[Node, _ConsumerKernels] = {}

    def plan(self, producer: Node | None, consumer: Node) -> PlannedKernel:
        """Return the kernel of `consumer`, with `producer` fused into it unless that is None."""
        if producer is not None:
            one = self._facts.node(producer)
            if not one.may_have_hero:
                host = self._host(consumer)
                found = host.rolled if one.is_bad_to_unroll else host.plain
                if found is not None:
                    return found
        kind, roots, heroes = self._kind(producer, consumer)
        if kind.name == "concatenate":
            return self._concatenate(producer, consumer, heroes)
        launch_of = LAUNCHES.get(kind.name)
        if launch_of is None:
            return self._loop(producer, consumer)
        if kind.description is None:
            return PlannedKernel(kind.name, launch_of(self._analysis(producer, consumer, kind, roots, heroes)))
        # The tiling of a reduction depends on its narrowest operand, that of a transpose on none.
        bits = 0 if isinstance(kind.description, TransposeDescription) else self._operand_bits(producer, consumer)
        parts: list[int | HloInstruction] = [bits]
        parts += [root.instruction for root in roots]
        parts += [hero.instruction for hero in heroes]
        key = tuple(parts)
        found = self._tiled.get(key)
        if found is None:
            launch = launch_of(self._analysis(producer, consumer, kind, roots, heroes))
            found = self._tiled[key] = PlannedKernel(kind.name, launch)
        return found

    def _host(self, consumer: Node) -> _ConsumerKernels:
        """Return the kernels of `consumer` with a producer without heroes. Its heroes are then the consumer's own."""
        facts = self._facts.node(consumer)
        found = self._hosts.get(consumer)
        if found is None or found.facts is not facts:
            plain, rolled = self._kernels_as_host(consumer)
            found = self._hosts[consumer] = _ConsumerKernels(facts, plain, rolled)
        return found

    def _kernels_as_host(self, consumer: Node) -> tuple[PlannedKernel | None, PlannedKernel | None]:
        kind, roots, heroes = self._kind(None, consumer)
        if kind.name == "transpose":
            kernel = self.plan(None, consumer)
            return kernel, kernel
        if self._target.is_blackwell:
            return None, None
        if kind.name == "concatenate":
            return self._concatenate(None, consumer, heroes), self._concatenate(None, consumer, heroes, is_rolled=True)
        if kind.name != "loop" or _behind_bitcasts(roots[0]).opcode == "dynamic-update-slice":
            return None, None
        elements = _first_array(roots[0].instruction.shape).element_count
        plain, rolled = (self._loop_unroll(None, consumer, elements, is_rolled) for is_rolled in (False, True))
        return self._loop_of(elements, plain), self._loop_of(elements, rolled)

    def _operand_bits(self, producer: Node | None, consumer: Node) -> int:
        """Return the smallest width of an array operand in bits; 0 without operands, -1 without array operands."""
        operands = [operand for operand in consumer.operands if operand is not producer]
        if producer is not None:
            operands += producer.operands
        widths = {self._width(operand) for operand in operands} if operands else {0}
        return min((width for width in widths if width is not None), default=-1)

    def _width(self, node: Node) -> int | None:
        if node not in self._widths:
            shape = node.instruction.shape
            self._widths[node] = shape.dtype.bits if shape.is_array else None
        return self._widths[node]

    def kind(self, producer: Node | None, consumer: Node) -> str:
        """Return only the emitter kind."""
        return self._kind(producer, consumer)[0].name

    def heroes(self, node: Node) -> list[Op]:
        """Return the hero of each result of a node."""
        return self._heroes(None, node)

    def _heroes(self, producer: Node | None, consumer: Node) -> list[Op]:
        two = self._facts.node(consumer)
        one = two if producer is None else self._facts.node(producer)
        if not one.may_have_hero and not two.may_have_hero:
            return consumer.result_ops
        has_tiled = one.has_tiled_transpose or two.has_tiled_transpose
        has_concatenate = one.has_concatenate or two.has_concatenate
        find = self._facts.heroes.find
        return [find(producer, consumer, root, has_tiled, has_concatenate) for root in consumer.result_ops]

    def _kind(self, producer: Node | None, consumer: Node) -> tuple[EmitterKind, list[Op], list[Op]]:
        roots, heroes = consumer.result_ops, self._heroes(producer, consumer)
        for hero in heroes:
            if hero.instruction.opcode in _SHAPES_KERNEL:
                break
        else:
            return _LOOP, roots, heroes
        key = tuple([op.instruction for ops in (roots, heroes) for op in ops])
        found = self._kinds.get(key)
        if found is None:
            found = self._kinds[key] = choose_emitter_kind(key[: len(roots)], key[len(roots) :])
        return found, roots, heroes

    def _analysis(
        self, producer: Node | None, consumer: Node, kind: EmitterKind, roots: list[Op], heroes: list[Op]
    ) -> FusionAnalysis:
        nodes = [node for node in (consumer, producer) if node is not None]
        operands = dict.fromkeys(operand for node in nodes for operand in node.operands if operand is not producer)
        return analysis_of(
            consumer.instruction,
            self._target,
            tuple(root.instruction for root in roots),
            tuple(hero.instruction for hero in heroes),
            kind,
            _InstructionsOf(nodes),
            [operand.instruction.shape for operand in operands],
        )

    def _concatenate(self, producer: Node | None, consumer: Node, heroes: list[Op], is_rolled: bool = False) -> PlannedKernel:
        (hero,) = (hero.instruction for hero in heroes)
        longest, divisor = self._longest.get(hero) or self._longest.setdefault(hero, _longest_operand(hero))
        factor = math.gcd(self._loop_unroll(producer, consumer, longest, is_rolled), divisor)
        found = self._concatenates.get((longest, factor))
        if found is None:
            launch = calculate_launch(longest, factor, self._target)
            found = self._concatenates[longest, factor] = PlannedKernel("concatenate", launch)
        return found

    def _loop(self, producer: Node | None, consumer: Node) -> PlannedKernel:
        root = consumer.result_ops[0]
        shape = root.instruction.shape
        update = _update_in_place(consumer, producer)
        if update is not None:
            shape = update
        elif _is_plain_copy(root) and producer is None:
            return self._loop_of(shape.element_count, 1)
        elements = _first_array(shape).element_count
        return self._loop_of(elements, self._loop_unroll(producer, consumer, elements))

    def _loop_of(self, elements: int, unroll_factor: int) -> PlannedKernel:
        key = elements, unroll_factor
        found = self._loops.get(key)
        if found is None:
            found = self._loops[key] = PlannedKernel("loop", calculate_launch(*key, self._target))
        return found

    def _loop_unroll(self, producer: Node | None, consumer: Node, elements: int, is_rolled: bool = False) -> int:
        """Return the number of elements per thread. `is_rolled` means a producer that should not be unrolled."""
        roots = consumer.result_ops
        bits = min([root.instruction.shape.dtype.bits for root in roots if root.instruction.shape.is_array], default=8)
        whole_bytes = -(-8 // bits)
        if is_rolled or elements < self._target.max_resident_threads or self._facts.node(consumer).is_bad_to_unroll:
            return whole_bytes
        if producer is not None and self._facts.node(producer).is_bad_to_unroll:
            return whole_bytes
        if not self._target.is_blackwell:
            return max(math.gcd(elements, MAX_UNROLL_FACTOR), whole_bytes)
        return unroll_factor(self._analysis(producer, consumer, _LOOP, roots, roots), elements)


def _longest_operand(concatenate: HloInstruction) -> tuple[int, int]:
    """Return the elements of the longest operand, and a divisor of the sizes of all operands along the joined dimension."""
    axis: int = concatenate.dimensions[0]
    shapes = [operand.shape for operand in concatenate.operands]
    longest = max(shapes, key=lambda shape: shape.dims[axis])
    return longest.element_count, math.gcd(*(shape.dims[axis] for shape in shapes))


def _is_plain_copy(root: Op) -> bool:
    return root.opcode == "copy" and root.instruction.shape == root.instruction.operands[0].shape


def _first_array(shape: Shape) -> Shape:
    while shape.is_tuple:
        shape = shape.tuple_shapes[0]
    return shape


def _behind_bitcasts(op: Op) -> Op:
    while op.opcode == "bitcast" and isinstance(source := op.operands[0], Op):
        op = source
    return op


def _update_in_place(consumer: Node, producer: Node | None) -> Shape | None:
    """Return the shape of the update if the node only updates an operand in place; else None."""
    root = _behind_bitcasts(consumer.root)
    if root.opcode != "dynamic-update-slice":
        return None
    source, window = root.operands[0], root.instruction.operands[1].shape
    if isinstance(source, Op) and source.opcode == "bitcast":
        source = source.operands[0]
    if isinstance(source, Op) or source is producer or (producer is not None and source in producer.operands):
        return None
    return window if all(_spares_rest(reader, root, window) for reader in consumer.reads[source]) else None


def _spares_rest(reader: Op, update: Op, window: Shape) -> bool:
    if reader is update or is_elementwise(reader.instruction) or reader.opcode == "bitcast":
        return True
    return reader.opcode == "dynamic-slice" and reader.instruction.shape.dims == window.dims
