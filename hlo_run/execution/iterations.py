"""Runs the iterations of one file: makes arguments, runs the module, and compares with the expected result."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hlo_run.backends.interpreter import InterpreterBackend
from hlo_run.errors import DeviceError, Mismatch, Unsupported
from hlo_run.execution.arguments import MODULE_SEED, Arguments, existing_path, infeeds, run_path
from hlo_run.execution.console import Console, Place
from hlo_run.execution.error_bounds import error_spec
from hlo_run.execution.results import FileResult, IterationResult
from hlo_run.hlo.feeds import Feeds
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.values.literal import Literal, literal_to_string
from hlo_run.hlo.values.shape import Shape
from hlo_run.options import Options
from hlo_run.platforms import INTERPRETER
from hlo_run.reference.compare.compare import Comparison, compare
from hlo_run.reference.compare.findings import Findings
from hlo_run.reference.literal_files import check_readable, read_values, write_values
from hlo_run.reference.numerics.precision import round_value


@dataclass(frozen=True, slots=True)
class Runner:
    """A platform as the iterations use it: its name and the description of its device.

    `run` maps (arguments, the module's seed, values for infeeds) to the result. `outfeed` returns the values that each
    device's outfeeds sent in the last run.
    """

    platform: str
    description: str
    run: Callable[[Sequence[Literal], int, Feeds], Literal]
    outfeed: Callable[[], list[list[Literal]]] = list


def _with_outfeed(result: Literal, shape: Shape, outfeed: Sequence[Sequence[Literal]]) -> tuple[Literal, Shape]:
    """Return a tuple of the result and of the outfeeds' values, device by device, with its shape. Without outfeeds: unchanged."""
    given = [value for device in outfeed for value in device]
    if not given:
        return result, shape
    return (result, *given), Shape.make_tuple((shape, *map(_shape_of, given)))


def _shape_of(value: Literal) -> Shape:
    if isinstance(value, tuple):
        return Shape.make_tuple(tuple(map(_shape_of, value)))
    return Shape.array(next(name for name, dtype in DTYPES.items() if dtype.numpy == value.dtype), value.shape)


class Execution:
    """Runs a compiled module `--iterations` times, compares, and fills in `result`."""

    def __init__(
        self, options: Options, console: Console, module: HloModule, arguments: Arguments, place: Place, result: FileResult
    ) -> None:
        self._options, self._console, self._module, self._place, self._result = options, console, module, place, result
        self._spec = error_spec(options)
        self._arguments = arguments
        self._result_shape: Shape = arguments.grid.result_shape(module)
        self._shape = self._result_shape  # after a run: with the values of outfeeds
        self._reference = InterpreterBackend(arguments.grid)
        self._read_ahead: Literal | None = None

    def prepare(self) -> None:
        """Read the first iteration's files, and check that the files of the others can be read; raises UsageError."""
        options = self._options
        self._arguments.prepare()
        if options.expected_output:
            self._read_ahead = self._expected_from_file(1)
            paths = (existing_path(options.expected_output, options, self._place, i) for i in range(2, options.iterations + 1))
            check_readable(paths)

    def run(self, runner: Runner, reference: str) -> None:
        """Run all iterations and compare with the platform or file `reference` (empty: do not compare).

        Raises the first Mismatch after the last iteration, and other errors of the HloRunError family at once.
        """
        options, console = self._options, self._console
        mismatches: list[Mismatch] = []
        for iteration in range(1, options.iterations + 1):
            if options.iterations != 1:
                console.err(f"\n=== Iteration {iteration}")
            try:
                self._run_once(runner, reference, iteration)
            except Mismatch as mismatch:
                mismatches.append(mismatch)
        if reference:
            console.err(f"{len(mismatches)}/{options.iterations} runs failed.")
        if mismatches:
            raise mismatches[0]

    def _run_once(self, runner: Runner, reference: str, iteration: int) -> None:
        options, console = self._options, self._console
        seed = iteration if options.different_random_seeds else MODULE_SEED
        arguments, source = self._arguments.next(iteration)
        done = IterationResult(iteration, source)
        self._result.iterations.append(done)
        if options.print_literals:
            for title, argument, shape in zip(self._arguments.titles, arguments, self._arguments.shapes, strict=True):
                console.out(f"\n** {title} **\n{literal_to_string(argument, shape)}")
        where = f" ({runner.description})" if runner.description else ""
        console.err(f"Running HLO module with runner {runner.platform}{where}...")
        feeds = infeeds(options, self._module, self._place, iteration)
        actual, self._shape = _with_outfeed(
            self._timed(lambda: runner.run(arguments, seed, feeds)), self._result_shape, runner.outfeed()
        )
        self._save_outputs(iteration, actual)
        if options.print_literals:
            console.out(f"\n** Result with test runner {runner.platform} **\n{literal_to_string(actual, self._shape)}")
        if not reference:
            console.err("Skipping reference runner")
            return
        expected = self._expected(reference, arguments, seed, iteration, feeds)
        if options.print_literals:
            console.out(f"\n** Result with reference runner {reference} **\n{literal_to_string(expected, self._shape)}")
        done.comparison = compare(expected, actual, self._shape, self._spec)
        if not done.comparison.ok:
            done.findings = done.comparison.examine(lambda: self._precise(arguments, seed, feeds))
            self._report(done.comparison, done.findings, runner.platform, reference, iteration)
        console.err(f"\n** Results on {runner.platform} and {reference} are close enough. **")
        console.err(done.comparison.summary())

    def _expected(self, reference: str, arguments: Sequence[Literal], seed: int, iteration: int, feeds: Feeds) -> Literal:
        """Return the expected result, from a file or from the reference."""
        options = self._options
        if options.expected_output:
            read_ahead, self._read_ahead = self._read_ahead, None
            return read_ahead if read_ahead is not None else self._expected_from_file(iteration)
        self._console.err(f"Running HLO module with runner {reference}...")
        precision = options.reference_precision
        expected = self._timed(lambda: self._run_reference(arguments, seed, precision, feeds))
        return expected if precision == "native" else round_value(expected, self._shape)

    def _expected_from_file(self, iteration: int) -> Literal:
        path = existing_path(self._options.expected_output, self._options, self._place, iteration)
        return read_values(path, "out", [self._shape], ["the result"])[0]

    def _run_reference(self, arguments: Sequence[Literal], seed: int, precision: str, feeds: Feeds) -> Literal:
        result = self._reference.run_module(self._module, arguments, seed, precision, feeds)
        return _with_outfeed(result, self._result_shape, self._reference.outfeed)[0]

    def _precise(self, arguments: Sequence[Literal], seed: int, feeds: Feeds) -> Literal | None:
        """Return the result in float64, which tells a bug from an ill-conditioned module; None if it cannot be computed."""
        try:
            with self._console.busy("evaluating in float64"):
                return self._run_reference(arguments, seed, "f64", feeds)
        except (Unsupported, DeviceError, MemoryError) as error:
            self._console.err(f"the float64 values cannot be computed: {error}")
            return None

    def _report(self, comparison: Comparison, findings: Findings, platform: str, reference: str, iteration: int) -> None:
        """Save the differences if asked to, print them, and raise the Mismatch."""
        self._save_differences(iteration, comparison)
        self._console.mismatch(findings)
        notes = [f"{platform} and {reference} differ in {self._result.file}"]
        if self._options.xla_allow_excess_precision and platform != INTERPRETER and _rounds_on_the_way(self._module):
            notes.append(
                "the compiler may omit roundings to narrow floats, as XLA does; --xla_allow_excess_precision=false keeps them all"
            )
        raise Mismatch(comparison.summary(), notes=tuple(notes))

    def _save_outputs(self, iteration: int, actual: Literal) -> None:
        if self._options.save_outputs:
            path = run_path(self._options.save_outputs, self._options, self._place, iteration)
            write_values(path, {"out": [(actual, self._shape)]})

    def _save_differences(self, iteration: int, comparison: Comparison) -> None:
        """Rewrite the saved outputs with the expected values and a mask of the mismatches."""
        if not self._options.save_outputs or comparison.problem:
            return
        path = run_path(self._options.save_outputs, self._options, self._place, iteration)
        leaves = comparison.leaves
        masks = comparison.masks()
        write_values(
            path,
            {
                "out": [(leaf.actual, leaf.shape) for leaf in leaves],
                "expected": [(leaf.expected, leaf.shape) for leaf in leaves],
                "mismatch": [(mask, leaf.shape.with_element_type("pred")) for leaf, mask in zip(leaves, masks, strict=True)],
            },
        )

    def _timed(self, work: Callable[[], Literal]) -> Literal:
        begin = time.perf_counter()
        with self._console.busy("running"):
            result = work()
        self._console.err(f"... ran in {time.perf_counter() - begin:.3f}s.")
        return result


def _rounds_on_the_way(module: HloModule) -> bool:
    """True if an instruction with users computes a narrow float, which simplify-fp-conversions may keep wider."""
    return any(
        instruction.shape.is_array
        and instruction.shape.dtype.is_float
        and instruction.shape.dtype.bits < 32
        and instruction.opcode not in ("parameter", "constant")
        and instruction.users
        for instruction in module.instructions
    )
