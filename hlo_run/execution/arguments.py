"""Reads or makes the arguments of every iteration of a run."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hlo_run.execution.console import Place
from hlo_run.hlo.feeds import Feeds, given_feeds
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.literal import Literal
from hlo_run.options import Options
from hlo_run.reference.arguments.fake_arguments import make_fake_arguments, random_feeds
from hlo_run.reference.evaluate.devices import DeviceGrid
from hlo_run.reference.literal_files import check_readable, read_arrays, read_values, write_values
from hlo_run.reference.random import RandomEngine

# The seed of the module's own random numbers, as in XLA's tools.
MODULE_SEED = 42


def run_path(path: str, options: Options, place: Place, iteration: int) -> str:
    """Return the file of one run: `path` for the only run, else `path` with the run's numbers before the extension.

    `in.npz` becomes `in.0002.npz` for the third of several files, `in.0002.iteration1.npz` with several iterations.
    """
    numbers = [f"{place.number:04d}"] if place.count > 1 else []
    numbers += [f"iteration{iteration}"] if options.iterations > 1 else []
    stem, ending = (path[:-4], ".npz") if path.endswith(".npz") else (path, "")
    return ".".join([stem, *numbers]) + ending


class Arguments:
    """The only source of arguments: `--inputs`, else the arguments that came with the module, else random numbers or zeros."""

    def __init__(
        self, options: Options, module: HloModule, given: Sequence[Literal], place: Place, given_from: str = "the input file"
    ) -> None:
        self._options, self._module, self._given, self._place = options, module, list(given), place
        self._given_from = given_from
        self._engine = RandomEngine(options.seed)
        self._read_ahead: list[Literal] | None = None
        self.grid = DeviceGrid.of(module, options.num_replicas, options.num_partitions)
        self.titles = self.grid.argument_titles(module)
        self.shapes = self.grid.argument_shapes(module)

    def prepare(self) -> None:
        """Read the first iteration's arguments from `--inputs`, and check that the files of the others can be read.

        Reports a misspelt name or a wrong array before the compilation, which may take long. Raises UsageError.
        """
        options = self._options
        if options.inputs:
            self._read_ahead = self._from_file(1)
            check_readable(existing_path(options.inputs, options, self._place, i) for i in range(2, options.iterations + 1))

    def _from_file(self, iteration: int) -> list[Literal]:
        path = existing_path(self._options.inputs, self._options, self._place, iteration)
        parameters = self._module.entry.parameters
        names = [f"parameter {number} (%{p.name})" for number, p in enumerate(parameters)] * self.grid.size
        return read_values(path, "arg", self.shapes, names)

    def next(self, iteration: int) -> tuple[list[Literal], str]:
        """Return the arguments of an iteration (the first is 1), and the text that names their source (`seed 1`, a file)."""
        options = self._options
        if options.inputs:
            read_ahead, self._read_ahead = self._read_ahead, None
            values = read_ahead if read_ahead is not None else self._from_file(iteration)
            source = existing_path(options.inputs, options, self._place, iteration)
        elif self._given:
            values, source = self._given * self.grid.size, self._given_from
        else:
            zero = not options.random_init_input_literals
            large = options.use_large_float_range
            values = self.grid.make_arguments(self._module, lambda: make_fake_arguments(self._module, self._engine, large, zero))
            source = "zeros" if zero else f"seed {options.seed}"
        if options.save_inputs:
            path = run_path(options.save_inputs, options, self._place, iteration)
            write_values(path, {"arg": list(zip(values, self.shapes, strict=True))})
        return values, source


def existing_path(path: str, options: Options, place: Place, iteration: int) -> str:
    """Return the file that `run_path` names for one run if it exists, else `path`, the file for all runs."""
    own = run_path(path, options, place, iteration)
    return own if os.path.exists(own) else path


def infeeds(options: Options, module: HloModule, place: Place, iteration: int) -> Feeds:
    """Return the values for infeeds of an iteration: the arrays of `--infeed`, or random ones. Raises UsageError."""
    if not options.infeed:
        return random_feeds(options.seed + ((iteration - 1) << 20))
    path = existing_path(options.infeed, options, place, iteration)
    shapes = [op.shape for computation in module.computations for op in computation.instructions if op.opcode == "infeed"]
    leaves = dict.fromkeys(leaf for shape in shapes for _, leaf in shape.leaves() if leaf.is_array)
    return given_feeds(read_arrays(path, "infeed", leaves), f"'{path}'")
