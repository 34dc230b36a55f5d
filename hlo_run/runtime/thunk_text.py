"""Prints thunks in XLA's format: `*.thunk_sequence.txt` and `*.thunk_metadata.txt`.

    001: kCopy         [source       | next=002 (1)] kCopy
    002: kCustomKernel [prev=001 (1) | sink        ] wrapped_tanh grid: [32, 1, 1] threads: [128, 1, 1]  shared_memory: 0 bytes

A thunk's neighbours (`prev`, `next`) are the nearest thunks before and after it that conflict with it: one of the two
writes memory that the other accesses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, assert_never, get_args

from msgspec import Struct, structs

from hlo_run.artifact import (
    Accesses,
    AsyncDoneThunk,
    AsyncStartThunk,
    BufferSlice,
    CollectiveKind,
    CommandBufferThunk,
    ConditionalThunk,
    ConvolutionThunk,
    CopyThunk,
    Executable,
    FunctionCall,
    GemmThunk,
    KernelThunk,
    MemsetThunk,
    SequentialThunk,
    SliceCopyThunk,
    SlicedProductThunk,
    Thunk,
    WhileThunk,
    accesses,
    every_thunk,
    nested_sequences,
)
from hlo_run.runtime.float_checks import Checks, Outputs
from hlo_run.runtime.thunk_numbers import NO_NUMBER, thunk_numbers

# Kinds whose description in XLA is the name of the kind.
_SELF_DESCRIBED = (
    "kCopy",
    "kCustomCall",
    "kCublasLtMatmul",
    "kConvolution",
    "kReplicaId",
    "kPartitionId",
    *get_args(CollectiveKind),
)


def thunk_sequence_text(program: Executable, checks: Checks | None = None, outputs: Outputs | None = None) -> str:
    """Return the thunks of an executable with their numbers, neighbours and descriptions.

    `checks` of floats and checks of `outputs` are among them, if any.
    """
    if not program.thunks and checks is None and outputs is None:
        return "No thunks."
    printer = _Printer(program, checks or {})
    lines = printer.lines(program.thunks, 0)
    if outputs is not None:
        lines = [_END_LINE, _END_LINE, *lines, *_output_lines(outputs)]
    elif checks is not None:
        lines = [_END_LINE, *lines, _END_LINE]
    return _text(lines, 0)


def thunk_metadata_text(
    program: Executable,
    checks: Checks | None = None,
    regions: Mapping[str, int] | None = None,
    outputs: Outputs | None = None,
) -> str:
    """Return a text proto with the number, instruction and kind of every thunk, also for the `checks` and the `outputs`.

    `regions`: those of instructions that may run at the same time, by name.
    """
    records = thunk_records(program, checks, outputs)
    return "".join(_metadata(record, (regions or {}).get(record.name)) for record in records)


class ThunkRecord(NamedTuple):
    """The metadata of a thunk: its instruction ("" if it has none), its number, its kind."""

    name: str
    number: int
    kind: str


def thunk_records(program: Executable, checks: Checks | None = None, outputs: Outputs | None = None) -> Iterator[ThunkRecord]:
    """Yield a record per thunk, each before the thunks inside it, and records of the `checks` and of `outputs` if any."""
    numbers = thunk_numbers(program.thunks)

    def records(thunks: Sequence[Thunk]) -> Iterator[ThunkRecord]:
        for thunk in thunks:
            is_checked = checks is not None and id(thunk) in checks
            if is_checked:
                yield ThunkRecord("", NO_NUMBER, "kSequential")
            yield ThunkRecord(thunk.name, numbers[id(thunk)], thunk.kind)
            if isinstance(thunk, CommandBufferThunk):
                # XLA keeps the recorded thunks in a sequence without a name.
                yield ThunkRecord("", NO_NUMBER, "kSequential")
            for inner in nested_sequences(thunk):
                yield from records(inner)
            if is_checked:
                yield ThunkRecord("", NO_NUMBER, _CHECK)

    if outputs is not None:
        yield from (_END_RECORD, _END_RECORD)
        yield from records(program.thunks)
        yield ThunkRecord("", NO_NUMBER, _CHECKSUM)
        yield _END_RECORD
        yield from [ThunkRecord(f"Buffer saver Module {program.name} Output Check", NO_NUMBER, _END)] * len(outputs)
        if any(has_floats for _, has_floats in outputs):
            yield ThunkRecord("", NO_NUMBER, _CHECK)
        yield _END_RECORD
    elif checks is None:
        yield from records(program.thunks)
    else:
        yield _END_RECORD
        yield from records(program.thunks)
        yield _END_RECORD


# XLA begins and ends the log of the checks by calls.
_CHECK, _CHECKSUM, _END = "kBuffersDebugFloatCheck", "kBuffersDebugChecksum", "kCustomCall"
_END_RECORD = ThunkRecord("", NO_NUMBER, _END)


def _metadata(record: ThunkRecord, region: int | None) -> str:
    annotation = f'    profile_annotation: "{record.name}"\n' if record.name else ""
    identifier = f"    thunk_id: {record.number}\n" if record.number else ""
    if region is not None:
        identifier += f"    concurrent_region_id: {region}\n"
    return f'thunk_metadata {{\n  thunk_info {{\n{annotation}{identifier}  }}\n  thunk_kind: "{record.kind}"\n}}\n'


class _Line(Struct, frozen=True):
    """The parts of a line about a thunk, before its neighbours and after them."""

    number: int
    kind: str
    description: str
    touched: Accesses


_END_LINE = _Line(NO_NUMBER, _END, _END, Accesses())


def _output_lines(outputs: Outputs) -> list[_Line]:
    """Return the lines about the checks of the result: a checksum, a thunk per buffer that saves it, a check of floats."""
    pieces = list(enumerate(piece for piece, _ in outputs))
    floats = [(number, piece) for number, piece in pieces if outputs[number][1]]
    savers = [_Line(NO_NUMBER, _END, _END, Accesses(reads=(piece,))) for _, piece in pieces]
    checks = [_buffers_line(_CHECK, floats, 0)] if floats else []
    return [_buffers_line(_CHECKSUM, pieces, 0), _END_LINE, *savers, *checks, _END_LINE]


def _buffers_line(kind: str, buffers: Sequence[tuple[int, BufferSlice]], level: int) -> _Line:
    indent = " " * (level + 3)
    where = "index:{0.allocation}, offset:{0.offset_bytes}, size:{0.size_bytes}"
    texts = (f"\n{indent}buffer_idx: {number}, buffer: {{{where.format(piece)}}}" for number, piece in buffers)
    return _Line(NO_NUMBER, kind, f", buffers = {len(buffers)}{''.join(texts)}", Accesses())


class _Printer:
    def __init__(self, program: Executable, checks: Checks) -> None:
        self._numbers = thunk_numbers(program.thunks)
        self._kernels = {kernel.name: kernel for kernel in program.kernels}
        self._checks = checks
        # XLA calls an asynchronous execution by the number of its start.
        self._starts = {t.key: self._numbers[id(t)] for t in every_thunk(program.thunks) if isinstance(t, AsyncStartThunk)}

    def sequence(self, thunks: Sequence[Thunk], level: int) -> str:
        """Return a line per thunk, indented by `level`. The sequences inside a thunk follow its line."""
        return _text(self.lines(thunks, level), level)

    def lines(self, thunks: Sequence[Thunk], level: int) -> list[_Line]:
        """Return the contents of the lines of a sequence."""
        return [self._line(thunk, level) for thunk in thunks]

    def _line(self, thunk: Thunk, level: int) -> _Line:
        own = _Line(self._numbers[id(thunk)], thunk.kind, "", _uses(thunk))
        checked = self._checks.get(id(thunk))
        if checked is None:
            return structs.replace(own, description=self._describe(thunk, level))
        inner = structs.replace(own, description=self._describe(thunk, level + 1), touched=Accesses())
        check = _buffers_line(_CHECK, checked, level + 1)
        return _Line(NO_NUMBER, "kSequential", _text([inner, check], level + 1).rstrip("\n"), own.touched)

    def _describe(self, thunk: Thunk, level: int) -> str:
        indent = "  " * (level + 1)
        match thunk:
            case KernelThunk(kind="kCopy"):
                return thunk.kind
            case KernelThunk():
                kernel = self._kernels[thunk.kernel]
                grid, block = ", ".join(map(str, kernel.grid)), ", ".join(map(str, kernel.block))
                # XLA prints dynamic shared memory, which no kernel has.
                return f"{kernel.name} grid: [{grid}] threads: [{block}]  shared_memory: 0 bytes"
            case WhileThunk():
                condition, body = (self._inner(part, level) for part in (thunk.condition, thunk.body))
                return f"{indent}\ncondition:\n{condition}{indent}body:\n{body}".rstrip("\n")
            case ConditionalThunk():
                names = _branch_names(thunk)
                parts = [f"{indent}{name}:\n{self._inner(b, level)}" for name, b in zip(names, thunk.branches, strict=True)]
                return f"{indent}\n{''.join(parts)}".rstrip("\n")
            case SequentialThunk(kind="kDynamicSliceFusion"):
                return "params=1, results=1\n" + self._inner(thunk.thunks, level).rstrip("\n")
            case SlicedProductThunk():
                inner = self._inner((thunk.product,), level).rstrip("\n")
                return f"params={thunk.parameter_count}, results={thunk.result_count}\n{inner}"
            case SequentialThunk(kind="kGroup"):
                return "\n" + self._inner(thunk.thunks, level).rstrip("\n")
            case SequentialThunk():
                return self.sequence(thunk.thunks, level + 1).rstrip("\n") if thunk.thunks else "No thunks."
            case AsyncStartThunk():
                inner = self._inner(thunk.thunks, level).rstrip("\n")
                return f"stream={thunk.stream}_stream[{thunk.stream_number}], async_id={self._starts[thunk.key]}\n{inner}"
            case AsyncDoneThunk():
                return f"async_id={self._starts[thunk.key]}"
            case CommandBufferThunk():
                return "\n" + self._inner(thunk.thunks, level).rstrip("\n")
            case CopyThunk() | SliceCopyThunk() | MemsetThunk() | FunctionCall():
                return thunk.kind if thunk.kind in _SELF_DESCRIBED else "(no description)"
            case _:
                assert_never(thunk)

    def _inner(self, thunks: Sequence[Thunk], level: int) -> str:
        return self.sequence(thunks, level + 2) if thunks else "No thunks.\n"


def _text(lines: Sequence[_Line], level: int) -> str:
    """Return the lines with their neighbours: the nearest thunks that conflict."""
    befores = [_before(lines, place) for place in range(len(lines))]
    afters = [_after(lines, place) for place in range(len(lines))]
    kind_width, before_width, after_width = (max(map(len, column)) for column in ([n.kind for n in lines], befores, afters))
    return "".join(
        f"{'  ' * level}{line.number:03d}: {line.kind:<{kind_width}} "
        f"[{before:<{before_width}} | {after:<{after_width}}] {line.description}\n"
        for line, before, after in zip(lines, befores, afters, strict=True)
    )


def _before(lines: Sequence[_Line], place: int) -> str:
    found = next((n for n in range(place - 1, -1, -1) if _conflict(lines[n].touched, lines[place].touched)), None)
    return "source" if found is None else f"prev={lines[found].number:03d} ({place - found})"


def _after(lines: Sequence[_Line], place: int) -> str:
    found = next((n for n in range(place + 1, len(lines)) if _conflict(lines[place].touched, lines[n].touched)), None)
    return "sink" if found is None else f"next={lines[found].number:03d} ({found - place})"


def _uses(thunk: Thunk) -> Accesses:
    """Return what a thunk reads and writes, with the workspaces of libraries.

    A copy of a slice has no indices in XLA. Its inner copy counts as from allocation 0 to allocation 1, whatever is there.
    """
    if isinstance(thunk, SequentialThunk) and thunk.copied:
        source, target = thunk.copied
        size = min(source.size_bytes, target.size_bytes)
        return Accesses((source, BufferSlice(0, 0, size)), (target, BufferSlice(1, 0, size)))
    found = accesses(thunk)
    workspaces = [part.workspace for part in every_thunk((thunk,)) if isinstance(part, GemmThunk | ConvolutionThunk)]
    return Accesses(found.reads, (*found.writes, *(workspace for workspace in workspaces if workspace is not None)))


def _branch_names(thunk: ConditionalThunk) -> list[str]:
    """Return XLA's names of the branches. Branch 0 is taken for true, but XLA calls it false_branch."""
    return ["false_branch", "true_branch"] if thunk.is_predicate else [f"branch_{n}" for n in range(len(thunk.branches))]


def _conflict(one: Accesses, two: Accesses) -> bool:
    """True if one of the two writes memory that the other accesses."""
    return _meet(one.writes, (*two.reads, *two.writes)) or _meet(one.reads, two.writes)


def _meet(ours: Sequence[BufferSlice], theirs: Sequence[BufferSlice]) -> bool:
    by_allocation: dict[int, list[BufferSlice]] = {}
    for piece in ours:
        by_allocation.setdefault(piece.allocation, []).append(piece)
    return any(_overlap(piece, other) for piece in theirs for other in by_allocation.get(piece.allocation, ()))


def _overlap(one: BufferSlice, two: BufferSlice) -> bool:
    """True if the pieces have bytes in common, or are the same; two equal pieces without bytes count too, as in XLA."""
    ends_after = one.offset_bytes < two.offset_bytes + two.size_bytes
    return one == two or (ends_after and two.offset_bytes < one.offset_bytes + one.size_bytes)
