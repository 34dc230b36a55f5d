"""Compiles a module of the gpu dialect to an Executable: outlines its launches, runs its host, compiles one kernel per launch."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import chain, count
from typing import Any

# Before all of xDSL's dialects, whose definitions are then made when they are used.
from hlo_run.dialects.gpu_kernel import GpuFuncOp, GpuModuleOp

# isort: split
from msgspec import Struct, field
from xdsl.dialects.builtin import MemRefType, ModuleOp, NoneAttr, StridedLayoutAttr
from xdsl.ir import Attribute, Operation

from hlo_run.artifact import (
    ArraySpec,
    BufferAllocation,
    BufferSlice,
    ConstantData,
    CopyThunk,
    Executable,
    Kernel,
    KernelArgument,
    KernelThunk,
    MemsetThunk,
    Thunk,
)
from hlo_run.codegen.emitters.emit import EmittedKernel
from hlo_run.codegen.gpu_modules.check import check_module
from hlo_run.codegen.gpu_modules.program import Argument, Program
from hlo_run.codegen.gpu_modules.specialize import specialized, written_arguments
from hlo_run.codegen.gpu_modules.trace import (
    Copy,
    Fill,
    Launch,
    Memory,
    Scalar,
    Trace,
    View,
    argument_values,
    item_bytes,
    packed_strides,
    to_bytes,
    trace_host,
)
from hlo_run.dialects.gpu_launch import LaunchFuncOp, LaunchOp
from hlo_run.dialects.parse import PlacedModule
from hlo_run.dialects.types import is_memref
from hlo_run.errors import HloRunError, Unsupported, Where
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pass_support.observer import StopAtStage
from hlo_run.pipeline.kernels import compile_gpu_kernel, outlined_module
from hlo_run.records import replace

_WORD_BYTES = 4


class Output(Struct, frozen=True):
    """A memref that the run gives back: of an argument, or (-1) the `number`th that the host allocated."""

    argument: int
    number: int
    dtype: str
    dims: tuple[int, ...]


class CompiledProgram(Struct, frozen=True):
    """An executable with one parameter for each argument that the run gives, and its results."""

    executable: Executable
    outputs: tuple[Output, ...]


def compile_program(ctx: PassContext, placed: PlacedModule, program: Program) -> CompiledProgram:
    """Compile a program for its sizes; raises errors of the HloRunError family."""
    check_module(placed)
    module, where = _copied(placed)
    outlined_module(ctx, program.name, module)
    launches = iter([op for op in placed.module.walk() if isinstance(op, LaunchOp | LaunchFuncOp)])
    moved: dict[Operation, Where] = {op: placed.where(next(launches)) for op in module.walk() if isinstance(op, LaunchFuncOp)}

    def place(op: Operation) -> Where:
        return moved.get(op) or where(op)

    if program.launch is not None:
        trace = _lone_launch(module, program)
    else:
        entry = next(op for op in module.body.block.ops if _name_of(op) == program.entry.sym_name.data)
        trace = trace_host(module, entry, program.arguments, place)  # type: ignore[arg-type]
    return _Assembly(ctx, program, trace, place).run()


def _name_of(op: Operation) -> str:
    name = op.properties.get("sym_name")
    return name.data if name is not None else ""  # type: ignore[attr-defined]


def _copied(placed: PlacedModule) -> tuple[ModuleOp, Callable[[Operation], Where]]:
    """Return a copy of the module and the places of its operations."""
    copy = placed.module.clone()
    originals = dict(zip(copy.walk(), placed.module.walk(), strict=True))

    def where(op: Operation) -> Where:
        around: Operation | None = op
        while around is not None and around not in originals:
            around = around.parent_op()
        return placed.where(originals[around] if around is not None else None)

    return copy, where


def _lone_launch(module: ModuleOp, program: Program) -> Trace:
    assert program.launch is not None, "the flags give the launch"
    kernel = next(op for op in module.walk() if isinstance(op, GpuFuncOp) and op.is_kernel)
    holder = kernel.parent_op()
    assert isinstance(holder, GpuModuleOp | ModuleOp), "a kernel is in a module"
    given = [
        value if isinstance(value, View | Scalar) else (argument.dtype, value)
        for argument, value in zip(program.arguments, argument_values(program.arguments), strict=True)
    ]
    return Trace(steps=[Launch(kernel, holder, kernel, program.launch, tuple(given))])


class _Assembly(Struct):
    """Makes the executable of a trace. `slots` has the allocation of each block of memory."""

    ctx: PassContext
    program: Program
    trace: Trace
    where: Callable[[Operation], Where]
    allocations: list[BufferAllocation] = field(default_factory=list[BufferAllocation])
    slots: dict[Memory, int] = field(default_factory=dict[Memory, int])
    kernels: dict[tuple[object, ...], tuple[Kernel, tuple[bool, ...]]] = field(
        default_factory=dict[tuple[object, ...], "tuple[Kernel, tuple[bool, ...]]"]
    )
    parameters: dict[int, int] = field(default_factory=dict[int, int])
    written: set[Memory] = field(default_factory=set[Memory])

    def run(self) -> CompiledProgram:
        arguments = self.program.arguments
        for number, argument in enumerate(arguments):
            if argument.value is None:
                size = _array_bytes(argument)
                self.parameters[number] = self._allocate(size, parameter_number=len(self.parameters))
        compiled = self._compile()
        for launch, (_, written) in compiled:
            values = zip(launch.arguments, written, strict=True)
            self.written |= {value.memory for value, is_written in values if is_written and isinstance(value, View)}
        self.written |= {step.target.memory for step in self.trace.steps if isinstance(step, Copy | Fill)}
        thunks = self._first_thunks()
        kernels = iter(compiled)
        for number, step in enumerate(self.trace.steps):
            thunks += self._thunks(number, step, next(kernels)[1] if isinstance(step, Launch) else None)
        outputs = self._outputs()
        first, *others = (self._spec(output) for output in outputs)
        executable = Executable(
            name=self.program.name,
            target=self.ctx.target.name,
            kernels=tuple(kernel for kernel, _ in self.kernels.values()),
            thunks=tuple(thunks),
            allocations=tuple(self.allocations),
            parameters=tuple(
                _array(arguments[number], BufferSlice(slot, 0, self.allocations[slot].size_bytes))
                for number, slot in self.parameters.items()
            ),
            result=(first, *others) if others else first,
        )
        return CompiledProgram(executable, tuple(outputs))

    # ---- kernels

    def _compile(self) -> list[tuple[Launch, tuple[Kernel, tuple[bool, ...]]]]:
        """Compile the kernels of all launches. A stage stops each kernel at its row, so that all are printed."""
        stopped: StopAtStage | None = None
        found: list[tuple[Launch, tuple[Kernel, tuple[bool, ...]]]] = []
        seen: set[tuple[object, ...]] = set()
        for step in self.trace.steps:
            if not isinstance(step, Launch):
                continue
            types = [
                _kernel_type(argument, value)
                for argument, value in zip(step.kernel.function_type.inputs, step.arguments, strict=True)
            ]
            key = (step.kernel, step.dimensions, *types)
            try:
                if key not in self.kernels and key not in seen:
                    self.kernels[key] = self._kernel(step, types)
                if key in self.kernels:
                    found.append((step, self.kernels[key]))
            except StopAtStage as stop:
                stopped = stop
            seen.add(key)
        if stopped is not None:
            raise stopped
        return found

    def _kernel(self, launch: Launch, types: Sequence[Attribute]) -> tuple[Kernel, tuple[bool, ...]]:
        name = re.sub(r"\W", "_", launch.kernel.sym_name.data)
        taken = {kernel.name for kernel, _ in self.kernels.values()}
        names = chain((name,), (f"{name}_{number}" for number in count(1)))
        name = next(filter(lambda each: each not in taken, names))
        written: list[bool] = []

        def make() -> EmittedKernel:
            module = specialized(launch.holder, launch.kernel, name, launch.dimensions, types)
            function = next(op for op in module.body.block.ops if isinstance(op, GpuFuncOp))
            written.extend(written_arguments(function))
            return EmittedKernel(module, launch.dimensions, 4, kind="gpu", vector_size=1)

        try:
            return compile_gpu_kernel(self.ctx, name, make), tuple(written)
        except HloRunError as error:
            error.where = error.where or self.where(launch.op)
            raise

    # ---- memory

    def _allocate(self, size_bytes: int, **facts: Any) -> int:
        self.allocations.append(BufferAllocation(len(self.allocations), size_bytes, **facts))
        return len(self.allocations) - 1

    def _slot(self, memory: Memory) -> int:
        if memory not in self.slots:
            is_argument = memory.argument >= 0
            if is_argument and memory not in self.written:
                self.slots[memory] = self.parameters[memory.argument]
            else:
                self.slots[memory] = self._allocate(-(-memory.size_bytes // _WORD_BYTES) * _WORD_BYTES)
        return self.slots[memory]

    def _first_thunks(self) -> list[Thunk]:
        """Copy the arguments that are written, and clear what the host allocates."""
        thunks: list[Thunk] = []
        for number, argument in enumerate(self.program.arguments):
            memory = Memory(number, number, _array_bytes(argument))
            if argument.is_memref and memory in self.written and memory.size_bytes:
                target = BufferSlice(self._slot(memory), 0, memory.size_bytes)
                source = BufferSlice(self.parameters[number], 0, memory.size_bytes)
                thunks.append(CopyThunk(f"copy of {argument.name}", source, target))
        for view in self.trace.allocated:
            size = self._slot(view.memory), 0, -(-view.memory.size_bytes // _WORD_BYTES) * _WORD_BYTES
            if size[2]:
                thunks.append(MemsetThunk(f"memory {view.memory.number}", BufferSlice(*size), 0, kind="kMemzero"))
        return thunks

    def _slice(self, view: View) -> BufferSlice:
        return BufferSlice(self._slot(view.memory), view.offset_bytes, view.size_bytes)

    def _thunks(self, number: int, step: Launch | Copy | Fill, compiled: tuple[Kernel, tuple[bool, ...]] | None) -> list[Thunk]:
        if isinstance(step, Copy):
            return (
                [CopyThunk(f"copy.{number}", self._slice(step.source), self._slice(step.target))]
                if step.source.size_bytes
                else []
            )
        if isinstance(step, Fill):
            return self._fill(number, step)
        assert compiled is not None, "a launch has a kernel"
        kernel, written = compiled
        arguments = tuple(
            KernelArgument(self._argument(value), is_written) for value, is_written in zip(step.arguments, written, strict=True)
        )
        return [KernelThunk(f"{kernel.name}.{number}", kernel.name, arguments)]

    def _argument(self, value: View | Scalar | tuple[str, object]) -> BufferSlice:
        if isinstance(value, View):
            return self._slice(value)
        if isinstance(value, Scalar):
            slot = self.parameters[value.argument]
            return BufferSlice(slot, 0, self.allocations[slot].size_bytes)
        dtype, number = value
        return self._constant(dtype, (), to_bytes(dtype, number))

    def _constant(self, dtype: str, dims: tuple[int, ...], data: bytes) -> BufferSlice:
        memory = Memory(-2, 0, len(data), data + dtype.encode())
        if memory not in self.slots:
            constant = ConstantData(dtype, dims, tuple(reversed(range(len(dims)))), data)
            self.slots[memory] = self._allocate(len(data), constant=constant)
        return BufferSlice(self.slots[memory], 0, len(data))

    def _fill(self, number: int, step: Fill) -> list[Thunk]:
        """Return a memset of words if the value repeats in them, else a copy of a constant."""
        view, item = step.target, to_bytes(step.target.dtype, step.value)
        target = self._slice(view)
        if not target.size_bytes:
            return []
        word = (item * _WORD_BYTES)[:_WORD_BYTES]
        repeats = (word * 2)[: len(item)] == item
        if repeats and target.size_bytes % _WORD_BYTES == 0 and target.offset_bytes % _WORD_BYTES == 0:
            return [MemsetThunk(f"fill.{number}", target, int.from_bytes(word, "little"))]
        source = self._constant(view.dtype, view.dims, item * (target.size_bytes // len(item)))
        return [CopyThunk(f"fill.{number}", source, target)]

    # ---- results

    def _outputs(self) -> list[Output]:
        """Return what the run gives back: arguments that are written, what the host shows or returns, else what it allocates."""
        found: dict[Memory, View] = {}
        for number, argument in enumerate(self.program.arguments):
            memory = Memory(number, number, _array_bytes(argument))
            if argument.is_memref and memory in self.written:
                found[memory] = View(memory, 0, argument.dtype, argument.dims, packed_strides(argument.dims))
        wholes = {view.memory: view for view in self.trace.allocated}
        for view in (*self.trace.shown, *self.trace.returned):
            if view.memory in wholes:
                found.setdefault(view.memory, wholes[view.memory])
        if not found:
            found = wholes
        if not found:
            raise Unsupported(
                f"'{self.program.name}' writes no memory that outlives it",
                self.where(self.trace.steps[0].op) if self.trace.steps and isinstance(self.trace.steps[0], Launch) else None,
                hint="results are memrefs that are arguments, returned, or allocated by the host",
            )
        return [Output(memory.argument, memory.number, view.dtype, view.dims) for memory, view in found.items()]

    def _spec(self, output: Output) -> ArraySpec:
        memory = next(memory for memory in self.slots if (memory.argument, memory.number) == (output.argument, output.number))
        slot = self.slots[memory]
        self.allocations[slot] = replace(self.allocations[slot], is_output=True)
        order = tuple(reversed(range(len(output.dims))))
        return ArraySpec(output.dtype, output.dims, order, BufferSlice(slot, 0, memory.size_bytes))


def _array_bytes(argument: Argument) -> int:
    size = item_bytes(argument.dtype)
    for extent in argument.dims:
        size *= extent
    return size


def _array(argument: Argument, piece: BufferSlice) -> ArraySpec:
    return ArraySpec(argument.dtype, argument.dims, tuple(reversed(range(len(argument.dims)))), piece)


def _kernel_type(type_: Attribute, value: View | Scalar | tuple[str, object]) -> Attribute:
    """Return the type of a kernel's argument for a value: a memref with the sizes and strides of a view."""
    if not is_memref(type_) or not isinstance(value, View):
        return type_
    layout = NoneAttr() if value.is_packed else StridedLayoutAttr(value.strides, 0)
    return MemRefType(type_.element_type, value.dims, layout, type_.memory_space)
