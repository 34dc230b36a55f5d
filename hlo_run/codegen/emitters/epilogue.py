"""The function between heroes, whose values the entry function has, and the roots that depend on them.

    func.func private @fusion__epilogue__abs(%arg0: tensor<..>, %th_x: index, %bl_x: index, %i: index, %j: index,
                                             %hero: f32) -> f32

Its index arguments are mostly the ids and loop symbols of the caller, not an output index: several roots share them, each
with a map of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from xdsl.dialects.builtin import StringAttr, SymbolRefAttr
from xdsl.dialects.llvm import LinkageAttr
from xdsl.ir import SSAValue

from hlo_run.analysis.tiling.computation_partitioner import PartitionedComputation, function_name
from hlo_run.codegen.elemental.function import FunctionEmitter, KernelModule, Signature
from hlo_run.hlo.graph import HloInstruction
from hlo_run.indexing.compose import compose
from hlo_run.indexing.indexing_map import IndexingMap
from hlo_run.indexing.variable import GRID_NAMES, Variable
from hlo_run.ops.index import user_map

_LINKAGE = LinkageAttr(StringAttr("internal"))


def hero_to_root_map(hero: HloInstruction, root: HloInstruction) -> IndexingMap:
    """Return the map from an index of `hero` to the index of `root`, along the uses between them."""
    indexing_map = IndexingMap.identity(hero.shape.dims)
    instruction = hero
    while instruction is not root:
        user = next(user for user in instruction.users if _reaches(user, root))
        step = user_map(user, user.operands.index(instruction))
        assert step is not None, "only elementwise ops and bitcasts lie between a hero and its root"
        indexing_map = compose(indexing_map, step).simplify()
        instruction = user
    return indexing_map


def _reaches(instruction: HloInstruction, root: HloInstruction) -> bool:
    seen = {instruction}
    queue = [instruction]
    for current in queue:
        if current is root:
            return True
        fresh = [user for user in current.users if user not in seen]
        seen.update(fresh)
        queue += fresh
    return False


def used_ids(maps: Iterable[IndexingMap]) -> tuple[Variable, ...]:
    """Return the ids that are dimensions of any of the maps, threads before blocks."""
    ids = {variable.name: variable for indexing_map in maps for variable in indexing_map.dims}
    return tuple(ids[name] for name in GRID_NAMES if name in ids)


def emit_epilogue(
    module: KernelModule,
    roots: Mapping[HloInstruction, IndexingMap],
    heroes: Sequence[HloInstruction],
    dims: Sequence[Variable],
    ranges: Sequence[Variable],
) -> Signature:
    """Emit the function that gives an element of each root; returns how to call it.

    Its arguments are parameters, `dims`, `ranges`, then a value per hero. The map of a root, whose dimensions are some of
    `dims` by name and whose symbols are `ranges`, goes to the root's index.
    """
    partitioned = module.fused
    emitter = FunctionEmitter(
        module,
        partitioned,
        _members(partitioned, tuple(roots), heroes),
        module.parameter_types,
        [variable.bounds for variable in (*dims, *ranges)],
        [variable.name for variable in (*dims, *ranges)],
        heroes,
    )
    by_name = dict(zip([variable.name for variable in dims], emitter.index_arguments, strict=False))
    symbols = emitter.index_arguments[len(dims) :]
    values: list[SSAValue] = []
    for root, root_map in roots.items():
        emitter.builder.locate(root)
        index = emitter.builder.apply(root_map, (*(by_name[variable.name] for variable in root_map.dims), *symbols))
        values += emitter.element(root, index)
    names_of_roots = "_".join(root.name for root in roots)
    symbol = module.unique_symbol(function_name(f"{partitioned.computation.name}__epilogue__{names_of_roots}"))
    module.add_function(emitter.finish(symbol, values, {"llvm.linkage": _LINKAGE}))
    return Signature(SymbolRefAttr(symbol), tuple(value.type for value in values))


def _members(
    partitioned: PartitionedComputation, roots: Sequence[HloInstruction], heroes: Sequence[HloInstruction]
) -> set[HloInstruction]:
    """Return what the epilogue computes in place: all that depends on a hero, and what was to be emitted with it.

    Anything else is another subgraph's function: it does not see the heroes.
    """
    dependent: set[HloInstruction] = set(heroes)
    for instruction in partitioned.computation.post_order():
        if any(operand in dependent for operand in instruction.operands):
            dependent.add(instruction)
    members = set(roots)
    queue = list(roots)
    for instruction in queue:
        for operand in instruction.operands:
            is_here = operand in dependent or partitioned.subgraph_of[operand] is partitioned.subgraph_of[instruction]
            if is_here and operand not in heroes and operand not in members:
                members.add(operand)
                queue.append(operand)
    return members
