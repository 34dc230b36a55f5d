"""The reference evaluator: it plans the computations of a module and runs them on one or several simulated devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hlo_run.errors import DeviceError, UsageError
from hlo_run.hlo.feeds import NO_FEEDS, Feeds
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.verify.runnable import verify_evaluable
from hlo_run.reference import convert
from hlo_run.reference.evaluate import async_ops, collectives, control, custom_calls, lifted, rng, transfers
from hlo_run.reference.evaluate.device import Device, Plan, ProgramEvaluator, Wait, World, shape_mismatch
from hlo_run.reference.evaluate.dynamic_drops import drops_sizes, guarded
from hlo_run.reference.evaluate.observed import Observer, observed
from hlo_run.reference.evaluate.plan import Chooser, find_effects, make_plan
from hlo_run.reference.numerics import (
    batch_norm,
    convolution,
    dot,
    dynamic,
    elementwise,
    fft,
    indexed,
    ragged_dot,
    reduce,
    scan,
    shaping,
    sort,
    triangular,
    windows,
)
from hlo_run.reference.numerics.blas import one_blas_thread
from hlo_run.reference.numerics.ordered_products import ordered_products
from hlo_run.reference.numerics.precision import widen_module, widen_value
from hlo_run.reference.values import Evaluator, Value, merge, quiet

if TYPE_CHECKING:
    from hlo_run.reference.evaluate.alterations import EvaluatorChange

EVALUATE: dict[Opcode, Evaluator] = merge(
    (
        async_ops.EVALUATE,
        batch_norm.EVALUATE,
        collectives.EVALUATE,
        control.EVALUATE,
        convert.EVALUATE,
        convolution.EVALUATE,
        dot.EVALUATE,
        elementwise.EVALUATE,
        fft.EVALUATE,
        indexed.EVALUATE,
        ragged_dot.EVALUATE,
        reduce.EVALUATE,
        rng.EVALUATE,
        scan.EVALUATE,
        shaping.EVALUATE,
        sort.EVALUATE,
        triangular.EVALUATE,
        windows.EVALUATE,
    )
)
PROGRAM: dict[Opcode, ProgramEvaluator] = {
    **async_ops.PROGRAM,
    **collectives.PROGRAM,
    **control.PROGRAM,
    **custom_calls.PROGRAM,
    **rng.PROGRAM,
    **transfers.PROGRAM,
}
_LIFTED_PROGRAM: dict[Opcode, ProgramEvaluator] = {
    "fusion": lifted.lifted_call,
    "call": lifted.lifted_call,
    "conditional": lifted.lifted_conditional,
    "while": lifted.lifted_while,
}


def evaluate(
    module: HloModule, arguments: Sequence[Value], precision: str = "native", seed: int = 42, feeds: Feeds = NO_FEEDS
) -> Value:
    """Return the value of the entry's root for one argument per entry parameter, on one device; see `Reference`."""
    return Reference(module, precision).run([arguments], seed=seed, feeds=feeds)[0]


def folded(module: HloModule, arguments: Sequence[Value]) -> Value:
    """Return the result of `evaluate`, with the same bits on every machine; a product of large matrices takes longer."""
    with ordered_products():
        return evaluate(module, arguments)


class Reference:
    """A module that can be evaluated any number of times.

    `precision` is "native" (every op is rounded to its type) or "f64" (`precision.py`: results are f64 and c128 where the
    module has narrower types). With `roundings`, a seed, every op of an evaluation in f64 has a random rounding error of the
    module's own type; see `perturbed.py`. `in_tf32`: products of f32 may be those of numbers of 11 digits. `observe` is shown
    the values of a native evaluation, but for those within the scalar computations of reductions; see `observed.py`. `change`
    puts something else around evaluators. The module must not be edited afterwards. Raises Unsupported for a module that is
    nested too deep (`hlo.verify.limits.py`).
    """

    def __init__(
        self,
        module: HloModule,
        precision: str = "native",
        roundings: int | None = None,
        in_tf32: bool = False,
        observe: Observer | None = None,
        change: EvaluatorChange | None = None,
        widened: HloModule | None = None,
    ) -> None:
        """`widened` is the result of `widen_module`, if it is known."""
        assert precision in ("native", "f64"), precision
        assert roundings is None or precision == "f64", "roundings are added to float64 values"
        verify_evaluable(module)
        self._original = module
        self._is_wide = precision == "f64"
        self._module = (widened or widen_module(module)) if self._is_wide else module
        self._observe, self._change = observe, change
        if roundings is not None:
            from hlo_run.reference.evaluate.perturbed import Perturbation  # few runs need it

            self._change = Perturbation.of(roundings, module, self._module, in_tf32)
        self._effects = find_effects(self._module.computations)
        self._liftable: set[HloComputation] | None = None
        self._plans: dict[tuple[HloComputation, bool], Plan] = {}
        # The data of outfeed in the last run; one list per device.
        self.outfeed: list[list[Value]] = []

    def run(
        self,
        arguments: Sequence[Sequence[Value]],
        replicas: int = 1,
        partitions: int = 1,
        seed: int = 42,
        feeds: Feeds = NO_FEEDS,
    ) -> list[Value]:
        """Return each device's value of the entry's root, in the order replica · partitions + partition.

        `arguments` has one list per device, with one value per entry parameter: arrays in logical order with the numpy
        type of `DTYPES`, and dynamic dimensions at their actual size. The arrays of the results are contiguous; one may
        be an argument itself. `seed` is the module's seed, which `rng` draws from. `feeds` provides the data of infeed.
        Raises UsageError for wrong arguments, Unsupported for an instruction without an evaluator (only if it is
        reached), DeviceError if memory runs out or in a deadlock of the devices.
        """
        world = World(replicas, partitions, seed)
        if len(arguments) != world.size:
            raise UsageError(f"{world.size} devices need as many lists of arguments, but {len(arguments)} are given")
        world.is_undivided = partitions > 1 and self._original.divided is None and not self._original.is_scheduled
        devices = [Device(world, number, self, feeds(number)) for number in range(world.size)]
        with quiet(), one_blas_thread():
            for device, values in zip(devices, arguments, strict=True):
                device.start(self._module.entry, self._accepted(values))
            _run_together(devices)
            self.outfeed = [device.outfeed for device in devices]
            return [finished(device.result) for device in devices]

    def plan(self, computation: HloComputation, lifted: bool) -> Plan:
        """Return the plan of a computation, made once; see `Plans`."""
        key = (computation, lifted)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = make_plan(computation, self._chooser(lifted), self._effects, not lifted)
        return plan

    def _chooser(self, lifted: bool) -> Chooser:
        chosen, change, observe = _choose_lifted if lifted else choose, self._change, self._observe
        if observe is not None and not lifted:
            return lambda instruction: observed(observe, instruction, *choose(instruction))
        if change is None:
            return chosen
        return lambda instruction: change.choose(instruction, *chosen(instruction))

    def is_liftable(self, computation: HloComputation) -> bool:
        """True if the computation may be applied to arrays in place of its scalars."""
        if self._liftable is None:
            self._liftable = lifted.find_liftable(self._module.computations, frozenset(elementwise.EVALUATE))
        return computation in self._liftable

    def _accepted(self, values: Sequence[Value]) -> list[Value]:
        """Check the arguments and return them as the entry takes them; raises UsageError."""
        parameters = self._original.entry.parameters
        if len(values) != len(parameters):
            raise UsageError(f"the module takes {len(parameters)} arguments, but {len(values)} are given")
        for number, (value, parameter) in enumerate(zip(values, parameters, strict=True)):
            if wrong := shape_mismatch(value, parameter.shape):
                raise UsageError(f"argument {number} (%{parameter.name}): {wrong}", parameter.where)
        shapes = [parameter.shape for parameter in parameters]
        wide = [widen_value(v, s) for v, s in zip(values, shapes, strict=True)] if self._is_wide else list(values)
        return [dynamic.enter(value, shape) for value, shape in zip(wide, shapes, strict=True)]


def choose(instruction: HloInstruction) -> tuple[Evaluator | None, ProgramEvaluator | None]:
    """Return how an instruction is evaluated: by the first, by the second, or (both None) not at all."""
    program = PROGRAM.get(instruction.opcode)
    evaluator = None if program is not None else EVALUATE.get(instruction.opcode)
    if drops_sizes(instruction):
        return guarded(evaluator, program)
    if program is None and dynamic.is_dynamic(instruction):
        evaluator = dynamic.evaluator(instruction, evaluator)
    return evaluator, program


def _choose_lifted(instruction: HloInstruction) -> tuple[Evaluator | None, ProgramEvaluator | None]:
    if instruction.opcode in lifted.SCALAR_IDENTITIES:
        return lifted.identity, None
    return EVALUATE.get(instruction.opcode), _LIFTED_PROGRAM.get(instruction.opcode)


def _run_together(devices: Sequence[Device]) -> None:
    """Run each device in turn until it waits, and repeat until all are done; raises DeviceError if none can continue."""
    waiting: dict[int, Wait | None] = dict.fromkeys(range(len(devices)))
    while waiting:
        went_on = False
        for number in list(waiting):
            wait = waiting[number]
            if wait is not None and not wait.ready():
                continue
            went_on = True
            stopped = devices[number].advance()
            if stopped is None:
                del waiting[number]
            else:
                waiting[number] = stopped
        if not went_on:
            raise _deadlock({number: wait for number, wait in waiting.items() if wait is not None})


def _deadlock(waiting: dict[int, Wait]) -> DeviceError:
    first = next(iter(waiting.values()))
    notes = tuple(f"device {number} waits at %{wait.instruction.name}: {wait.what()}" for number, wait in waiting.items())
    return DeviceError("deadlock: every device that still runs waits for another", first.instruction.where, notes=notes)


def finished(value: Value) -> Value:
    """Return a value with contiguous arrays, whose dynamic dimensions have their run-time sizes."""
    if isinstance(value, tuple):
        return tuple(finished(element) for element in value)
    array = dynamic.leave(value)
    return np.ascontiguousarray(array).reshape(array.shape)
