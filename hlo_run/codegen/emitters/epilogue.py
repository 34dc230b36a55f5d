"""Emits the epilogue: the function that computes roots from the values of heroes, which the entry function has.

    func.func private @fusion__epilogue__abs(%arg0: tensor<..>, %th_x: index, %bl_x: index, %i: index, %j: index,
                                             %hero: f32) -> f32

Its index arguments are usually the thread and block ids and loop symbols of the caller. Several roots share them, and each
root has its own map from them to its index.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from xdsl.dialects.builtin import IntegerAttr, StringAttr, SymbolRefAttr
from xdsl.dialects.llvm import LinkageAttr
from xdsl.ir import Attribute, SSAValue

from hlo_run.analysis.tiling.computation_partitioner import PartitionedComputation, function_name, only_moves_elements
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
        assert step is not None, "only elementwise ops and bitcasts are between a hero and its root"
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
    """Return the thread and block ids that are dimensions of any of the maps, threads before blocks."""
    ids = {variable.name: variable for indexing_map in maps for variable in indexing_map.dims}
    return tuple(ids[name] for name in GRID_NAMES if name in ids)


def emit_epilogue(
    module: KernelModule,
    roots: Mapping[HloInstruction, IndexingMap],
    heroes: Sequence[HloInstruction],
    dims: Sequence[Variable],
    ranges: Sequence[Variable],
) -> Signature:
    """Emit the function that computes an element of each root, and return its signature.

    Its arguments are the parameters, `dims`, `ranges`, then the values of each hero, which may be roots. `roots` maps each root
    to the map to its index. The map's dimensions are some of `dims`, by name; its symbols are `ranges`.
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
    attributes: dict[str, Attribute] = {"llvm.linkage": _LINKAGE}
    if only_moves_elements(_above(partitioned.computation.root, heroes)):
        attributes["no_compute"] = IntegerAttr.from_bool(True)
    module.add_function(emitter.finish(symbol, values, attributes))
    return Signature(SymbolRefAttr(symbol), tuple(value.type for value in values))


def _above(root: HloInstruction, heroes: Sequence[HloInstruction]) -> list[HloInstruction]:
    """Return the instructions that `root` needs, without the heroes and what only those need."""
    seen = set(heroes)
    queue = [] if root in seen else [root]
    for instruction in queue:
        for operand in instruction.operands:
            if operand not in seen:
                seen.add(operand)
                queue.append(operand)
    return queue


def _members(
    partitioned: PartitionedComputation, roots: Sequence[HloInstruction], heroes: Sequence[HloInstruction]
) -> set[HloInstruction]:
    """Return the instructions that the epilogue computes in place: those that depend on a hero, and their subgraphs.

    Other instructions do not depend on heroes; the epilogue calls the functions of their subgraphs.
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
