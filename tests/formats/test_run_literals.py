"""Files of literals: all element types, tuples and dynamic sizes survive, and XLA's own LiteralProtos are equal to ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hlo_run.errors import UsageError
from hlo_run.formats import xla
from hlo_run.formats.proto_literals import fill_proto
from hlo_run.formats.protos import message_types
from hlo_run.formats.run_literals import IterationLiterals, read_arguments, write_iterations
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.values.literal import Literal
from hlo_run.hlo.values.shape import Shape
from hlo_run.ops.parse import parse
from hlo_run.reference.random import RandomEngine

pytest.importorskip("jaxlib")
pytest.importorskip("google.protobuf")
FLAG = "input_literals_file"
NAMES = sorted(DTYPES)


def _patterns(name: str, dims: tuple[int, ...]) -> Any:
    """Return an array with random bits, without NaNs, whose payloads a text proto does not keep."""
    dtype, count = DTYPES[name], int(np.prod(dims))
    engine = RandomEngine(7)
    if dtype.kind == "pred":
        return engine.integers(dtype, 0, 1, count).reshape(dims)
    if dtype.is_integer:
        lowest = -(1 << (dtype.bits - 1)) if dtype.is_signed else 0
        return engine.integers(dtype, lowest, lowest + (1 << dtype.bits) - 1, count).reshape(dims)
    part = {"c64": "f32", "c128": "f64"}.get(name, name)
    numbers = engine.floats(DTYPES[part], count, 0.25 if name == "f8e8m0fnu" else -2.0, 2.0).reshape(dims)
    return numbers.astype(dtype.numpy)


def _same(one: Literal, two: Literal) -> None:
    if isinstance(one, tuple):
        assert isinstance(two, tuple)
        assert len(one) == len(two)
        for left, right in zip(one, two, strict=True):
            _same(left, right)
        return
    assert not isinstance(two, tuple)
    assert (one.dtype, one.shape, one.tobytes()) == (two.dtype, two.shape, two.tobytes())


@pytest.mark.parametrize("ending", ["pb", "pbtxt"])
def test_all_element_types_survive(tmp_path: Path, ending: str) -> None:
    values: list[tuple[Literal, Shape]] = [(_patterns(name, (3, 2)), Shape.array(name, (3, 2))) for name in NAMES]
    values += [(_patterns(name, ()), Shape.array(name, ())) for name in NAMES]
    nested = Shape.make_tuple((values[0][1], Shape.make_tuple((values[1][1],)), Shape.make_tuple(())))
    values.append(((values[0][0], (values[1][0],), ()), nested))
    values.append((np.zeros((0, 3), np.float32), Shape.array("f32", (0, 3))))
    path = str(tmp_path / f"l.{ending}")
    write_iterations(path, [IterationLiterals(values), IterationLiterals(values[:1], values[1], values[1])], FLAG)
    first, second = read_arguments(path, FLAG)
    _same(first, tuple(value for value, _ in values))
    _same(second, (values[0][0],))


def test_dynamic_sizes_survive(tmp_path: Path) -> None:
    shape = parse("HloModule m\nENTRY e { ROOT p = s32[<=4,3] parameter(0) }", "m").entry.root.shape
    path, value = str(tmp_path / "l.pb"), np.arange(6, dtype=np.int32).reshape(2, 3)
    write_iterations(path, [IterationLiterals([(value, shape)])], FLAG)
    _same(read_arguments(path, FLAG)[0], (value,))
    message = message_types("x")("xla.LiteralProto")()
    fill_proto(message, value, shape)
    assert list(message.dynamic_sizes) == [2, 3]
    assert list(message.s32s) == [0, 1, 2, 3, 4, 5, 0, 0, 0, 0, 0, 0], "the data fills the bounds"


@pytest.mark.parametrize("name", NAMES)
def test_literals_are_those_of_xla(name: str) -> None:
    text = "{true, false, true}" if name == "pred" else "{(1,0), (0.5,1), (2,-3)}" if DTYPES[name].is_complex else "{0, 1, 1}"
    if DTYPES[name].is_signed:
        text = "{0, -1, 0}"
    module = f"HloModule m\nENTRY e {{ ROOT c = {name}[3] constant({text}) }}"
    try:
        data = xla.text_to_proto(module, "m.hlo")
    except Exception as error:
        pytest.skip(f"this XLA does not read {name}: {error}")
    types = message_types("x")
    theirs = types("xla.HloModuleProto").FromString(data).computations[0].instructions[0].literal
    constant = parse(module, "m.hlo").entry.root
    ours = types("xla.LiteralProto")()
    fill_proto(ours, constant.literal, constant.shape)
    assert ours.SerializeToString(deterministic=True) == theirs.SerializeToString(deterministic=True)


def test_a_file_with_one_iteration(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    array = "shape { element_type: F32 dimensions: 2 layout { minor_to_major: 0 } } f32s: 1 f32s: 2"
    path.write_text(f"arguments {{ {array} }} result {{ {array} }}", encoding="utf-8")
    (arguments,) = read_arguments(str(path), FLAG)
    _same(arguments, (np.array([1, 2], np.float32),))


@pytest.mark.parametrize("data", [b"", b"\xff\xff\xff", b"hello { world: 1 }"])
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "l.pb"
    path.write_bytes(data)
    with pytest.raises(UsageError, match="holds neither"):
        read_arguments(str(path), FLAG)
    with pytest.raises(UsageError, match="cannot be read"):
        read_arguments(str(tmp_path / "missing.pb"), FLAG)
