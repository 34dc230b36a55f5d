"""Defines what all emitters share: the records of arguments and kernels, the emitter protocol, and the entry function.

    func.func @fusion(%arg0: tensor<..> {xla.slice_index = 0 : index, ..}, ..) -> tensor<..> attributes {xla.entry}

The arguments are the fusion's operands, then its results. `tensor.insert` writes the results, and the function returns them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import ClassVar, Protocol

from msgspec import Struct
from xdsl.dialects import func, tensor
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, ModuleOp, UnitAttr
from xdsl.ir import Attribute, Block, Region, SSAValue

from hlo_run.analysis.decision import Decision, no
from hlo_run.analysis.tiling.fusion_analysis import FusionAnalysis
from hlo_run.analysis.tiling.launch_dimensions import LaunchDimensions
from hlo_run.codegen.elemental.builder import INDEX, IrBuilder
from hlo_run.codegen.elemental.emission import Values
from hlo_run.codegen.elemental.function import KernelModule, index_range, pure_call, result_shapes
from hlo_run.codegen.elemental.types import tensor_type
from hlo_run.dialects.gpu import BlockIdOp, ThreadIdOp
from hlo_run.dialects.xla_gpu import LoopOp, YieldOp
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.shape import Shape
from hlo_run.indexing.indexing_map import IndexingMap
from hlo_run.indexing.interval import Interval
from hlo_run.indexing.variable import GRID_NAMES


class EntryArgument(Struct, frozen=True):
    """The facts of buffer assignment about one pointer argument of a kernel.

    Equal `slice_index` means the same memory. `align` is in bytes. The kernel does not write `invariant` memory.
    """

    slice_index: int
    align: int
    dereferenceable_bytes: int
    invariant: bool


class EmittedKernel(Struct, frozen=True):
    """A kernel's IR and its launch dimensions. `unroll_factor` limits the unrolling of loops; `kind` names the emitter.

    `vector_size` is the number of neighbouring elements that a thread processes at a time.
    """

    module: ModuleOp
    launch: LaunchDimensions
    unroll_factor: int
    kind: str
    vector_size: int


class KernelEmitter(Protocol):
    """An emitter: one way to make a kernel of a fusion."""

    kind: ClassVar[str]

    def accepts(self, analysis: FusionAnalysis, arguments: Sequence[EntryArgument]) -> Decision:
        """Return yes if the emitter accepts the fusion, otherwise no with the reason."""
        ...

    def emit(self, analysis: FusionAnalysis, kernel_name: str, arguments: Sequence[EntryArgument]) -> EmittedKernel:
        """Return the kernel. Raises Unsupported for instructions and element types that cannot be emitted."""
        ...


class KindEmitter:
    """An emitter of the fusions that the analysis found to be of its kind."""

    kind: ClassVar[str]

    def accepts(self, analysis: FusionAnalysis, arguments: Sequence[EntryArgument]) -> Decision:
        """Return the verdict of the analysis on this kind."""
        del arguments
        return analysis.decision(self.kind) or no(f"the {analysis.kind} emitter takes it")


class EntryFunction:
    """The entry function under construction. `outputs` are the arguments for results, one per array result."""

    def __init__(self, analysis: FusionAnalysis, module: KernelModule, launch: LaunchDimensions) -> None:
        self.shapes = result_shapes(analysis.fusion.fused_computation.root)
        output_types = [tensor_type(shape, analysis.fusion.where) for shape in self.shapes]
        self._block = Block(arg_types=(*module.parameter_types, *output_types))
        arguments = tuple(self._block.args)
        self.parameters: Values = arguments[: len(module.parameter_types)]
        self.outputs: Values = arguments[len(module.parameter_types) :]
        self.builder = IrBuilder(self._block, module.index_bits)
        self.builder.locate(analysis.fusion)
        self._sizes: dict[str, int] = dict(zip(GRID_NAMES, (*launch.block, *launch.grid), strict=True))
        self.ids_by_name: dict[str, SSAValue] = {}

    def size_of_id(self, name: str) -> int:
        """Return the number of values of the id; it is in [0, size - 1]."""
        return self._sizes[name]

    def declare_ids(self, *maps: IndexingMap) -> None:
        """Read the ids that are dimensions of `maps`, threads before blocks."""
        used = {variable.name for indexing_map in maps for variable in indexing_map.dims}
        for name in GRID_NAMES:
            if name in used and name not in self.ids_by_name:
                self.ids_by_name[name] = self.read_id(name)

    def read_id(self, name: str) -> SSAValue:
        """Append the op that reads an id (`th_x`, `bl_z`), and return its value."""
        op = (ThreadIdOp if name.startswith("th") else BlockIdOp)(name[-1])
        op.attributes["xla.range"] = index_range(Interval.of_size(self._sizes[name]))
        return self.builder.add(op)[0]

    def ids(self, indexing_map: IndexingMap) -> Values:
        """Return the ids that are the map's dimensions. `declare_ids` must have read them."""
        return tuple(self.ids_by_name[variable.name] for variable in indexing_map.dims)

    def loop(self, indexing_map: IndexingMap, inits: Values, result_names: Sequence[str], dims: Values | None = None) -> LoopOp:
        """Append an `xla_gpu.loop` over the map with an empty body. `result_names` are the printed names of map results.

        Without `dims` the map's dimensions are thread and block ids.
        """
        loop = LoopOp(indexing_map, self.ids(indexing_map) if dims is None else dims, inits)
        for argument, name in zip(loop.map_results, result_names, strict=True):
            argument.name_hint = name
        self.builder.add(loop)
        return loop

    def loop_over_elements(self, indexing_map: IndexingMap, shape: Shape, body: Callable[[Values, Values], Values]) -> Values:
        """Append a loop over the elements of `shape` that carries the outputs, and return its results.

        `body` takes the element's index and the current outputs, appends the work of a thread, and returns the new outputs.
        If the shape has no elements, the method appends no loop and returns the outputs unchanged.
        """
        if not shape.element_count:
            return self.outputs
        self.declare_ids(indexing_map)
        loop = self.loop(indexing_map, self.outputs, numbered("dim", shape))
        with self.builder.inside(loop.body.block):
            values = body(tuple(loop.map_results), tuple(loop.iteration_values))
            self.builder.block.add_op(YieldOp.create(operands=values))
        return tuple(loop.res)

    def insert(self, value: SSAValue, target: SSAValue, index: Sequence[SSAValue]) -> SSAValue:
        """Append a `tensor.insert` of `value` into `target`, and return the new tensor."""
        return self.builder.create(tensor.InsertOp, (value, target, *index), target.type)

    def finish(self, kernel_name: str, arguments: Sequence[EntryArgument], results: Sequence[SSAValue]) -> func.FuncOp:
        """End the function with a return of `results`."""
        assert len(arguments) == len(self._block.args), "one argument record per operand and result"
        self._block.add_op(func.ReturnOp.create(operands=results))
        function = func.FuncOp(
            kernel_name,
            ([argument.type for argument in self._block.args], [result.type for result in results]),
            Region(self._block),
            arg_attrs=ArrayAttr([_argument_attributes(argument) for argument in arguments]),
        )
        function.attributes["xla.entry"] = UnitAttr()
        return function


def element_of(entry: EntryFunction, module: KernelModule, instruction: HloInstruction, index: Values) -> Values:
    """Emit an element of the root of a subgraph in the entry function. One value per result."""
    b = entry.builder
    b.locate(instruction)
    signature = module.signature(module.fused, module.fused.subgraph_of[instruction])
    return pure_call(b, signature, (*entry.parameters, *index))


@lru_cache(1024)  # kernels of one module have many equal ones
def _argument_attributes(argument: EntryArgument) -> DictionaryAttr:
    attributes: dict[str, Attribute] = {
        "llvm.align": IntegerAttr(argument.align, INDEX),
        "llvm.dereferenceable": IntegerAttr(argument.dereferenceable_bytes, INDEX),
    }
    if argument.invariant:
        attributes["xla.invariant"] = UnitAttr()
    attributes["xla.slice_index"] = IntegerAttr(argument.slice_index, INDEX)
    return DictionaryAttr(attributes)


def numbered(name: str, shape: Shape) -> list[str]:
    """Return `name0`, `name1`, .. for the dimensions of `shape`."""
    return [f"{name}{number}" for number in range(shape.rank)]
