"""Hostile `.npy` and `.npz` files: they are refused before they take memory, in words that do not advise to trust them."""

from __future__ import annotations

import io
import random
import re
import struct
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hlo_run.errors import UsageError
from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.literal_files import read_arrays, read_values

F32 = Shape.array("f32", (2,))
_HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}"
_MOST_BYTES = 4 << 20


def _npy(header: str = _HEADER, elements: bytes = bytes(8), version: tuple[int, int] = (1, 0), size: int | None = None) -> bytes:
    """Return an .npy file with this header. `size`: the size that it gives for the header, if it is another one."""
    length = struct.pack("<H" if version == (1, 0) else "<I", len(header) if size is None else size)
    return b"\x93NUMPY" + bytes(version) + length + header.encode("latin1") + elements


def _zip(member: bytes, name: str = "arg0.npy", method: int = zipfile.ZIP_STORED, times: int = 1) -> bytes:
    stream = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(stream, "w", method) as file:
        warnings.simplefilter("ignore")  # of two members with the same name
        for _ in range(times):
            file.writestr(name, member)
    return stream.getvalue()


def _encrypted() -> bytes:
    data = bytearray(_zip(_npy()))
    for place in (data.find(b"PK\x03\x04") + 6, data.find(b"PK\x01\x02") + 8):
        data[place] |= 1
    return bytes(data)


def _bomb() -> bytes:
    return _zip(_npy(_HEADER.replace("(2,)", "(4194304,)"), bytes(16 << 20)), method=zipfile.ZIP_DEFLATED)


# Files are made by their tests: every process of a run imports this module.
HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "a bomb of another shape": (_bomb, r"is f32\[4194304\], parameter 0 is f32\[2\]"),
    "a bomb behind the array": (
        lambda: _zip(_npy() + bytes(16 << 20), method=zipfile.ZIP_DEFLATED),
        "is damaged: it has 16777224 bytes",
    ),
    "a name that is a bomb": (
        lambda: _zip(_npy(_HEADER.replace("<f4", "<U1999999").replace("(2,)", "()"), bytes(7999996)), "arg0.dtype.npy", 8),
        "has no arg0",
    ),
    "a huge shape": (lambda: _zip(_npy(_HEADER.replace("(2,)", "(1099511627776,)"))), r"is f32\[1099511627776\]"),
    "a shape beyond 64 bits": (lambda: _zip(_npy(_HEADER.replace("(2,)", "(1180591620717411303424,)"))), "or is damaged"),
    "negative dimensions": (lambda: _zip(_npy(_HEADER.replace("(2,)", "(-1, -2)"))), "or is damaged"),
    "bool dimensions": (lambda: _zip(_npy(_HEADER.replace("(2,)", "(True, 2)"))), "or is damaged"),
    "a long header": (lambda: _zip(_npy(size=60000)), "its header has 60000 bytes"),
    "a header of 4 GiB": (lambda: _zip(_npy(version=(2, 0), size=0xFFFFFFFF)), "its header has 4294967295 bytes"),
    "a nested header": (lambda: _zip(_npy("(" * 3000 + ")" * 3000)), "its header has"),
    "another nested header": (lambda: _zip(_npy("[" * 1500 + "]" * 1500)), "or is damaged"),
    "code in the header": (lambda: _zip(_npy("__import__('os').abort()")), "or is damaged"),
    "objects": (lambda: _zip(_npy(_HEADER.replace("<f4", "|O"))), "holds Python objects"),
    "version 3": (lambda: _zip(_npy(version=(3, 0))), "version of the format"),
    "no elements": (lambda: _zip(_npy(elements=b"")), "is damaged: it has 0 bytes"),
    "the same name twice": (lambda: _zip(_npy(), times=2), "two members with the same name"),
    "an encrypted member": (_encrypted, "packed in a way that numpy does not use"),
    "bzip2": (lambda: _zip(_npy(), method=zipfile.ZIP_BZIP2), "packed in a way that numpy does not use"),
    "another name": (lambda: _zip(_npy(), "arg²"), "has no arg0"),
    "a long number": (lambda: _zip(_npy(), "arg" + "9" * 5000 + ".npy"), "has no arg0"),
    "a path": (lambda: _zip(_npy(), "../../arg0.npy"), "has no arg0"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_with_little_memory(name: str, tmp_path: Path) -> None:
    data, message = HOSTILE[name]
    (tmp_path / "x.npz").write_bytes(data())
    tracemalloc.start()
    try:
        with pytest.raises(UsageError) as caught:
            read_values(str(tmp_path / "x.npz"), "arg", [F32], ["parameter 0"])
        assert tracemalloc.get_traced_memory()[1] < _MOST_BYTES
    finally:
        tracemalloc.stop()
    text = caught.value.render()
    assert re.search(message, text)
    assert "allow_pickle" not in text
    assert "max_header_size" not in text


def test_infeeds_are_compared_with_the_shapes_of_the_module(tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(_bomb())
    with pytest.raises(UsageError, match=r"is f32\[4194304\], args of the module take f32\[2\]"):
        read_arrays(str(tmp_path / "x.npz"), "arg", [F32])
    (tmp_path / "x.npz").write_bytes(_zip(_npy()))
    assert [array.tolist() for array in read_arrays(str(tmp_path / "x.npz"), "arg", [F32])] == [[0, 0]]


def test_an_npy_file_with_a_huge_header(tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(_npy(version=(2, 0), size=0xFFFFFFFF))
    with pytest.raises(UsageError, match="its header has 4294967295 bytes"):
        read_values(str(tmp_path / "x.npy"), "arg", [F32], ["parameter 0"])


def test_changed_bytes_never_escape_as_other_errors(tmp_path: Path) -> None:
    source, file = random.Random(5), tmp_path / "x.npz"
    stream = io.BytesIO()
    entries: dict[str, Any] = {"arg0": np.ones(2, "f4"), "arg1": np.zeros(3, "u2"), "arg1.dtype": np.array("bfloat16")}
    np.savez_compressed(stream, **entries)
    good = stream.getvalue()
    shapes = [F32, Shape.array("bf16", (3,))]
    refused = 0
    for _ in range(400):
        data = bytearray(good)
        for _ in range(source.randint(1, 6)):
            data[source.randrange(len(data))] = source.randrange(256)
        file.write_bytes(data[: source.randint(1, len(data))] if source.random() < 0.2 else data)
        try:
            read_values(str(file), "arg", shapes, ["parameter 0", "parameter 1"])
        except UsageError:
            refused += 1
    assert refused > 200
