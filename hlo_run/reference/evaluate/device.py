"""A simulated device: it runs plans on its own stack of frames, so it can stop where it waits for other devices."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from msgspec import Struct, field

from hlo_run.arrays import NumpyType
from hlo_run.errors import InternalError, Unsupported
from hlo_run.hlo.feeds import Feed
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.values import Array, Evaluator, Kernel, Value, as_array, out_of_memory


class Wait(Struct, frozen=True):
    """A device's reason to wait: it continues when `ready` returns true; `what` describes the wait in the error of a deadlock."""

    instruction: HloInstruction
    ready: Callable[[], bool]
    what: Callable[[], str]


# The run of a computation or of an op that calls some: it yields frames, whose values are sent back, and waits.
# Deep nests of calls thus live on a list of the device, not on Python's stack.
Frame: TypeAlias = "Generator[Frame | Wait, Any, Value]"
# An op that calls computations or meets other devices. It owns the list of operands.
ProgramEvaluator: TypeAlias = "Callable[[HloInstruction, list[Value], Device], Frame]"


class Step(Struct, frozen=True):
    """One instruction: how to pick its operands from the slots, and its own slot. No later step reads the slots in `dead`.

    One of `kernel`, `evaluate` and `program` is set. `dims` and `dtype` are what the value must be;
    without `dims` the value is not checked.
    """

    instruction: HloInstruction
    kernel: Kernel | None
    evaluate: Evaluator | None
    program: ProgramEvaluator | None
    operands: Callable[[list[Value | None]], Sequence[Value]]
    slot: int
    dead: tuple[int, ...]
    dims: tuple[int, ...] | None
    dtype: NumpyType | None


class Plan(Struct, frozen=True):
    """The steps of a computation; `parameters` are (slot, parameter number) of the parameters that are read.

    `slots` are the values before the first step: constants and what is made of them alone without taking memory.
    """

    steps: tuple[Step, ...]
    parameters: tuple[tuple[int, int], ...]
    slots: tuple[Value | None, ...]
    root: int


class Meeting:
    """One collective in progress: the operands of the members that arrived, and `results` once all have."""

    __slots__ = ("operands", "results")

    def __init__(self) -> None:
        self.operands: dict[int, list[Value]] = {}
        self.results: dict[int, Value] | None = None


class World(Struct):
    """The state that the devices of one run share: their number, collectives in progress, messages not yet received.

    `seed` is the module's; `rng_places` numbers its `rng` instructions. `is_undivided`: every partition computes the whole
    arrays of a module that may have shardings.
    """

    replicas: int = 1
    partitions: int = 1
    seed: int = 42
    rng_places: dict[HloInstruction, int] = field(default_factory=dict[HloInstruction, int])
    meetings: dict[object, Meeting] = field(default_factory=dict[object, Meeting])
    is_undivided: bool = False
    # (lane, source, target) → messages in order.
    messages: dict[object, deque[Value]] = field(default_factory=dict[object, "deque[Value]"])

    @property
    def size(self) -> int:
        """The number of devices: replicas times partitions."""
        return self.replicas * self.partitions


class Plans(Protocol):
    """The plans of a module's computations, as `Device` looks them up."""

    def plan(self, computation: HloComputation, lifted: bool) -> Plan:
        """Return the plan of a computation; with `lifted`, the plan that takes arrays in place of the scalars."""
        ...

    def is_liftable(self, computation: HloComputation) -> bool:
        """True if the computation may be applied to arrays in place of its scalars."""
        ...


class Device:
    """One device of a run, number `id` in replica-major order; evaluators use it as their `Calls`.

    `counters` holds the state of every rng-get-and-update-state. `infeed` provides the data of infeed, and `outfeed`
    collects the data of outfeed.
    """

    def __init__(self, world: World, number: int, plans: Plans, infeed: Feed) -> None:
        self.world = world
        self.id = number
        self.replica, self.partition = divmod(number, world.partitions)
        self.counters: dict[HloInstruction, int] = {}
        self.infeed = infeed
        self.outfeed: list[Value] = []
        self.plans = plans
        self._stack: list[Frame] = []
        self._value: Value = ()

    def frame(self, computation: HloComputation, arguments: list[Value], lifted: bool = False) -> Frame:
        """Return a frame that will run a computation. It empties `arguments`, so that they can be freed early."""
        return self._run_plan(self.plans.plan(computation, lifted), arguments)

    def start(self, computation: HloComputation, arguments: Sequence[Value]) -> None:
        """Prepare to run a computation; `advance` runs it."""
        self._stack, self._value = [self.frame(computation, list(arguments))], ()

    def advance(self) -> Wait | None:
        """Run until the computation ends (returns None) or has to wait for another device."""
        self._value, wait = drive(self._stack)
        return wait

    @property
    def result(self) -> Value:
        """The value of the started computation, after `advance` has returned None."""
        return self._value

    def call(self, computation: HloComputation, arguments: Sequence[Value], lifted: bool = False) -> Value:
        """Return the root's value; see `Calls`. Raises Unsupported if the computation waits for another device."""
        value, wait = drive([self.frame(computation, list(arguments), lifted)])
        if wait is not None:
            what = f"'{wait.instruction.opcode}' inside a computation of scalars"
            raise Unsupported(f"the reference cannot evaluate {what}", wait.instruction.where)
        return value

    def call_on_elements(self, computation: HloComputation, arguments: Sequence[Array]) -> tuple[Array, ...]:
        """Apply a computation of scalars to every element; see `Calls`."""
        return _call_on_elements(self, computation, arguments)

    def _run_plan(self, plan: Plan, arguments: list[Value]) -> Frame:
        values: list[Value | None] = list(plan.slots)
        for slot, number in plan.parameters:
            values[slot] = arguments[number]
        arguments.clear()
        for step in plan.steps:
            operands = step.operands(values)
            for slot in step.dead:
                values[slot] = None
            kernel = step.kernel
            if kernel is not None:
                try:
                    value = kernel(*operands)
                except MemoryError:
                    raise out_of_memory(step.instruction) from None
                if type(value) is not np.ndarray:
                    value = np.asarray(value)
            elif step.evaluate is not None:
                try:
                    value = step.evaluate(step.instruction, operands, self)
                except MemoryError:
                    raise out_of_memory(step.instruction) from None
            else:
                assert step.program is not None, "a step has one way to its value"
                program = step.program(step.instruction, list(operands), self)
                # The program owns its operands: it can free one while it runs only if no other reference is left.
                operands = ()
                value = yield program
            if step.dims is not None and (
                type(value) is not np.ndarray or value.shape != step.dims or value.dtype is not step.dtype
            ):
                check_array(step, value)
            values[step.slot] = value
        root = values[plan.root]
        assert root is not None, "the root is never freed"
        return root


def drive(stack: list[Frame]) -> tuple[Value, Wait | None]:
    """Run the frames of a stack, innermost last, until the outermost returns or a frame waits."""
    # A new frame must be sent None, and a frame that waited checks its condition itself.
    value: Value | None = None
    while stack:
        try:
            request = stack[-1].send(value)
        except StopIteration as stop:
            stack.pop()
            value = stop.value
            continue
        if isinstance(request, Wait):
            return (), request
        stack.append(request)
        value = None
    assert value is not None, "a frame returns a value"
    return value, None


def check_array(step: Step, value: Value) -> None:
    """Check that a value has the dimensions and type of the step's shape.

    Raises Unsupported for mixed precision in an op that does not convert, InternalError for any other difference:
    the evaluator is wrong.
    """
    array = as_array(value)
    if array.shape != step.dims or (array.dtype is not step.dtype and array.dtype != step.dtype):
        instruction = step.instruction
        made = next((dtype for dtype in DTYPES.values() if dtype.numpy == array.dtype), None)
        if array.shape == step.dims and made is not None and made.is_float and instruction.shape.dtype.is_float:
            # The verifier accepts mixed precision, but an op that only moves elements does not convert them, nor does a call.
            kept = f"'{instruction.opcode}' from {made.name} to {instruction.shape.element_type}"
            raise Unsupported(f"{kept} in the reference", instruction.where, hint="convert before or after it")
        found = f"{array.dtype}{list(array.shape)}"
        raise InternalError(f"the reference made {found} of %{instruction.name}, a {instruction.shape}", instruction.where)


def shape_mismatch(value: Value, shape: Shape) -> str:
    """Return how a value differs from a shape in dimensions or type, or ""; a dynamic dimension may be smaller."""
    if isinstance(value, tuple) or not shape.is_array:
        if isinstance(value, tuple) and shape.is_tuple and len(value) == len(shape.tuple_shapes):
            found = (shape_mismatch(part, element) for part, element in zip(value, shape.tuple_shapes, strict=True))
            return next((text for text in found if text), "")
        return "" if value == () and shape.element_type == "token" else f"expected {shape.to_string(layout=False)}"
    dynamic = shape.dynamic_dims or (False,) * shape.rank
    fits = value.ndim == shape.rank and all(
        size == bound or (is_dynamic and size < bound)
        for size, bound, is_dynamic in zip(value.shape, shape.dims, dynamic, strict=True)
    )
    if fits and value.dtype == shape.dtype.numpy:
        return ""
    return f"expected {shape.to_string(layout=False)}, found {np.dtype(value.dtype)}{list(value.shape)}"


def _call_on_elements(device: Device, computation: HloComputation, arguments: Sequence[Array]) -> tuple[Array, ...]:
    """Apply a computation of scalars to every element of arrays whose shapes broadcast; one array per result."""
    dims = np.broadcast_shapes(*(argument.shape for argument in arguments))
    if device.plans.is_liftable(computation):
        results = _results(device.call(computation, list(arguments), lifted=True))
        return tuple(np.broadcast_to(result, dims) for result in results)
    # A computation that holds arrays of its own: nothing but one call per element is left.
    spread = [np.broadcast_to(argument, dims) for argument in arguments]
    outs = [np.empty(dims, shape.dtype.numpy) for _, shape in computation.root.shape.leaves()]
    for index in np.ndindex(*dims):
        results = _results(device.call(computation, [np.asarray(argument[index]) for argument in spread]))
        for out, result in zip(outs, results, strict=True):
            out[index] = result
    return tuple(outs)


def _results(value: Value) -> tuple[Array, ...]:
    return tuple(as_array(part) for part in value) if isinstance(value, tuple) else (value,)
