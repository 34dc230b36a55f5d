"""Find the constraints on the fake values of an entry parameter: indices in bounds, sort keys, reduction identities."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from hlo_run.errors import Unsupported
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.views.indexed import Indexed
from hlo_run.reference.arguments.value_flow import uses_of
from hlo_run.walks import walk

# Ops between a parameter and a gather or scatter whose indices it is.
_INDEX_MOVERS: frozenset[Opcode] = frozenset(("reshape", "transpose", "copy", "slice", "bitcast"))
# Ops that change a parameter's value so little that the constraints of their users hold for it.
_VALUE_KEEPERS: frozenset[Opcode] = frozenset(("convert", "reduce-precision"))
# The largest value of an integer that the condition of a loop compares: with larger ones a loop may run for hours.
MOST_ROUNDS = 31


class Constraints(Struct, frozen=True):
    """The constraints on the values of one parameter; none by default.

    `index_limit` bounds values to the closed interval [0, index_limit]; `sorted_` means ascending order; `no_duplicates`
    means distinct keys; `identity` is a constant 0 or 1. `scattered`: the values are indices of a scatter. `windows`: the
    values are, in rows of one number per pair, the starts of windows that must not overlap; each pair has the number of
    windows side by side in one dimension, and the size of each.
    """

    index_limit: int | None = None
    sorted_: bool = False
    no_duplicates: bool = False
    identity: int | None = None
    scattered: bool = False
    windows: tuple[tuple[int, int], ...] = ()


def constraints_of(parameter: HloInstruction, path: tuple[int, ...] = ()) -> Constraints:
    """Return the constraints from all uses of an entry parameter, also within fusions, as XLA's `MakeFakeArguments`.

    Unlike in XLA, integers that a loop's condition compares are small, so that loops end; sizes of dynamic dimensions are
    within the bound, and a scatter with `unique_indices` gets windows that do not overlap: else its result is open.
    `path` is the index of a leaf of a tuple parameter. Raises Unsupported if the constraints of the uses conflict.
    """
    demands = list(dict.fromkeys(_demands(parameter, path)))
    limits = [demand.index_limit for demand in demands if demand.index_limit is not None]
    identities = [demand.identity for demand in demands if demand.identity is not None]
    no_duplicates = any(demand.no_duplicates for demand in demands)
    windows = [demand.windows for demand in demands if demand.scattered]
    if sum((bool(limits), bool(identities), no_duplicates)) > 1:
        raise Unsupported(
            f"conflicting operand generation constraints on parameter '{parameter.name}'",
            parameter.where,
            hint="pass the arguments with --inputs=FILE.npz",
            notes=("the parameter is used as more than one of: an index, a sort key, the initial value of a reduction",),
        )
    return Constraints(
        index_limit=min(limits) if limits else None,
        sorted_=any(demand.sorted_ for demand in demands),
        no_duplicates=no_duplicates,
        identity=identities[0] if identities else None,
        scattered=any(demand.scattered for demand in demands),
        windows=windows[0] if len(windows) == len(demands) == 1 else (),
    )


def _demands(origin: HloInstruction, path: tuple[int, ...] = ()) -> Iterator[Constraints]:
    """Yield the constraints from the uses of a parameter and of its conversions, depth first, each value once.

    In a loop, a conversion may be an operand of itself in the next iteration.
    """
    seen = {(origin, path)}
    waiting = [_value_demands(origin, path)]
    while waiting:
        found = next(waiting[-1], None)
        if found is None:
            waiting.pop()
        elif isinstance(found, Constraints):
            yield found
        elif (found, ()) not in seen:
            seen.add((found, ()))
            waiting.append(_value_demands(found, ()))


def _value_demands(origin: HloInstruction, path: tuple[int, ...]) -> Iterator[Constraints | HloInstruction]:
    """Yield the constraints from the uses of a value, and the values that are its conversions or its names in fusions."""
    for user, number in uses_of(origin, path):
        if user.opcode == "fusion":
            yield user.fused_computation.parameters[number]
        elif user.opcode in _VALUE_KEEPERS:
            yield user
        else:
            yield from _use_demands(user, number)
    if not path:
        yield from _moved_index_demands(origin)


def _use_demands(user: HloInstruction, number: int) -> Iterator[Constraints]:
    match user.opcode:
        case "dynamic-slice" if number >= 1:
            yield _start_index(user, number - 1, user.shape.dims)
        case "dynamic-update-slice" if number >= 2:
            yield _start_index(user, number - 2, user.operands[1].shape.dims)
        case "gather" | "scatter" if number == _indices_number(user):
            yield _gather_index(user, is_whole=True)
        case "set-dimension-size" if number == 1:
            yield Constraints(index_limit=user.shape.dims[user.dimensions[0]])
        case "reduce" | "reduce-window" if number >= len(user.operands) // 2:
            yield _identity(user.to_apply, number - len(user.operands) // 2)
        case "select-and-scatter" if number == 2:
            yield _identity(user.called["scatter"][0])
        case "ragged-dot" if number == 2:
            yield _group_size(user)
        case "compare" if user.operands[number].shape.dtype.is_integer and is_in_condition(user):
            yield Constraints(index_limit=MOST_ROUNDS)
        case "sort" if number == 0 and _tells_equal_keys_apart(user):
            yield Constraints(no_duplicates=user.operands[0].shape.dtype.is_integer)
        case _:
            return


def is_in_condition(compare: HloInstruction) -> bool:
    """True if a comparison of two scalars is in the condition of a loop."""
    callers = compare.parent.callers if compare.parent is not None and compare.shape.rank == 0 else ()
    return any(caller.opcode == "while" and caller.while_condition is compare.parent for caller in callers)


def _tells_equal_keys_apart(sort: HloInstruction) -> bool:
    """True if the result depends on the order of equal keys, which XLA leaves open."""
    return len(list(sort.operands)) >= 2 or sort.is_stable


def _start_index(user: HloInstruction, dim: int, sizes: tuple[int, ...]) -> Constraints:
    """Return the limit of the start of one dimension, or of all dimensions if the starts are one array."""
    room = [size - window for size, window in zip(user.operands[0].shape.dims, sizes, strict=True)]
    starts_are_scalars = user.operands[-1].shape.rank == 0
    return Constraints(index_limit=room[dim] if starts_are_scalars else min(room))


def _group_size(user: HloInstruction) -> Constraints:
    """Bound the group sizes so that their sum fits the ragged dimension; XLA draws any numbers, which are meaningless."""
    ragged: int = user.lhs_ragged_dims[0]
    return Constraints(index_limit=user.operands[0].shape.dims[ragged] // max(1, user.operands[2].shape.dims[-1]))


def _indices_number(user: HloInstruction) -> int:
    return 1 if user.opcode == "gather" else len(user.operands) // 2


def _gather_index(user: HloInstruction, is_whole: bool = False) -> Constraints:
    """Return the limit of the indices of a gather or scatter. `is_whole`: the parameter has them in the order of the op."""
    sizes, indexed = user.operands[0].shape.dims, Indexed.of(user).index_map
    limit = min((sizes[d] - 1 for d in indexed), default=0)
    is_scatter = user.opcode == "scatter"
    windows = _windows(user) if is_scatter and is_whole and user.unique_indices else ()
    return Constraints(max(limit, 0), sorted_=user.indices_are_sorted, scattered=is_scatter, windows=windows)


def _windows(scatter: HloInstruction) -> tuple[tuple[int, int], ...]:
    """Return, for each number of an index, how many windows of a scatter lie side by side in its dimension, and their size.

    Empty where indices are not rows of numbers, or may be equal in different batches.
    """
    view = Indexed.of(scatter)
    if view.operand_batching or (len(view.index_map) > 1 and view.index_vector_dim != view.indices.shape.rank - 1):
        return ()
    sizes, window = view.operand.shape.dims, view.slice_sizes
    return tuple((sizes[dim] // max(window[dim], 1), window[dim]) for dim in view.index_map)


def _moved_index_demands(origin: HloInstruction) -> Iterator[Constraints]:
    """Yield the constraints of gathers and scatters, in the same computation, whose indices are the moved elements."""
    for moved in walk(filter(_moves_indices, origin.users), lambda value: filter(_moves_indices, value.users)):
        for user in moved.users:
            if user.opcode in ("gather", "scatter") and user.operands[_indices_number(user)] is moved:
                yield _gather_index(user)


def _moves_indices(instruction: HloInstruction) -> bool:
    if instruction.opcode == "custom-call":
        return "AssumeGatherIndicesInBound" in instruction.custom_call_target
    return instruction.opcode in _INDEX_MOVERS


def _identity(reducer: HloComputation, number: int = 0) -> Constraints:
    """Return the constraint on an initial value of a reduction: 0 for a sum, 1 for a product, else none, as in XLA.

    Also of one array of several that are reduced together, which XLA leaves open.
    """
    root = reducer.root
    combined = root.operands[number] if root.opcode == "tuple" else root
    pair = {operand.parameter_number for operand in combined.operands if operand.opcode == "parameter"}
    if len(combined.operands) != 2 or pair != {number, number + len(reducer.parameters) // 2}:
        return Constraints()
    return Constraints(identity={"add": 0, "multiply": 1}.get(combined.opcode))
