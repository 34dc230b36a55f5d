"""Refuses modules whose tuples or calls are nested deeper than the compiler handles, and dimensions without a bound.

Compilation and evaluation walk types, values and computations by recursive functions, whose depth these limits bound. Reading
and printing have the limits of XLA's parser. The length of a chain of instructions is not nesting, and has no limit.
"""

from __future__ import annotations

from collections.abc import Callable

from hlo_run.errors import DeviceError, Unsupported
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.shape import UNBOUNDED, Shape
from hlo_run.walks import post_order

# Protocol buffers, XLA's own file format, nest at most 100 deep, so XLA reads no module with deeper tuples from a file.
MAX_TUPLE_DEPTH = 100
# The levels of calls, loops, branches, fusions and reducers below the entry.
MAX_CALL_DEPTH = 100


# Elements of an array that a run can hold, on any platform.
MAX_RUN_ELEMENTS = 2**40
# Calls that the reference follows without Python's stack.
_FOLLOWED_BY_REFERENCE: frozenset[Opcode] = frozenset(("call", "while", "conditional", "fusion", "async-start"))


def verify_limits(module: HloModule, *, to_evaluate: bool = False) -> None:
    """Raise Unsupported if a shape nests more than MAX_TUPLE_DEPTH tuples, or a call tree has more than MAX_CALL_DEPTH levels.

    An array with an unbounded dimension (`f32[?]`) is refused too: nothing tells the size of its buffer; and so are forms of a
    few instructions that XLA's verifier lets pass, but no later step understands (`_FORMS`). If the module is only evaluated
    (`to_evaluate`), a level is a computation that is applied to elements, such as a reducer. The calls of the module must
    have no cycle.
    """
    known: dict[int, int] = {}
    for computation in module.computations:
        for instruction in computation.instructions:
            if instruction.shape.is_array and UNBOUNDED in instruction.shape.dims:
                hint = "write the bound of the dimension, as in f32[<=8]"
                raise Unsupported(f"'{instruction.name}' has a dimension without a bound", instruction.where, hint)
            if instruction.shape.tuple_shapes and _tuple_depth(instruction.shape, known) > MAX_TUPLE_DEPTH:
                hint = f"tuples nest at most {MAX_TUPLE_DEPTH} deep"
                raise Unsupported(f"'{instruction.name}': its tuple is nested too deep", instruction.where, hint)
            if instruction.opcode == "shuffle" and to_evaluate:
                _refuse_shuffle(instruction)
            if instruction.opcode in _FORMS:
                _FORMS[instruction.opcode](instruction)
            if instruction.opcode == "bitcast" and not to_evaluate:
                _verify_bitcast_size(instruction)
    _verify_call_depth(module, _FOLLOWED_BY_REFERENCE if to_evaluate else frozenset())


def _verify_bitcast(bitcast: HloInstruction) -> None:
    source, target = bitcast.operands[0].shape, bitcast.shape
    if not (source.is_array and target.is_array):
        raise Unsupported(f"'{bitcast.name}': a bitcast of or into a tuple", bitcast.where)


def _verify_bitcast_size(bitcast: HloInstruction) -> None:
    source, target = bitcast.operands[0].shape, bitcast.shape
    if source.size_bytes != target.size_bytes:
        raise Unsupported(f"'{bitcast.name}': a bitcast of {source.size_bytes} bytes into {target.size_bytes}", bitcast.where)


def _verify_bitcast_convert(convert: HloInstruction) -> None:
    source, target = convert.operands[0].shape, convert.shape
    if any(source.dynamic_dims) != any(target.dynamic_dims):
        raise Unsupported(f"'{convert.name}': a bitcast-convert between static and dynamic sizes", convert.where)


def _verify_random_bits(bits: HloInstruction) -> None:
    if len(bits.operands) != 1 or not bits.operands[0].shape.is_array:
        raise Unsupported(f"'{bits.name}': a rng-bit-generator needs one array as its state", bits.where)


def _verify_map(mapped: HloInstruction) -> None:
    if any(operand.shape.dims != mapped.shape.dims for operand in mapped.operands):
        raise Unsupported(f"'{mapped.name}': a map of arrays and scalars together", mapped.where)


def _verify_scatter(scatter: HloInstruction) -> None:
    updates = scatter.operands[len(scatter.operands) // 2 + 1 :]
    if any(update.shape.dims != updates[0].shape.dims for update in updates):
        raise Unsupported(f"'{scatter.name}': a scatter of updates that have different dimensions", scatter.where)


def _verify_dynamic_reshape(reshape: HloInstruction) -> None:
    if any(size.shape.dims or not size.shape.is_array for size in reshape.operands[1:]):
        raise Unsupported(f"'{reshape.name}': a dynamic-reshape whose sizes are no scalars", reshape.where)


def _verify_dot(dot: HloInstruction) -> None:
    for name in ("sparsity_config", "block_scaling_config"):
        if name in dot.attrs:
            raise Unsupported(f"'{dot.name}': a {dot.opcode} with {name}", dot.where)


def verify_shuffles(module: HloModule) -> None:
    """Raise Unsupported if the module has a shuffle. The rows remove some; no kernel computes the others, in XLA:GPU neither."""
    for shuffle in module.instructions_of("shuffle"):
        _refuse_shuffle(shuffle)


def _refuse_shuffle(shuffle: HloInstruction) -> None:
    raise Unsupported(f"Unsupported instruction opcode: shuffle ('{shuffle.name}')", shuffle.where)


def _verify_collective_reduce(reduction: HloInstruction) -> None:
    raise Unsupported(f"Unsupported collective instruction: {reduction.name} (collective-reduce)", reduction.where)


_FORMS: dict[Opcode, Callable[[HloInstruction], None]] = {
    "bitcast": _verify_bitcast,
    "bitcast-convert": _verify_bitcast_convert,
    "collective-reduce": _verify_collective_reduce,
    **dict.fromkeys(("convolution", "dot"), _verify_dot),
    "dynamic-reshape": _verify_dynamic_reshape,
    "map": _verify_map,
    "rng-bit-generator": _verify_random_bits,
    "scatter": _verify_scatter,
}


def verify_sizes(module: HloModule) -> None:
    """Raise DeviceError if an array has more than MAX_RUN_ELEMENTS elements. Such a module compiles, but no run can hold it."""
    for instruction in module.instructions:
        for _, leaf in instruction.shape.leaves():
            if leaf.is_array and leaf.element_count > MAX_RUN_ELEMENTS:
                text = leaf.to_string(layout=False)
                message = f"'{instruction.name}': shape {text} has {leaf.element_count} elements, more than any device can hold"
                raise DeviceError(message, instruction.where, "--stage=ptx compiles without running")


def _tuple_depth(shape: Shape, known: dict[int, int]) -> int:
    """Return the number of tuples around the deepest leaf; `known` keeps depths by `id` for one walk of a module."""
    # The ids stay valid, since every shape here is held by the shape of an instruction.
    waiting = [shape]
    while waiting:
        top = waiting[-1]
        missing = [part for part in top.tuple_shapes if part.tuple_shapes and id(part) not in known]
        if missing:
            waiting += missing
            continue
        waiting.pop()
        known[id(top)] = 1 + max((known.get(id(part), 0) for part in top.tuple_shapes), default=0)
    return known[id(shape)]


def _verify_call_depth(module: HloModule, free: frozenset[Opcode]) -> None:
    """Check the levels of calls. Calls of the opcodes `free` make no level."""
    depths: dict[HloComputation, int] = {}
    calls: dict[HloComputation, list[tuple[HloComputation, HloInstruction]]] = {}

    def not_yet(caller: HloComputation) -> list[HloComputation]:
        calls[caller] = [(called, i) for i in caller.instructions if i.called for called in i.called_computations]
        return [called for called, _ in calls[caller] if called not in depths]

    for start in module.computations:
        for top in post_order(start, not_yet) if start not in depths else ():
            depths[top] = 0
            for called, instruction in calls[top]:
                depths[top] = max(depths[top], depths[called] + (instruction.opcode not in free))
                if depths[top] > MAX_CALL_DEPTH:
                    hint = f"computations call each other at most {MAX_CALL_DEPTH} deep"
                    message = f"'{instruction.name}' ({instruction.opcode}): its computations are nested too deep"
                    raise Unsupported(message, instruction.where, hint)
