"""Reads or makes the arguments of every iteration of a run."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterator, Sequence

from hlo_run.analysis.loop_counter import find_trip_count
from hlo_run.containment.board import at_place, limited
from hlo_run.errors import UsageError
from hlo_run.execution.console import FilePosition
from hlo_run.execution.device_sets import read_sets, with_tiles_of_devices
from hlo_run.execution.fitted_arguments import Evaluated, Fitter
from hlo_run.hlo.arguments import fit_arguments
from hlo_run.hlo.feeds import Feeds, given_feeds
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.values.literal import Literal
from hlo_run.hlo.verify.runnable import verify_runnable
from hlo_run.hlo.views.indexed import Indexed
from hlo_run.options import Options
from hlo_run.platforms import INTERPRETER, reference_platform
from hlo_run.records import replace
from hlo_run.reference.arguments.choices import Choices
from hlo_run.reference.arguments.constraints import Constraints, constraints_of
from hlo_run.reference.arguments.fake_arguments import Draw, make_fake_arguments, random_feeds
from hlo_run.reference.arguments.modes import (
    DEVICE_ID,
    NORMAL,
    RANDOM,
    SHARED,
    UNINITIALIZED,
    ZEROS,
    device_id_arguments,
    normal_arguments,
)
from hlo_run.reference.evaluate.devices import DeviceGrid
from hlo_run.reference.evaluate.perturbed import term_count
from hlo_run.reference.literal_files import check_readable, read_arrays, write_values
from hlo_run.reference.random import HIGH, LOW, RandomEngine

_INDEXED: frozenset[Opcode] = frozenset(("gather", "scatter", "dynamic-slice", "dynamic-update-slice"))
# How the arguments of later tries are drawn: larger numbers of both signs, positive ones, small whole ones, and indices at the
# end, where -1 is the last index for programs that count from the end. Integers are small, since those of all bits are mostly
# no valid index, exponent or shift.
OTHER_DRAWS = (
    Draw(floats=(-1.0, 2.0), integers=(-4, 8)),
    Draw(floats=(0.5, 2.0), integers=(0, 3)),
    Draw(floats=(1.0, 4.0), whole=True, integers=(1, 7)),
    Draw(floats=(-4.0, 4.0), integers=(-2, -1), last_indices=True),
)
# Ops whose operands decide which elements other ops read, write or use.
_DECIDING = _INDEXED | opcode_set("select compare maximum minimum clamp sort topk conditional while")
# A module is small if the reference evaluates at most so many elements, in some 20 ms. An instruction costs as much as some.
_SMALL_ELEMENTS = 1 << 22
_INSTRUCTION_ELEMENTS = 512
# The seed of the module's own random numbers, as in XLA's tools.
MODULE_SEED = 42


def module_seed(options: Options, iteration: int) -> int:
    """Return the seed of the module's own random numbers in an iteration."""
    return iteration if options.different_random_seeds else MODULE_SEED


def run_path(path: str, options: Options, place: FilePosition, iteration: int) -> str:
    """Return the file of one run: `path` for the only run, else `path` with the run's numbers before the extension.

    `in.npz` becomes `in.0002.npz` for the third of several files, `in.0002.iteration1.npz` with several iterations.
    """
    numbers = [f"{place.number:04d}"] if place.count > 1 else []
    numbers += [f"iteration{iteration}"] if options.iterations > 1 else []
    stem, ending = (path[:-4], ".npz") if path.endswith(".npz") else (path, "")
    return ".".join([stem, *numbers]) + ending


class Arguments:
    """Finds arguments: files of the flags, else arguments that came with the module, else `--hlo_argument_mode`.

    The only source of them.
    """

    def __init__(
        self,
        options: Options,
        module: HloModule,
        given: Sequence[Literal],
        place: FilePosition,
        given_from: str = "the input file",
    ) -> None:
        self.grid = DeviceGrid.of(module, options.num_replicas, options.num_partitions)
        verify_runnable(module)
        self._options, self._module, self._given, self._place = options, module, list(given), place
        self._given_from = given_from
        self._engine = RandomEngine(options.seed)
        self.chosen: Choices | None = None
        """What was chosen for random arguments; None if they are not random, or as XLA's tools choose them."""
        self._fitter: Fitter | None = None
        self.evaluated: Evaluated | None = None
        """What the reference computed for the last arguments, if that was needed to choose them."""
        self._read_ahead: list[Literal] | None = None
        self._literals: list[list[Literal]] | None = None
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
        if options.input_literals_file:
            self._in_literals_file(1)

    def _in_literals_file(self, iteration: int) -> list[Literal]:
        """Return an iteration's arguments in `--input_literals_file`; [] if it has none. Raises UsageError, ParseError."""
        if self._literals is None:
            from hlo_run.formats.run_literals import read_arguments  # imports protobuf

            path = self._options.input_literals_file
            iterations = read_arguments(path, "input_literals_file")
            self._literals = [self._fitted(values, f"iteration {i} of '{path}'") for i, values in enumerate(iterations, 1)]
        return self._literals[iteration - 1] if iteration <= len(self._literals) else []

    def _fitted(self, values: Sequence[Literal], what: str) -> list[Literal]:
        count, size = len(self._module.entry.parameters), self.grid.size
        if not values or size == 1:
            return fit_arguments(self._module, values, what) if values else []
        if len(values) == count:
            return fit_arguments(self._module, values, what) * size
        if len(values) != count * size:
            raise UsageError(
                f"'{self._module.name}' takes {count * size} arguments on {self.grid}, but {what} gives {len(values)}"
            )
        return [each for part in self.grid.split(values) for each in fit_arguments(self._module, part, what)]

    def _from_file(self, iteration: int) -> list[Literal]:
        path = existing_path(self._options.inputs, self._options, self._place, iteration)
        return read_sets(path, self._module, self.grid)

    def next(self, iteration: int) -> tuple[list[Literal], str]:
        """Return the arguments of an iteration (the first is 1), and the text that names their source (`seed 1`, a file)."""
        options = self._options
        self.evaluated = None
        if options.inputs:
            read_ahead, self._read_ahead = self._read_ahead, None
            values = read_ahead if read_ahead is not None else self._from_file(iteration)
            source = existing_path(options.inputs, options, self._place, iteration)
        elif options.input_literals_file and (found := self._in_literals_file(iteration)):
            values, source = found, options.input_literals_file
        elif self._given:
            values, source = self._given * self.grid.size, self._given_from
        else:
            values, source = self._make(iteration)
        self.save(iteration, values)
        return values, source

    def _make(self, iteration: int) -> tuple[list[Literal], str]:
        """Return arguments as `--hlo_argument_mode` says, and their source."""
        options, mode, grid = self._options, self._options.hlo_argument_mode, self.grid
        if mode == DEVICE_ID:
            made = [device_id_arguments(self._module, device) for device in range(grid.size)]
            return with_tiles_of_devices(self._module, grid, made), "device number"
        if mode == NORMAL:
            made = grid.make_arguments(self._module, lambda: normal_arguments(self._module, self._engine))
            return made, f"seed {options.seed}, normal distribution"
        zero = mode in (ZEROS, UNINITIALIZED) or not options.random_init_input_literals
        ends = LOW * options.input_scale, HIGH * options.input_scale
        draw = Draw(floats=None if options.use_large_float_range else ends, xla=options.xla_arguments)
        plain = zero or options.xla_arguments
        values = self._random(self._engine, draw, zero, None) if plain else self._useful(draw, iteration)
        source = "zeros" if zero else f"seed {options.seed}"
        return values, source + (f", input_scale {options.input_scale:g}" if options.input_scale != 1 else "")

    def others(self, iteration: int) -> Iterator[tuple[list[Literal], str]]:
        """Yield arguments of other ranges and their source, for an iteration whose comparison was blind.

        Yields none if flags or a file determine the arguments, or if no argument is a number. Does not advance the random
        numbers of later iterations. The caller saves those that matter.
        """
        options = self._options
        chosen = options.inputs or self._given or options.use_large_float_range or options.input_scale != 1
        chosen = chosen or options.hlo_argument_mode != RANDOM or options.input_literals_file
        if chosen or not options.random_init_input_literals or not self._has_numbers():
            return
        draws = map(_without_ties, OTHER_DRAWS) if _order_matters(self._module) else OTHER_DRAWS
        for number, draw in enumerate(draws):
            engine = RandomEngine(options.seed + (iteration << 32) + (number << 48))
            source = f"seed {options.seed}, {draw}"
            if self.chosen is None:
                yield self._random(engine, replace(draw, xla=True), False, None), source
            else:
                yield self._fitted_random(engine, draw, iteration, self.chosen.copy())[0], source

    def may_miss_parts(self) -> bool:
        """True if the arguments may decide which parts of kernels count, and other arguments cost little: the module is small."""
        opcodes = {instruction.opcode for computation in self._module.computations for instruction in computation.instructions}
        return not opcodes.isdisjoint(_DECIDING) and evaluated_elements(self._module) * self.grid.size <= _SMALL_ELEMENTS

    def may_miss_indexed(self) -> bool:
        """True if integers of any size may be indices: where a module first adds or selects, no constraint finds that use.

        Then nearly all are out of bounds, so that a gather clamps them and a scatter does nothing.
        """
        module = self._module
        if not any(instruction.opcode in _INDEXED for instruction in module.instructions):
            return False
        return any(
            leaf.is_array
            and leaf.dtype.is_integer
            and leaf.dtype.bits >= 32
            and constraints_of(parameter, path) == Constraints()
            and (self.chosen is None or self.chosen.of(parameter.parameter_number, path).meaning is None)
            for parameter in module.entry.parameters
            for path, leaf in parameter.shape.leaves()
        )

    def _useful(self, draw: Draw, iteration: int) -> list[Literal]:
        """Return random arguments with ranges in which the module's values tell most; one set follows the other."""
        if self.chosen is None:
            self.chosen = Choices(self._module)
        values, self._engine = self._fitted_random(self._engine, draw, iteration, self.chosen)
        return values

    def _fitted_random(
        self, before: RandomEngine, draw: Draw, iteration: int, choices: Choices
    ) -> tuple[list[Literal], RandomEngine]:
        """Return arguments from an engine with the ranges that `choices` then has, and the engine after them."""
        after = before

        def make() -> list[Literal]:
            nonlocal after
            after = copy.deepcopy(before)
            return self._random(after, draw, False, choices)

        self.evaluated = None
        if not self._may_evaluate() or draw.floats is None:
            return make(), after
        if self._fitter is None:
            self._fitter = Fitter(self._module, self.grid)
        at_place(f"the run on {INTERPRETER} that chooses the arguments")
        with limited(self._options.timeout):
            feeds = infeeds(self._options, self._module, self._place, iteration)
            values, self.evaluated = self._fitter.fitted(make, choices, module_seed(self._options, iteration), feeds)
        return values, after

    def _may_evaluate(self) -> bool:
        """True if the reference evaluates the module anyway, or does so at little cost."""
        options = self._options
        if options.expected_output or not options.reference_platform or options.input_scale != 1:
            return False
        return reference_platform(options) == INTERPRETER or evaluated_elements(self._module) <= _SMALL_ELEMENTS

    def _has_numbers(self) -> bool:
        return any(leaf.is_array and leaf.dtype.kind != "pred" for shape in self.shapes for _, leaf in shape.leaves())

    def _random(self, engine: RandomEngine, draw: Draw, zero: bool, choices: Choices | None) -> list[Literal]:
        def make() -> list[Literal]:
            return make_fake_arguments(self._module, engine, zero=zero, draw=draw, choices=choices)

        if self._options.hlo_argument_mode == SHARED:
            return make() * self.grid.size
        return self.grid.make_arguments(self._module, make)

    def save(self, iteration: int, values: list[Literal]) -> None:
        """Write the file of `--save_inputs`, if it is given."""
        if self._options.save_inputs:
            path = run_path(self._options.save_inputs, self._options, self._place, iteration)
            write_values(path, {"arg": list(zip(values, self.shapes, strict=True))})


def _without_ties(draw: Draw) -> Draw:
    """Return a draw whose numbers are hardly ever equal."""
    return replace(draw, whole=False, integers=None, last_indices=False)


def _order_matters(module: HloModule) -> bool:
    """True if an op treats equal numbers in an order that XLA leaves open: the result for ties is not defined."""
    return any(
        (i.opcode in ("reduce", "reduce-window") and len(i.operands) > 2)
        or (i.opcode == "sort" and len(i.operands) > 1 and not i.is_stable)
        or (i.opcode == "scatter" and i.to_apply.root.opcode in ("parameter", "tuple") and Indexed.of(i).row_count > 1)
        for computation in module.computations
        for i in computation.instructions
    )


def evaluated_elements(module: HloModule) -> float:
    """Return about how many elements the reference computes, where a dot counts its products.

    Infinite if the arguments may decide how often a loop runs: with other ones it may run for ever.
    """
    totals: dict[HloComputation, float] = {}
    for computation in module.computations:  # callees come first
        total = 0.0
        for instruction in computation.instructions:
            leaves = sum(leaf.element_count for _, leaf in instruction.shape.leaves() if leaf.is_array)
            called = sum(totals[callee] for callee in instruction.called_computations)
            rounds = _round_count(instruction) if instruction.opcode == "while" else 1
            total += _INSTRUCTION_ELEMENTS + leaves * term_count(instruction) + called * rounds
        totals[computation] = total
    return totals[module.entry]


def _round_count(loop: HloInstruction) -> float:
    count = find_trip_count(loop)
    return math.inf if count is None else count


def existing_path(path: str, options: Options, place: FilePosition, iteration: int) -> str:
    """Return the file that `run_path` names for one run if it exists, else `path`, the file for all runs."""
    own = run_path(path, options, place, iteration)
    return own if os.path.exists(own) else path


def infeeds(options: Options, module: HloModule, place: FilePosition, iteration: int) -> Feeds:
    """Return the values for infeeds of an iteration: the arrays of `--infeed`, or random ones. Raises UsageError."""
    if not options.infeed:
        return random_feeds(options.seed + ((iteration - 1) << 20))
    path = existing_path(options.infeed, options, place, iteration)
    shapes = [op.shape for computation in module.computations for op in computation.instructions if op.opcode == "infeed"]
    leaves = dict.fromkeys(leaf for shape in shapes for _, leaf in shape.leaves() if leaf.is_array)
    return given_feeds(read_arrays(path, "infeed", leaves), f"'{path}'")
