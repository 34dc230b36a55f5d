"""The protos that XLA dumps in place of texts: `*-memory-usage-report.pb` and `thunk_metadata.pb`."""

from __future__ import annotations

from collections.abc import Mapping

from hlo_run.artifact import Executable
from hlo_run.formats.wire import delimited, double, varint
from hlo_run.runtime.buffer_dumps import UsageSpace, position_text, usage_spaces
from hlo_run.runtime.buffers import BufferAssignment
from hlo_run.runtime.float_checks import Checks, Outputs
from hlo_run.runtime.thunk_text import ThunkRecord, thunk_records


def memory_usage_proto(buffers: BufferAssignment) -> bytes:
    """Return a serialized MemoryUsageReportProto."""
    return b"".join(delimited(1, _space(space)) for space in usage_spaces(buffers))


def _space(space: UsageSpace) -> bytes:
    entries = b""
    cumulative = 0
    for number, allocation, text in space.entries:
        cumulative += allocation.size_bytes
        part = cumulative / space.total_bytes if space.total_bytes else 0.0
        values = sorted(allocation.offsets, key=lambda value: value.id)
        numbers = ((1, number), (2, allocation.size_bytes), (3, cumulative))
        entry = b"".join(varint(field, value) for field, value in numbers if value)  # proto3 omits zeros
        entry += double(4, part) if part else b""
        entry += b"".join(delimited(5, position_text(value.positions[0])) for value in values)
        entries += delimited(3, entry + delimited(6, text))
    total = varint(1, space.total_bytes) if space.total_bytes else b""
    return total + varint(2, space.color) + entries


def thunk_metadata_proto(
    program: Executable,
    checks: Checks | None = None,
    regions: Mapping[str, int] | None = None,
    outputs: Outputs | None = None,
) -> bytes:
    """Return a serialized ThunkMetadataListProto, with the records of the `checks` of floats and of `outputs` if any.

    `regions`: those of instructions that may run at the same time, by name.
    """
    return b"".join(
        delimited(1, _metadata(record, (regions or {}).get(record.name))) for record in thunk_records(program, checks, outputs)
    )


def _metadata(record: ThunkRecord, region: int | None) -> bytes:
    info = delimited(1, record.name) if record.name else b""
    info += varint(3, record.number) if record.number else b""
    info += varint(4, region) if region is not None else b""
    return delimited(1, info) + delimited(2, record.kind)
