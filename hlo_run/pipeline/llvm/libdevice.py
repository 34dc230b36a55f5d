"""libdevice, NVIDIA's maths functions as LLVM bitcode: cut to what kernels may call, and linked function by function.

Reading the whole file costs some 100 ms, more than compiling a kernel. So the functions that kernels use are cut out
once, as LLVM IR text, and kept in the user's cache directory. From that text a kernel gets just the functions it calls
and what they need, within a millisecond.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hlo_run.errors import DeviceError, InternalError
from hlo_run.pipeline.llvm.nvptx import DATA_LAYOUT, TRIPLE, Module, llvmlite_version
from hlo_run.pipeline.llvm.toolkit import LIBDEVICE, find_in_toolkit

PREFIX = "__nv_"
_FOR_F32_AND_F64 = (
    "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf exp exp2 expm1 fabs floor fma fmod "
    "log log10 log1p log2 pow rint round rsqrt sin sinh sqrt tan tanh"
).split()
_FAST_F32 = "cos exp log log10 log2 pow sin tan".split()
# A kernel read from a file may call others; those are cut on demand and not kept.
USUAL_FUNCTIONS = frozenset(
    [f"{PREFIX}{name}{suffix}" for name in _FOR_F32_AND_F64 for suffix in ("", "f")]
    + [f"{PREFIX}fast_{name}f" for name in _FAST_F32]
)

_SYMBOL = re.compile(r"@([\w.$]+)")
_END = "; end of libdevice\n"


@dataclass(frozen=True)
class _Library:
    """A cut libdevice: the text of each symbol, and the lines (types, attributes, metadata) that any of them may need."""

    symbols: dict[str, str]
    types: str
    numbered: str


def link_libdevice(module: Module, functions: Iterable[str], cuda_data_dir: str = "") -> None:
    """Link the libdevice `functions` (`__nv_tanhf`, ..) into `module` and make them private to it.

    Raises DeviceError if there is no libdevice, InternalError if it lacks a function.
    """
    wanted = sorted(set(functions))
    if not wanted:
        return
    file = find_in_toolkit(LIBDEVICE, cuda_data_dir)
    if file is None:
        raise DeviceError(
            f"libdevice is not found, and the kernel calls {wanted[0]}",
            hint="pip install 'nvidia-cuda-nvcc-cu12>=12.9,<13', or set CUDA_HOME or --xla_gpu_cuda_data_dir",
        )
    library = _usual_library(file)
    if not all(name in library.symbols for name in wanted):
        library = _parse_library(_cut(file.read_bytes(), frozenset(wanted)))
    lacking = [name for name in wanted if name not in library.symbols]
    if lacking:
        raise InternalError(f"libdevice has no function {lacking[0]}", notes=(f"searched {file}",))
    closure = Module.from_text(_closure(library, wanted))
    module.link(closure)
    module.internalize(wanted)


def _closure(library: _Library, names: list[str]) -> str:
    """Return LLVM IR with the functions and everything they refer to, in an order that depends on the names alone."""
    reached: dict[str, str] = {}
    pending = list(names)
    while pending:
        name = pending.pop()
        if name in reached:
            continue
        reached[name] = library.symbols[name]
        pending += _SYMBOL.findall(reached[name])
    header = f'target datalayout = "{DATA_LAYOUT}"\ntarget triple = "{TRIPLE}"\n'
    return header + library.types + "".join(reached[name] for name in sorted(reached)) + library.numbered


@functools.cache
def _usual_library(file: Path) -> _Library:
    bitcode = file.read_bytes()
    key = hashlib.sha256(bitcode + "\n".join(sorted(USUAL_FUNCTIONS)).encode()).hexdigest()[:24]
    directory = cache_directory()
    if directory is None:
        return _parse_library(_cut(bitcode, USUAL_FUNCTIONS))
    cached = directory / f"libdevice-{key}-llvmlite-{llvmlite_version()}.ll"
    text = _read(cached)
    if text is None:
        text = _cut(bitcode, USUAL_FUNCTIONS)
        _write(cached, text)
    return _parse_library(text)


def _cut(bitcode: bytes, keep: frozenset[str]) -> str:
    """Return libdevice as text, without what the functions `keep` do not reach."""
    module = Module.from_bitcode(bitcode)
    module.internalize(name for name in module.defined_functions() if name not in keep)
    module.drop_unreachable()
    return str(module)


def _parse_library(text: str) -> _Library:
    symbols: dict[str, str] = {}
    types: list[str] = []
    numbered: list[str] = []
    lines = iter(text.splitlines(keepends=True))
    for line in lines:
        if line.startswith("define "):
            symbols[_first_symbol(line)] = "".join([line, *itertools.takewhile(lambda body: body != "}\n", lines), "}\n"])
        elif line.startswith(("declare ", "@")):
            symbols[_first_symbol(line)] = line
        elif line.startswith("%"):
            types.append(line)
        elif line.startswith("attributes #") or (line.startswith("!") and line[1].isdigit()):
            numbered.append(line)
    return _Library(symbols, "".join(types), "".join(numbered))


def _first_symbol(line: str) -> str:
    match = _SYMBOL.search(line)
    assert match is not None, "LLVM prints the name of a symbol on its first line"
    return match[1]


def cache_directory() -> Path | None:
    """Return the user's directory for things that cost time to make again (it need not exist), None without a home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "hlo-run"
    except RuntimeError:
        return None


def _read(file: Path) -> str | None:
    """Return the cached text, None if there is none or it was cut short."""
    try:
        text, end, rest = file.read_text(encoding="utf-8").rpartition(_END)
    except (OSError, UnicodeDecodeError):
        return None
    return text if end and not rest else None


def _write(file: Path, text: str) -> None:
    """Put the text there for the next run; a cache that cannot be written only costs time."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(suffix=".part", dir=file.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text + _END)
            # Readers see the old state or the whole file, never half of it.
            os.replace(part, file)
        except OSError:
            os.unlink(part)
