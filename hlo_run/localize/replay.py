"""Replays a run on Host thunk by thunk beside the reference, and tells each thunk's own error from the error that it receives.

Two copies of the executable's memory are stepped in the order of the reference's walk. In the first the run goes on as it is.
In the second every thunk finds the reference's operands, so what it gets wrong there is its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

from msgspec import Struct

from hlo_run.artifact import BufferSlice, Executable, KernelThunk, Thunk, accesses, tree_slices
from hlo_run.backends.host.backend import HostBackend
from hlo_run.backends.host.control_steps import ConditionalStep, WhileStep, every_step
from hlo_run.backends.host.stepper import Stepper, flattened, sequences_of
from hlo_run.backends.host.steps import Step
from hlo_run.errors import DeviceError, HloRunError, Unsupported
from hlo_run.hlo.feeds import NO_FEEDS, Feeds
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.isolate import isolate_instruction
from hlo_run.hlo.values.literal import Literal
from hlo_run.hlo.values.shape import Shape
from hlo_run.kernel_checks.verdicts import Verdicts
from hlo_run.kernel_checks.written_arrays import overlap, part_at, written_leaves
from hlo_run.reference.compare.compare import Comparison, ErrorSpec, compare
from hlo_run.reference.evaluate.walk import Walk
from hlo_run.reference.values import Value
from hlo_run.runtime.buffers import BufferAssignment


class Kind(Enum):
    """The kinds of failure at a thunk."""

    MADE = "its result differs on the reference's operands"
    FAULT = "it fails"
    OVERWRITTEN = "its operand was right when it was written, and wrong when it was read"
    CONTROL = "the run takes another path than the reference"
    SHARED = "its operands share memory, so they cannot all be right"


class Event(Struct, frozen=True):
    """A failure at a thunk. `place` is the text of the loops around it; `operands` are the reference's, and `leaves` the shape
    indices of the arrays that the thunks write.

    `made` compares the result on the reference's operands, `produced` the result in the run, `received` the operands in the run.
    """

    kind: Kind
    instruction: HloInstruction
    place: str
    kernels: tuple[str, ...] = ()
    operands: tuple[Literal, ...] = ()
    leaves: tuple[tuple[int, ...], ...] = ()
    made: Comparison | None = None
    produced: Comparison | None = None
    received: Comparison | None = None
    note: str = ""


class Record(Struct):
    """The verdicts on the thunks of one instruction over all its executions. Errors are the worst absolute ones; None: not run.

    `compared` counts the executions, `unchecked` says why the reference has no value.
    """

    instruction: HloInstruction
    place: str
    kinds: tuple[str, ...]
    kernels: tuple[str, ...]
    compared: int = 0
    made: float | None = None
    received: float | None = None
    produced: float | None = None
    differs: str = ""
    differs_in_run: str = ""
    unchecked: str = ""


class _Frame(Struct):
    """A computation that the walk is in: the steps of each instruction in both memories, by the names of the thunks."""

    caller: HloInstruction | None
    text: str
    run: dict[str, list[Step]]
    alone: dict[str, list[Step]]


class Replay(Walk):
    """The replay of one run. After `walk`, `records` are in the order of the first executions and `first` is the culprit."""

    def __init__(
        self,
        module: HloModule,
        buffers: BufferAssignment,
        executable: Executable,
        backend: HostBackend,
        verdicts: Verdicts,
        feeds: Feeds = NO_FEEDS,
        timeout_seconds: float = 0.0,
    ) -> None:
        """Prepare the replay of `executable`, which was compiled from the scheduled `module` with `buffers`."""
        super().__init__(module, verdicts.seed, feeds)
        self._buffers, self._verdicts = buffers, verdicts
        self._alone_modules: dict[HloInstruction, HloModule] = {}
        self._seed, self._feeds, self._timeout_seconds = verdicts.seed, feeds, timeout_seconds
        self._run, self._alone = Stepper(backend, executable), Stepper(backend, executable)
        self._frames = [_Frame(None, "", _by_name(self._run.steps), _by_name(self._alone.steps))]
        self._follows = True
        self._wrong_so_far = False
        self._undefined: set[HloInstruction] = set()
        self.records: dict[HloInstruction, Record] = {}
        self.first: Event | None = None
        self.first_in_run: Event | None = None

    def replay(self, arguments: Sequence[Literal]) -> None:
        """Run everything; raises errors of the HloRunError family, such as Unsupported from the reference."""
        for stepper in (self._run, self._alone):
            stepper.begin(arguments, self._seed, self._feeds(0), self._timeout_seconds)
        self.walk(arguments)

    # ---- control flow -------------------------------------------------------------------------------------------

    def enter(self, caller: HloInstruction, part: int, text: str) -> None:
        """Begin a computation that `caller` calls."""
        frame = self._frames[-1]
        inner: list[dict[str, list[Step]]] = []
        for steps in (frame.run, frame.alone):
            (step,) = steps.get(caller.name) or [None]
            # With a known trip count the run skips the condition.
            skipped = step is None or (part == 0 and isinstance(step, WhileStep) and step.trip_count is not None)
            inner.append({} if step is None or skipped else _by_name(sequences_of(step)[part]))
        self._frames.append(_Frame(caller, text, *inner))

    def leave(self) -> None:
        """End a computation."""
        self._frames.pop()

    def turn(self, loop: HloInstruction, goes_on: bool, iteration: int) -> None:
        """Compare whether the run and the reference run the body again."""
        for step in self._frames[-1].run.get(loop.name, ()) if self._follows else ():
            assert isinstance(step, WhileStep), "the step of a loop"
            known = step.trip_count
            run_goes_on = iteration < known if known is not None else self._run.is_true(step.slices[0])
            if run_goes_on != goes_on:
                verb = "runs" if run_goes_on else "leaves out"
                why = f", as its known trip count is {known}" if known is not None else ""
                self._stray(loop, f"the run {verb} iteration {iteration} (counted from 0){why}; the reference does not")

    def branch(self, conditional: HloInstruction, taken: int) -> None:
        """Compare the branches that the run and the reference take."""
        for step in self._frames[-1].run.get(conditional.name, ()) if self._follows else ():
            assert isinstance(step, ConditionalStep), "the step of a conditional"
            run_taken = self._run.taken(step)
            if run_taken != taken:
                self._stray(conditional, f"the run takes branch {run_taken}, the reference branch {taken}")

    def _stray(self, instruction: HloInstruction, note: str) -> None:
        self._follows = False
        event = Event(Kind.CONTROL, instruction, self._place(), note=note)
        self.first = self.first or event
        self.first_in_run = self.first_in_run or event

    def _place(self) -> str:
        """Return the loops and branches around the current instruction, innermost first."""
        frames = [frame for frame in reversed(self._frames) if frame.caller is not None]
        return "".join(
            f", {frame.text} of %{frame.caller.name}" if frame.text else f", called by %{frame.caller.name}"
            for frame in frames
            if frame.caller is not None
        )

    # ---- one instruction ----------------------------------------------------------------------------------------

    def leaf(self, instruction: HloInstruction, operands: Sequence[Value]) -> Value:
        """Run the thunks of an instruction in both memories, compare, and return the reference's value."""
        frame = self._frames[-1]
        running, alone = _of(frame.run, instruction), _of(frame.alone, instruction)
        if not running:
            if instruction.opcode == "custom-call":
                self._undefined.add(instruction)  # memory that no thunk fills
            return self.evaluate(instruction, operands)
        record = self._record(instruction, running)
        given = tuple(map(self.outside, operands))
        received = self._received(instruction, given) if self._follows else None
        try:
            value = self.evaluate(instruction, operands)
        except Unsupported as error:
            record.unchecked = error.message
            return self._taken_from_run(instruction, running, error)
        expected = self.outside(value)
        tree = self._buffers.array_tree(instruction)
        written = [piece for step in running for piece in accesses(step.thunk).writes]
        leaves = written_leaves(instruction.shape, tree, written)
        fault: HloRunError | None = None
        produced = made = None
        if self._follows:
            fault = self._run_steps(self._run, running)
            self._follows = fault is None
            produced = self._compare(leaves, expected, self._run.read(tree)) if fault is None else None
        shared = self._place_operands(instruction, given, written)
        failed = self._run_steps(self._alone, alone)
        if failed is None:
            made = self._compare(leaves, expected, self._alone.read(tree), instruction, given)
        self._judge(record, given, leaves, received, made, produced, failed or fault, shared)
        return value

    def _taken_from_run(self, instruction: HloInstruction, running: list[Step], error: Unsupported) -> Value:
        """Return the run's own value where the reference has none. Raises `error` if the run went another way."""
        if not self._follows or self._run_steps(self._run, running) is not None:
            raise error
        return self.inside(self._run.read(self._buffers.array_tree(instruction)), instruction)

    def _run_steps(self, stepper: Stepper, steps: list[Step]) -> DeviceError | None:
        """Run steps; return the fault if one fails."""
        try:
            stepper.run(steps, self.iterations)
        except DeviceError as error:
            return error
        return None

    def _received(self, instruction: HloInstruction, given: Sequence[Literal]) -> Comparison | None:
        """Compare the operands in the run's memory with the reference's; None without any that hold values."""
        pairs = {
            operand: value
            for operand, value in zip(instruction.operands, given, strict=True)
            if operand not in self._undefined and (operand.shape.is_array or operand.shape.is_tuple)
        }
        if not pairs:
            return None
        shape = Shape.make_tuple(tuple(operand.shape for operand in pairs))
        found = tuple(self._run.read(self._buffers.array_tree(operand)) for operand in pairs)
        return self._verdicts.bounds(tuple(pairs.values()), found, shape)

    def _place_operands(self, instruction: HloInstruction, given: Sequence[Literal], written: Iterable[BufferSlice]) -> bool:
        """Write the reference's operands into the second memory and poison the results. True if operands share memory."""
        pairs = dict(zip(instruction.operands, given, strict=True))
        trees = {operand: self._buffers.array_tree(operand) for operand in pairs}
        for operand, value in pairs.items():
            self._alone.write(trees[operand], value)
        read = [piece for tree in trees.values() for piece in tree_slices(tree)]
        for piece in written:
            if not any(overlap(piece, other) for other in read):
                self._alone.poison(piece)
        exact = ErrorSpec(abs=0.0, rel=0.0)
        return not all(
            compare(value, self._alone.read(trees[operand]), operand.shape, exact).ok for operand, value in pairs.items()
        )

    def _compare(
        self,
        leaves: list[tuple[tuple[int, ...], Shape]],
        expected: Value,
        actual: Literal,
        instruction: HloInstruction | None = None,
        given: Sequence[Literal] = (),
    ) -> Comparison:
        """Compare the arrays that the thunks write: by the bounds, or as the results of `instruction` on `given`."""
        is_whole = len(leaves) == 1 and not leaves[0][0]
        shape = leaves[0][1] if is_whole else Shape.make_tuple(tuple(leaf for _, leaf in leaves))

        def part(value: Value) -> Value:
            return value if is_whole else tuple(part_at(value, path) for path, _ in leaves)

        if instruction is None:
            return self._verdicts.bounds(part(expected), part(actual), shape)
        alone = self._alone_modules.get(instruction)
        if alone is None:
            alone = self._alone_modules[instruction] = isolate_instruction(instruction)
        values = list(dict(zip(instruction.operands, given, strict=True)).values())
        return self._verdicts.of_module(alone, values, part(expected), part(actual), shape=shape, part=part)

    # ---- verdicts -----------------------------------------------------------------------------------------------

    def _record(self, instruction: HloInstruction, steps: list[Step]) -> Record:
        found = self.records.get(instruction)
        if found is None:
            thunks = [step.thunk for step in every_step(steps)]
            kinds = tuple(dict.fromkeys(thunk.kind for thunk in thunks))
            outer = self._frames[-1].caller
            place = f"%{outer.name}" if outer is not None else ""
            found = self.records[instruction] = Record(instruction, place, kinds, _kernels(thunks))
        return found

    def _judge(
        self,
        record: Record,
        given: tuple[Literal, ...],
        leaves: list[tuple[tuple[int, ...], Shape]],
        received: Comparison | None,
        made: Comparison | None,
        produced: Comparison | None,
        fault: HloRunError | None,
        shared: bool,
    ) -> None:
        """Note the errors of one execution, and the first event."""
        record.compared += 1
        place = self._place()
        record.made, record.received, record.produced = (
            _worse(known, comparison)
            for known, comparison in ((record.made, made), (record.received, received), (record.produced, produced))
        )

        def event(kind: Kind, note: str = "") -> Event:
            paths = tuple(path for path, _ in leaves)
            return Event(kind, record.instruction, place, record.kernels, given, paths, made, produced, received, note)

        # As long as every value was right when it was written, a wrong operand was overwritten.
        if received is not None and not received.ok and not self._wrong_so_far:
            self._wrong_so_far = True
            self.first = self.first or event(Kind.OVERWRITTEN)
        if shared:
            self.first = self.first or event(Kind.SHARED)
        if fault is not None:
            record.differs = record.differs or f"fails{place}"
            self.first = self.first or event(Kind.FAULT, fault.message)
        if made is not None and not made.ok:
            record.differs = record.differs or f"differs{place}"
            self.first = self.first or event(Kind.MADE)
        if produced is not None and not produced.ok:
            self._wrong_so_far = True
            record.differs_in_run = record.differs_in_run or f"beyond the bounds in the run{place}"
            self.first_in_run = self.first_in_run or event(Kind.MADE)


def worst_error(comparison: Comparison) -> float:
    """Return the largest absolute error; for pred and values that cannot be compared, the number of wrong elements."""
    errors = [leaf.worst_abs.error for leaf in comparison.leaves if leaf.worst_abs is not None]
    return max(errors, default=float(comparison.mismatches))


def _worse(known: float | None, comparison: Comparison | None) -> float | None:
    if comparison is None:
        return known
    error = worst_error(comparison)
    return error if known is None or not error <= known else known


def _by_name(steps: Iterable[Step]) -> dict[str, list[Step]]:
    found: dict[str, list[Step]] = {}
    for step in flattened(steps):
        found.setdefault(step.thunk.name, []).append(step)
    return found


def _of(steps: dict[str, list[Step]], instruction: HloInstruction) -> list[Step]:
    """Return the steps of an instruction. The thunks of a fused sort have the name of the sort."""
    found = steps.get(instruction.name)
    if found is None and instruction.opcode == "fusion":
        found = steps.get(instruction.fused_computation.root.name)
    return found or []


def _kernels(thunks: Iterable[Thunk]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(thunk.kernel for thunk in thunks if isinstance(thunk, KernelThunk)))
