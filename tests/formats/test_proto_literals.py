"""Literals of snapshots whose shape and data contradict each other are refused before an array is made."""

from __future__ import annotations

from typing import Any

import pytest

from hlo_run.errors import ParseError
from hlo_run.formats.proto_literals import literal_of_proto
from hlo_run.formats.protos import message_types

pytest.importorskip("jaxlib")
_F32, _BF16, _C64 = 11, 16, 15
WRONG: dict[str, tuple[int, list[int], dict[str, Any]]] = {
    "more elements than data": (_F32, [2**40], {"f32s": [1.0]}),
    "more elements than any array": (_F32, [2**62, 2**62], {"f32s": [1.0]}),
    "negative sizes whose product fits": (_F32, [-2, -2], {"f32s": [1.0] * 4}),
    "an empty array with a huge dimension": (_F32, [0, 2**62], {}),
    "more dimensions than numpy has": (_F32, [1] * 65, {"f32s": [1.0]}),
    "half of a complex number": (_C64, [1], {"c64s": [1.0, 2.0, 3.0]}),
    "half of an element": (_BF16, [1], {"bf16s": b"123"}),
}


@pytest.mark.parametrize("name", WRONG)
def test_contradictions_are_refused(name: str) -> None:
    kind, dims, data = WRONG[name]
    message = message_types("x.pb")("xla.LiteralProto")()
    message.shape.element_type = kind
    message.shape.dimensions.extend(dims)
    message.shape.layout.minor_to_major.extend(reversed(range(len(dims))))
    for field, value in data.items():
        if isinstance(value, bytes):
            setattr(message, field, value)
        else:
            getattr(message, field).extend(value)
    with pytest.raises(ParseError):
        literal_of_proto(message, "argument 0")


def test_a_layout_that_is_no_permutation_is_refused() -> None:
    message = message_types("x.pb")("xla.LiteralProto")()
    message.shape.element_type = _F32
    message.shape.dimensions.append(1)
    message.shape.layout.minor_to_major.append(2**62)
    message.f32s.append(1.0)
    with pytest.raises(ParseError, match="not those of its layout"):
        literal_of_proto(message, "argument 0")
