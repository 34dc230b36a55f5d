"""`--log_output` and `--dump_output_literal_to`: arguments and results as text, device by device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hlo_run.execution.console import Console
from hlo_run.execution.output_files import write_artefact
from hlo_run.hlo.values.literal import Literal, literal_to_string
from hlo_run.hlo.values.shape import Shape
from hlo_run.options import Options
from hlo_run.options.effects import FIRST_RETURNED
from hlo_run.reference.evaluate.devices import DeviceGrid


def log_arguments(console: Console, grid: DeviceGrid, arguments: Sequence[Literal], shapes: Sequence[Shape]) -> None:
    """Print all devices' arguments to stderr."""
    for device, (values, own) in enumerate(zip(grid.split(arguments), _split(grid, shapes), strict=True)):
        for value, shape in zip(values, own, strict=True):
            console.err(f"device_id={device}, input = {literal_to_string(value, shape)}")


def write_result_texts(options: Options, console: Console, grid: DeviceGrid, result: Literal, shape: Shape) -> None:
    """Do what the two flags ask for with the result of all devices. Raises UsageError if a file cannot be written."""
    if not options.log_output and not options.dump_output_literal_to:
        return
    is_one = grid.size == 1 or options.output_mode == FIRST_RETURNED
    for device, (value, own) in enumerate([(result, shape)] if is_one else of_devices(result, shape)):
        texts = [literal_to_string(element, inner) for element, inner in _elements(value, own)]
        if options.log_output:
            console.err("\n".join([f"Outputs for device_id: {device}", *texts]))
        if options.dump_output_literal_to:
            stem, _, ending = options.dump_output_literal_to.rpartition(".")
            for number, text in enumerate(texts):
                write_artefact(f"{stem}.task_0.device_{device}.literal_{number}.{ending}", text)


def _split(grid: DeviceGrid, shapes: Sequence[Shape]) -> Iterator[Sequence[Shape]]:
    each = len(shapes) // grid.size
    return (shapes[device * each : (device + 1) * each] for device in range(grid.size))


def of_devices(result: Literal, shape: Shape) -> Iterator[tuple[Literal, Shape]]:
    """Yield the result of each device with its shape."""
    assert isinstance(result, tuple), "several devices give a tuple"
    yield from zip(result, shape.tuple_shapes, strict=True)


def _elements(value: Literal, shape: Shape) -> Iterator[tuple[Literal, Shape]]:
    if not shape.is_tuple:
        yield value, shape
        return
    assert isinstance(value, tuple), "a tuple has a tuple's shape"
    yield from zip(value, shape.tuple_shapes, strict=True)
