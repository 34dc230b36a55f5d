"""Links functions of libdevice, NVIDIA's maths library in LLVM bitcode, into kernels.

Reading the whole file takes about 100 ms, more than compiling a kernel. The functions that kernels use are therefore
extracted once, as LLVM IR text, and cached in the user's cache directory. A kernel gets only the functions that it calls
from that text, and their dependencies; this takes less than a millisecond.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from hlo_run.cache import digest, open_cache
from hlo_run.codegen.llvm.nvptx import DATA_LAYOUT, TRIPLE, Module, llvmlite_version
from hlo_run.codegen.llvm.toolkit import LIBDEVICE, find_in_toolkit
from hlo_run.errors import DeviceError, InternalError
from hlo_run.walks import walk

PREFIX = "__nv_"
_FOR_F32_AND_F64 = (
    "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf exp exp2 expm1 fabs floor fma fmod "
    "log log10 log1p log2 pow rint round rsqrt sin sinh sqrt tan tanh"
).split()
_FAST_F32 = "cos exp log log10 log2 pow sin tan".split()
# A kernel from a file may call other functions; those are extracted on demand and not cached.
USUAL_FUNCTIONS = frozenset(
    [f"{PREFIX}{name}{suffix}" for name in _FOR_F32_AND_F64 for suffix in ("", "f")]
    + [f"{PREFIX}fast_{name}f" for name in _FAST_F32]
)

_SYMBOL = re.compile(r"@([\w.$]+)")


class _Library(Struct, frozen=True):
    """Extracted functions: the text of each symbol, and the shared lines (types, attributes, metadata)."""

    symbols: dict[str, str]
    types: str
    numbered: str


def link_libdevice(module: Module, functions: Iterable[str], cuda_data_dir: str = "") -> None:
    """Link the libdevice `functions` (`__nv_tanhf`, ..) into `module` and make them private to it.

    Raises DeviceError if libdevice is not found, InternalError if it lacks a function.
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


def read_libdevice(cuda_data_dir: str = "") -> None:
    """Read libdevice, if it is found, so that the first kernel that calls it need not."""
    file = find_in_toolkit(LIBDEVICE, cuda_data_dir)
    if file is not None:
        _usual_library(file)


def _closure(library: _Library, names: list[str]) -> str:
    """Return LLVM IR with the functions and everything they refer to, sorted by name."""
    symbols = library.symbols
    reached = {name: symbols[name] for name in walk(names, lambda name: _SYMBOL.findall(symbols[name]))}
    header = f'target datalayout = "{DATA_LAYOUT}"\ntarget triple = "{TRIPLE}"\n'
    return header + library.types + "".join(reached[name] for name in sorted(reached)) + library.numbered


@functools.cache
def _usual_library(file: Path) -> _Library:
    bitcode = file.read_bytes()
    key = digest(hashlib.sha256(bitcode).hexdigest(), *sorted(USUAL_FUNCTIONS), llvmlite_version())
    cache = open_cache("libdevice")
    stored = cache.get(key) if cache else None
    if stored is None:
        stored = _cut(bitcode, USUAL_FUNCTIONS).encode()
        if cache:
            cache.put(key, stored)
    return _parse_library(stored.decode())


def _cut(bitcode: bytes, keep: frozenset[str]) -> str:
    """Return the text of the functions `keep` of libdevice, with everything they refer to."""
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
