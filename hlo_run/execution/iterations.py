"""Runs the iterations of one file: makes arguments, runs the module, and compares with the expected result."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count, zip_longest
from typing import TYPE_CHECKING, NoReturn, TypeAlias, TypeVar

from msgspec import Struct

from hlo_run.backends.interpreter import InterpreterBackend
from hlo_run.containment.board import at_place, busy, counted, limited
from hlo_run.errors import DeviceError, Mismatch, Unsupported, Vacuous
from hlo_run.execution.arguments import Arguments, existing_path, infeeds, module_seed, run_path
from hlo_run.execution.console import Console, FilePosition
from hlo_run.execution.error_bounds import error_spec, has_fixed_bounds
from hlo_run.execution.literals_file import Recorder
from hlo_run.execution.result_texts import log_arguments, write_result_texts
from hlo_run.execution.results import FileResult, IterationResult, LaterTry
from hlo_run.hlo.feeds import Feeds
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.values.literal import Literal, literal_to_string
from hlo_run.hlo.values.shape import Shape
from hlo_run.kernel_checks.outcomes import first_difference, raise_first
from hlo_run.kernel_checks.outcomes import summary as kernel_summary
from hlo_run.options import Options
from hlo_run.options.effects import FIRST_RETURNED, NOT_RETURNED
from hlo_run.platforms import CUDA, INTERPRETER
from hlo_run.reference.compare.compare import Comparison, compare
from hlo_run.reference.compare.detectability import Detectability, is_poor, total
from hlo_run.reference.compare.findings import PreciseSource
from hlo_run.reference.compare.rounding import RoundingSamples
from hlo_run.reference.evaluate.loop_limit import EndlessLoop, loops_end_within
from hlo_run.reference.literal_files import check_readable, read_values, write_values
from hlo_run.reference.numerics.precision import round_value

if TYPE_CHECKING:
    from hlo_run.execution.kernel_meter import KernelMeter
    from hlo_run.execution.snapshots import Snapshots
    from hlo_run.kernel_checks.checks import KernelChecks
    from hlo_run.reference.sensitivity.kernel_sight import KernelSights

# A later try is left out if the reference needs longer for its loops.
_LOOP_SECONDS = 2.0
_MOST_NAMED = 4
_OTHER_ARGUMENTS = "--inputs, --input_scale or --use_large_float_range give other arguments"
_T = TypeVar("_T")


class Runner(Struct, frozen=True):
    """A platform as the iterations use it: its name and the description of its device.

    `run` maps (arguments, the module's seed, values for infeeds) to the result. `outfeed` returns the values that each
    device's outfeeds sent in the last run, `seconds` its time in thunks if the platform measures it. `checked` lets the next run
    judge every kernel alone; None if it cannot or shall not. `meter` measures which kernels a comparison sees; None if the
    platform has none, or more than one device. `watch` lets the next run be watched by checks once more.
    """

    platform: str
    description: str
    run: Callable[[Sequence[Literal], int, Feeds], Literal]
    outfeed: Callable[[], list[list[Literal]]] = list
    seconds: Callable[[], float] = float
    checked: Callable[[], KernelChecks | None] | None = None
    meter: KernelMeter | None = None
    watch: Callable[[KernelChecks], None] | None = None


# Maps (arguments, the module's seed, values for infeeds) to the expected result.
ReferenceRun: TypeAlias = "Callable[[Sequence[Literal], int, Feeds], Literal]"


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
        self, options: Options, console: Console, module: HloModule, arguments: Arguments, place: FilePosition, result: FileResult
    ) -> None:
        self._options, self._console, self._module, self._place, self._result = options, console, module, place, result
        self._spec = error_spec(options)
        self._arguments = arguments
        self._result_shape: Shape = arguments.grid.result_shape(module)
        self._is_first_only = options.output_mode == FIRST_RETURNED and arguments.grid.size > 1
        if self._is_first_only:
            self._result_shape = self._result_shape.tuple_shapes[0]
        self._shape = self._result_shape  # after a run: with the values of outfeeds
        self._reference = InterpreterBackend(arguments.grid)
        self._reference_run: ReferenceRun | None = None
        self._read_ahead: Literal | None = None
        self._recorder = Recorder(options, place)
        self.snapshots: Snapshots | None = None

    def prepare(self) -> None:
        """Read the first iteration's files, and check that the files of the others can be read; raises UsageError."""
        options = self._options
        self._arguments.prepare()
        self._recorder.prepare()
        if options.expected_output:
            self._read_ahead = self._expected_from_file(1)
            paths = (existing_path(options.expected_output, options, self._place, i) for i in range(2, options.iterations + 1))
            check_readable(paths)

    def run(self, runner: Runner, reference: str, reference_run: ReferenceRun | None = None) -> None:
        """Run all iterations and compare with the platform or file `reference` (empty: do not compare).

        `reference_run` computes the expected result; None: the numpy reference does. After the last iteration, raises the
        first Mismatch, or else the first Vacuous; other errors at once.
        """
        options, console = self._options, self._console
        self._reference_run = reference_run
        # Libraries on a GPU may multiply f32 in TF32, and a saved result may come from a GPU.
        self._reference.in_tf32 = CUDA in (runner.platform, reference) or bool(options.expected_output)
        counted("")
        mismatches: list[Mismatch] = []
        vacuous: list[Vacuous] = []
        try:
            self._run_iterations(runner, reference, mismatches, vacuous)
        finally:
            self._recorder.write()
        if reference:
            console.err(f"{len(mismatches)}/{options.iterations} runs failed.")
        if mismatches:
            raise mismatches[0]
        if vacuous:
            raise vacuous[0]

    def _run_iterations(self, runner: Runner, reference: str, mismatches: list[Mismatch], vacuous: list[Vacuous]) -> None:
        options, console = self._options, self._console
        for iteration in range(1, options.iterations + 1):
            if options.iterations != 1:
                console.err(f"\n=== Iteration {iteration}")
                counted(f"iteration {iteration} of {options.iterations}")
            try:
                self._run_once(runner, reference, iteration)
            except Mismatch as mismatch:
                mismatches.append(mismatch)
            except Vacuous as error:
                vacuous.append(error)

    def _run_once(self, runner: Runner, reference: str, iteration: int) -> None:
        options, console = self._options, self._console
        seed = module_seed(options, iteration)
        arguments, source = self._arguments.next(iteration)
        chosen = self._arguments.chosen
        done = IterationResult(iteration, source, chosen=chosen.lines() if chosen is not None else [])
        self._result.iterations.append(done)
        if options.print_literals:
            for title, argument, shape in zip(self._arguments.titles, arguments, self._arguments.shapes, strict=True):
                console.out(f"\n** {title} **\n{literal_to_string(argument, shape)}")
        if options.log_output:
            log_arguments(console, self._arguments.grid, arguments, self._arguments.shapes)
        if chosen is not None and done.chosen:
            console.err(f"arguments: {chosen}")
        where = f" ({runner.description})" if runner.description else ""
        console.err(f"Running HLO module with runner {runner.platform}{where}...")
        feeds = self._feeds(iteration)
        self._recorder.begin(zip(arguments, self._arguments.shapes, strict=True))
        at_place(f"the run on {runner.platform}")
        is_checked = bool(reference) and iteration == 1 and options.output_mode != NOT_RETURNED
        checks = runner.checked() if is_checked and runner.checked is not None else None
        actual = self._repeated(runner, arguments, seed, feeds, checks)
        if checks is not None:
            if runner.watch is not None and checks.begin_last():
                runner.watch(checks)
                runner.run(arguments, seed, feeds)
            checks.finish()
        done.kernels = list(checks.outcomes.values()) if checks is not None else []
        if runner.meter is not None:
            runner.meter.compare_in_run(done.kernels, arguments, seed, feeds, self._spec)
        if options.output_mode == NOT_RETURNED:
            console.err("The result stays on the device and is not compared")
            return
        self._recorder.result(actual, self._shape)
        if self._shape is self._result_shape or not isinstance(actual, tuple):
            write_result_texts(options, console, self._arguments.grid, actual, self._result_shape)
        else:  # the values of outfeeds follow
            write_result_texts(options, console, self._arguments.grid, actual[0], self._result_shape)
        self._save_outputs(iteration, actual)
        if options.print_literals:
            console.out(f"\n** Result with test runner {runner.platform} **\n{literal_to_string(actual, self._shape)}")
        if not reference:
            console.err("Skipping reference runner")
            return
        expected = self._expected(reference, arguments, seed, iteration, feeds)
        self._recorder.reference_result(expected, self._shape)
        if options.print_literals:
            console.out(f"\n** Result with reference runner {reference} **\n{literal_to_string(expected, self._shape)}")
        precise = _once(partial(self._precise, arguments, seed, feeds))
        done.comparison = self._compared(expected, actual, precise, arguments, seed, feeds)
        if not done.comparison.ok:
            self._report(done, precise, runner.platform, reference)
        sights = done.comparison.sights()
        console.verdict(f"\n** Results on {runner.platform} and {reference} are close enough. **", good=True)
        for line in done.comparison.lines():
            console.err(line)
        if runner.meter is not None and done.number == 1:
            done.kernels_seen = self._kernels_seen(runner.meter, arguments, seed, feeds, precise)
        if done.kernels_seen is None or any(map(is_poor, sights)):
            console.err(str(total(sights)))
        if done.kernels:
            console.err(kernel_summary(done.kernels))
            raise_first(done.kernels)
        # The checks of every access are slow, and look at all that runs.
        is_whole = runner.platform == INTERPRETER or options.host_check or done.number > 1
        all_draws = not is_whole and self._arguments.may_miss_parts()
        if all_draws or any(map(is_poor, sights)) or self._arguments.may_miss_indexed():
            self._try_others(runner, reference, done, seed, sights, all_draws)
        self._show_kernels(done.kernels_seen)

    def _show_kernels(self, kernels: KernelSights | None) -> None:
        """Say which kernels the comparison sees; raises Vacuous if it is none and `--fail_on_vacuous` is given."""
        if kernels is None:
            return
        if kernels.is_blind and self._options.fail_on_vacuous:
            raise Vacuous(str(kernels), hint=_OTHER_ARGUMENTS)
        self._console.err(str(kernels) if kernels.is_whole else f"warning: {kernels}")

    def _kernels_seen(
        self,
        meter: KernelMeter,
        arguments: Sequence[Literal],
        seed: int,
        feeds: Feeds,
        precise: PreciseSource,
        known: KernelSights | None = None,
    ) -> KernelSights | None:
        """Return which kernels a comparison with these arguments sees, or `known` does; None if that cannot be measured."""

        sample = _once(partial(self._in_float64, arguments, seed, feeds, 0))
        samples = None if has_fixed_bounds(self._options) else RoundingSamples(precise, sample)
        with busy("measuring which kernels the comparison sees"):
            return meter.sights(arguments, seed, feeds, self._result_shape, self._spec, samples, known)

    def _try_others(
        self, runner: Runner, reference: str, done: IterationResult, seed: int, sights: Sequence[Detectability], all_draws: bool
    ) -> None:
        """Run with arguments of other ranges; raises Mismatch if one of the runs differs.

        Ends when every array was seen once; with `all_draws`, after all ranges.
        Warns about arrays that were never seen; raises Vacuous if there is none but these and `--fail_on_vacuous` is given.
        """
        best = list(sights)
        others = () if self._options.expected_output else self._arguments.others(done.number)
        for arguments, source in others:
            feeds = self._feeds(done.number)
            if not self._ends(arguments, seed, feeds):
                self._console.err(f"{source}: not run, as a loop goes on with these arguments")
                continue
            try:
                actual = self._actual(runner, arguments, seed, feeds)
                expected = self._reference_value(arguments, seed, feeds)
            except Unsupported as error:  # in a branch that the first arguments do not take
                self._console.err(f"{source}: not run, {error.message}")
                continue
            precise = _once(partial(self._precise, arguments, seed, feeds))
            comparison = self._compared(expected, actual, precise, arguments, seed, feeds)
            if not comparison.ok:
                done.arguments, done.comparison = source, comparison
                self._console.err(f"a later try ({source}) shows a difference")
                self._arguments.save(done.number, arguments)
                self._save_outputs(done.number, actual)
                self._report(done, precise, runner.platform, reference)
            found = comparison.sights()
            if done.kernels_seen is not None and not done.kernels_seen.is_whole and runner.meter is not None:
                seen = self._kernels_seen(runner.meter, arguments, seed, feeds, precise, done.kernels_seen)
                done.kernels_seen = seen or done.kernels_seen
            done.later_tries.append(LaterTry(source, total(found)))
            if not all_draws or any(map(is_poor, best)):
                self._console.err(f"{source}: agree, {total(found)}")
            if text := comparison.rounding():
                self._console.err(f"{source}: {text}")
            # A branch may send to an outfeed with these arguments alone; the first arrays are the same.
            pairs = zip_longest(best, found[: len(best)])
            best = [old if new is None or new.seen * old.elements <= old.seen * new.elements else new for old, new in pairs]
            if not all_draws and not any(map(is_poor, best)):
                break
        if all_draws and done.later_tries:
            self._console.err(f"{len(done.later_tries)} other sets of arguments agree too")
        self._warn_if_blind(done, best)

    def _ends(self, arguments: Sequence[Literal], seed: int, feeds: Feeds) -> bool:
        """False if a loop of the module runs for long with these arguments, which the user did not ask for."""
        if not any(i.opcode == "while" for i in self._module.instructions):
            return True
        known = self._arguments.evaluated
        if known is not None and known.arguments is arguments:
            return True
        try:
            limit = self._options.timeout
            with loops_end_within(min(_LOOP_SECONDS, limit / 2) if limit else _LOOP_SECONDS):
                self._run_reference(arguments, seed, "native", feeds)
        except EndlessLoop:
            return False
        except Unsupported:
            pass
        return True

    def _warn_if_blind(self, done: IterationResult, best: Sequence[Detectability]) -> None:
        assert done.comparison is not None, "a comparison comes before its warnings"
        blind = [leaf for leaf, seen in zip(done.comparison.leaves, best, strict=True) if seen.is_blind]
        if not blind:
            return
        names = ", ".join("{" + ",".join(map(str, leaf.path)) + "}" for leaf in blind[:_MOST_NAMED])
        names += f" and {len(blind) - _MOST_NAMED} more" if len(blind) > _MOST_NAMED else ""
        what = "the result" if len(best) == 1 else f"{len(blind)} of {len(best)} arrays, {names}"
        text = f"the comparison is blind to {what}: every element is zero, too small, NaN or infinite"
        if self._options.fail_on_vacuous and total(best).seen == 0:
            raise Vacuous(text, hint=_OTHER_ARGUMENTS)
        self._console.err(f"warning: {text}")

    def _repeated(
        self, runner: Runner, arguments: Sequence[Literal], seed: int, feeds: Feeds, checks: KernelChecks | None
    ) -> Literal:
        """Run `--num_repeats` times, each time from the first value for infeeds, and return the last result."""
        repeat = 0
        while True:
            actual = self._timed(lambda: self._actual(runner, arguments, seed, feeds), checks if repeat == 0 else None)
            if self._options.profile_execution:
                duration = round(runner.seconds() * 1e9)
                self._result.times_ns.append(duration)
                self._console.out(f"## Execution time, file={self._result.file} repeat={repeat} duration={duration}ns")
            repeat += 1
            if repeat >= self._options.num_repeats:
                return actual

    def _actual(self, runner: Runner, arguments: Sequence[Literal], seed: int, feeds: Feeds) -> Literal:
        whole = runner.run(arguments, seed, feeds)
        if self.snapshots is not None:
            self.snapshots.add(arguments, self._arguments.shapes, whole, self._arguments.grid.result_shape(self._module))
        result = self._returned(whole)
        actual, self._shape = _with_outfeed(result, self._result_shape, runner.outfeed())
        return actual

    def _returned(self, result: Literal) -> Literal:
        """Return what `--output_mode` leaves of the results of all devices."""
        return result[0] if self._is_first_only and isinstance(result, tuple) else result

    def _compared(
        self,
        expected: Literal,
        actual: Literal,
        precise: PreciseSource,
        arguments: Sequence[Literal],
        seed: int,
        feeds: Feeds,
    ) -> Comparison:
        """Compare by the bounds, and by rounding where flags allow it; `precise` returns the float64 value or None."""

        numbers = count()

        def sample() -> Literal | None:
            with busy("evaluating with random roundings"):
                return self._in_float64(arguments, seed, feeds, next(numbers))

        comparison = compare(expected, actual, self._shape, self._spec)
        return comparison if has_fixed_bounds(self._options) else comparison.judged(RoundingSamples(precise, sample))

    def _expected(self, reference: str, arguments: Sequence[Literal], seed: int, iteration: int, feeds: Feeds) -> Literal:
        """Return the expected result, from a file or from the reference."""
        options = self._options
        if options.expected_output:
            read_ahead, self._read_ahead = self._read_ahead, None
            return read_ahead if read_ahead is not None else self._expected_from_file(iteration)
        self._console.err(f"Running HLO module with runner {reference}...")
        at_place(f"the run on {reference}")
        known = self._arguments.evaluated
        if known is not None and self._reference_run is None and options.reference_precision == "native":
            self._console.err(f"... ran in {known.seconds:.3f}s.")
            return self._reference_value(arguments, seed, feeds)
        return self._timed(lambda: self._reference_value(arguments, seed, feeds))

    def _reference_value(self, arguments: Sequence[Literal], seed: int, feeds: Feeds) -> Literal:
        if self._reference_run is not None:
            return self._returned(self._reference_run(arguments, seed, feeds))
        precision = self._options.reference_precision
        expected = self._run_reference(arguments, seed, precision, feeds)
        return expected if precision == "native" else round_value(expected, self._shape)

    def _expected_from_file(self, iteration: int) -> Literal:
        path = existing_path(self._options.expected_output, self._options, self._place, iteration)
        return read_values(path, "out", [self._shape], ["the result"])[0]

    def _run_reference(
        self, arguments: Sequence[Literal], seed: int, precision: str, feeds: Feeds, roundings: int | None = None
    ) -> Literal:
        known = self._arguments.evaluated
        if known is not None and known.arguments is arguments and known.seed == seed and precision == "native":
            self._reference.outfeed = known.outfeed
            return _with_outfeed(self._returned(known.result), self._result_shape, known.outfeed)[0]
        with limited(self._options.timeout):
            result = self._returned(self._reference.run_module(self._module, arguments, seed, precision, feeds, roundings))
        return _with_outfeed(result, self._result_shape, self._reference.outfeed)[0]

    def _feeds(self, iteration: int) -> Feeds:
        """Return the values for infeeds: the arrays of `--infeed`, or random ones."""
        return infeeds(self._options, self._module, self._place, iteration)

    def _precise(self, arguments: Sequence[Literal], seed: int, feeds: Feeds) -> Literal | None:
        """Return the result in float64, which tells a bug from an ill-conditioned module; None if it cannot be computed."""
        with busy("evaluating in float64"):
            return self._in_float64(arguments, seed, feeds)

    def _in_float64(self, arguments: Sequence[Literal], seed: int, feeds: Feeds, roundings: int | None = None) -> Literal | None:
        try:
            return self._run_reference(arguments, seed, "f64", feeds, roundings)
        except (Unsupported, DeviceError, MemoryError) as error:
            self._console.err(f"the float64 values cannot be computed: {error}")
            return None

    def _report(self, done: IterationResult, precise: PreciseSource, platform: str, reference: str) -> NoReturn:
        """Examine the differences, save them if asked to, print them, and raise the Mismatch."""
        comparison = done.comparison
        assert comparison is not None, "a comparison comes before its report"
        done.findings = comparison.examine(precise)
        self._save_differences(done.number, comparison)
        counts = comparison.counts()
        self._console.verdict(f"\n** Results on {platform} and {reference} differ: {counts} **", good=False, is_result=True)
        self._console.mismatch(done.findings)
        notes = [f"{platform} and {reference} differ in {self._result.file}"]
        if done.kernels:
            notes += [kernel_summary(done.kernels), *first_difference(done.kernels)]
        if self._options.xla_allow_excess_precision and platform != INTERPRETER and rounds_on_the_way(self._module):
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

    def _timed(self, work: Callable[[], Literal], checks: KernelChecks | None = None) -> Literal:
        """Do some work and print its time, without the time of the checks in it."""
        begin = time.perf_counter()
        result = work()
        seconds = time.perf_counter() - begin - (checks.seconds if checks is not None else 0.0)
        self._console.err(f"... ran in {seconds:.3f}s.")
        return result


def _once(make: Callable[[], _T]) -> Callable[[], _T]:
    """Return a function that calls `make` at its first call, and returns the same value at every one."""
    made: list[_T] = []

    def get() -> _T:
        if not made:
            made.append(make())
        return made[0]

    return get


def rounds_on_the_way(module: HloModule) -> bool:
    """True if an instruction with users computes a narrow float, which simplify-fp-conversions may keep wider."""
    return any(
        instruction.shape.is_array
        and instruction.shape.dtype.is_float
        and instruction.shape.dtype.bits < 32
        and instruction.opcode not in ("parameter", "constant")
        and instruction.users
        for instruction in module.instructions
    )
