"""The reference platform CPU: real XLA:CPU computes the expected result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hlo_run.errors import DeviceError, OutOfTime, Unsupported
from hlo_run.execution.reference_module import despecialized, xla_cpu_text
from hlo_run.formats.xla_cpu import XlaCpu, XlaCpuAnswer
from hlo_run.hlo.feeds import Feeds
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.hlo.values.literal import Literal
from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.evaluate.devices import DeviceGrid

# XLA:CPU waits for the other end of these, for ever.
_TALKS = opcode_set("infeed outfeed send recv send-done recv-done")
_NO_LIMIT_SECONDS = 1e6
_HINT = "compare with the numpy reference: --reference_platform=Interpreter"


class XlaCpuReference:
    """Runs a module on XLA:CPU, which gets it despecialised, with default layouts and without excess precision.

    The child process starts with the first run. `stop` ends it.
    """

    def __init__(self, module: HloModule, grid: DeviceGrid, limit_seconds: float = 0.0) -> None:
        """Raises Unsupported for a module that XLA:CPU cannot run here. `limit_seconds` of 0: no limit."""
        if grid.size > 1:
            raise Unsupported(f"the reference platform CPU has one device, but the run has {grid}", hint=_HINT)
        for instruction in module.instructions:
            if instruction.opcode in _TALKS:
                what = f"the reference platform CPU has nothing at the other end of '{instruction.opcode}'"
                raise Unsupported(what, instruction.where, hint=_HINT)
        self._shape = module.entry.root.shape
        shapes = [*(parameter.shape for parameter in module.entry.parameters), self._shape]
        if any(not leaf.is_array or any(leaf.dynamic_dims or ()) for shape in shapes for _, leaf in shape.leaves()):
            raise Unsupported("the reference platform CPU takes and returns only arrays of fixed sizes", hint=_HINT)
        self._text = xla_cpu_text(despecialized(module))
        self._xla = XlaCpu(limit_seconds or _NO_LIMIT_SECONDS)

    def run(self, arguments: Sequence[Literal], seed: int, feeds: Feeds) -> Literal:
        """Return the result. Raises Unsupported if XLA refuses the module, DeviceError if XLA crashes or takes too long."""
        del seed, feeds  # jaxlib does not let a caller choose the seed of XLA's own random numbers
        answer = self._xla.run(self._text, [leaf for value in arguments for leaf in _leaves(value)])
        if answer.problem:
            raise _error(answer)
        shapes = [leaf for _, leaf in self._shape.leaves()]
        typed = (result.view(leaf.dtype.numpy) for result, leaf in zip(answer.results, shapes, strict=True))
        return _nested(self._shape, typed)

    def stop(self) -> None:
        """End the child process."""
        self._xla.stop()


def _error(answer: XlaCpuAnswer) -> Unsupported | DeviceError:
    if answer.problem == "crash":
        return DeviceError(f"XLA:CPU crashes: {answer.message}", hint=_HINT)
    if answer.problem == "time-out":
        return OutOfTime(f"XLA:CPU takes longer than --timeout: {answer.message}", hint=_HINT)
    return Unsupported(f"XLA:CPU cannot {answer.problem} the module: {answer.message}", hint=_HINT)


def _leaves(value: Literal) -> Iterator[object]:
    if isinstance(value, tuple):
        for element in value:
            yield from _leaves(element)
    else:
        yield value


def _nested(shape: Shape, leaves: Iterator[Any]) -> Literal:
    if shape.is_tuple:
        return tuple(_nested(element, leaves) for element in shape.tuple_shapes)
    return next(leaves)
