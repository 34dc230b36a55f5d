"""Read the annotations of a module before shardings move: custom calls `Sharding`, groups, and dimensions left open."""

from __future__ import annotations

import re

from hlo_run.hlo.edit import InstructionMaker
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.sharding import NamedSharding, Sharding, SingleSharding, TupleSharding, tiled, without_metadata
from hlo_run.records import replace
from hlo_run.sharding.propagation.from_user import sharding_from_user
from hlo_run.sharding.propagation.state import Propagation, is_barrier, is_call_to, is_divided, leaf_sharding, set_sharding
from hlo_run.sharding.values.make import as_tiles, elements_of
from hlo_run.sharding.values.merge import merged
from hlo_run.sharding.values.replicate import keep_dims

_OPEN_DIMS = re.compile(r"unspecified_dims=\[([\d,\s]*)\]")


def clean(run: Propagation, module: HloModule) -> None:
    """Write every sharding with tiles, one per leaf of a tuple, without metadata; note shardings with open dimensions."""
    for instruction in module.instructions:
        sharding = instruction.sharding
        if sharding is None:
            continue
        if _has_open_dims(sharding):
            run.open.add(instruction)
        plain = without_metadata(as_tiles(sharding))
        if instruction.shape.is_tuple and isinstance(plain, SingleSharding):
            set_sharding(instruction, plain)
        elif plain != sharding:
            instruction.attrs["sharding"] = plain


def _has_open_dims(sharding: Sharding) -> bool:
    leaves = sharding.elements if isinstance(sharding, TupleSharding) else (sharding,)
    return any(not dim.is_closed for leaf in leaves if isinstance(leaf, NamedSharding) for dim in leaf.dims)


def open_dims(call: HloInstruction) -> tuple[int, ...]:
    """Return the dimensions that an annotation leaves to the compiler, ascending."""
    found = _OPEN_DIMS.search(str(call.backend_config))
    return tuple(sorted(int(word) for word in found[1].split(",") if word.strip())) if found else ()


def take_annotations(run: Propagation, module: HloModule) -> None:
    """Replace custom calls `Sharding` by copies with that sharding, and collect the groups."""
    for computation in list(module.computations):
        if computation.is_fusion:
            continue
        for instruction in reversed(computation.post_order()):
            if not is_call_to(instruction, "Sharding") or instruction.sharding is None:
                _take_group(run, instruction)
                continue
            _take_annotation(run, module, instruction)


def _take_annotation(run: Propagation, module: HloModule, call: HloInstruction) -> None:
    computation, operand = call.parent, call.operands[0]
    assert computation is not None
    sharding = call.sharding
    assert sharding is not None
    dims = open_dims(call)
    copy = InstructionMaker(where=call.where).add("copy", call.shape, [operand], sharding=sharding)
    computation.add(copy)
    module.replace(call, copy)
    for other in computation.instructions:
        if call in other.control_predecessors:
            other.control_predecessors = [copy if p is call else p for p in other.control_predecessors]
    copy.control_predecessors = list(call.control_predecessors)
    call.control_predecessors = []
    computation.remove(call)
    _take_group(run, copy)
    if dims:
        run.unspecified[copy] = dims
    elif operand.sharding is None and copy.sharding is not None:
        operand.attrs["sharding"] = copy.sharding


def _take_group(run: Propagation, instruction: HloInstruction) -> None:
    sharding = instruction.sharding
    if not isinstance(sharding, SingleSharding) or sharding.shard_group is None:
        return
    kind, number = sharding.shard_group
    run.group_of[instruction] = number
    run.groups.setdefault(number, []).append(instruction)
    if kind == "like":
        run.like_groups.add(number)
    instruction.attrs["sharding"] = replace(sharding, shard_group=None)


def _conversion_after(annotation: HloInstruction, dims: tuple[int, ...]) -> tuple[bool, HloInstruction | None]:
    """Return whether the open dimensions of a conversion to or from manual that follows are the same, and the conversion."""
    if len(annotation.users) == 1 and is_call_to(annotation.users[0], "SPMDFullToShardShape", "SPMDShardToFullShape"):
        user = annotation.users[0]
        return open_dims(user) == dims, user
    return True, None


def _merge_open(instruction: HloInstruction, new: SingleSharding, dims: tuple[int, ...]) -> bool:
    old = leaf_sharding(instruction)
    kept = keep_dims(new, dims)
    if old.is_manual or kept.is_manual:
        return False
    found = merged(kept, old, old.tile_count + 1)
    if found is None:
        return False
    instruction.attrs["sharding"] = found
    return True


def refine_from_operand(annotation: HloInstruction, dims: tuple[int, ...]) -> tuple[bool, HloInstruction | None]:
    """Divide the open dimensions of an annotation as its operand; return whether it changed, and the conversion after it."""
    operand = annotation.operands[0]
    if not is_divided(operand) or leaf_sharding(operand).kind != "tiled":
        return False, None
    fits, conversion = _conversion_after(annotation, dims)
    if not fits:
        return False, None
    return _refine(annotation, conversion, leaf_sharding(operand), dims, is_before=True), conversion


def refine_from_users(annotation: HloInstruction, dims: tuple[int, ...], level: int) -> tuple[bool, HloInstruction | None]:
    """Divide the open dimensions of an annotation as its users do."""
    fits, conversion = _conversion_after(annotation, dims)
    if not fits:
        return False, None
    source = conversion or annotation
    changed = False
    for user in source.users:
        if user.sharding is None or isinstance(user.sharding, TupleSharding) or leaf_sharding(user).kind != "tiled":
            continue
        found = sharding_from_user(source, user, level)
        if found is None or elements_of(found)[0].is_whole:
            continue
        changed |= _refine(annotation, conversion, elements_of(found)[0], dims, is_before=False)
    return changed, conversion


def refine_from_group(annotation: HloInstruction, dims: tuple[int, ...], group: list[HloInstruction]) -> bool:
    """Divide the open dimensions of an annotation as the other members of its group."""
    changed = False
    for member in group:
        if member is annotation or is_call_to(member, "ShardBarrierFrom") or not is_divided(member):
            continue
        if not is_barrier(annotation) and leaf_sharding(member).kind == "tiled":
            changed |= _merge_open(annotation, leaf_sharding(member), dims)
    return changed


def _refine(
    annotation: HloInstruction, conversion: HloInstruction | None, new: SingleSharding, dims: tuple[int, ...], is_before: bool
) -> bool:
    if conversion is None:
        return _merge_open(annotation, new, dims)
    is_to_shard = conversion.custom_call_target == "SPMDFullToShardShape"
    automatic, manual = (annotation, conversion) if is_to_shard else (conversion, annotation)
    found = _refined_pair(leaf_sharding(automatic), leaf_sharding(manual), new, dims, from_automatic=is_to_shard == is_before)
    if found is None:
        return False
    automatic.attrs["sharding"], manual.attrs["sharding"] = found
    return True


def _refined_pair(
    automatic: SingleSharding, manual: SingleSharding, new: SingleSharding, dims: tuple[int, ...], from_automatic: bool
) -> tuple[SingleSharding, SingleSharding] | None:
    """Divide open dimensions of an array inside and outside of a manual region alike."""
    if manual.subgroups != ("manual", "replicated") or "manual" in automatic.subgroups:
        return None
    kept = keep_dims(new, dims)
    if kept.tiles is None:
        return None
    if from_automatic:
        outside = merged(kept, automatic, automatic.tile_count + 1)
        # The manual dimension counts as one of the array, which the new sharding does not divide.
        rank = kept.data_rank
        inner = tiled(kept.tiles.reshape((*kept.dims[:rank], 1, *kept.dims[rank:])), ("replicated",) * len(kept.subgroups))
        assert manual.tiles is not None
        as_data = tiled(manual.tiles, ("replicated",))
        inside = merged(inner, as_data, as_data.tile_count + 1) if outside is not None else None
        if outside is None or inside is None or inside.tiles is None:
            return None
        return outside, tiled(inside.tiles, ("manual", *inside.subgroups))
    if "manual" not in kept.subgroups:
        return None
    inside = merged(kept, manual, manual.tile_count + 1)
    if inside is None:
        return None
    plain = tiled(kept.tiles, ("replicated",) * len(kept.subgroups))
    outside = merged(plain, automatic, automatic.tile_count + 1)
    return (outside, inside) if outside is not None else None
