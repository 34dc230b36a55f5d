"""Emits the functions of a kernel: one per called subgraph of a computation, in the order of the subgraphs.

    func.func private @gelu_multiply_0(%arg0: tensor<6x512x4096xbf16>, %i: index, %j: index, %k: index) -> bf16

A function takes all parameters of its computation and an index into its root, and returns the root's element. Functions
of computations on scalars (reducers) take and return scalars.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from msgspec import Struct
from xdsl.dialects import func, tensor
from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    IntegerAttr,
    ModuleOp,
    SymbolRefAttr,
    UnitAttr,
    i1,
)
from xdsl.dialects.llvm import LinkageAttr
from xdsl.ir import Attribute, Block, Region, SSAValue

from hlo_run.analysis.tiling.computation_partitioner import PartitionedComputation, Subgraph, partition
from hlo_run.codegen.elemental.builder import INDEX, IrBuilder
from hlo_run.codegen.elemental.emission import Emission, Values
from hlo_run.codegen.elemental.shaping import tuple_leaves
from hlo_run.codegen.elemental.table import emission
from hlo_run.codegen.elemental.types import element_type, tensor_type
from hlo_run.dialects.module_info import set_index_bits
from hlo_run.dialects.xla_gpu import PureCallOp
from hlo_run.errors import Unsupported
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.values.shape import Shape
from hlo_run.indexing.interval import Interval

_INDEX_NAMES = ("i", "j", "k", "l", "m", "n")
_LINKAGE = LinkageAttr("internal")
_TRUE = IntegerAttr(1, i1)
_NO_ATTRIBUTES = DictionaryAttr({})


@lru_cache(1024)
def index_range(interval: Interval) -> Attribute:
    """Return the value of an `xla.range` attribute, with closed bounds."""
    return ArrayAttr([IntegerAttr(interval.lower, INDEX), IntegerAttr(interval.upper, INDEX)])


@lru_cache(1024)
def _index_attributes(interval: Interval) -> DictionaryAttr:
    return DictionaryAttr({"xla.range": index_range(interval)})


class Signature(Struct, frozen=True):
    """The symbol and the result types of a function, for its callers."""

    callee: SymbolRefAttr
    result_types: tuple[Attribute, ...]

    @property
    def symbol(self) -> str:
        """The function's name without the `@`."""
        return self.callee.string_value()


class KernelModule:
    """The module of one kernel under construction. A function is emitted only if it is called."""

    def __init__(self, fused: PartitionedComputation, index_bits: int, kernel_name: str) -> None:
        self.fused = fused
        self.index_bits = index_bits
        self.parameter_types = tuple(tensor_type(p.shape, p.where) for p in fused.computation.parameters)
        self._partitions: dict[HloComputation, PartitionedComputation] = {fused.computation: fused}
        self._symbols = {kernel_name}
        self._signatures: dict[Subgraph, Signature] = {}
        self._pending: list[tuple[PartitionedComputation, Subgraph]] = []
        self._functions: dict[Subgraph, func.FuncOp] = {}
        self._others: list[func.FuncOp] = []

    def signature(self, partitioned: PartitionedComputation, subgraph: Subgraph) -> Signature:
        """Return the signature of the function of `subgraph`, and schedule its emission."""
        found = self._signatures.get(subgraph)
        if found is None:
            types = tuple(element_type(shape.element_type, subgraph.root.where) for shape in result_shapes(subgraph.root))
            found = self._signatures[subgraph] = Signature(SymbolRefAttr(self.unique_symbol(subgraph.name)), types)
            self._pending.append((partitioned, subgraph))
        return found

    def partition_of(self, computation: HloComputation) -> PartitionedComputation:
        """Return the partition of the fused computation or of a called computation."""
        found = self._partitions.get(computation)
        if found is None:
            found = self._partitions[computation] = partition(computation)
        return found

    def unique_symbol(self, name: str) -> str:
        """Return `name`, or the first `name_N` that is free, and reserve it."""
        symbol, number = name, 0
        while symbol in self._symbols:
            symbol, number = f"{name}_{number}", number + 1
        self._symbols.add(symbol)
        return symbol

    def add_function(self, function: func.FuncOp) -> None:
        """Add a function that does not belong to a subgraph. It comes after the functions of subgraphs."""
        self._others.append(function)

    def finish(self, entry: func.FuncOp) -> ModuleOp:
        """Emit the called functions and return the module: entry, subgraphs (users before producers), other functions."""
        while self._pending:
            partitioned, subgraph = self._pending.pop()
            self._functions[subgraph] = self._emit(partitioned, subgraph, self._signatures[subgraph].symbol)
        ordered = [
            self._functions[subgraph]
            for partitioned in self._partitions.values()
            for subgraph in partitioned.subgraphs
            if subgraph in self._functions
        ]
        module = ModuleOp([entry, *ordered, *self._others])
        set_index_bits(module, self.index_bits)
        return module

    def inline_scalars(self, b: IrBuilder, computation: HloComputation, values: Values) -> Values:
        """Append the ops of a computation on scalars and return its results. For bodies that must not contain calls."""
        partitioned = self.partition_of(computation)
        subgraph = partitioned.subgraph_of[computation.root]
        function = self._emit(partitioned, subgraph, subgraph.name)
        block = function.body.block
        for argument, value in zip(tuple(block.args), values, strict=True):
            argument.replace_all_uses_with(value)
        for op in tuple(block.ops):
            op.detach()
            if isinstance(op, func.ReturnOp):
                results = tuple(op.operands)
                op.erase()
                return results
            b.block.add_op(op)
        raise AssertionError("a function ends in a return")

    def _emit(self, partitioned: PartitionedComputation, subgraph: Subgraph, symbol: str) -> func.FuncOp:
        on_scalars = partitioned is not self.fused
        index_dims = () if on_scalars else result_shapes(subgraph.root)[0].dims
        ranges = [Interval.of_size(size) for size in index_dims]
        own_types = [_scalar_type(p) for p in partitioned.computation.parameters] if on_scalars else self.parameter_types
        emitter = FunctionEmitter(self, partitioned, set(subgraph.instructions), own_types, ranges)
        values = emitter.element(subgraph.root, emitter.index_arguments)
        attributes: dict[str, Attribute] = {"llvm.linkage": _LINKAGE}
        if subgraph.is_no_compute:
            attributes["no_compute"] = _TRUE
        return emitter.finish(symbol, values, attributes)


def result_shapes(root: HloInstruction) -> tuple[Shape, ...]:
    """Return the shapes of the results of a function with this root: several for a tuple or a variadic reduce."""
    return tuple(shape for leaf in tuple_leaves(root) for _, shape in leaf.shape.leaves())


def _scalar_type(parameter: HloInstruction) -> Attribute:
    if not parameter.shape.is_array or parameter.shape.rank:
        raise Unsupported(f"a called computation with a parameter of shape {parameter.shape}", parameter.where)
    return element_type(parameter.shape.element_type, parameter.where)


class FunctionEmitter:
    """Emits one function: elements of `members` and of parameters in place, all others by calls.

    The arguments are the parameters, one index per range, then injected values: hero results that the caller computed, several
    of a hero with several results.
    """

    def __init__(
        self,
        module: KernelModule,
        partitioned: PartitionedComputation,
        members: set[HloInstruction],
        parameter_types: Sequence[Attribute],
        ranges: Sequence[Interval],
        range_names: Sequence[str] = (),
        injected: Sequence[HloInstruction] = (),
    ) -> None:
        injected_types = [element_type(s.element_type, hero.where) for hero in injected for s in result_shapes(hero)]
        self._module = module
        self._partitioned = partitioned
        self._members = members
        self._ranges = ranges
        self._block = Block(arg_types=(*parameter_types, *([INDEX] * len(ranges)), *injected_types))
        first_index, first_injected = len(parameter_types), len(parameter_types) + len(ranges)
        arguments = tuple(self._block.args)
        self.parameters = arguments[:first_index]
        self.index_arguments: Values = arguments[first_index:first_injected]
        self._injected: dict[HloInstruction, Values] = {}
        for hero in injected:
            end = first_injected + len(result_shapes(hero))
            self._injected[hero] = arguments[first_injected:end]
            first_injected = end
        for number, argument in enumerate(self.index_arguments):
            names = range_names or _INDEX_NAMES
            argument.name_hint = names[number] if number < len(names) else None
        self._builder = IrBuilder(self._block, module.index_bits)

    @property
    def builder(self) -> IrBuilder:
        """The builder that appends the function's ops."""
        return self._builder

    def finish(self, symbol: str, values: Sequence[SSAValue], attributes: Mapping[str, Attribute]) -> func.FuncOp:
        """End the function with a return of `values`."""
        self._block.add_op(func.ReturnOp.create(operands=values))
        first_index = len(self.parameters)
        arg_attrs: list[DictionaryAttr] = [_NO_ATTRIBUTES] * len(self._block.args)
        for number, interval in enumerate(self._ranges):
            arg_attrs[first_index + number] = _index_attributes(interval)
        function = func.FuncOp(
            symbol,
            ([argument.type for argument in self._block.args], [value.type for value in values]),
            Region(self._block),
            "private",
            arg_attrs=ArrayAttr(arg_attrs) if self._ranges else None,
        )
        function.attributes.update(attributes)
        return function

    def element(self, instruction: HloInstruction, index: Values) -> Values:
        """Return the element of `instruction` at `index`, one value per result. Emits it if it is not computed yet."""
        found = self._at_hand(instruction, index)
        if found is not None:
            return found
        stack: list[tuple[HloInstruction, Values, Emission]] = [(instruction, index, emission(self, instruction, index))]
        answer: Values | None = None
        while stack:
            instruction, index, generator = stack[-1]
            self._builder.locate(instruction)
            try:
                wanted = next(generator) if answer is None else generator.send(answer)
            except StopIteration as stop:
                answer = stop.value
                assert answer is not None, "an emission returns its values"
                self._builder.scopes[-1].elements[instruction, index] = answer
                stack.pop()
                continue
            answer = self._at_hand(*wanted)
            if answer is None:
                stack.append((*wanted, emission(self, *wanted)))
        assert answer is not None, "the first emission returned"
        return answer

    def _at_hand(self, instruction: HloInstruction, index: Values) -> Values | None:
        """Return the values if they need no emission here: already computed, injected, a parameter, or a call."""
        injected = self._injected.get(instruction)
        if injected is not None:
            return injected
        key = instruction, index
        for scope in reversed(self._builder.scopes):
            found = scope.elements.get(key)
            if found is not None:
                return found
        if instruction not in self._members:
            return self._remember(key, self._call(instruction, index))
        if instruction.opcode == "parameter":
            return self._remember(key, self._parameter(instruction, index))
        return None

    def _remember(self, key: tuple[HloInstruction, Values], values: Values) -> Values:
        self._builder.scopes[-1].elements[key] = values
        return values

    def _parameter(self, parameter: HloInstruction, index: Values) -> Values:
        number = parameter.parameter_number
        argument = self.parameters[number]
        if self._partitioned is not self._module.fused:
            return (argument,)
        self._builder.locate(parameter)
        type_ = element_type(parameter.shape.element_type, parameter.where)
        return (self._builder.create(tensor.ExtractOp, (argument, *index), type_),)

    def _call(self, instruction: HloInstruction, index: Values) -> Values:
        """Call the function of the subgraph whose root is `instruction`."""
        subgraph = self._partitioned.subgraph_of[instruction]
        assert subgraph.root is instruction, f"{instruction.name} is inside the function {subgraph.name}"
        self._builder.locate(instruction)
        signature = self._module.signature(self._partitioned, subgraph)
        return pure_call(self._builder, signature, (*self.parameters, *index))

    def call_scalar(self, computation: HloComputation, values: Values, is_reduction: bool) -> Values:
        """Call a computation on scalars, a reducer by `func.call`, a mapper by `pure_call`. Returns its results."""
        partitioned = self._module.partition_of(computation)
        signature = self._module.signature(partitioned, partitioned.subgraph_of[computation.root])
        if not is_reduction:
            return pure_call(self._builder, signature, values)
        call = func.CallOp(signature.callee, values, signature.result_types)
        call.attributes["xla.is_reduction"] = UnitAttr()
        return tuple(self._builder.add(call))


def pure_call(b: IrBuilder, signature: Signature, arguments: Values) -> Values:
    """Append an `xla_gpu.pure_call` and return its results."""
    call = PureCallOp.create(operands=arguments, result_types=signature.result_types, properties={"callee": signature.callee})
    return tuple(b.add(call))
