"""Writes the work of the latency-hiding scheduler as a ScheduleProto, binary or text, as XLA dumps it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hlo_run.analysis.latency.schedule_trace import ScheduleTrace, TracedInstruction
from hlo_run.formats.protos import module_ids, proto_to_text
from hlo_run.formats.wire import delimited, double, varint

# The opcodes whose waits are fields of their own, in the order of the fields from 1.
_WAITS = (
    *("all-gather", "all-reduce", "collective-broadcast", "collective-permute", "all-to-all", "ragged-all-to-all"),
    *("reduce-scatter", "send", "recv", "call"),
)
_TOTALS = ("total_wasted_cycles", "total_cycles", "memory_pressure_peak")
_INSTRUCTION = ("id", "start_timestamp_cycles", "end_timestamp_cycles", "memory_usage_after", "peak_memory_after")
_CYCLES_PER_MICROSECOND = 1
_INDENT = "  "

_Number = int | float
# The name and the value of a field, by its number.
_Fields = dict[int, tuple[str, _Number]]


def schedule_to_bytes(module: bytes, traces: Sequence[ScheduleTrace]) -> bytes:
    """Return a serialized ScheduleProto. `module`: the HloModuleProto of the module before it was scheduled.

    Raises UsageError if jaxlib or protobuf is missing.
    """
    ids = module_ids(module)
    return delimited(1, module) + b"".join(delimited(2, _binary(trace, *ids[trace.computation])) for trace in traces)


def schedule_to_text(module: bytes, traces: Sequence[ScheduleTrace]) -> str:
    """Return the ScheduleProto in protobuf's text format. Raises the errors of `schedule_to_bytes`."""
    ids = module_ids(module)
    lines = [line for trace in traces for line in _lines(trace, *ids[trace.computation])]
    return proto_to_text(module, "the schedule") + "".join(f"{line}\n" for line in lines)


def _binary(trace: ScheduleTrace, number: int, by_name: Mapping[str, int]) -> bytes:
    data = varint(1, number) if number else b""
    for instruction in trace.instructions:
        data += delimited(2, _encoded(_instruction(instruction, by_name)))
    return data + delimited(3, _encoded(_statistics(trace))) + varint(4, _CYCLES_PER_MICROSECOND)


def _lines(trace: ScheduleTrace, number: int, by_name: Mapping[str, int]) -> Iterator[str]:
    yield "computation_schedules {"
    if number:
        yield f"{_INDENT}computation_id: {number}"
    for instruction in trace.instructions:
        yield from _message("instructions", _instruction(instruction, by_name))
    yield from _message("scheduler_statistics", _statistics(trace))
    yield f"{_INDENT}cycles_per_microsecond: {_CYCLES_PER_MICROSECOND}"
    yield "}"


def _message(name: str, fields: _Fields) -> Iterator[str]:
    yield f"{_INDENT}{name} {{"
    for field, value in fields.values():
        if value:
            yield f"{_INDENT * 2}{field}: {value if isinstance(value, int) else _double(value)}"
    yield f"{_INDENT}}}"


def _instruction(instruction: TracedInstruction, by_name: Mapping[str, int]) -> _Fields:
    values: tuple[_Number, ...] = (
        by_name[instruction.name],
        *(instruction.start, instruction.end, instruction.in_use_bytes, instruction.peak_bytes),
    )
    return dict(enumerate(zip(_INSTRUCTION, values, strict=True), 1))


def _statistics(trace: ScheduleTrace) -> _Fields:
    waits = [(f"{opcode.replace('-', '_')}_wasted_cycles", trace.waits.get(opcode, 0.0)) for opcode in _WAITS]
    totals = (sum(value for _, value in waits), trace.total, trace.peak_bytes)
    fields: list[tuple[str, _Number]] = [*waits, *zip(_TOTALS, totals, strict=True)]
    return dict(enumerate(fields, 1))


def _encoded(fields: _Fields) -> bytes:
    """Return the fields that are not zero; proto3 omits zeros."""
    given = [(number, value) for number, (_, value) in fields.items() if value]
    return b"".join(varint(number, value) if isinstance(value, int) else double(number, value) for number, value in given)


def _double(value: float) -> str:
    """Return a number with 15 digits if they tell it apart from all others, else with 17."""
    short = f"{value:.15g}"
    return short if float(short) == value else f"{value:.17g}"
