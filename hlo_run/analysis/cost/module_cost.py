"""Computes the cost of a module as XLA's `HloCostAnalysis` does: operations, transcendental functions, and bytes accessed.

The cost of a module is the sum over its entry. An instruction that calls a computation has the cost of it: a loop of one
iteration, a conditional of its dearest branch in each property. A fusion reads its parameters and writes its results only.

Properties have XLA's names: `flops`, `transcendentals`, `bytes accessed`, `bytes accessedN{}` (of operand N),
`bytes accessedout{}`, `utilizationN{}` (the part of operand N that is used), `optimal_seconds` (-1 for a custom call, whose cost
XLA does not know).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TypeAlias

from msgspec import Struct, field

from hlo_run.analysis.bitcast_kind import is_bitcast
from hlo_run.analysis.cost.convolution_products import convolution_products
from hlo_run.analysis.elementwise import is_element_operation
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.values.shape import Shape

FLOPS, TRANSCENDENTALS, BYTES, UTILIZATION = "flops", "transcendentals", "bytes accessed", "utilization"
OPTIMAL_SECONDS = "optimal_seconds"

Properties: TypeAlias = "defaultdict[str, float]"
_Handler: TypeAlias = "Callable[[_Analysis, HloInstruction, Properties], None]"

_POINTER_BYTES = 8
_SIZE_BYTES = 4  # a dynamic dimension has its size behind the elements
_FLOPS_PER_FMA = 2
_FMA_PER_COMPLEX_PRODUCT = 4
# A constant of one element is part of a fusion's code; larger ones are read.
_IMMEDIATE_ELEMENTS = 1
_UNKNOWN = -1.0

# XLA counts these apart from flops, since one of them can be many floating-point operations.
_TRANSCENDENTAL = opcode_set("""acos acosh asin asinh atan2 atanh cbrt cosine cosh erf exp2 exponential exponential-minus-one log
    log-plus-one log2 logistic power rsqrt sine sinh sqrt tan tanh""")


class ModuleCost(Struct, frozen=True):
    """The properties of the module, and of each instruction of the computations that its entry reaches."""

    properties: Mapping[str, float]
    instructions: Mapping[HloInstruction, Mapping[str, float]]


def cost_analysis(module: HloModule) -> ModuleCost:
    """Return the cost of `module`. Bytes count the arrays' buffers, and 8 for each pointer in the table of a tuple."""
    analysis = _Analysis()
    total = analysis.computation(module.entry)
    return ModuleCost(total, analysis.instructions)


def operand_key(number: int) -> str:
    """Return the name of the bytes that an instruction reads of an operand."""
    return f"{BYTES}{number}{{}}"


OUTPUT_KEY = f"{BYTES}out{{}}"


def buffer_bytes(shape: Shape) -> int:
    """Return the bytes of an array's buffer. Types of less than 8 bits take a byte each unless the layout packs them: `E(4)`."""
    if shape.is_tuple:
        return _POINTER_BYTES * len(shape.tuple_shapes)
    if not shape.is_array:
        return _POINTER_BYTES if shape.element_type == "opaque" else 0
    bits = shape.dtype.bits
    is_packed = shape.layout is not None and "E(" in shape.layout.extra
    size = (shape.element_count * bits + 7) // 8 if is_packed else shape.element_count * ((bits + 7) // 8)
    return size + _SIZE_BYTES * shape.rank if any(shape.dynamic_dims) else size


def _utilization_key(number: int) -> str:
    return f"{UTILIZATION}{number}{{}}"


def _is_of_places(name: str) -> bool:
    """True for properties of memory, which an instruction does not take over from the function that it applies to elements."""
    return name.startswith((BYTES, UTILIZATION))


class _Analysis(Struct):
    instructions: dict[HloInstruction, Properties] = field(default_factory=dict["HloInstruction", "Properties"])
    _sums: dict[HloComputation, Properties] = field(default_factory=dict["HloComputation", "Properties"])

    def computation(self, computation: HloComputation) -> Properties:
        """Return the sum over the instructions of a computation."""
        known = self._sums.get(computation)
        if known is not None:
            return known
        total: Properties = defaultdict(float)
        for instruction in computation.instructions:
            cost = self.instructions[instruction] = self._instruction(instruction)
            for name, value in cost.items():
                total[name] += value
        self._sums[computation] = total
        return total

    def _instruction(self, instruction: HloInstruction) -> Properties:
        cost: Properties = defaultdict(float)
        written = sum(buffer_bytes(leaf) for _, leaf in instruction.shape.leaves())
        _set_bytes(cost, written, [buffer_bytes(operand.shape) for operand in instruction.operands])
        for number in range(len(instruction.operands)):
            cost[_utilization_key(number)] = 1.0
        handler = _HANDLERS.get(instruction.opcode)
        if handler is not None:
            handler(self, instruction, cost)
        elif is_element_operation(instruction) or instruction.opcode == "bitcast-convert":
            cost[TRANSCENDENTALS if instruction.opcode in _TRANSCENDENTAL else FLOPS] = instruction.shape.element_count
        return cost

    def apply(self, function: HloComputation, times: int, cost: Properties) -> None:
        """Add the cost of `times` calls of a function on elements."""
        for name, value in self.computation(function).items():
            if not _is_of_places(name):
                cost[name] += value * times


def _set_bytes(cost: Properties, written: float, read: list[float]) -> None:
    """Set the bytes of the result and of the operands, and their sum."""
    cost[BYTES] = written + sum(read)
    cost[OUTPUT_KEY] = written
    for number, size in enumerate(read):
        cost[operand_key(number)] = size


def _elements(shape: Shape) -> int:
    """Return the elements of an array, or of the first array of a tuple."""
    return (shape.tuple_shapes[0] if shape.is_tuple else shape).element_count


def _part(one: Shape, two: Shape) -> float:
    return one.element_count / two.element_count if two.element_count else math.nan


def _nothing(analysis: _Analysis, instruction: HloInstruction, cost: Properties) -> None:
    del analysis
    _set_bytes(cost, 0, [0] * len(instruction.operands))


def _source(analysis: _Analysis, instruction: HloInstruction, cost: Properties) -> None:
    del analysis, instruction
    _set_bytes(cost, 0, [])


def _bitcast(analysis: _Analysis, instruction: HloInstruction, cost: Properties) -> None:
    del analysis, instruction
    _set_bytes(cost, 0, [0])


def _transpose(analysis: _Analysis, instruction: HloInstruction, cost: Properties) -> None:
    if is_bitcast(instruction):
        _bitcast(analysis, instruction, cost)


def _tuple(analysis: _Analysis, instruction: HloInstruction, cost: Properties) -> None:
    del analysis
    _set_bytes(cost, buffer_bytes(instruction.shape), [0] * len(instruction.operands))


def _slice(analysis: _Analysis, instruction: HloInstruction, cost: Properties) -> None:
    del analysis
    size = buffer_bytes(instruction.shape)
    _set_bytes(cost, size, [size])
    cost[_utilization_key(0)] = _part(instruction.shape, instruction.operands[0].shape)


def _dynamic_slice(analysis: _Analysis, instruction: HloInstruction, cost: Properties) -> None:
    del analysis
    source, size = instruction.operands[0].shape, buffer_bytes(instruction.shape)
    start = buffer_bytes(instruction.operands[1].shape) if len(instruction.operands) > 1 else 0
    cost[BYTES] = 2 * size + start
    cost[OUTPUT_KEY] = cost[operand_key(0)] = size
    cost[operand_key(1)] = start
    cost[_utilization_key(0)] = _part(instruction.shape, source)


def _dynamic_update_slice(analysis: _Analysis, instruction: HloInstruction, cost: Properties) -> None:
    """Only the update is read and written: the rest of the operand is in place."""
    del analysis
    update = instruction.operands[1].shape
    size = buffer_bytes(update)
    start = buffer_bytes(instruction.operands[2].shape) if len(instruction.operands) > 2 else 0
    cost[BYTES] = 2 * size + start
    cost[operand_key(0)] = 0
    cost[OUTPUT_KEY] = cost[operand_key(1)] = size
    cost[operand_key(2)] = start
    cost[_utilization_key(0)] = 1 - _part(update, instruction.shape)


def _gather(analysis: _Analysis, instruction: HloInstruction, cost: Properties) -> None:
    del analysis
    source, indices = (operand.shape for operand in instruction.operands[:2])
    size = buffer_bytes(instruction.shape)
    _set_bytes(cost, size, [size, buffer_bytes(indices)])
    cost[_utilization_key(0)] = _part(instruction.shape, source)


def _scatter(analysis: _Analysis, instruction: HloInstruction, cost: Properties) -> None:
    """Updates are read, and so many elements are read and written in the operands."""
    count = len(instruction.operands) // 2
    updates = [operand.shape for operand in instruction.operands[count + 1 :]]
    sizes = [buffer_bytes(update) for update in updates]
    _set_bytes(cost, sum(sizes), [*sizes, buffer_bytes(instruction.operands[count].shape), *sizes])
    analysis.apply(instruction.to_apply, updates[0].element_count, cost)


def _map(analysis: _Analysis, instruction: HloInstruction, cost: Properties) -> None:
    analysis.apply(instruction.to_apply, instruction.shape.element_count, cost)


def _reduce(analysis: _Analysis, instruction: HloInstruction, cost: Properties) -> None:
    times = instruction.operands[0].shape.element_count - _elements(instruction.shape)
    analysis.apply(instruction.to_apply, times, cost)


def _scan(analysis: _Analysis, instruction: HloInstruction, cost: Properties) -> None:
    analysis.apply(instruction.to_apply, instruction.operands[-1].shape.element_count, cost)


def _reduce_window(analysis: _Analysis, instruction: HloInstruction, cost: Properties) -> None:
    dims, results = instruction.window.dims, _elements(instruction.shape)
    times = (math.prod(dim.size for dim in dims) - 1) * results
    if (whole := _whole_dimension(instruction)) is not None:
        length = instruction.shape.dims[whole]
        times = results // length + length - 1
    analysis.apply(instruction.to_apply, times, cost)


def _whole_dimension(instruction: HloInstruction) -> int | None:
    """Return the dimension in which each window covers the whole array, if it is the only one with a window and padding."""
    dims = list(enumerate(instruction.window.dims))
    wide = [number for number, dim in dims if dim.size != 1]
    padded = [number for number, dim in dims if dim.pad_low or dim.pad_high]
    if not instruction.shape.is_array or len(wide) != 1 or wide != padded:
        return None
    dim = instruction.window.dims[wide[0]]
    is_centred = dim.pad_low == dim.pad_high and dim.size == 2 * dim.pad_low + 1
    return wide[0] if is_centred and dim.pad_low == instruction.shape.dims[wide[0]] - 1 else None


def _select_and_scatter(analysis: _Analysis, instruction: HloInstruction, cost: Properties) -> None:
    sources = instruction.operands[1].shape.element_count
    window = math.prod(dim.size for dim in instruction.window.dims)
    analysis.apply(instruction.called["select"][0], sources * (window - 1), cost)
    analysis.apply(instruction.called["scatter"][0], sources, cost)


def _dot(analysis: _Analysis, instruction: HloInstruction, cost: Properties) -> None:
    del analysis
    cost[FLOPS] = _dot_flops(instruction, instruction.shape.element_count)


def _ragged_dot(analysis: _Analysis, instruction: HloInstruction, cost: Properties) -> None:
    del analysis
    dims = instruction.shape.dims[len(instruction.rhs_group_dims) :]
    cost[FLOPS] = _dot_flops(instruction, math.prod(dims))


def _dot_flops(instruction: HloInstruction, results: int) -> int:
    left = instruction.operands[0].shape.dims
    return _FLOPS_PER_FMA * results * math.prod(left[dim] for dim in instruction.lhs_contracting_dims)


def _convolution(analysis: _Analysis, instruction: HloInstruction, cost: Properties) -> None:
    del analysis
    cost[FLOPS] = _FLOPS_PER_FMA * convolution_products(instruction, instruction.shape)


def _fft(analysis: _Analysis, instruction: HloInstruction, cost: Properties) -> None:
    del analysis
    logarithms = math.prod(length.bit_length() - 1 for length in instruction.fft_length)
    cost[FLOPS] = _FLOPS_PER_FMA * _FMA_PER_COMPLEX_PRODUCT * logarithms * _elements(instruction.operands[0].shape)


def _triangular_solve(analysis: _Analysis, instruction: HloInstruction, cost: Properties) -> None:
    """Half of the matrix is read. XLA puts the bytes of both operands under the first."""
    del analysis
    matrix, right = (operand.shape for operand in instruction.operands)
    size, half, right_size = buffer_bytes(instruction.shape), buffer_bytes(matrix) / 2, buffer_bytes(right)
    cost[BYTES] = size + half + right_size
    cost[OUTPUT_KEY], cost[operand_key(0)] = size, right_size
    cost[FLOPS] = _FLOPS_PER_FMA * matrix.dims[-1] * right.element_count


def _cholesky(analysis: _Analysis, instruction: HloInstruction, cost: Properties) -> None:
    del analysis
    matrix = instruction.operands[0].shape
    half = buffer_bytes(matrix) / 2
    _set_bytes(cost, half, [half])
    cost[FLOPS] = matrix.dims[-1] * matrix.element_count // 3


def _all_reduce(analysis: _Analysis, instruction: HloInstruction, cost: Properties) -> None:
    del analysis
    leaves = [leaf for _, leaf in instruction.shape.leaves() if leaf.is_array]
    cost[FLOPS] = sum(leaf.element_count for leaf in leaves)


def _random(analysis: _Analysis, instruction: HloInstruction, cost: Properties) -> None:
    del analysis
    cost[TRANSCENDENTALS] = sum(leaf.element_count for _, leaf in instruction.shape.leaves() if leaf.is_array)


def _sort(analysis: _Analysis, instruction: HloInstruction, cost: Properties) -> None:
    del analysis
    count = instruction.operands[0].shape.element_count
    cost[FLOPS] = count * (count - 1).bit_length() if count else 0


def _infeed(analysis: _Analysis, instruction: HloInstruction, cost: Properties) -> None:
    del analysis
    size = 0
    for index, leaf in instruction.shape.leaves():
        size += buffer_bytes(leaf)
        cost[f"{BYTES}out{{{','.join(map(str, index))}}}"] = buffer_bytes(leaf)
    cost[BYTES] = cost[OUTPUT_KEY] = size


def _outfeed(analysis: _Analysis, instruction: HloInstruction, cost: Properties) -> None:
    del analysis
    cost[BYTES] = 0
    for number, operand in enumerate(instruction.operands):
        size = 0
        for index, leaf in operand.shape.leaves():
            size += buffer_bytes(leaf)
            cost[f"{BYTES}{number}{{{','.join(map(str, index))}}}"] = buffer_bytes(leaf)
        cost[operand_key(number)] = size
        cost[BYTES] += size


def _custom_call(analysis: _Analysis, instruction: HloInstruction, cost: Properties) -> None:
    del analysis
    for name in (OPTIMAL_SECONDS, BYTES, OUTPUT_KEY, FLOPS, *map(operand_key, range(len(instruction.operands)))):
        cost[name] = _UNKNOWN


def _call(analysis: _Analysis, instruction: HloInstruction, cost: Properties) -> None:
    cost.clear()
    cost.update(analysis.computation(instruction.called_computations[0]))


def _while(analysis: _Analysis, instruction: HloInstruction, cost: Properties) -> None:
    cost.clear()
    for part in (instruction.while_body, instruction.while_condition):
        for name, value in analysis.computation(part).items():
            cost[name] += value


def _conditional(analysis: _Analysis, instruction: HloInstruction, cost: Properties) -> None:
    first, *others = instruction.called_computations
    cost.clear()
    cost.update(analysis.computation(first))
    for branch in others:
        for name, value in analysis.computation(branch).items():
            cost[name] = max(cost[name], value)


def _fusion(analysis: _Analysis, instruction: HloInstruction, cost: Properties) -> None:
    body = instruction.fused_computation
    if instruction.fusion_kind == "kCustom":
        for inner in body.instructions:
            if inner.opcode in ("gather", "scatter"):
                _HANDLERS[inner.opcode](analysis, inner, cost)
                return
    cost.clear()
    cost.update(analysis.computation(body))
    cost[BYTES] = sum(
        buffer_bytes(constant.shape)
        for constant in body.instructions
        if constant.opcode == "constant" and constant.shape.element_count > _IMMEDIATE_ELEMENTS
    )
    _fusion_results(instruction, body.root, cost)
    for number, parameter in enumerate(body.parameters):
        size = _parameter_bytes(parameter, number, cost)
        cost[BYTES] += size
        cost[operand_key(number)] = size
        cost[_utilization_key(number)] = 1.0


def _fusion_results(instruction: HloInstruction, root: HloInstruction, cost: Properties) -> None:
    """Count what a fusion writes: its results, and of a result in place only the update."""
    sizes: dict[tuple[int, ...], int] = {}
    for index, leaf in instruction.shape.leaves():
        if not leaf.is_array:
            continue
        value = root.operands[index[0]] if len(index) == 1 and root.opcode == "tuple" else root
        size = buffer_bytes(value.operands[1].shape if value.opcode == "dynamic-update-slice" else leaf)
        sizes.update({index[:depth]: sizes.get(index[:depth], 0) + size for depth in range(len(index) + 1)})
    for index, size in sizes.items():
        cost[f"{BYTES}out{{{','.join(map(str, index))}}}"] = size
    cost[BYTES] += sizes.get((), 0)


def _parameter_bytes(parameter: HloInstruction, number: int, cost: Properties) -> int:
    """Return the bytes that a fusion reads of a parameter; of a tuple it reads only the elements that it takes out."""
    if not parameter.shape.is_tuple:
        return _read_bytes(parameter)
    total = 0
    for index, _ in parameter.shape.leaves():
        element = parameter
        for place in index:
            takers = (user for user in element.users if user.opcode == "get-tuple-element" and user.tuple_index == place)
            element = next(takers, element)
        size = _read_bytes(element)
        cost[f"{BYTES}{number}{{{','.join(map(str, index))}}}"] = size
        total += size
    return total


def _read_bytes(value: HloInstruction) -> int:
    """Return the bytes of `value` that its users read. Users of the whole value share one read, others read their parts."""
    total, is_read = 0, False
    for user in dict.fromkeys(value.users):
        if user.opcode == "fusion":
            for number in [place for place, operand in enumerate(user.operands) if operand is value]:
                total += _nested_bytes(user, number)
            continue
        part = _partial_bytes(value, user)
        if part is not None:
            total += part
        elif not is_read:
            is_read = True
            total += buffer_bytes(value.shape)
    return total


def _nested_bytes(fusion: HloInstruction, number: int) -> int:
    """Return what a fusion inside a fusion reads of a parameter, looking at users of the inner one that read only a part."""
    parameter, root = fusion.fused_computation.parameters[number], fusion.fused_computation.root
    is_simple = not root.operands or root.operands[0] is parameter
    total, is_read = 0, False
    for user in dict.fromkeys(fusion.users):
        part = None
        if is_simple and user.opcode in ("slice", "dynamic-slice", "dynamic-update-slice"):
            part = _partial_bytes(fusion, user)
            whole = buffer_bytes(fusion.shape)
        else:
            whole = _read_bytes(parameter)
        if part is not None:
            total += part
        elif not is_read:
            is_read = True
            total += whole
    return total


def _partial_bytes(value: HloInstruction, user: HloInstruction) -> int | None:
    """Return the bytes of `value` that `user` reads on its own; None if it shares the read of the whole value."""
    if user.opcode == "slice" or (user.opcode == "dynamic-slice" and user.operands[0] is value):
        return buffer_bytes(user.shape)
    if user.opcode == "dynamic-update-slice" and user.operands[0] is value:
        return 0
    return buffer_bytes(value.shape) if user.opcode in ("broadcast", "reshape") else None


_HANDLERS: dict[Opcode, _Handler] = {
    "add-dependency": _nothing,
    "after-all": _nothing,
    "all-reduce": _all_reduce,
    "all-reduce-start": _all_reduce,
    "async-start": _call,
    "bitcast": _bitcast,
    "call": _call,
    "cholesky": _cholesky,
    "conditional": _conditional,
    "constant": _source,
    "convolution": _convolution,
    "custom-call": _custom_call,
    "domain": _nothing,
    "dot": _dot,
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "fft": _fft,
    "fusion": _fusion,
    "gather": _gather,
    "get-tuple-element": _nothing,
    "infeed": _infeed,
    "map": _map,
    "outfeed": _outfeed,
    "parameter": _source,
    "ragged-dot": _ragged_dot,
    "reduce": _reduce,
    "reduce-window": _reduce_window,
    "rng": _random,
    "rng-bit-generator": _random,
    "scaled-dot": _dot,
    "scan": _scan,
    "scatter": _scatter,
    "select-and-scatter": _select_and_scatter,
    "slice": _slice,
    "sort": _sort,
    "transpose": _transpose,
    "triangular-solve": _triangular_solve,
    "tuple": _tuple,
    "while": _while,
}
