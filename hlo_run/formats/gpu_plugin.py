"""The program of a child process in which real XLA:GPU compiles: `python gpu_plugin.py PLUGIN TARGET < module.hlo`.

PLUGIN is the shared object of XLA's CUDA plugin. TARGET is a file with an XLA `gpu_target_config`, with which the plugin
compiles without a GPU. The module is passed as a proto, so that XLA does not change it before compilation. A module that has
several replicas or partitions in its header is compiled for as many GPUs, and XLA partitions one that was not partitioned
before. The results are the dumps that XLA_FLAGS asks for. Like `conversions.py` it imports no module of hlo_run, and prints
refusals to stderr with exit code `REFUSED`. XLA aborts the process if one of its checks fails.
"""

from __future__ import annotations

import ctypes
import importlib
import re
import sys
from pathlib import Path
from typing import Any, TypeAlias

REFUSED = 3

_WORD = 8
# The plugin's table has its size, a pointer, the version (size, pointer, two 32-bit numbers), and then the functions.
_MAJOR_OFFSET = 32
_FUNCTIONS_OFFSET = 40
# Indices of functions in the table, to which new versions only append.
_ERROR_DESTROY, _ERROR_MESSAGE, _INITIALIZE, _CREATE_TOPOLOGY, _COMPILE = 0, 1, 3, 82, 89
_LAST = _COMPILE
_STRING = 0  # the type of a named value
_NAMED_VALUE_BYTES = 56

_Words: TypeAlias = "ctypes.Array[ctypes.c_uint64]"


class Refused(Exception):
    """A refusal, with XLA's message."""


class Plugin:
    """The plugin's functions. Each takes a record of 8-byte words, which begins with its size and a null pointer."""

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)
        library.GetPjrtApi.restype = ctypes.c_void_p
        self._table: int = library.GetPjrtApi()
        self._kept: list[Any] = []  # memory to which XLA has pointers
        size = ctypes.c_uint64.from_address(self._table).value
        major = ctypes.c_int32.from_address(self._table + _MAJOR_OFFSET).value
        if major != 0 or size < _FUNCTIONS_OFFSET + _WORD * (_LAST + 1):
            raise Refused(f"{path} has interface {major}, which hlo-run does not know")
        self._call(_INITIALIZE, self._record())

    def topology(self, target: bytes, devices: int) -> int:
        """Return a topology handle of so many GPUs in one host, with the given target config."""
        shape = self._text(b"1x1x%d" % devices)
        options = ((b"target_config", self._text(target)), (b"topology", shape))
        words: list[int] = []
        for name, value in options:
            words += [_NAMED_VALUE_BYTES, 0, *self._text(name), _STRING, *value]
        record = self._record(*shape, self._array(words), len(options), 0)
        self._call(_CREATE_TOPOLOGY, record)
        return record[6]

    def compile(self, topology: int, module: bytes, options: bytes) -> None:
        """Compile a serialized HloModuleProto; raises Refused with XLA's message."""
        program = self._record(*self._text(module), *self._text(b"hlo"))
        self._call(_COMPILE, self._record(topology, ctypes.addressof(program), *self._text(options), 0, 0))

    def _call(self, function: int, record: _Words) -> None:
        error = self._raw(function, record)
        if not error:
            return
        message = self._record(error, 0, 0)
        self._raw(_ERROR_MESSAGE, message)
        text = ctypes.string_at(message[3], message[4]).decode(errors="replace")
        self._raw(_ERROR_DESTROY, self._record(error))
        raise Refused(text)

    def _raw(self, function: int, record: _Words) -> int:
        address = ctypes.c_uint64.from_address(self._table + _FUNCTIONS_OFFSET + _WORD * function).value
        return ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(address)(ctypes.addressof(record)) or 0

    def _record(self, *words: int) -> _Words:
        size = _WORD * (2 + len(words))
        record = (ctypes.c_uint64 * (2 + len(words)))(size, 0, *words)
        self._kept.append(record)
        return record

    def _array(self, words: list[int]) -> int:
        array = (ctypes.c_uint64 * len(words))(*words)
        self._kept.append(array)
        return ctypes.addressof(array)

    def _text(self, data: bytes) -> tuple[int, int]:
        """Return the address of a copy of the bytes, and their number."""
        buffer = ctypes.create_string_buffer(data, len(data))
        self._kept.append(buffer)
        return ctypes.addressof(buffer), len(data)


def device_counts(text: str) -> tuple[int, int]:
    """Return the numbers of replicas and partitions that a module's header has."""
    header = text[: text.find("\n")]
    found = [re.search(rf"\b{name}=(\d+)", header) for name in ("replica_count", "num_partitions")]
    replicas, partitions = (int(count[1]) if count else 1 for count in found)
    return replicas, partitions


def compile_options(program: Any, replicas: int, partitions: int, is_divided: bool, is_shardy: bool) -> bytes:
    """Return compile options with the entry layouts of `program`; without them XLA uses default layouts."""
    client = importlib.import_module("jaxlib.xla_client")
    options: Any = client.CompileOptions()
    options.argument_layouts = program.parameter_shapes()
    build = options.executable_build_options
    build.result_layout = program.result_shape()
    if replicas * partitions > 1:
        build.num_replicas, build.num_partitions = replicas, partitions
        build.use_spmd_partitioning = is_divided
        build.use_shardy_partitioner = is_shardy
        devices = importlib.import_module("numpy").arange(replicas * partitions).reshape(replicas, partitions)
        build.device_assignment = client.DeviceAssignment.create(devices)
    return options.SerializeAsString()


def main() -> int:
    """Compile the module on stdin."""
    plugin, target = sys.argv[1:]
    try:
        text = sys.stdin.buffer.read().decode()
        hlo = importlib.import_module("jaxlib._hlo")
        module: bytes = hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
        xla = Plugin(plugin)
        replicas, partitions = device_counts(text)
        is_shardy = "xla.sdy." in text
        # Without shardings XLA cannot partition these; they say that the module was partitioned.
        is_whole = not re.search(r"\b(?:partition-id|[a-z-]+-start)\(", text)
        is_divided = is_shardy or "sharding={" in text or (partitions > 1 and is_whole)
        options = compile_options(hlo.XlaComputation(module).program_shape(), replicas, partitions, is_divided, is_shardy)
        xla.compile(xla.topology(Path(target).read_bytes(), replicas * partitions), module, options)
    except (Refused, RuntimeError, ValueError, OSError) as error:  # jaxlib's own errors are RuntimeErrors
        sys.stderr.write(f"{error}\n")
        return REFUSED
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
