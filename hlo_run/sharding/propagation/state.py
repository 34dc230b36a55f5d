"""The common state of the steps of sharding-propagation: the called computations, the eagerness, and when a sharding improves."""

from __future__ import annotations

from msgspec import Struct, field

from hlo_run.analysis.elementwise import is_elementwise
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import Sharding, SingleSharding
from hlo_run.sharding.values.make import REPLICATED, elements_of, for_shape, is_maximal, leaf_count, same_for_all
from hlo_run.sharding.values.merge import improved

# Custom calls whose result is divided as operand 0; those of `_SAME_RANK` only if both have one rank.
_PASSED = frozenset(("Sharding", "X64Combine", "LayoutConstraint"))
_SAME_RANK = frozenset(
    """ResizeNearest ResizeBilinear ResizeNearestGrad ResizeBilinearGrad Cholesky MoveToHost MoveToDevice
    PinToDevice PinToDeviceSram""".split()
)
BARRIERS = ("ShardBarrierFrom", "ShardBarrierTo")

# Opcodes through which shardings move at once.
_AT_ONCE = opcode_set("""call concatenate copy dynamic-slice dynamic-update-slice get-tuple-element opt-barrier reshape
    tuple transpose while""")
_SUPPORTED = opcode_set("""broadcast concatenate conditional constant convolution opt-barrier dot dynamic-slice
    dynamic-update-slice gather get-tuple-element infeed iota pad reduce-window reshape reverse scatter select-and-scatter
    slice sort transpose tuple while reduce rng-bit-generator all-reduce collective-permute reduce-scatter scan rng""")


class Propagation(Struct):
    """The state of a run.

    `caller` maps a computation of control flow to the instruction that calls it. `provided` are instructions whose sharding
    stays. `unspecified` names the dimensions that an annotation leaves open, `open` are other instructions whose sharding
    leaves dimensions open. `groups` maps an id to the members of a group
    that share a sharding, `group_of` a member to its id.
    """

    spreads_to_output: bool = False
    spreads_to_parameters: bool = False
    caller: dict[HloComputation, HloInstruction] = field(default_factory=dict[HloComputation, HloInstruction])
    provided: set[HloInstruction] = field(default_factory=set[HloInstruction])
    unspecified: dict[HloInstruction, tuple[int, ...]] = field(default_factory=dict[HloInstruction, tuple[int, ...]])
    open: set[HloInstruction] = field(default_factory=set[HloInstruction])
    groups: dict[int, list[HloInstruction]] = field(default_factory=dict[int, list[HloInstruction]])
    like_groups: set[int] = field(default_factory=set[int])
    group_of: dict[HloInstruction, int] = field(default_factory=dict[HloInstruction, int])

    def supports(self, instruction: HloInstruction, to_output: bool, to_parameters: bool) -> bool:
        """True if the result of an instruction can be divided."""
        computation = instruction.parent
        assert computation is not None, "the instruction is in a computation"
        if computation.root is instruction and computation not in self.caller and not (computation.is_entry and to_output):
            return False
        if is_elementwise(instruction) or instruction.opcode in _SUPPORTED:
            return True
        if instruction.opcode == "parameter":
            return to_parameters or computation in self.caller
        return instruction.opcode == "custom-call" and (is_passed(instruction) or is_barrier(instruction))


def is_passed(call: HloInstruction) -> bool:
    """True for a custom call whose result is divided as operand 0."""
    target = call.custom_call_target
    if call.opcode != "custom-call" or target in _PASSED:
        return call.opcode == "custom-call"
    if len(call.operands) != 1 or not call.shape.is_array or not call.operands[0].shape.is_array:
        return False
    return call.operands[0].shape.rank == call.shape.rank and target in _SAME_RANK


def is_barrier(instruction: HloInstruction) -> bool:
    """True for a custom call that stops shardings in one direction."""
    return instruction.opcode == "custom-call" and instruction.custom_call_target in BARRIERS


def is_call_to(instruction: HloInstruction, *targets: str) -> bool:
    """True for a custom call to one of the targets."""
    return instruction.opcode == "custom-call" and instruction.custom_call_target in targets


def moves_at(instruction: HloInstruction, level: int) -> bool:
    """True if shardings move through the instruction at this level of eagerness, 0 to 3."""
    if is_elementwise(instruction) or is_call_to(instruction, "Sharding") or instruction.opcode in _AT_ONCE:
        return True
    return level >= (2 if instruction.opcode == "broadcast" else 1)


def is_divided(instruction: HloInstruction) -> bool:
    """True if the value has a sharding over several devices, replicated or manual ones included."""
    return instruction.sharding is not None and not is_maximal(instruction.sharding)


def leaf_sharding(instruction: HloInstruction) -> SingleSharding:
    """Return the sharding of an array, or of the first leaf; the instruction must have one."""
    assert instruction.sharding is not None, "the instruction has a sharding"
    return elements_of(instruction.sharding)[0]


def set_sharding(instruction: HloInstruction, sharding: Sharding) -> None:
    """Set the sharding of an instruction; one for an array is repeated for the leaves of a tuple."""
    if instruction.shape.is_tuple and isinstance(sharding, SingleSharding):
        sharding = same_for_all(instruction.shape, sharding)
    instruction.attrs["sharding"] = sharding


def improve(instruction: HloInstruction, sharding: Sharding, may_combine: bool, reshards: bool = False) -> bool:
    """Take a sharding for an instruction if it is better than the one it has; return whether it was taken."""
    if instruction.shape.is_tuple and isinstance(sharding, SingleSharding):
        sharding = same_for_all(instruction.shape, sharding)
    found = improved(sharding, instruction.sharding, instruction.shape, may_combine, reshards)
    if found is None:
        return False
    set_sharding(instruction, found)
    return True


def improve_element(
    instruction: HloInstruction, index: int, sharding: SingleSharding, may_combine: bool, reshards: bool = False
) -> bool:
    """Take a sharding for one element of a tuple of arrays, or for the array at index 0."""
    if not instruction.shape.is_tuple:
        return improve(instruction, sharding, may_combine, reshards)
    old = instruction.sharding
    leaves = list(elements_of(old)) if old is not None else [REPLICATED] * leaf_count(instruction.shape)
    shape: Shape = instruction.shape.tuple_shapes[index]
    found = improved(sharding, leaves[index] if old is not None else None, shape, may_combine, reshards)
    if found is None:
        return False
    leaves[index] = elements_of(found)[0]
    instruction.attrs["sharding"] = for_shape(instruction.shape, leaves)
    return True


def inner_user_count(instruction: HloInstruction) -> int:
    """Return the number of users other than the computation's root."""
    computation = instruction.parent
    assert computation is not None, "the instruction is in a computation"
    return sum(user is not computation.root for user in instruction.users)
