"""Files of arguments and results: round trips of every type, numpy's own files, and error messages."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from reference_running import Array

from hlo_run.errors import UsageError
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.bits import element_bits, from_element_bits
from hlo_run.reference.literal_files import read_values, write_values
from hlo_run.reference.values import Value


def _bits(dtype: str, dims: tuple[int, ...], seed: int = 0) -> Array:
    """Return random bit patterns of a type, NaNs with payloads among them."""
    row = DTYPES[dtype]
    if row.is_complex:
        part = np.float32 if row.bits == 64 else np.float64
        return np.random.default_rng(seed).standard_normal((*dims, 2)).astype(part).view(row.numpy).reshape(dims)
    bits = np.random.default_rng(seed).integers(0, 1 << min(row.bits, 63), dims).astype(f"u{row.numpy.itemsize}")
    return from_element_bits(bits & np.asarray((1 << row.bits) - 1, bits.dtype) if row.bits < 8 else bits, row).reshape(dims)


def _raw(array: Array, dtype: str) -> list[Any]:
    row = DTYPES[dtype]
    if row.is_complex or row.kind == "pred":
        return array.reshape(-1).tolist()
    return element_bits(array.reshape(-1), row).tolist()


def _read(path: Path | str, *shapes: Shape, prefix: str = "arg") -> list[Value]:
    return read_values(str(path), prefix, shapes, [f"parameter {n}" for n in range(len(shapes))])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dims", [(), (0, 3), (4, 5)])
def test_there_and_back(dtype: str, dims: tuple[int, ...], tmp_path: Path) -> None:
    file, shape, value = tmp_path / "a.npz", Shape.array(dtype, dims), _bits(dtype, dims)
    write_values(str(file), {"arg": [(value, shape)]})
    (found,) = _read(file, shape)
    assert isinstance(found, np.ndarray)
    assert (found.dtype, found.shape) == (DTYPES[dtype].numpy, dims)
    assert _raw(found, dtype) == _raw(value, dtype)
    with np.load(file) as data:
        assert data["arg0"].dtype.kind in "uifcb"
        assert data["arg0"].shape == dims
        assert ("arg0.dtype" in data) == (DTYPES[dtype].numpy.isbuiltin != 1)
        if "arg0.dtype" in data:
            assert str(data["arg0.dtype"]) == DTYPES[dtype].numpy.name


@pytest.mark.parametrize("dtype", ["bf16", "f8e4m3fn", "s4", "u2", "f4e2m1fn", "f32", "pred"])
def test_npy_and_plain_savez_of_numpy(dtype: str, tmp_path: Path) -> None:
    """numpy writes types that it lacks as void, with their bits."""
    value, shape = _bits(dtype, (3, 2)), Shape.array(dtype, (3, 2))
    np.save(tmp_path / "x.npy", value)
    np.savez(tmp_path / "x.npz", arg0=value)
    for name in ("x.npy", "x.npz"):
        (found,) = _read(tmp_path / name, shape)
        assert _raw(np.asarray(found), dtype) == _raw(value, dtype)


def test_tuples_are_flattened_depth_first_without_tokens(tmp_path: Path) -> None:
    shape = Shape.make_tuple(
        (Shape.array("f32", (2,)), Shape.make_tuple((Shape("token"), Shape.array("bf16", ()))), Shape.array("s8", (1,)))
    )
    value: Value = (_bits("f32", (2,)), ((), _bits("bf16", ())), _bits("s8", (1,)))
    other = Shape.array("pred", (2,))
    file = tmp_path / "t.npz"
    write_values(
        str(file),
        {"arg": [(value, shape), (np.array([True, False]), other)], "out": [(_bits("f64", (3,)), Shape.array("f64", (3,)))]},
    )
    with np.load(file) as data:
        assert sorted(data.files) == ["arg0", "arg1", "arg1.dtype", "arg2", "arg3", "out0"]
    found: Any = _read(file, shape, other)
    assert found[0][1][0] == ()
    assert found[0][1][1].dtype == ml_dtypes.bfloat16
    assert found[0][2].tolist() == np.asarray(value[2]).tolist()
    assert found[1].tolist() == [True, False]


def test_files_of_equal_values_are_equal(tmp_path: Path) -> None:
    values = {"arg": [(_bits("bf16", (7,)), Shape.array("bf16", (7,)))]}
    for name in ("a", "b"):
        write_values(str(tmp_path / name), values)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_byte_order_and_memory_order_do_not_matter(tmp_path: Path) -> None:
    value = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.savez(tmp_path / "a.npz", arg0=np.asfortranarray(value.astype(">f4")))
    (found,) = _read(tmp_path / "a.npz", Shape.array("f32", (3, 4)))
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.float32
    assert found.flags.c_contiguous
    assert found.tolist() == value.tolist()


def test_arrays_that_numpy_named_itself_are_read_in_order(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", np.float32(1), np.float32(2))
    pair = Shape.make_tuple((Shape.array("f32", ()), Shape.array("f32", ())))
    assert _read(tmp_path / "a.npz", pair) == [(1, 2)]
    np.savez(tmp_path / "b.npz", x=np.float32(1))
    with pytest.raises(UsageError, match="has no arg0") as caught:
        _read(tmp_path / "b.npz", pair)
    assert caught.value.notes == ("it has x",)


def _entries(arg0: Array, dtype: str) -> dict[str, Any]:
    return {"arg0": arg0, "arg0.dtype": np.array(dtype)}


def test_unused_bits_of_narrow_ints_do_not_matter(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **_entries(arg0=np.array([0x0F, 0xFF, 0x38], np.uint8), dtype="int4"))
    (found,) = _read(tmp_path / "a.npz", Shape.array("s4", (3,)))
    assert np.asarray(found).astype(np.int8).tolist() == [-1, -1, -8]


def test_dynamic_dimensions_may_be_shorter(tmp_path: Path) -> None:
    shape = Shape("f32", (5, 3), dynamic_dims=(True, False))
    np.savez(tmp_path / "a.npz", arg0=np.zeros((2, 3), np.float32))
    assert np.asarray(_read(tmp_path / "a.npz", shape)[0]).shape == (2, 3)
    np.savez(tmp_path / "a.npz", arg0=np.zeros((6, 3), np.float32))
    with pytest.raises(UsageError, match=r"arg0 of .* is f32\[6,3\], parameter 0 is f32\[<=5,3\]"):
        _read(tmp_path / "a.npz", shape)


F32 = Shape.array("f32", (2,))
WRONG: dict[str, tuple[dict[str, Any], Shape, str]] = {
    "missing": ({"arg1": np.zeros(2, np.float32)}, F32, "has no arg0: 1 arrays are needed"),
    "prefix": ({"out0": np.zeros(2, np.float32)}, F32, "has no arg0"),
    "extra": ({"arg0": np.zeros(2, np.float32), "arg1": np.zeros(2)}, F32, "has arg1, but only 1 arrays are needed"),
    "type": ({"arg0": np.zeros(2, np.float64)}, F32, r"is f64\[2\], parameter 0 is f32\[2\]"),
    "dims": ({"arg0": np.zeros((2, 1), np.float32)}, F32, r"is f32\[2,1\], parameter 0 is f32\[2\]"),
    "scalar": ({"arg0": np.float32(1)}, F32, r"is f32\[\], parameter 0"),
    "strings": ({"arg0": np.array(["a", "b"])}, F32, "is str"),
    "bits": ({"arg0": np.zeros(2, np.uint16)}, Shape.array("bf16", (2,)), r"is u16\[2\], parameter 0 is bf16\[2\]"),
    "other type": ({"arg0": np.zeros(2, np.uint16), "arg0.dtype": np.array("bfloat16")}, F32, r"is bf16\[2\]"),
    "unknown type": ({"arg0": np.zeros(2, np.uint16), "arg0.dtype": np.array("float17")}, F32, "cannot be 'float17'"),
    "width": ({"arg0": np.zeros(2, np.uint8), "arg0.dtype": np.array("bfloat16")}, F32, "cannot be 'bfloat16'"),
    "module name": ({"arg0": np.zeros(2, np.uint8), "arg0.dtype": np.array("finfo")}, F32, "cannot be 'finfo'"),
    "tuple": ({"arg0": np.zeros(2)}, Shape.make_tuple((F32, F32)), "has no arg1: 2 arrays"),
    "leaf": ({"arg0": np.zeros(2, np.float32), "arg1": np.zeros(3)}, Shape.make_tuple((F32, F32)), r"parameter 0\{1\} is f32"),
    "pickle": ({"arg0": np.array([{}], object)}, F32, "holds Python objects"),
    "records": ({"arg0": np.zeros(2, [("x", "f4")])}, F32, "holds records"),
    "nameless": ({"arg0": np.zeros(2, np.uint16), "arg0.dtype": np.zeros(2)}, F32, "does not name a type"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_contents_are_named(name: str, tmp_path: Path) -> None:
    entries, shape, message = WRONG[name]
    np.savez(tmp_path / "a.npz", **entries)
    with pytest.raises(UsageError, match=message):
        _read(tmp_path / "a.npz", shape)


def test_bits_are_told_how_to_say_what_they_are(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", arg0=np.zeros(2, np.uint16))
    with pytest.raises(UsageError) as caught:
        _read(tmp_path / "a.npz", Shape.array("bf16", (2,)))
    assert "'bfloat16'" in caught.value.hint
    np.save(tmp_path / "a.npy", np.array([0x3F80, 0x4000], np.uint16))
    assert np.asarray(_read(tmp_path / "a.npy", Shape.array("bf16", (2,)))[0]).astype(float).tolist() == [1.0, 2.0]


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        _read(tmp_path / "none.npz", F32)
    with pytest.raises(UsageError, match="cannot be read"):
        _read(tmp_path, F32)
    (tmp_path / "text.npz").write_text("HloModule")
    good = io.BytesIO()
    np.savez(good, arg0=np.zeros(1000, np.float32))
    (tmp_path / "cut.npz").write_bytes(good.getvalue()[:500])
    damaged = bytearray(good.getvalue())
    damaged[200:300] = b"x" * 100
    (tmp_path / "damaged.npz").write_bytes(damaged)
    (tmp_path / "empty.npz").write_bytes(b"")
    for name in ("text", "cut", "damaged", "empty"):
        with pytest.raises(UsageError, match="not a file of numpy arrays"):
            _read(tmp_path / f"{name}.npz", Shape.array("f32", (1000,)))
    with zipfile.ZipFile(tmp_path / "other.npz", "w") as other:
        other.writestr("arg0", "text")
    with pytest.raises(UsageError, match="is not an array"):
        _read(tmp_path / "other.npz", F32)


def test_npy_files_are_counted_and_must_hold_one_array(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones(2, np.float32))
    first, second = _read(f"{tmp_path}/a.npy,{tmp_path}/a.npy", F32, F32)
    assert np.asarray(first).tolist() == np.asarray(second).tolist() == [1, 1]
    with pytest.raises(UsageError, match="2 arrays are needed, 1"):
        _read(tmp_path / "a.npy", F32, F32)
    np.savez(tmp_path / "b", arg0=np.ones(2, np.float32))
    (tmp_path / "b.npz").rename(tmp_path / "b.npy")
    with pytest.raises(UsageError, match="holds named arrays"):
        _read(tmp_path / "b.npy", F32)
    (tmp_path / "a.npy").rename(tmp_path / "a.npz")
    with pytest.raises(UsageError, match="holds one array"):
        _read(tmp_path / "a.npz", F32)


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written: No such file"):
        write_values(str(tmp_path / "no" / "a.npz"), {"arg": []})
    with pytest.raises(UsageError, match="cannot be written: Is a directory"):
        write_values(str(tmp_path), {"arg": []})
