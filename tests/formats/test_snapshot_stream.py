"""XLA's stream of an HloUnoptimizedSnapshot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hlo_run
from hlo_run.errors import ParseError
from hlo_run.formats.write import unoptimized_snapshot
from hlo_run.hlo.values.literal import Literal
from hlo_run.hlo.values.shape import Shape

pytest.importorskip("jaxlib")
pytest.importorskip("google.protobuf")

from hlo_run.formats import protos
from hlo_run.formats.snapshot_stream import read_stream, write_stream

# Of the arguments f32[2,3], pred[9], s4[3], c64[1] and (s32[2], u8[1]): recorded from XLA:CPU but for the tuple.
ARGUMENTS = bytes.fromhex(
    "1300000000000000100b1a0202032a070a020100800101320200000000000000" "00803f000000400000404000008040" "0000a040"
    "100000000000000010011a01092a060a01008001013201" "00ed01"
    "100000000000000010151a01032a060a01008001013201" "00e103"
    "1000000000000000100f1a01012a060a01008001013201" "000000803f00000040"
)  # fmt: skip
TEXT = """HloModule m
ENTRY e { a = f32[2,3] parameter(0)
  b = pred[9] parameter(1)
  c = s4[3] parameter(2)
  d = c64[1] parameter(3)
  ROOT r = f32[2,3] negate(a) }
"""


def _values() -> list[tuple[Literal, Shape]]:
    entry = hlo_run.parse(TEXT).entry
    values = (
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array([1, 0, 1, 1, 0, 1, 1, 1, 1], bool),
        np.array([1, -2, 3]).astype(entry.parameters[2].shape.dtype.numpy),
        np.array([1 + 2j], np.complex64),
    )
    return [(value, parameter.shape) for value, parameter in zip(values, entry.parameters, strict=True)]


def _snapshot_type() -> Any:
    return protos.message_types("t")("xla.HloUnoptimizedSnapshot")


def test_the_bytes_of_arguments_are_those_of_xla() -> None:
    stream = unoptimized_snapshot(hlo_run.parse(TEXT), [_values()], "stream")
    assert stream.endswith(ARGUMENTS)
    contents = protos.read_binary(stream, "t")
    assert contents.arguments is not None
    for found, (expected, _) in zip(contents.arguments, _values(), strict=True):
        np.testing.assert_array_equal(found, expected)
    message = read_stream(stream, _snapshot_type())
    assert message is not None
    assert write_stream(message) == stream
    assert message.SerializeToString(deterministic=True) == unoptimized_snapshot(hlo_run.parse(TEXT), [_values()], "message")


def test_tuples_and_dynamic_sizes() -> None:
    module = hlo_run.parse(
        "HloModule m\nENTRY e { t = (s32[2], (u8[1], f16[<=4])) parameter(0) ROOT r = s32[2] get-tuple-element(t), index=0 }"
    )
    value = (np.array([1, 2], np.int32), (np.array([7], np.uint8), np.array([1, 2, 3], np.float16)))
    stream = unoptimized_snapshot(module, [[(value, module.entry.parameters[0].shape)]] * 2, "stream")
    message = read_stream(stream, _snapshot_type())
    assert message is not None
    assert write_stream(message) == stream
    assert len(message.partitions) == 2
    arguments = protos.read_binary(stream, "t").arguments
    assert arguments is not None
    found = arguments[0]
    assert isinstance(found, tuple)
    assert isinstance(found[1], tuple)
    np.testing.assert_array_equal(found[0], [1, 2])
    np.testing.assert_array_equal(found[1][1], [1, 2, 3])


@pytest.mark.parametrize(("change", "message"), [(-1, "cut off within its arguments"), (3, "3 bytes after its last argument")])
def test_other_sizes_are_errors(change: int, message: str) -> None:
    stream = unoptimized_snapshot(hlo_run.parse(TEXT), [_values()], "stream")
    with pytest.raises(ParseError, match=message):
        read_stream(stream[:change] if change < 0 else stream + bytes(change), _snapshot_type())
