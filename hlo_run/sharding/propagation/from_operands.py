"""Take a better sharding for an instruction from its operands."""

from __future__ import annotations

from collections.abc import Callable

from hlo_run.analysis.elementwise import is_elementwise
from hlo_run.hlo.edit import has_side_effect
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import Sharding, SingleSharding
from hlo_run.sharding.analysis.dot_dims import output_sharding, product_dims
from hlo_run.sharding.analysis.indexed_dims import (
    Indexed,
    MatchingDims,
    operand_from_slices,
    slices_from_indices,
    slices_from_operand,
)
from hlo_run.sharding.propagation.from_user import look_ahead
from hlo_run.sharding.propagation.state import (
    Propagation,
    improve,
    improve_element,
    inner_user_count,
    is_call_to,
    is_divided,
    is_passed,
    leaf_sharding,
    moves_at,
    set_sharding,
)
from hlo_run.sharding.values.make import (
    REPLICATED,
    elements_of,
    for_shape,
    is_manual,
    is_replicated,
    is_whole,
    leaf_count,
    part_of,
    same,
    same_for_all,
    with_tiles,
)
from hlo_run.sharding.values.merge import improved, is_more_specific, is_subtiling, merge
from hlo_run.sharding.values.moves import (
    all_data_replicated,
    along_dims,
    remove_dims,
    reverse,
    target_for_tiles,
    through_reshape,
)
from hlo_run.sharding.values.replicate import keep_dims, replicate_dims, transpose

# Their results, though tuples, belong together: one manual operand makes all of them manual.
_MANUAL_TUPLES: tuple[Opcode, ...] = ("reduce", "scan", "sort", "reduce-window", "custom-call")
# The operand 0 of these alone decides.
_OF_FIRST = opcode_set("""map pad power opt-barrier ragged-all-to-all reverse slice shift-left shift-right-arithmetic
    shift-right-logical""")
_OF_BEST = opcode_set("""concatenate all-gather all-reduce reduce-scatter all-to-all collective-broadcast collective-permute
    topk sort while""")


def infer_from_operands(run: Propagation, instruction: HloInstruction, level: int) -> bool:
    """Improve the sharding of an instruction by its operands' shardings; return whether it changed."""
    if not moves_at(instruction, level) or _is_manual(instruction):
        return False
    manual = _from_manual_operand(instruction, level)
    if manual is not None:
        return manual
    may_combine = level > 0
    if not run.supports(instruction, run.spreads_to_output, to_parameters=False):
        return _unsupported(instruction, may_combine)
    if instruction.opcode == "parameter":
        return _parameter(run, instruction, may_combine)
    rule = _RULES.get(instruction.opcode)
    return rule(instruction, level) if rule is not None else _default(instruction, level)


def _is_manual(instruction: HloInstruction) -> bool:
    return instruction.sharding is not None and is_manual(instruction.sharding)


def _from_manual_operand(instruction: HloInstruction, level: int) -> bool | None:
    """Take over a manual sharding from an operand. None: there is none, or the instruction does not take it."""
    if instruction.sharding is not None and not is_whole(instruction.sharding):
        return None
    if instruction.shape.is_tuple and instruction.opcode not in _MANUAL_TUPLES:
        return None
    for operand in instruction.operands:
        if not _is_manual(operand):
            continue
        if is_call_to(instruction, "SPMDShardToFullShape"):
            return False
        if level == 0 and instruction.opcode in ("concatenate", "dynamic-slice"):
            return False
        set_sharding(instruction, SingleSharding("manual"))
        return True
    return None


def _unsupported(instruction: HloInstruction, may_combine: bool) -> bool:
    """Replicate an array that cannot be divided and has a replicated operand."""
    computation = instruction.parent
    assert computation is not None
    if instruction.shape.is_tuple or not instruction.operands or instruction is computation.root or has_side_effect(instruction):
        return False
    for operand in instruction.operands:
        if operand.sharding is not None and is_replicated(operand.sharding):
            return improve(instruction, elements_of(operand.sharding)[0], may_combine)
    return False


def _representative(instruction: HloInstruction) -> HloInstruction | None:
    """Return the operand that decides the sharding of the result, or None."""
    if instruction.opcode in _OF_FIRST:
        return instruction.operands[0] if instruction.operands[0].sharding is not None else None
    if instruction.opcode == "custom-call":
        return instruction.operands[0] if is_passed(instruction) and instruction.operands else None
    if instruction.opcode not in _OF_BEST and not is_elementwise(instruction):
        return None
    best: HloInstruction | None = None
    for operand in instruction.operands:
        if operand.sharding is None:
            continue
        if best is None or (best.sharding is not None and is_more_specific(operand.sharding, best.sharding)):
            best = operand
    return best


def _parameter(run: Propagation, parameter: HloInstruction, may_combine: bool) -> bool:
    assert parameter.parent is not None
    caller = run.caller.get(parameter.parent)
    operand: HloInstruction | None = None
    if caller is not None and caller.opcode == "conditional":
        operand = caller.operands[1 + caller.called_computations.index(parameter.parent)]
    elif caller is not None and caller.opcode == "call":
        operand = caller.operands[parameter.parameter_number]
    return operand is not None and operand.sharding is not None and improve(parameter, operand.sharding, may_combine)


def _default(instruction: HloInstruction, level: int) -> bool:
    only = inner_user_count(instruction) == 1
    if is_elementwise(instruction) and level > 0:
        changed = False
        for operand in instruction.operands:
            if is_divided(operand) and operand.sharding is not None:
                reshards = len(instruction.operands) == 1 and only
                changed |= improve(instruction, operand.sharding, True, reshards)
        return changed
    if instruction.opcode == "rng" and level > 0:
        changed = False
        for operand in instruction.operands:
            if is_divided(operand):
                changed |= improve(instruction, all_data_replicated(leaf_sharding(operand), instruction.shape.rank), True, only)
        return changed
    operand = _representative(instruction)
    if operand is None or not is_divided(operand) or operand.sharding is None:
        return False
    return improve(instruction, operand.sharding, level > 0, only)


def _element(instruction: HloInstruction, level: int) -> bool:
    operand = instruction.operands[0]
    if not is_divided(operand) or operand.sharding is None:
        return False
    part = part_of(operand.sharding, operand.shape, instruction.tuple_index)
    if is_manual(part):
        set_sharding(instruction, part)
        return True
    return improve(instruction, part, level > 0, inner_user_count(instruction) == 1)


def _tuple(instruction: HloInstruction, level: int) -> bool:
    del level
    if not any(is_divided(operand) for operand in instruction.operands):
        return False
    old = instruction.sharding
    leaves = list(elements_of(old)) if old is not None else [REPLICATED] * leaf_count(instruction.shape)
    begin = 0
    for operand in instruction.operands:
        count = leaf_count(operand.shape)
        if operand.sharding is not None:
            for number, leaf in enumerate(elements_of(operand.sharding)[:count]):
                if old is None or is_more_specific(leaf, leaves[begin + number]):
                    leaves[begin + number] = leaf
        begin += count
    new = for_shape(instruction.shape, leaves)
    if old is not None and same(new, old):
        return False
    instruction.attrs["sharding"] = new
    return True


def _reduce(instruction: HloInstruction, level: int) -> bool:
    changed = False
    only = inner_user_count(instruction) == 1
    for number, operand in enumerate(instruction.operands[: len(instruction.operands) // 2]):
        if not is_divided(operand):
            continue
        sharding = leaf_sharding(operand)
        if sharding.is_manual:
            changed |= improve_element(instruction, number, sharding, level > 0, only)
            continue
        kept = all_data_replicated(sharding) if sharding.is_replicated else replicate_dims(sharding, instruction.dimensions)
        if kept.tiles is not None:
            kept = remove_dims(kept, instruction.dimensions)
        changed |= improve(instruction, kept, level > 0, only)
    return changed


def _scan(instruction: HloInstruction, level: int) -> bool:
    carries = instruction.num_carries
    inputs, inits = instruction.operands[:-carries], instruction.operands[-carries:]
    only = inner_user_count(instruction) == 1
    changed = False
    (dim,) = instruction.dimensions
    for number, operand in enumerate(inputs):
        if not is_divided(operand):
            continue
        sharding = leaf_sharding(operand)
        changed |= improve_element(instruction, number, sharding, level > 0, only)
        carry = sharding
        if sharding.tiles is not None:
            carry = replicate_dims(sharding, [dim])
            carry = remove_dims(carry, [dim]) if carry.tiles is not None else carry
        changed |= improve_element(instruction, len(inputs) + number, carry, level > 0, only)
    for number, init in enumerate(inits):
        if is_divided(init):
            changed |= improve_element(instruction, len(inputs) + number, leaf_sharding(init), level > 0, only)
    return changed


def _broadcast(instruction: HloInstruction, level: int) -> bool:
    operand = instruction.operands[0]
    if level < 3 or not is_divided(operand) or leaf_sharding(operand).tiles is None:
        return False
    sharding = leaf_sharding(operand)
    assert sharding.tiles is not None
    dims = [
        sharding.dims[instruction.dimensions.index(dim)] if dim in instruction.dimensions else 1
        for dim in range(instruction.shape.rank)
    ]
    new = with_tiles(sharding, sharding.tiles.reshape((*dims, *sharding.dims[sharding.data_rank :])))
    return improve(instruction, new, True, inner_user_count(instruction) == 1)


def _concatenate(instruction: HloInstruction, level: int) -> bool:
    operand = _representative(instruction)
    if operand is None or not is_divided(operand) or operand.sharding is None:
        return False
    if level == 0:
        (dim,) = instruction.dimensions
        for part in instruction.operands:
            if not _passes_at_once(part) or leaf_sharding(part).dims[dim] > 1:
                return False
    return improve(instruction, operand.sharding, level > 0, inner_user_count(instruction) == 1)


def _passes_at_once(operand: HloInstruction) -> bool:
    """True for a reshape of a parameter, as layers that are stacked have it."""
    if not is_divided(operand) or operand.opcode != "reshape" or leaf_sharding(operand).tile_count <= 1:
        return False
    return operand.operands[0].opcode in ("parameter", "get-tuple-element")


def _transpose(instruction: HloInstruction, level: int) -> bool:
    return _improve_from_operand(instruction, level, lambda sharding: transpose(sharding, instruction.dimensions))


def _reverse(instruction: HloInstruction, level: int) -> bool:
    return _improve_from_operand(instruction, level, lambda sharding: reverse(sharding, instruction.dimensions))


def _reshape(instruction: HloInstruction, level: int) -> bool:
    source = instruction.operands[0].shape.dims
    return _improve_from_operand(instruction, level, lambda sharding: through_reshape(source, instruction.shape.dims, sharding))


def _select_and_scatter(instruction: HloInstruction, level: int) -> bool:
    if any(dim.base_dilation > 1 for dim in instruction.window.dims):
        return False
    return _improve_from_operand(instruction, level, lambda sharding: sharding)


def _improve_from_operand(instruction: HloInstruction, level: int, move: Callable[[SingleSharding], SingleSharding]) -> bool:
    if not is_divided(instruction.operands[0]):
        return False
    return improve(instruction, move(leaf_sharding(instruction.operands[0])), level > 0, inner_user_count(instruction) == 1)


def _reduce_window(instruction: HloInstruction, level: int) -> bool:
    if any(dim.base_dilation > 1 or dim.window_dilation > 1 for dim in instruction.window.dims):
        return False
    changed = False
    for operand in instruction.operands[: len(instruction.operands) // 2]:
        if is_divided(operand):
            changed |= improve(instruction, leaf_sharding(operand), level > 0, inner_user_count(instruction) == 1)
    return changed


def _sort(instruction: HloInstruction, level: int) -> bool:
    operand = _representative(instruction)
    if operand is None or not is_divided(operand):
        return False
    sharding = leaf_sharding(operand)
    (dim,) = instruction.dimensions
    rank = range(operand.shape.rank)
    if (
        sharding.tiles is not None
        and sharding.dims[dim] != 1
        and target_for_tiles(operand.shape.dims, sharding, dim, rank) is None
    ):
        return False
    new = same_for_all(instruction.shape, sharding)
    return improve(instruction, new, level > 0, inner_user_count(instruction) == 1)


def _dynamic_slice(instruction: HloInstruction, level: int) -> bool:
    operand = instruction.operands[0 if instruction.opcode == "dynamic-slice" else 1]
    changed = False
    if is_divided(operand) and not leaf_sharding(operand).is_manual:
        cut = [d for d, n in enumerate(instruction.shape.dims) if n != operand.shape.dims[d]]
        changed = improve(instruction, replicate_dims(leaf_sharding(operand), cut), level > 0, inner_user_count(instruction) == 1)
    if instruction.opcode == "dynamic-update-slice" and is_divided(instruction.operands[0]):
        changed |= improve(instruction, leaf_sharding(instruction.operands[0]), level > 0)
    return changed


def _while(instruction: HloInstruction, level: int) -> bool:
    sharding: Sharding | None = instruction.operands[0].sharding
    if sharding is None:
        return False
    if instruction.sharding is not None:
        _, sharding = merge(instruction.sharding, sharding, level > 0)
    return improve(instruction, sharding, level > 0)


def _custom_call(instruction: HloInstruction, level: int) -> bool:
    if instruction.custom_call_target == "ShardBarrierFrom":
        return False
    if instruction.custom_call_target == "ShardBarrierTo":
        sharding = instruction.operands[0].sharding
        return sharding is not None and improve(instruction, sharding, level > 0, inner_user_count(instruction) == 1)
    operand = _representative(instruction)
    if operand is None or not is_divided(operand) or operand.sharding is None:
        return False
    return improve(instruction, operand.sharding, level > 0, inner_user_count(instruction) == 1)


def _dot(instruction: HloInstruction, level: int) -> bool:
    dims = product_dims(instruction)
    options: list[SingleSharding | None] = []
    for index, operand in enumerate(instruction.operands[:2]):
        found: Sharding | None = None
        if is_divided(operand):
            found = improved(
                output_sharding(leaf_sharding(operand), index, dims), instruction.sharding, instruction.shape, level > 0
            )
        options.append(elements_of(found)[0] if found is not None else None)
    first, second = options
    if first is None or second is None:
        chosen = first or second
        if chosen is None:
            return False
        instruction.attrs["sharding"] = chosen
        return True
    ahead = look_ahead(instruction)
    swaps = None
    if ahead is not None:
        fits = [is_subtiling(instruction.shape.dims, ahead, option) for option in (first, second)]
        swaps = fits[1] if fits[0] != fits[1] else None
    if swaps is None:
        swaps = instruction.operands[0].shape.size_bytes < instruction.operands[1].shape.size_bytes
    primary, other = (second, first) if swaps else (first, second)
    instruction.attrs["sharding"] = primary
    improve(instruction, other, level > 0)
    return True


def _convolution(instruction: HloInstruction, level: int) -> bool:
    dims = product_dims(instruction)
    lhs = instruction.operands[0]
    divides = any(
        is_divided(operand) and leaf_sharding(operand).tiles is not None and leaf_sharding(operand).dims[group.operand(index)] > 1
        for index, operand in enumerate(instruction.operands[:2])
        for group in dims.spatial
    )
    if not dims.spatial or (not divides and instruction.batch_group_count == 1 and instruction.feature_group_count == 1):
        return _dot(instruction, level)
    if not is_divided(lhs):
        return False
    sharding = leaf_sharding(lhs)
    if sharding.tiles is None:
        return improve(instruction, sharding, level > 0)
    labels = instruction.dim_labels
    if not _has_small_kernel(instruction):
        return improve(instruction, keep_dims(sharding, [labels.input.first_dim]), level > 0)
    if sharding.dims[labels.input.second_dim] > 1:
        return False
    order = [0] * instruction.shape.rank
    order[labels.output.first_dim] = labels.input.first_dim
    order[labels.output.second_dim] = labels.input.second_dim
    for source, target in zip(labels.input.spatial_dims, labels.output.spatial_dims, strict=True):
        order[target] = source
    return improve(instruction, transpose(sharding, order), level > 0)


def _has_small_kernel(convolution: HloInstruction) -> bool:
    """True if the kernel is smaller than the result, so that the result is the one to divide."""
    labels = convolution.dim_labels
    kernel_total, output_total = 1, 1
    for number, (kernel_dim, output_dim) in enumerate(zip(labels.kernel.spatial_dims, labels.output.spatial_dims, strict=True)):
        kernel, output = convolution.operands[1].shape.dims[kernel_dim], convolution.shape.dims[output_dim]
        kernel_total, output_total = kernel_total * kernel, output_total * output
        if kernel >= output and (number < 2 or kernel > 3 or kernel_total >= output_total):
            return False
    return True


def _parallel(sharding: SingleSharding, source: tuple[int, ...], target: tuple[int, ...], shape: Shape) -> SingleSharding:
    return along_dims(sharding, source, target, shape.rank)


def _gather(instruction: HloInstruction, level: int) -> bool:
    what = Indexed.of(instruction)
    operand, indices = instruction.operands
    changed = False

    def along(dims: MatchingDims) -> bool:
        done = False
        for value, source in ((operand, dims.operand), (indices, dims.indices)):
            if is_divided(value):
                done |= improve(instruction, _parallel(leaf_sharding(value), source, dims.slices, instruction.shape), level > 0)
        return done

    batching, parallel = what.batching(), what.parallel()
    if batching is not None:
        changed |= along(batching)
    if is_divided(indices):
        changed |= improve(instruction, slices_from_indices(leaf_sharding(indices), what), level > 0)
    if parallel is not None:
        changed |= along(parallel)
    if is_divided(operand):
        rest = replicate_dims(leaf_sharding(operand), parallel.operand if parallel else ())
        found = None if rest.is_manual else slices_from_operand(rest, what)
        if found is not None:
            changed |= improve(instruction, found, level > 0)
    return changed


def _scatter(instruction: HloInstruction, level: int) -> bool:
    what = Indexed.of(instruction)
    count = len(instruction.operands) // 2
    operands, indices, updates = instruction.operands[:count], instruction.operands[count], instruction.operands[count + 1 :]
    shape = what.operand.shape
    changed = False

    def along(dims: MatchingDims) -> bool:
        done = False
        for number in range(count):
            for value, source in ((operands[number], dims.operand), (indices, dims.indices), (updates[number], dims.slices)):
                if is_divided(value):
                    new = _parallel(leaf_sharding(value), source, dims.operand, shape)
                    done |= improve_element(instruction, number, new, level > 0)
        return done

    batching = what.batching()
    if batching is not None:
        changed |= along(batching)
    for number, operand in enumerate(operands):
        if is_divided(operand):
            changed |= improve_element(instruction, number, leaf_sharding(operand), level > 0)
    if not is_divided(indices) and not any(is_divided(update) for update in updates):
        return changed
    parallel = what.parallel()
    if parallel is not None:
        changed |= along(parallel)
    for number, update in enumerate(updates):
        if is_divided(update):
            found = operand_from_slices(leaf_sharding(update), what)
            if found is not None:
                changed |= improve_element(instruction, number, found, level > 0)
    return changed


_RULES: dict[Opcode, Callable[[HloInstruction, int], bool]] = {
    "get-tuple-element": _element,
    "tuple": _tuple,
    "reduce": _reduce,
    "scan": _scan,
    "broadcast": _broadcast,
    "concatenate": _concatenate,
    "convolution": _convolution,
    "transpose": _transpose,
    "reduce-window": _reduce_window,
    "select-and-scatter": _select_and_scatter,
    "reshape": _reshape,
    "reverse": _reverse,
    "dot": _dot,
    "sort": _sort,
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_slice,
    "gather": _gather,
    "scatter": _scatter,
    "while": _while,
    "custom-call": _custom_call,
}
