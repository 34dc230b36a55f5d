"""Interprets a whole module of the gpu dialect before any pass: the host's function, and the launches in it.

The host is one thread to the interpreter. Its memory and that of the device are one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from xdsl.dialects import func, memref
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from hlo_run.analysis.tiling.launch_dimensions import LaunchDimensions
from hlo_run.dialects.gpu_kernel import GpuFuncOp, GpuModuleOp
from hlo_run.dialects.gpu_launch import LaunchFuncOp, LaunchOp
from hlo_run.dialects.types import is_memref
from hlo_run.interpret.gpu_kernel import LANES, Buffer, Fault, GpuKernel, buffer_dtype
from hlo_run.interpret.kernel import Step, Values, value_dtype
from hlo_run.interpret.memory import Memory
from hlo_run.interpret.scalars import Array, NotInterpreted

_ONE = LaunchDimensions((1, 1, 1), (1, 1, 1))
_HOST_WORK = frozenset(("gpu.wait", "gpu.dealloc", "memref.dealloc", "gpu.host_register", "gpu.host_unregister"))


class Outcome(NamedTuple):
    """The memory after a run: of the arguments, of the host's allocations in order, and of its results."""

    memory: Memory
    arguments: list[Any]
    allocated: list[Buffer]
    returned: list[Any]

    def array(self, buffer: Buffer) -> Array:
        """Return the content of a buffer of the host."""
        count = int(np.prod(buffer.dims))
        size = buffer.dtype.itemsize
        start = int(np.asarray(buffer.address).reshape(-1)[0])
        places = np.zeros((), np.int64)
        for extent, stride in zip(buffer.dims, buffer.strides, strict=True):
            places = np.add.outer(places, np.arange(extent) * stride)
        data = self.memory.data
        if buffer.dtype == np.bool_:
            return data[start + places.reshape(-1)].astype(np.bool_).reshape(buffer.dims)
        return data.view(buffer.dtype)[start // size + places.reshape(count)].reshape(buffer.dims)


def interpret_program(module: ModuleOp, entry: str, arguments: Sequence[Array], until: float) -> Outcome:
    """Run the host's function `entry`. Arguments of memrefs are arrays, whose sizes they take.

    Raises Fault for what the program must not do, and NotInterpreted after `until` (time.monotonic).
    """
    memory = Memory()
    with np.errstate(all="ignore"):
        host = _HostInterpreter(module, memory, until)
        function = host.function(entry)
        values: list[Any] = []
        for argument, given in zip(function.body.blocks[0].args, arguments, strict=True):
            type_ = argument.type
            if is_memref(type_):
                array = np.ascontiguousarray(given, buffer_dtype(type_))
                start = memory.allocate(array.nbytes, array.tobytes())
                values.append(Buffer.packed(np.asarray(start), array.dtype, array.shape))
            else:
                values.append(np.asarray(given, value_dtype(type_)))
        returned = host.run_function(function, values)
        return Outcome(memory, values, host.allocated, list(returned))


def interpret_kernel(
    module: ModuleOp, kernel: GpuFuncOp, launch: LaunchDimensions, arguments: Sequence[Array], until: float
) -> Outcome:
    """Run one launch of a kernel of a module that has no host."""
    memory = Memory()
    values: list[Any] = []
    for type_, given in zip(kernel.function_type.inputs, arguments, strict=True):
        if is_memref(type_):
            array = np.ascontiguousarray(given, buffer_dtype(type_))
            start = memory.allocate(array.nbytes, array.tobytes())
            values.append(Buffer.packed(np.asarray(start), array.dtype, array.shape))
        else:
            values.append(np.asarray(given, value_dtype(type_)))
    with np.errstate(all="ignore"):
        _HostInterpreter(module, memory, until).launch(kernel, kernel, launch, values, {})
    return Outcome(memory, values, [], [])


class _HostInterpreter(GpuKernel):
    """Interprets the host's functions, with one lane."""

    def __init__(self, module: ModuleOp, memory: Memory, until: float) -> None:
        super().__init__(_named(module.body.block.ops), _ONE, memory, until)
        self._kernel_modules = {
            op.sym_name.data: _named(op.body.block.ops) for op in module.body.block.ops if isinstance(op, GpuModuleOp)
        }
        self.allocated: list[Buffer] = []

    def function(self, name: str) -> func.FuncOp:
        """Return a function of the host."""
        return self._functions[name]

    def run_function(self, function: func.FuncOp, values: list[Any]) -> Values:
        """Run a function of the host and return its results."""
        blocks, mask = [*function.body.blocks], np.ones(1, bool)
        return self._region(blocks[0], values, mask, {}) if len(blocks) == 1 else self._graph(blocks, values, mask)

    def launch(
        self,
        op: Operation,
        kernel: GpuFuncOp | LaunchOp,
        launch: LaunchDimensions,
        arguments: Values,
        outer: Mapping[SSAValue, Any],
    ) -> None:
        """Run a launch, as many whole blocks at a time as have at most so many threads together."""
        if min(*launch.grid, *launch.block) < 1:
            raise Fault(op, f"a launch of {launch}: sizes are at least 1")
        functions = self._kernel_modules.get(_module_of(kernel), self._functions)
        step = max(1, LANES // launch.threads_per_block)
        for first in range(0, launch.blocks, step):
            size = self._memory.data.size
            blocks = range(first, min(launch.blocks, first + step))
            run = GpuKernel(functions, launch, self._memory, self._until, blocks)
            shared, private = kernel.attributions
            own = [run.attribution(value.type, shared=True) for value in shared]
            own += [run.attribution(value.type, shared=False) for value in private]
            ids = run.launch_arguments() if isinstance(kernel, LaunchOp) else []
            run.run_body(kernel.body, [*ids, *arguments, *own], outer)
            self._memory.data = self._memory.data[:size].copy()

    # ---- operations

    def do_launch(self, step: Step) -> Values:
        op: LaunchOp = step.op
        mask, env = step.mask, step.env
        if mask.any():
            self.launch(op, op, self._dimensions(op, env), [], env)
        return [None for _ in op.results]

    def do_launch_func(self, step: Step) -> Values:
        op: LaunchFuncOp = step.op
        mask, env = step.mask, step.env
        holder, (name,) = op.kernel.root_reference.data, [each.data for each in op.kernel.nested_references]
        kernel = self._kernel_modules.get(holder, {}).get(name)
        if not isinstance(kernel, GpuFuncOp):
            raise Fault(op, f"there is no kernel @{holder}::@{name}")
        if mask.any():
            self.launch(op, kernel, self._dimensions(op, env), [env[value] for value in op.arguments], {})
        return [None for _ in op.results]

    def _dimensions(self, op: LaunchOp | LaunchFuncOp, env: Mapping[SSAValue, Any]) -> LaunchDimensions:
        gx, gy, gz, bx, by, bz = (int(np.asarray(env[size]).reshape(-1)[0]) for size in (*op.grid, *op.block))
        return LaunchDimensions((gx, gy, gz), (bx, by, bz))

    def do_alloc(self, step: Step) -> Values:
        op, env = step.op, step.env
        sizes = iter([int(np.asarray(env[size]).reshape(-1)[0]) for size in op.dynamic_sizes])
        dims = [next(sizes) if size < 0 else size for size in op.memref.type.get_shape()]
        dtype = buffer_dtype(op.memref.type)
        start = self._memory.allocate(int(np.prod(dims)) * dtype.itemsize, bytes(int(np.prod(dims)) * dtype.itemsize))
        buffer = Buffer.packed(np.asarray(start), dtype, dims)
        self.allocated.append(buffer)
        return [buffer, *[None for _ in op.results[1:]]]

    def do_copy(self, step: Step) -> Values:
        op, values = step.op, step.values
        target, source = values[-2:] if op.name == "gpu.memcpy" else (values[1], values[0])
        if target.dims != source.dims:
            raise Fault(op, f"a copy of a memref of {source.dims} to one of {target.dims}")
        self._fill(target, Outcome(self._memory, [], [], []).array(source))
        return [None for _ in op.results]

    def do_memset(self, step: Step) -> Values:
        op, values = step.op, step.values
        target, value = values[-2:]
        self._fill(target, np.broadcast_to(np.asarray(value).reshape(-1)[0], target.dims))
        return [None for _ in op.results]

    def _fill(self, buffer: Buffer, content: Array) -> None:
        places = np.zeros((), np.int64)
        for extent, stride in zip(buffer.dims, buffer.strides, strict=True):
            places = np.add.outer(places, np.arange(extent) * stride)
        address = int(np.asarray(buffer.address).reshape(-1)[0]) + places.reshape(-1) * buffer.dtype.itemsize
        self._memory.store(address, np.ascontiguousarray(content, buffer.dtype).reshape(-1), np.ones(address.size, bool))

    def do_host_work(self, step: Step) -> Values:
        op = step.op
        return [None for _ in op.results]

    def do_host_call(self, step: Step) -> Values:
        op = step.op
        function = self._functions.get(op.callee.string_value())
        if isinstance(function, func.FuncOp) and not function.body.blocks:
            if function.function_type.outputs.data:
                raise NotInterpreted(f"function @{function.sym_name.data} has no body")
            return []  # a function that prints
        return self.do_device_call(step)


def _named(ops: Any) -> dict[str, Any]:
    named = [(op, op.properties.get("sym_name") or op.attributes.get("sym_name")) for op in ops]
    return {name.data: op for op, name in named if name is not None and isinstance(op, func.FuncOp | GpuFuncOp | memref.GlobalOp)}


def _module_of(kernel: Operation) -> str:
    around = kernel.parent_op()
    return around.sym_name.data if isinstance(around, GpuModuleOp) else ""


_HostInterpreter.work = {
    **GpuKernel.work,
    **dict.fromkeys(_HOST_WORK, _HostInterpreter.do_host_work),
    **dict.fromkeys(("memref.alloc", "gpu.alloc"), _HostInterpreter.do_alloc),
    **dict.fromkeys(("memref.copy", "gpu.memcpy"), _HostInterpreter.do_copy),
    "memref.alloca": _HostInterpreter.do_alloc,
    "gpu.memset": _HostInterpreter.do_memset,
    "gpu.launch": _HostInterpreter.do_launch,
    "gpu.launch_func": _HostInterpreter.do_launch_func,
    "func.call": _HostInterpreter.do_host_call,
}
